"""``hadar check`` on partitions: the names, the groups, GPU types without a group."""

from dataclasses import replace
from math import inf

import pytest
from hand_made import node

from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.check_cluster import association_findings, partition_findings
from slurm_hadar.domain.node import Partition
from slurm_hadar.slurm.limits import AccountLimits

NODES = [node("v1"), node("v2"), replace(node("k1"), weight=2)]
GPU = Partition(
    "gpu", ("v1", "v2", "k1"), default=True, priority_tier=4, max_time_s=7200.0, default_time_s=60.0
)
V100 = replace(GPU, name="v100", nodes=("v1", "v2"), default=False)
K80 = replace(GPU, name="k80", nodes=("k1",), default=False)
IDLE = replace(GPU, name="idle", default=False, priority_tier=1)
TYPES = '[gpu_types.v100]\n[gpu_types.k80]\nfeature = "old"\n'
GROUP = '[partitions.groups]\ngpu = ["v100", "k80"]\n'


def found(toml, partitions, nodes=NODES, settings=None):
    config = configuration.parse(toml + TYPES, "test")
    return list(partition_findings(config, settings or {}, partitions, nodes))


def only(*given, **more):
    (finding,) = found(*given, **more)
    return finding


@pytest.mark.parametrize(("most", "level"), [(4, "problem"), (inf, "ok")])
def test_a_group_whose_cpus_slurm_counts_for_each_partition_does_not_work(most, level):
    finding = only(GROUP, [replace(one, max_cpus_per_node=most) for one in (GPU, V100, K80)])
    assert finding.level == level and ("MaxCPUsPerNode" in finding.what) is (level == "problem")


def test_a_group_that_is_alike_is_fine():
    finding = only(GROUP, [GPU, V100, K80])
    assert (finding.level, finding.what) == ("ok", "partition gpu stands for v100, k80")


def test_types_whose_nodes_slurm_prefers_by_name_only_are_named():
    alike = [replace(one, weight=7) for one in NODES]
    fine, finding = found(GROUP, [GPU, V100, K80], nodes=alike)
    assert (fine.level, finding.level) == ("ok", "warning")
    assert "nodes of v100 and k80 in partition gpu have Weight=7" in finding.what
    assert "lower Weight" in finding.cure
    three = [*NODES, replace(node("p1"), weight=2)]
    p100 = replace(K80, name="p100", nodes=("p1",))
    partitions = [replace(GPU, nodes=(*GPU.nodes, "p1")), V100, K80, p100]
    _, finding = found(GROUP.replace('"k80"', '"k80", "p100"'), partitions, nodes=three)
    assert "nodes of k80 and p100" in finding.what


def test_a_member_may_be_named_like_the_feature_of_its_type():
    named = GROUP.replace("k80", "old")
    assert only(named, [GPU, V100, replace(K80, name="old")]).level == "ok"


@pytest.mark.parametrize(
    ("group", "partitions", "says"),
    [
        (GROUP, [V100, K80], "no partition gpu"),
        (GROUP, [GPU, V100], "no partition k80"),
        (GROUP, [GPU, V100, replace(K80, max_time_s=60.0)], "k80 has another MaxTime than gpu"),
        (GROUP, [GPU, V100, replace(K80, defaults={"DefMemPerCPU": "1"})], "k80 has another DefM"),
        (GROUP, [GPU, V100, replace(K80, nodes=())], "node k1, which no member has"),
        (GROUP, [GPU, V100, replace(K80, nodes=("v2", "k1"))], "the GPU types v100, k80"),
        (GROUP.replace("k80", "slow"), [GPU, V100, replace(K80, name="slow")], "another name"),
        ('[partitions]\nopt_in = ["gone"]\n', [V100], "partitions.opt_in: this Slurm has no"),
    ],
)
def test_a_group_that_would_not_work_is_a_problem(group, partitions, says):
    finding = only(group, partitions)
    assert finding.level == "problem" and says in finding.what and finding.cure


def test_a_member_without_gpus_is_a_problem():
    bare = [*NODES, replace(node("k2"), gpus={})]
    members = [
        replace(GPU, nodes=(*GPU.nodes, "k2")),
        V100,
        K80,
        replace(K80, name="c", nodes=("k2",)),
    ]
    group = GROUP.replace('"k80"', '"k80", "c"')
    assert "partition c has no GPU" in only(group, members, nodes=bare).what


def test_untyped_gpus_have_the_type_of_their_feature():
    untyped = [
        node("v1"),
        node("v2"),
        replace(node("k1", gpus=2, weight=2), gpus={"": 2}, features=("old",)),
    ]
    assert only(GROUP, [GPU, V100, K80], nodes=untyped).level == "ok"
    bare = [node("v1"), node("v2"), replace(node("k1"), gpus={"": 2}, features=())]
    assert "k80 has GPUs without a type" in only(GROUP, [GPU, V100, K80], nodes=bare).what


def test_types_that_share_a_partition_get_the_lines_that_part_them():
    finding = only("", [GPU, IDLE], settings={"PreemptMode": "REQUEUE"})
    assert finding.level == "warning" and "partition gpu has several GPU types" in finding.what
    shown = [line.strip() for line in finding.cure.splitlines()]
    assert shown[1:] == [
        "slurm.conf:",
        "PartitionName=v100 Nodes=v[1-2] PriorityTier=4 MaxTime=120 DefaultTime=1 State=UP",
        "PartitionName=k80 Nodes=k1 PriorityTier=4 MaxTime=120 DefaultTime=1 State=UP",
        "hadar.toml:",
        "[partitions.groups]",
        'gpu = ["v100", "k80"]',
    ]


def test_partitions_that_are_there_need_the_group_only():
    finding = only("", [GPU, V100, K80, IDLE])
    assert "slurm.conf" not in finding.cure and 'gpu = ["v100", "k80"]' in finding.cure
    assert found("", [V100, K80]) == []
    assert found("", [replace(GPU, state="DOWN")]) == []
    assert found('[backfill]\npartitions = ["gpu"]\n', [GPU]) == []


@pytest.mark.parametrize(
    ("partitions", "nodes", "why"),
    [
        ([GPU], [*NODES[:2], replace(NODES[2], gpus={"k80": 1, "v100": 1})], "several types"),
        ([GPU], [*NODES[:2], replace(NODES[2], gpus={"": 1})], "k1 have no type"),
        ([replace(GPU, nodes=("v1", "k1", "c1"))], NODES, "c1 has no GPU"),
        ([GPU, replace(V100, min_nodes=2)], NODES, "v100 has another MinNodes than gpu"),
        ([GPU, replace(V100, nodes=("v1",))], NODES, "v100 has other nodes than"),
        ([replace(GPU, name="v100")], NODES, "is named like one of them"),
    ],
)
def test_where_they_cannot_be_parted_it_says_why(partitions, nodes, why):
    assert why in only("", partitions, nodes=nodes).cure


def test_a_taken_name_is_replaced_by_the_feature():
    finding = only("", [GPU, V100, replace(K80, grace_s=9.0)])
    assert "PartitionName=old Nodes=k1 " in finding.cure
    assert 'gpu = ["v100", "old"]' in finding.cure


def test_users_with_an_association_for_a_partition_of_a_group_are_named():
    config = configuration.parse(GROUP + TYPES, "test")
    own = {("phys", "ann"): frozenset({"gpu"}), ("chem", "bob"): frozenset({"k80", "debug"})}
    (finding,) = association_findings(config, AccountLimits(partitions=own))
    assert finding.level == "warning"
    assert "user bob of account chem has one for k80 and 1 more" in finding.what
    assert "jobs that ask for gpu stay in it" in finding.what and "sacctmgr" in finding.cure
    other = {("phys", "ann"): frozenset({"debug"})}
    assert not list(association_findings(config, AccountLimits(partitions=other)))


def test_the_lines_of_new_partitions_give_jobs_what_the_common_one_does():
    common = replace(GPU, defaults={"DefMemPerCPU": "4096"})
    shown = only("", [common]).cure
    assert shown.count(" DefMemPerCPU=4096 ") == 2
