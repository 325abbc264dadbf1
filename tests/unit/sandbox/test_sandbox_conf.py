import subprocess
from pathlib import Path

import pytest

from slurm_hadar import config
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.sandbox import conf, places, pretend_devices
from slurm_hadar.sandbox.conf import site_toml
from slurm_hadar.sandbox.layout import DEFAULT, Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions, Settings, SlurmTimes
from slurm_hadar.sandbox.places import SandboxPaths

PLACES = SandboxPaths(Path("/box"), Path("/box/run"))
MIXED = Layout(
    (
        NodeGroup("m", 2, "p100", 1, more={"k80": 2}, features=("ib",)),
        NodeGroup("c", 1, cpus=7),
        NodeGroup("far", 900, "v100", 4, started=False),
    )
)


def text(layout, release=(22, 5)):
    ports = {name: 20_000 + i for i, name in enumerate(["", *layout.started])}
    values = conf.Values("host", "root", release, ports, 101, SlurmTimes())
    return conf.slurm_conf(layout, PLACES, values)


def site(layout, settings=None):
    options = SandboxOptions(mode="act", settings=settings)
    return site_toml(layout, PLACES, Path("/bin"), options, SlurmTimes())


def lines(text, start):
    return [
        dict(word.split("=", 1) for word in line.split(" "))
        for line in text.splitlines()
        if line.startswith(start)
    ]


def test_each_started_node_has_a_line_and_a_port_of_its_own():
    nodes = lines(text(DEFAULT), "NodeName=")
    assert [node["NodeName"] for node in nodes] == ["v1", "v2", "p1", "p2", "k1", "k2"]
    assert len({node["Port"] for node in nodes}) == 6
    assert nodes[2]["Gres"] == "gpu:p100:2" and nodes[2]["Feature"] == "p100"
    assert all(node["NodeAddr"] == "127.0.0.1" for node in nodes)
    assert not any("Weight" in node for node in nodes)


def test_a_group_with_a_weight():
    groups = (NodeGroup("v", 1, "v100", 2), NodeGroup("k", 1, "k80", 2, weight=3))
    fast, slow = lines(text(Layout(groups)), "NodeName=")
    assert "Weight" not in fast and slow["Weight"] == "3"


def test_mixed_cpu_only_and_unstarted_nodes():
    first, _, cpu, far = lines(text(MIXED), "NodeName=")
    assert first["Gres"] == "gpu:p100:1,gpu:k80:2" and first["Feature"] == "p100,k80,ib"
    assert "Gres" not in cpu and (cpu["Sockets"], cpu["CoresPerSocket"]) == ("1", "7")
    assert far["NodeName"] == "far[1-900]" and far["State"] == "CLOUD"


def test_partitions():
    found = {line["PartitionName"]: line for line in lines(text(MIXED), "PartitionName=")}
    assert found["gpu"]["Nodes"] == "m[1-2],far[1-900]" and found["gpu"]["Default"] == "YES"
    assert found["k80"]["Nodes"] == "m[1-2]"
    assert found["cpu"]["Nodes"] == "c1"
    assert found["idle"]["PreemptMode"] == "REQUEUE"
    assert int(found["idle"]["PriorityTier"]) < int(found["gpu"]["PriorityTier"])
    assert [one["Default"] for one in found.values()].count("YES") == 1


def test_what_differs_between_the_releases():
    assert "PrivateData=cloud" in text(MIXED)
    assert "PrivateData" not in text(MIXED, (24, 11)) and "Suspend" not in text(DEFAULT)
    assert conf.cgroup_conf((22, 5)) == "CgroupAutomount=no\n"
    assert conf.cgroup_conf((24, 11)) == "CgroupPlugin=disabled\n"
    assert not pretend_devices.gres_conf(MIXED, Path("/d"), (22, 5)).startswith("AutoDetect")
    assert pretend_devices.gres_conf(MIXED, Path("/d"), (24, 11)).splitlines() == [
        "AutoDetect=off",
        "NodeName=m[1-2] Name=gpu Type=p100 File=/d/gpu0",
        "NodeName=m[1-2] Name=gpu Type=k80 File=/d/gpu[1-2]",
        "NodeName=far[1-900] Name=gpu Type=v100 File=/d/gpu[0-3]",
    ]


def test_racks_are_leaf_switches_below_one():
    groups = (
        NodeGroup("a", 2, "v100", 1, rack="left"),
        NodeGroup("b", 1, "v100", 1, rack="right"),
        NodeGroup("c", 1, rack="right"),
    )
    layout = Layout(groups)
    assert "TopologyPlugin=topology/tree" in text(layout)
    assert conf.topology_conf(layout).splitlines() == [
        "SwitchName=left Nodes=a[1-2]",
        "SwitchName=right Nodes=b1,c1",
        "SwitchName=core Switches=left,right",
    ]
    assert "Topology" not in text(DEFAULT)
    with pytest.raises(UsageError, match="needs one for each node group"):
        Layout((groups[0], NodeGroup("d", 1)))


def test_the_task_prolog_names_the_pacing_file(tmp_path):
    script = tmp_path / "prolog"
    script.write_text(conf.task_prolog(Path("/a/it's $HOME/true_rates.json")))
    said = subprocess.run(["/bin/sh", script], capture_output=True, text=True, check=True).stdout
    assert said == (
        "export HADAR_TRUE_RATES=/a/it's $HOME/true_rates.json\n"
        "export HADAR_EMULATION=slurm_hadar.sandbox.gpu_emulation\n"
    )


def test_the_site_is_one_that_config_reads():
    read = config.parse(site(DEFAULT), "test")
    # The state folder is closed to all users but the controller's.
    assert read.status_socket == PLACES.folder / "hadar.sock"
    assert read.web_socket == PLACES.folder / "web.sock"
    assert read.site.mode == "act" and read.site.rights == "sandbox"
    assert read.slurm.conf == PLACES.slurm_conf
    assert read.gpu_types["v100"].memory_gb > 0
    assert read.partitions.groups == {"gpu": ("v100", "p100", "k80")} and not read.notes


ONE_TYPE_EACH = (NodeGroup("v", 1, "v100", 1), NodeGroup("k", 1, "k80", 1), NodeGroup("c", 1))
GPU = PartitionSpec("gpu", ("v", "k"), default=True)
V100, K80 = PartitionSpec("v100", ("v",)), PartitionSpec("k80", ("k",))
BOTH = {"gpu": ("v100", "k80")}


@pytest.mark.parametrize(
    ("layout", "groups"),
    [
        (Layout(ONE_TYPE_EACH), BOTH),
        (Layout(ONE_TYPE_EACH, (K80, V100, GPU)), BOTH),
        (Layout(ONE_TYPE_EACH[:2], (PartitionSpec("gpu", default=True), V100, K80)), BOTH),
        (Layout(ONE_TYPE_EACH, (GPU,)), {}),
        (Layout(ONE_TYPE_EACH, (PartitionSpec("gpu", default=True), V100, K80)), {}),
        (Layout(ONE_TYPE_EACH, (GPU, V100)), {}),
        (Layout(ONE_TYPE_EACH, (GPU, V100, PartitionSpec("k80", ("v", "k")))), {}),
        (Layout(ONE_TYPE_EACH, (GPU, V100, PartitionSpec("k80", ("k",), tier=3))), {}),
        (Layout(ONE_TYPE_EACH, (V100, K80)), {}),
        (Layout((NodeGroup("v", 2, "v100", 1),)), {}),
        (MIXED, {}),
    ],
)
def test_gpu_stands_for_the_types_where_the_partitions_fit(layout, groups):
    read = config.parse(site(layout), "test")
    assert read.partitions.groups == groups
    off = site(layout, {"partitions": {"groups": {}}})
    assert config.parse(off, "test").partitions.groups == {}


def test_settings_go_over_the_site():
    settings: Settings = {
        "moving": {"commit_s": 33},
        "controller": {"policy": "fifo", "options": {"rounds": 3, "deep": True}},
        "wrapper": {"default_types": 'a"b\\'},
    }
    read = config.parse(site(DEFAULT, settings), "test")
    assert read.moving.commit_s == 33 and read.wrapper.default_types == 'a"b\\'
    assert read.controller.options == {"rounds": 3, "deep": True}
    assert read.controller.interval_s < 60
    with pytest.raises(UsageError, match="moving"):
        site(DEFAULT, {"moving": {"comit_s": 33}})


@pytest.mark.parametrize("folder", ["/a b", "/a#b", "/a\nb", "/a%n", "/ä"])
def test_a_folder_that_slurm_cannot_name_is_refused(folder):
    with pytest.raises(UsageError, match="letters"):
        places.choose(Path(folder), "v1")


def test_sockets_fit_or_go_elsewhere():
    assert places.choose(Path("/tmp/box"), "v1").run == Path("/tmp/box/run")
    deep = places.choose(Path("/tmp") / ("x" * 90), "v1")
    try:
        assert len(str(deep.munge_socket)) < 60 and deep.run.is_dir()
    finally:
        places.forget_run(deep)
    assert not deep.run.exists()


def test_only_one_may_start_or_stop(tmp_path):
    with (
        places.locked(tmp_path),
        pytest.raises(UsageError, match="another process"),
        places.locked(tmp_path),
    ):
        pass
    with places.locked(tmp_path):
        assert not any(tmp_path.iterdir())
