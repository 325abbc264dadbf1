"""Each example of site_configs on a Slurm of the shape that it describes."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typed

from slurm_hadar import config
from slurm_hadar.controller.checks import check
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.sandbox.processes import wait_until
from slurm_hadar.slurm.hosts import expand

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

EXAMPLES = sorted((Path(__file__).parents[2] / "site_configs").glob("*.toml"))
SHAPED = [path for path in EXAMPLES if "NodeName=" in path.read_text()]
OF_THE_SANDBOX = ("state_dir", "exchange_dir", "rights", "controller_user", "mode", "stop_file")
"""Keys that name the example's own users and folders."""


def test_all_but_the_smallest_say_what_their_slurm_conf_has():
    assert [path.stem for path in EXAMPLES if path not in SHAPED] == ["smallest"]
    assert len(SHAPED) >= 6


def said(path):
    """The lines of slurm.conf in an example's comments: keyword -> list of settings."""
    found: dict[str, list[dict[str, str]]] = {"NodeName": [], "PartitionName": []}
    for line in path.read_text().splitlines():
        values = dict(
            entry.split("=", 1) for entry in line.removeprefix("#").split() if "=" in entry
        )
        for keyword, lines in found.items():
            if line.startswith(f"#   {keyword}="):
                lines.append(values)
    return found


def layout_of(path):
    """The same shape as a sandbox: groups of nodes and the partitions over them."""
    lines, groups = said(path), []
    for values in lines["NodeName"]:
        names = expand(values["NodeName"])
        kind, count = values.get("Gres", "gpu::0").split(":")[1:]
        features = tuple(f for f in [values.get("Feature", "")] if f and f != kind)
        more: dict[str, Any] = {"weight": int(values.get("Weight", 1))}
        if "CPUs" in values:
            more["cpus"] = int(values["CPUs"])
        prefix = re.sub(r"\d+$", "", names[0])
        groups.append(NodeGroup(prefix, len(names), kind, int(count), features=features, **more))
    partitions = []
    for values in lines["PartitionName"]:
        inside = expand(values["Nodes"])
        partitions.append(
            PartitionSpec(
                values["PartitionName"],
                tuple(group.prefix for group in groups if group.names[0] in inside),
                default=values.get("Default") == "YES",
                tier=int(values.get("PriorityTier", 1)),
                preempted=values.get("PreemptMode") == "REQUEUE",
            )
        )
    if not any(partition.default for partition in partitions):
        partitions.append(PartitionSpec("any", default=True))
    return Layout(tuple(groups), tuple(partitions))


@pytest.mark.parametrize("path", SHAPED, ids=lambda path: path.stem)
def test_an_example_works_on_its_own_site(path, make_sandbox, tmp_path):
    tmp_path.chmod(0o755)
    sections = tomllib.loads(path.read_text())
    settings = {
        name: {key: value for key, value in keys.items() if key not in OF_THE_SANDBOX}
        for name, keys in sections.items()
        if isinstance(keys, dict) and name != "gpu_types"
    }
    settings["gpu_types"] = sections["gpu_types"]
    box = make_sandbox(
        layout=layout_of(path), options=SandboxOptions(mode="act", settings=settings)
    )
    site = config.load(box.config_path)
    assert {k: v.model_dump() for k, v in site.gpu_types.items()} == {
        k: v.model_dump() for k, v in config.load(path).gpu_types.items()
    }

    found = list(check.findings(site))
    assert not [finding for finding in found if finding.level == "problem"]
    weighted = any("Weight" in values for values in said(path)["NodeName"])
    same_weight = any("have Weight=1: " in finding.what for finding in found)
    assert same_weight is (bool(site.partitions.groups) and not weighted)

    hadar(box, "main", "check", "--write")
    hadar(box, "main", "tick")
    partition = next(
        p.name for p in box.layout.all_partitions if not p.preempted and inside(box, p)
    )
    members = site.partitions.groups.get(partition, ())
    fillers = [fill(box, node) for node in nodes_with_gpus(box, partition)]
    for filler in fillers:
        box.wait_state(filler, ("RUNNING",))
    out = tmp_path / "out"
    job = hadar(
        box, "hbatch", "--parsable", f"--partition={partition}", "--gres=gpu:1", f"--output={out}",
        "--hadar-types=any", "--wrap", "echo $CUDA_VISIBLE_DEVICES",
    )  # fmt: skip

    def listed():
        hadar(box, "main", "tick")
        # A type on which it would be many times slower is left out.
        return set(shown(box, job, "Partition").split(",")) <= set(members or (partition,))

    assert wait_until(listed, 90, 1.0), box.run("scontrol", "-o", "show", "job", job)
    assert shown(box, job, "EligibleTime") == shown(box, job, "SubmitTime")
    assert shown(box, job, "Features") == "(null)"
    for filler in fillers:
        box.run("scancel", filler)
    assert box.wait_state(job) == "COMPLETED"
    assert out.read_text().strip().isdigit()


def shown(box, job, key):
    """A field of a job, as scontrol has it."""
    return re.search(rf" {key}=(\S+) ", box.run("scontrol", "-o", "show", "job", job))[1]


def fill(box, node):
    """An ordinary job that has all of a node."""
    where = next(
        p.name for p in box.layout.all_partitions if not p.preempted and node in inside(box, p)
    )
    return box.run(
        "sbatch", "--parsable", "-o", "/dev/null", f"--partition={where}", "--exclusive",
        f"--nodelist={node}", "--wrap", "sleep 600",
    ).strip()  # fmt: skip


def hadar(box, command, *words):
    """What a command of ours prints, run as people would."""
    done = typed.hadar(box.env, *words, command=command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def inside(box, partition):
    """The nodes with GPUs of a partition."""
    return [
        name
        for group in box.layout.groups
        if group.types and (not partition.groups or group.prefix in partition.groups)
        for name in group.names
    ]


def nodes_with_gpus(box, name):
    return inside(box, next(p for p in box.layout.all_partitions if p.name == name))
