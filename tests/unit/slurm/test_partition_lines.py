"""Partitions as lines of slurm.conf."""

from dataclasses import fields, replace
from math import inf
from pathlib import Path

import pytest

from slurm_hadar.domain.node import Node, Partition
from slurm_hadar.slurm import partition_lines, records
from slurm_hadar.tuning import conf, site

FULL = Partition(
    "gpu", ("n1",), max_time_s=7200.0, default_time_s=3600.0, min_nodes=2, max_nodes=3.0,
    max_cpus_per_node=8.0, priority_tier=5, priority_factor=9, preempt_mode="REQUEUE", grace_s=30.0,
    allow_groups=("a", "b"), allow_accounts=("c",), deny_accounts=("d",), allow_qos=("e",),
    deny_qos=("f",), root_only=True, reservation_required=True, exclusive=True,
    submit_hosts=("login",), max_mem_per_node_mb=4000.0, max_mem_per_cpu_mb=500.0, qos="part",
    billing="CPU=1.0,GRES/gpu=2",
    defaults={"DefMemPerCPU": "4096", "DefCpuPerGPU": "4", "OverTimeLimit": "5", "LLN": "YES"},
)  # fmt: skip
PLAIN = Partition("gpu", ("n1",))


@pytest.mark.parametrize("partition", [FULL, PLAIN, replace(PLAIN, default_time_s=600.0)])
def test_a_line_says_all_that_a_partition_is(partition):
    keys = {"Nodes": "n1", **partition_lines.keys(partition)}
    line = "PartitionName=gpu " + " ".join(f"{key}={value}" for key, value in keys.items())
    text = f"NodeName=n1 Gres=gpu:v100:2\n{line}\n"
    (read,) = site.of_conf(conf.parse(text, Path("/etc/slurm/slurm.conf"))).partitions
    assert read == partition


def test_a_plain_partition_has_a_short_line():
    assert partition_lines.keys(PLAIN) == {"PriorityTier": "1"}
    assert partition_lines.keys(replace(PLAIN, preempt_mode="OFF")) == {"PriorityTier": "1"}
    off = partition_lines.keys(replace(PLAIN, preempt_mode="OFF"), "REQUEUE")
    assert off == {"PriorityTier": "1", "PreemptMode": "OFF"}
    unlimited = replace(PLAIN, max_time_s=60.0, default_time_s=inf)
    assert partition_lines.keys(unlimited)["DefaultTime"] == "UNLIMITED"


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("DefMemPerCPU=4096", {"DefMemPerCPU": "4096"}),
        ("DefMemPerNode=UNLIMITED JobDefaults=(null)", {}),
        (
            "JobDefaults=DefCpuPerGPU=4,DefMemPerGPU=9000",
            {"DefCpuPerGPU": "4", "DefMemPerGPU": "9000"},
        ),
        ("OverTimeLimit=NONE ExclusiveUser=NO LLN=NO SelectTypeParameters=NONE", {}),
        ("OverTimeLimit=UNLIMITED", {"OverTimeLimit": "UNLIMITED"}),
        ("OverSubscribe=FORCE:2", {"OverSubscribe": "FORCE:2"}),
        ("ExclusiveUser=YES", {"ExclusiveUser": "YES"}),
        ("Exclusive=USER", {"Exclusive": "USER"}),
        ("MaxCPUsPerSocket=3", {"MaxCPUsPerSocket": "3"}),
        ("SelectTypeParameters=CR_SOCKET", {"SelectTypeParameters": "CR_SOCKET"}),
    ],
)
def test_what_scontrol_shows_of_what_jobs_get_makes_a_difference(shown, found):
    line = "PartitionName={} Nodes=n1 PriorityTier=1 PriorityJobFactor=1 {}\n"
    plain, other = records.partitions(line.format("gpu", "") + line.format("k80", shown))
    assert other.defaults == found and plain.defaults == {}
    assert partition_lines.difference(plain, other) == next(iter(found), "")
    assert partition_lines.difference(other, plain) == next(iter(found), "")


@pytest.mark.parametrize("field", fields(Partition), ids=lambda field: field.name)
def test_only_name_nodes_default_and_state_may_differ(field):
    if field.name in ("name", "nodes", "default", "state"):
        other = replace(PLAIN, name="x", nodes=(), default=True, state="DOWN")
        assert partition_lines.difference(PLAIN, other) == ""
    else:
        other = replace(PLAIN, **{field.name: getattr(FULL, field.name)})
        assert partition_lines.difference(PLAIN, other)


def test_a_partition_whose_cpus_slurm_counts_has_no_split():
    """A job in a member would wait where one in the common partition starts."""
    nodes = [Node("v1", {"v100": 2}), Node("k1", {"k80": 2})]
    common = Partition("gpu", ("v1", "k1"))
    assert partition_lines.split_by_type(common, [common], nodes, {}).new == ("v100", "k80")
    counted = replace(common, max_cpus_per_node=4.0)
    split = partition_lines.split_by_type(counted, [counted], nodes, {})
    assert "MaxCPUsPerNode=4 of gpu" in split.why_not and not split.members
