"""Each rule on a site where its right advice is known, and on one where it has to be silent."""

from pathlib import Path
from typing import Any

import made_history
import pytest

from slurm_hadar import config
from slurm_hadar.controller.observation.access import why_not_alike
from slurm_hadar.domain.node import Node
from slurm_hadar.profiles.cpu_table import CpuTable, shipped
from slurm_hadar.tuning import (
    advice_cpus,
    advice_partitions,
    advice_settings,
    advice_types,
    conf,
    site,
)
from slurm_hadar.tuning.advice import Study
from slurm_hadar.tuning.draft import applied

HERE = Path("/etc/slurm/slurm.conf")


def study(text: str = made_history.CONF, toml: str = "", **more: Any) -> Study:
    place = site.of_conf(conf.parse(text, HERE))
    own = config.parse(toml, "hadar.toml") if toml else None
    return Study(place, config=own, **more)


def lines(rule, on: Study) -> list[str]:
    found = list(rule(on))
    assert all(one.basis == "not simulated" and one.gain == "not simulated" for one in found)
    return [line.text for one in found for line in on.draft.lines(one.refs)]


def test_kill_wait_leaves_time_to_save_and_no_more() -> None:
    assert lines(advice_settings.kill_wait, study()) == []
    assert lines(advice_settings.kill_wait, study("KillWait=10\n")) == ["KillWait=30"]
    assert lines(advice_settings.kill_wait, study("KillWait=30\n", save_s=40.0)) == ["KillWait=80"]
    assert lines(advice_settings.kill_wait, study("KillWait=600\n", save_s=40.0)) == ["KillWait=80"]
    quiet = study("KillWait=100\n", save_s=40.0)
    assert lines(advice_settings.kill_wait, quiet) == []
    assert quiet.fine == ["KillWait: 100 s leaves twice the 40 s that a checkpoint takes"]


def test_cred_expire_keeps_what_else_stands_there() -> None:
    assert lines(advice_settings.cred_expire, study()) == []
    found = lines(advice_settings.cred_expire, study("AuthInfo=socket=/run/m,cred_expire=5\n"))
    assert found == ["AuthInfo=cred_expire=120,socket=/run/m"]


def test_features_are_added_to_those_that_are_there() -> None:
    text = (
        "NodeName=DEFAULT Feature=fast\nNodeName=a[1-2] Gres=gpu:t4:2 CPUs=8\n"
        "NodeName=b1 Gres=gpu:a100:4 Feature=big,a100\nNodeName=c1 CPUs=8\n"
    )
    found = lines(advice_settings.features, study(text))
    assert found == ["NodeName=a[1-2] Gres=gpu:t4:2 CPUs=8 Features=fast,t4"]
    renamed = study(text, '[gpu_types.t4]\nfeature = "fast"\n')
    assert lines(advice_settings.features, renamed) == []


def test_without_slurm_conf_the_keys_alone_are_reported_and_on_which_nodes() -> None:
    nodes = tuple(Node(f"a{n}", {"t4": 2}) for n in (1, 2, 3))
    on = Study(site.SlurmSite(nodes, (), {"killwait": "30 sec"}, None, ("Slurm",)))
    (one,) = advice_settings.features(on)
    (line,) = on.draft.lines(one.refs)
    assert (line.text, line.where, line.whole) == (
        "Features=t4", "on the NodeName line of a[1-3]", False,
    )  # fmt: skip


def test_gpus_are_accounted_for_by_type() -> None:
    assert lines(advice_settings.accounting, study()) == []
    text = made_history.CONF.replace("gres/gpu,gres/gpu:v100,gres/gpu:k80", "gres/gpu,license/x")
    assert lines(advice_settings.accounting, study(text)) == [
        "AccountingStorageTRES=gres/gpu,license/x,gres/gpu:v100,gres/gpu:k80"
    ]
    # Seen on 22.05.8: scontrol reconfigure leaves the list as it was.
    (one,) = advice_settings.accounting(study(text))
    assert "slurmctld has to be restarted" in one.why
    none = text.replace("accounting_storage/slurmdbd", "accounting_storage/none")
    assert lines(advice_settings.accounting, study(none)) == []


ONE = (
    made_history.CONF.split("PartitionName=")[0]
    + 'PartitionName=DEFAULT QOS=part TRESBillingWeights="CPU=1, Mem=2"\n'
    "PartitionName=batch Nodes=ALL Default=YES Priority=3 MaxTime=1-0 AllowAccounts=a,b\n"
)
GROUP = '[partitions.groups]\nbatch = ["v100", "k80"]\n'


def opened(text: str) -> str:
    """With a partition that everybody may use, as the advice is about such ones."""
    return text.replace(" AllowAccounts=a,b", "")


def test_a_common_partition_gets_one_for_each_type_with_its_own_keys() -> None:
    on = study(opened(ONE))
    assert lines(advice_types.by_type, on) == [
        "PartitionName=v100 Nodes=v[1-2] PriorityTier=3 PriorityJobFactor=3 QOS=part "
        'TRESBillingWeights="CPU=1, Mem=2" MaxTime=1-0 State=UP',
        "PartitionName=k80 Nodes=k[1-4] PriorityTier=3 PriorityJobFactor=3 QOS=part "
        'TRESBillingWeights="CPU=1, Mem=2" MaxTime=1-0 State=UP',
    ]
    (one,) = advice_types.by_type(on)
    assert "\n".join(one.toml) + "\n" == GROUP
    assert config.parse("\n".join(one.toml), "advice").partitions.groups == {
        "batch": ("v100", "k80")
    }
    assert list(advice_types.by_type(study(ONE))) == []


def test_the_types_once_parted_are_a_group_and_then_fine() -> None:
    on = study(opened(ONE))
    list(advice_types.by_type(on))
    text = applied(opened(ONE), on.draft.everything())
    place = site.of_conf(conf.parse(text, HERE))
    batch, *members = place.partitions
    assert why_not_alike(batch, members) == "" and [p.name for p in members] == ["k80", "v100"]
    (again,) = advice_types.by_type(study(text))
    assert again.refs == () and "\n".join(again.toml) + "\n" == GROUP
    fine = study(text, GROUP)
    assert list(advice_types.by_type(fine)) == []
    assert fine.fine == ["GPU types: partition batch stands for v100, k80"]


def test_the_new_partitions_stay_alike_where_others_give_way_to_them() -> None:
    text = opened(ONE) + "PartitionName=low Nodes=ALL PriorityTier=3\n"
    on = study(text, '[backfill]\npartitions = ["low"]\n')
    list(advice_types.by_type(on))
    list(advice_partitions.idle_nodes(on))
    place = site.of_conf(conf.parse(applied(text, on.draft.everything()), HERE))
    found = {p.name: p for p in place.partitions}
    assert why_not_alike(found["batch"], [found["v100"], found["k80"]]) == ""
    assert found["batch"].priority_tier == 10 > found["low"].priority_tier


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ONE.replace("k80:4", "t4:2,gpu:k80:2"), "several types"),
        (ONE + "PartitionName=k80 Nodes=k[1-4] MaxTime=5\n", "another MaxTime than batch"),
        (ONE + "PartitionName=k80 Nodes=k[1-2] MaxTime=1-0\n", "k80 has other nodes"),
        (ONE.replace("Gres=gpu:k80:4", "Gres=gpu:v100:4"), "there is one only"),
    ],
)
def test_types_that_cannot_be_parted_are_left_with_the_reason(text: str, why: str) -> None:
    on = study(opened(text))
    assert list(advice_types.by_type(on)) == [] and why in " ".join(on.fine)


def test_nodes_without_gpus_are_left_out_of_a_new_common_partition() -> None:
    on = study(opened(ONE).replace("NodeName=v", "NodeName=c[1-9] CPUs=4\nNodeName=v", 1))
    first, *_ = lines(advice_types.by_type, on)
    assert first.startswith("PartitionName=gpu Nodes=k[1-4],v[1-2] PriorityTier=3 ")


def test_partitions_per_type_alone_are_joined_only_where_a_replay_says_so() -> None:
    on = study()
    assert list(advice_types.by_type(on)) == []
    assert on.fine == ["GPU types: there is no replay to judge them by"]


IDLE = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"


def test_a_partition_for_idle_nodes_gives_way_at_once_and_to_all() -> None:
    low = "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=60\n"
    high = made_history.CONF.replace(" MaxTime=2-0", " MaxTime=2-0 PriorityTier=5 PreemptMode=OFF")
    on = study(IDLE + high + low)
    (one,) = advice_partitions.idle_nodes(on)
    assert one.topic == "GraceTime"
    (line,) = on.draft.lines(one.refs)
    assert line.text == low.strip().replace("GraceTime=60", "GraceTime=0")
    fine = study(IDLE + high + low.replace(" GraceTime=60", ""))
    assert list(advice_partitions.idle_nodes(fine)) == []
    assert fine.fine == ["idle nodes: partition low gives way as it should"]


def test_a_partition_that_the_configuration_names_is_put_below_all_others() -> None:
    text = made_history.CONF + "PartitionName=low Nodes=ALL\n"
    toml = '[backfill]\nenabled = true\npartitions = ["low"]\n'
    on = study(text, toml)
    (one,) = advice_partitions.idle_nodes(on)
    assert one.topic == "order of partitions"
    place = site.of_conf(conf.parse(applied(text, on.draft.everything()), HERE))
    tiers = {p.name: (p.priority_tier, p.preempt_mode) for p in place.partitions}
    assert tiers["v100"] == tiers["k80"] == (10, "OFF")
    assert tiers["low"][0] == 1
    assert place.settings["preempttype"] == "preempt/partition_prio"


def test_the_order_of_owners_and_others_stays() -> None:
    text = made_history.CONF.replace("Nodes=v[1-2]", "Nodes=v[1-2] PriorityTier=30")
    on = study(text + "PartitionName=low Nodes=ALL\n", '[backfill]\npartitions = ["low"]\n')
    list(advice_partitions.idle_nodes(on))
    order = [line.text.split()[0] for line in on.draft.everything() if "Partition" in line.text]
    assert order == ["PartitionName=v100", "PartitionName=k80", "PartitionName=low"]


def test_defaults_per_gpu_stay_within_a_gpus_share() -> None:
    on = study(cpus=shipped())
    (one,) = advice_cpus.defaults(on)
    for line in on.draft.lines(one.refs):
        words = dict(word.split("=") for word in line.text.split())
        assert 1 <= int(words["DefCpuPerGPU"]) <= 8
        assert 1024 <= int(words["DefMemPerGPU"]) <= 64_000
    assert one.basis == "not simulated"
    again = applied(made_history.CONF, on.draft.everything())
    assert list(advice_cpus.defaults(study(again, cpus=shipped()))) == []


def test_the_fewest_cpus_that_keep_the_speed_are_advised() -> None:
    rows = [("m", 1, float(c), g, min(c, 3.0)) for c in (1, 2, 3, 6) for g in (8.0, 32.0)]
    on = study(cpus=CpuTable(rows, "made"))
    (one,) = advice_cpus.defaults(on)
    (line, _) = on.draft.lines(one.refs)
    # Below the least amount of memory that was measured the table goes down in proportion.
    assert "DefCpuPerGPU=3 DefMemPerGPU=8192" in line.text


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("DefMemPerCPU=1000\n", "DefMemPerCPU is set"),
        ("SelectTypeParameters=CR_Core\n", "gives out no memory"),
    ],
)
def test_memory_is_left_out_where_slurm_would_not_take_it(more: str, why: str) -> None:
    on = study(made_history.CONF + more, cpus=shipped())
    (one,) = advice_cpus.defaults(on)
    assert all("DefMemPerGPU" not in line.text for line in on.draft.lines(one.refs))
    assert any(why in sentence for sentence in on.fine)


def test_continued_lines_are_replaced_as_a_whole() -> None:
    on = study()
    k80 = next(e for e in on.site.conf.nodes if e.keys["nodename"] == "k[1-4]")
    on.draft.node(("k1",), {"Features": "k80,old"}, k80)
    text = applied(made_history.CONF, on.draft.everything())
    place = site.of_conf(conf.parse(text, HERE))
    assert {node.features for node in place.nodes} == {("v100",), ("k80", "old")}
    assert len(place.nodes) == 6
