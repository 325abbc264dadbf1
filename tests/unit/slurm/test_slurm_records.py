from datetime import datetime
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.slurm import records
from slurm_hadar.slurm.records import BillingRule

DATA = Path(__file__).parents[2] / "data" / "slurm"
VERSIONS = ["22.05.8", "24.11.5"]


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes(version: str) -> None:
    k1, m1, v1, v2 = records.nodes((DATA / version / "nodes.txt").read_text())
    assert (k1.name, k1.gpus, k1.gpus_used) == ("k1", {"k80": 4}, {"k80": 2})
    assert v1.gpus_used == {"v100": 3} and v2.gpus_used == {"v100": 2}
    assert v1.cpus == 32 and v1.cpus_used == 2
    assert v1.memory_mb == 256000 and v1.memory_used_mb == 2048
    assert v1.features == ("v100",) and v1.partitions == ("gpu", "v", "idle")
    assert v1.usable and v1.state == "MIXED"
    assert m1.gpus == {"p100": 2, "k80": 2} and m1.gpus_used == {}
    assert m1.state == "IDLE+DRAIN" and not m1.usable


@pytest.mark.parametrize("version", ["24.11.5", "26.05.5"])
def test_a_node_with_two_types(version: str) -> None:
    text = " ".join((DATA / version / "scontrol_d_node_m1.txt").read_text().split("\n"))
    (node,) = records.nodes(text)
    assert node.gpus == {"p100": 2, "k80": 4} and node.gpus_used == {"p100": 1, "k80": 2}
    assert node.partitions == ("gpu", "idle") and node.usable


@pytest.mark.parametrize("version", VERSIONS)
def test_partitions(version: str) -> None:
    gpu, v, idle = records.partitions((DATA / version / "partitions.txt").read_text())
    assert gpu.default and gpu.up and gpu.nodes == ("k1", "m1", "v1", "v2")
    assert (gpu.max_time_s, gpu.default_time_s) == (86400, 3600)
    assert (v.max_time_s, v.default_time_s) == (7200, 7200) and not v.default
    assert idle.max_time_s == inf and idle.allow_groups == ("root",)
    assert gpu.allow_groups == gpu.allow_accounts == gpu.deny_qos == ()
    assert gpu.max_nodes == gpu.max_cpus_per_node == inf and gpu.priority_tier == 1
    assert gpu.preempt_mode == "REQUEUE" and not gpu.exclusive and not gpu.root_only
    assert [one.priority_factor for one in (gpu, v, idle)] == [1, 1, 1]


def test_nodes_and_partitions_of_26_05() -> None:
    folder = DATA / "26.05.5"
    found = {node.name: node for node in records.nodes((folder / "nodes.txt").read_text())}
    assert found["k1"].gpus == {"k80": 4} and found["k1"].gpus_used == {"k80": 2}
    assert found["m1"].gpus == {"p100": 2, "t4": 2} and found["m1"].partitions[0] == "gpu"
    assert all(node.usable and node.cpus == 32 for node in found.values())
    partitions = records.partitions((folder / "partitions.txt").read_text())
    by_name = {partition.name: partition for partition in partitions}
    assert by_name["gpu"].default and by_name["gpu"].max_time_s == 86400
    # Made with OverSubscribe=EXCLUSIVE, which this release shows as Exclusive=NODE.
    assert {name for name, one in by_name.items() if one.exclusive} == {"idle"}


def test_a_partition_with_limits() -> None:
    line = (
        "PartitionName=p AllowGroups=a,b DenyAccounts=guests,old AllowQos=high Default=NO "
        "DefaultTime=NONE GraceTime=60 MaxNodes=4 MaxTime=2-00:00:00 MinNodes=2 "
        "MaxCPUsPerNode=16 Nodes=n[1-3] PriorityJobFactor=3 PriorityTier=10 RootOnly=YES "
        "ReqResv=YES OverSubscribe=EXCLUSIVE PreemptMode=SUSPEND State=DRAIN "
        "TRESBillingWeights=CPU=1.0,GRES/gpu=2"
    )
    (found,) = records.partitions(line)
    assert found.allow_groups == ("a", "b") and found.deny_accounts == ("guests", "old")
    assert found.allow_qos == ("high",) and found.grace_s == 60
    assert (found.min_nodes, found.max_nodes, found.max_cpus_per_node) == (2, 4, 16)
    assert (found.priority_factor, found.priority_tier) == (3, 10)
    assert found.billing == "CPU=1.0,GRES/gpu=2"
    assert found.root_only and found.reservation_required and found.exclusive and not found.up
    assert found.default_time_s == found.max_time_s == 2 * 86400


@pytest.mark.parametrize("version", [*VERSIONS, "26.05.5"])
def test_reservations(version: str) -> None:
    (found,) = records.reservations((DATA / version / "reservations.txt").read_text())
    assert found.name == "weekly" and found.nodes == ("v1", "v2")
    assert found.start_s == datetime(2027, 1, 4, 8).timestamp()
    assert found.end_s - found.start_s == 7200
    assert records.reservations("No reservations in the system\n") == []


@pytest.mark.parametrize("version", [*VERSIONS, "26.05.5"])
def test_configuration(version: str) -> None:
    found = records.settings((DATA / version / "config.txt").read_text())
    assert found["SLURM_VERSION"] == version
    assert found["AuthInfo"].startswith("cred_expire=5,socket=")
    assert found["MinJobAge"].split()[0] == "600"
    assert found["AccountingStorageTRES"]
    assert "(null)" not in found.values()


def test_free_text_does_not_stand_for_fields() -> None:
    line = (
        "NodeName=n1 CPUAlloc=0 CPUTot=8 ActiveFeatures=(null) Gres=gpu:2 "
        "OS=Linux 6.1 #1 SMP  RealMemory=1000 AllocMem=0 State=DOWN+DRAIN Partitions=p "
        "Reason=broken State=IDLE Gres=gpu:99 NodeName=n2 [root@2026-01-01T00:00:00]"
    )
    (node,) = records.nodes(line)
    assert node.name == "n1" and node.gpus == {"": 2} and not node.usable and node.features == ()


def test_reserved_memory_and_cores_are_not_offered() -> None:
    line = "NodeName=n CPUAlloc=1 CPUEfctv=30 CPUTot=32 RealMemory=1000 MemSpecLimit=100 State=IDLE"
    (node,) = records.nodes(line)
    assert node.cpus == 30 and node.memory_mb == 900


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_damaged_output_is_records_or_a_clear_error(version: str, data: st.DataObject) -> None:
    name, parse = data.draw(
        st.sampled_from(
            [
                ("nodes.txt", records.nodes),
                ("partitions.txt", records.partitions),
                ("reservations.txt", records.reservations),
                ("config.txt", records.settings),
            ]
        )
    )
    text = (DATA / version / name).read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    damaged = text[:start] + data.draw(st.text(max_size=10)) + text[end:]
    try:
        parse(damaged)
    except HadarError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("flags", "rule", "bill"),
    [
        ("", BillingRule.SUM, 4 + 5 + 3 + 2),
        ("(null)", BillingRule.SUM, 4 + 5 + 3 + 2),
        ("ACCRUE_ALWAYS,MAX_TRES", BillingRule.MAX, 5 + 2),
        ("MAX_TRES_GRES,NO_FAIR_TREE", BillingRule.MAX_AND_GRES, 4 + 5 + 2),
    ],
)
def test_how_slurm_makes_a_bill(flags: str, rule: BillingRule, bill: float) -> None:
    """As its assoc_mgr_tres_weighted."""
    parts = {"cpu": 4.0, "gres/gpu": 5.0, "mem": 3.0, "license/x": 2.0}
    assert records.billing_rule({"PriorityFlags": flags} if flags else {}) is rule
    assert rule.bill(parts) == bill and rule.bill({}) == 0
