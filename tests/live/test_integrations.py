"""Trainings in a framework's loop, in a real Slurm job: asked to save, moved, finished, proven."""

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from missing import missing
from shared_steps import sbatch, wait_for_progress

from benchmarks.digits import write_digits
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.runtime import check_lineage, checkpoint
from slurm_hadar.runtime.samples import from_plain
from slurm_hadar.templates import render

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
N = 1500
MODEL = "ResNet-18"
SECONDS = 1.5
"""How long the training takes on the GPUs that it is moved to, once it trains."""


def lightning_state(folder):
    content = torch.load(folder / "run.ckpt", map_location="cpu", weights_only=False)
    return json.loads(content["callbacks"]["slurm_hadar"]["position"])


def huggingface_state(folder):
    marks = [json.loads(path.read_text()) for path in folder.glob("checkpoint-*/hadar.json")]
    assert len(marks) <= 2, "older checkpoints that were asked for must go"
    return max(marks, key=lambda mark: mark["samples"])


def own_state(folder):
    return json.loads(checkpoint.read(folder / "c.pt")["state"])


ALONE = ("pytorch_single", {"gres": "gpu:2"})
TORCHRUN = (
    "pytorch_torchrun",
    {
        "nodes": 1,
        "gpus_per_node": 2,
        "torchrun": str(Path(sys.executable).parent / "torchrun"),
    },
)
CASES: dict[str, tuple[Any, ...]] = {
    "lightning": (ALONE, "train_lightning.py", ["--checkpoint", "{}/run.ckpt"], lightning_state),
    "huggingface": (ALONE, "train_huggingface.py", ["--output", "{}"], huggingface_state),
    "torchrun": (TORCHRUN, "train_digits.py", ["--checkpoint", "{}/c.pt"], own_state),
}


class Job:
    def __init__(self, box, folder, name):
        self.box, self.folder = box, folder
        pacing = json.loads(box.true_rates.read_text())
        types = pacing["rates"][MODEL]
        able = {nodes[0] for nodes in pacing["nodes"].values() if len(nodes) >= 2}
        self.first, self.second = sorted(able & set(types), reverse=name == "lightning")[:2]
        self.samples = int(SECONDS * types[self.second]["2"] * pacing["time_scale"])
        (template, values), program, words, self.state = CASES[name]
        write_digits(folder / "digits.npy")
        script = render(
            template,
            {
                "job_name": name,
                "output": str(folder / "out"),
                "sbatch": [f"--constraint={self.first}"],
                "command": [
                    *([sys.executable] if template == "pytorch_single" else []),
                    str(ROOT / "examples" / program),
                    *("--model", MODEL, "--samples", str(self.samples)),
                    *(word.format(folder) for word in words),
                ],
                **values,
            },
        )
        environment = {
            "HADAR_EXCHANGE": str(box.exchange),
            "HADAR_CONTROLLER_UID": str(os.getuid()),
            "HADAR_PROGRESS_S": "0.3",
            # The first may have to wait for the last: all of them import at once.
            "HADAR_PAUSE_S": "600",
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            # torchrun leaves its folder of logs behind.
            "TMPDIR": str(folder),
        }
        self.id = sbatch(box, script, environment)
        # It saves at its first step and then waits to be moved.
        write_plan(box.exchange, JobPlan(self.id, gpus={self.second: 2}, save="n1", restarts=0))

    @property
    def out(self):
        return (self.folder / "out").read_text() if (self.folder / "out").exists() else ""

    def wait_for(self, what, restarts=0, seconds=240.0):
        return wait_for_progress(self, what, restarts, seconds)


@pytest.fixture(scope="module")
def jobs(sandbox, tmp_path_factory):
    """All of them at once: most of their time is the import of the framework."""
    if not (find_spec("lightning") and find_spec("transformers")):
        missing("the extras lightning and huggingface are not installed")
    return {name: Job(sandbox, tmp_path_factory.mktemp(name), name) for name in CASES}


@pytest.fixture(scope="module")
def moved(jobs, sandbox):
    """What each job said when it had saved; then all were moved."""
    launched = jobs["torchrun"]
    sandbox.wait_state(launched.id, ("RUNNING",))
    # Until its step ignores the signal, which takes the start of a shell; the import takes longer.
    time.sleep(2)
    for _ in range(5):
        # The wish may come before anybody listens, and the launcher must not die of it.
        sandbox.run("scancel", "--signal=USR2", launched.id)
        time.sleep(0.2)
    acked = {name: job.wait_for(lambda p: p.ack is not None) for name, job in jobs.items()}
    for job in jobs.values():
        sandbox.run("scontrol", "requeue", job.id)
    for job in jobs.values():
        sandbox.wait_state(job.id, ("PENDING",))
        # Not in the second of the requeue, in which it would fail.
        words = (f"JobId={job.id}", f"Features={job.second}", "StartTime=now+2")
        sandbox.run("scontrol", "update", *words)
    return acked


@pytest.mark.parametrize("name", CASES)
def test_asked_to_save_and_moved_it_finishes_with_every_sample_once(jobs, moved, sandbox, name):
    job, acked = jobs[name], moved[name]
    assert acked.gpus == 2 and acked.model == MODEL and acked.batch == 64
    assert acked.ack.save == "n1"
    assert acked.checkpoint.samples == acked.samples
    assert 0 < acked.samples < job.samples and acked.samples % N
    sandbox.wait_state(job.id, ("COMPLETED",), 240)
    last = job.wait_for(lambda p: p.finished, restarts=1)
    assert last.samples == job.samples and last.lost == 0 and last.restart_s > 0.5
    assert last.rate > 0
    assert f"resumed at {acked.samples} samples (attempt 2, 2 GPUs)" in job.out
    segments = from_plain(job.state(job.folder)["segments"])
    assert check_lineage(segments, N, samples=job.samples, seed=0) is None
    assert {segment.attempt for segment in segments} == {1, 2}
    assert f"{MODEL}: {job.samples} samples" in job.out
