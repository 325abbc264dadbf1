"""slurm.conf, scontrol and sinfo as they are read for advice."""

from pathlib import Path

import made_history
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.tuning import conf, site

DATA = Path(__file__).parents[2] / "data" / "slurm"
HERE = Path("/etc/slurm/slurm.conf")


def test_continued_lines_comments_defaults_and_quotes() -> None:
    text = (
        "KillWait=30 # KillWait=99\n"
        "killwait = 45\n"
        "NodeName=DEFAULT CPUs=16 RealMemory=64000\n"
        "NodeName=a[1-3],b1 \\\n  Gres=gpu:t4:2 \\\n  Feature=t4,big\n"
        "NodeName=c1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 CPUs=32\n"
        'PartitionName=DEFAULT MaxTime=1-0 AllowGroups="one two"\n'
        "#PartitionName=gone Nodes=a1\n"
        "PartitionName=all Nodes=ALL Default=YES\n"
    )
    found = conf.parse(text, HERE)
    assert found.settings["killwait"] == "45"
    assert (found.nodes[0].line, found.nodes[0].keys["realmemory"]) == (4, "64000")
    place = site.of_conf(found)
    assert [node.name for node in place.nodes] == ["a1", "a2", "a3", "b1", "c1"]
    assert place.gpus == {"t4": 8}
    assert place.nodes[0].features == ("t4", "big")
    assert place.nodes[0].partitions == ("all",)
    assert place.nodes[4].cpus == 32
    (one,) = place.partitions
    assert (one.max_time_s, one.nodes[-1], one.default) == (86400.0, "c1", True)
    assert one.allow_groups == ("one two",)


def test_included_files_stand_in_their_place_and_missing_ones_are_reported(tmp_path: Path) -> None:
    main = tmp_path / "slurm.conf"
    main.write_text("KillWait=30\nInclude nodes.conf\nInclude gone.conf\nInclude slurm.conf\n")
    (tmp_path / "nodes.conf").write_text("KillWait=60\nNodeName=a1 Gres=gpu:t4:1\n")
    found = conf.read(main)
    assert found.settings["killwait"] == "60"
    assert found.nodes[0].where == f"line 2 of {tmp_path / 'nodes.conf'}"
    assert len(found.notes) == 1 and "gone.conf" in found.notes[0]
    with pytest.raises(UsageError, match="cannot be read"):
        conf.read(tmp_path / "none.conf")


def test_a_line_is_changed_where_its_key_stands_and_nothing_else() -> None:
    (entry,) = conf.parse("PartitionName=a Nodes=x[1-2] prioritytier=3 State=UP", HERE).partitions
    line = conf.with_keys(entry, {"PriorityTier": "10", "PreemptMode": "OFF"})
    assert line == "PartitionName=a Nodes=x[1-2] prioritytier=10 State=UP PreemptMode=OFF"
    (node,) = conf.parse("NodeName=x1 Feature=old Gres=gpu:t4:1", HERE).nodes
    assert (
        conf.with_keys(node, {"Features": "old,t4"}) == "NodeName=x1 Feature=old,t4 Gres=gpu:t4:1"
    )


@pytest.mark.parametrize("release", ["22.05.8", "24.11.5"])
def test_recorded_nodes(release: str) -> None:
    text = (DATA / release / "nodes.txt").read_text()
    one = site.read_nodes(text, "nodes")
    broken = text.replace(" CPUAlloc=", "\n   CPUAlloc=").replace(" State=", "\n   State=")
    assert site.read_nodes(broken, "nodes") == one
    assert {kind for node in one for kind in node.gpus} >= {"v100", "k80"}


def test_sinfo_with_a_line_for_each_partition() -> None:
    text = (
        "NODELIST|GRES|CPUS|MEMORY|AVAIL_FEATURES|PARTITION\n"
        "a1|gpu:t4:2(S:0-1)|32|256000+|t4|gpu*\na1|gpu:t4:2(S:0-1)|32|256000+|t4|all\n"
        "b[1-2]|(null)|64|128000|(null)|all\n"
    )
    one, two, _ = site.read_nodes(text, "sinfo")
    assert (one.gpus, one.partitions, one.memory_mb) == ({"t4": 2}, ("gpu", "all"), 256000)
    assert (two.gpus, two.features) == ({}, ())


@pytest.mark.parametrize("text", ["", "hello\n", "a|b\n1|2\n", "NodeName=a1 Gres=gpu:x:y:z:1\n"])
def test_what_is_no_list_of_nodes_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="nodes"):
        site.read_nodes(text, "nodes")


@given(st.text(alphabet=st.sampled_from('NodeName=PartitionName= \n\\"#[1-9],gpu:Include\t\x00é')))
def test_hostile_confs_give_a_site_or_one_sentence(text: str) -> None:
    try:
        site.of_conf(conf.parse(made_history.CONF + text, HERE))
    except HadarError as error:
        assert "\n" not in str(error)
