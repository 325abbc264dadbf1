"""The lines that ``hadar tune`` advises, taken by a real slurmctld, do what they promise."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.slurm.commands import clean_environment
from slurm_hadar.tuning import sources, study
from slurm_hadar.tuning.draft import applied

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LAYOUT = Layout(
    (NodeGroup("v", 1, "v100", 2), NodeGroup("k", 1, "k80", 4)),
    (PartitionSpec("v100", ("v",), default=True, tier=1), PartitionSpec("k80", ("k",), tier=1)),
)
PAST = """\
JobID|Account|Partition|Submit|Start|End|NNodes|ReqTRES|AllocTRES
"""


def past() -> str:
    """Twelve jobs of an hour, all at once, all for the two v100."""
    lines = [PAST.strip()]
    for number in range(12):
        hour, tres = number // 2, "cpu=1,gres/gpu=1,gres/gpu:v100=1,mem=1G"
        at = f"2026-01-05T{hour:02d}:00:00|2026-01-05T{hour + 1:02d}:00:00"
        lines.append(f"{number + 1}|bio|v100|2026-01-05T00:00:00|{at}|1|{tres}|{tres}")
    return "\n".join(lines) + "\n"


def test_slurm_takes_the_advice_and_idle_nodes_give_way(
    make_sandbox, slurm_prefix, tmp_path: Path
) -> None:
    box = make_sandbox(layout=LAYOUT, kill_wait_s=5, slurm_prefix=slurm_prefix)
    # A site that has done nothing for mixed GPUs yet.
    bare = re.sub(
        r"^Preempt(Type|Mode)=.*\n|^DefMemPerCPU=.*\n| Feature=\S+| PreemptMode=\S+", "",
        box.conf.read_text(), flags=re.M,
    )  # fmt: skip
    box.conf.write_text(bare)
    (tmp_path / "past").write_text(past())
    wish = sources.TuneRequest(("srtf",), 50, 60.0, 60.0, 0.0)
    found, _ = sources.of_history(tmp_path / "past", box.conf, None, None, wish)
    topics = {one.topic for one in study.advise(found)}
    assert topics >= {"features", "GPU types", "idle nodes", "KillWait", "cred_expire"}
    lines = found.draft.everything()
    assert all(line.whole for line in lines)
    box.conf.write_text(applied(bare, lines))
    box.stop_slurmctld()
    box.start_slurmctld()
    config = box.run("scontrol", "show", "config")
    for wanted in ("PreemptType .*partition_prio", "KillWait .* 30 sec", "cred_expire=120"):
        assert re.search(wanted, config)
    partitions = box.run("scontrol", "-o", "show", "partition").splitlines()
    shown = {re.findall(r"PartitionName=(\S+)", line)[0]: line for line in partitions}
    assert "Nodes=k1,v1" in shown["gpu"] and "PriorityTier=10" in shown["gpu"]
    assert "PriorityTier=1 " in shown["idle"] and "PreemptMode=REQUEUE" in shown["idle"]
    assert "DefCpuPerGPU=" in shown["k80"] and "PreemptMode=OFF" in shown["k80"]
    nodes = box.run("scontrol", "-o", "show", "node")
    assert "ActiveFeatures=k80" in nodes and "ActiveFeatures=v100" in nodes
    quiet = ("sbatch", "--parsable", "-o", "/dev/null")
    low = box.run(*quiet, "-p", "idle", "--gres=gpu:2", "-w", "v1", "--wrap", "sleep 600").strip()
    box.wait_state(low, ("RUNNING",))
    high = box.run(*quiet, "-p", "gpu", "-C", "v100", "--gres=gpu:2", "--wrap", "sleep 1").strip()
    box.wait_state(high, ("RUNNING", "COMPLETED"), 90)
    assert box.job_state(low) == "PENDING"
    _asks_slurm_itself(box)


def _asks_slurm_itself(box) -> None:
    """Without files; this Slurm has no accounting database, which is said and stops nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", "tune", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment() | box.env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["result"]
    assert result["site"]["gpus"] == {"k80": 4, "v100": 2}
    assert result["history"] is None and "no history" in " ".join(result["notes"])
    topics = [one["topic"] for one in result["advice"]]
    assert "features" not in topics and "idle nodes" not in topics
