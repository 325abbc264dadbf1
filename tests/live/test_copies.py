"""Copies over MPI in a real Slurm: killed at the worst moments, moved, resized, proven."""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import step_processes
from shared_steps import sbatch, wait_for_progress
from trainings import SMALL_TORCH, consolidated, digits_file, until_it_saves

from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.runtime import check_lineage
from slurm_hadar.runtime.samples import Segment, from_plain
from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.templates import render

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
N = 1500
SPEEDS = {"v100": 4, "p100": 2, "k80": 1}
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def box(slurm_prefix, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Eight nodes of one GPU each."""
    layout = Layout(
        (NodeGroup("v", 3, "v100", 1), NodeGroup("p", 3, "p100", 1), NodeGroup("k", 2, "k80", 1))
    )
    folder = tmp_path_factory.mktemp("sandbox") / "box"
    times: dict[str, Any] = {"cred_expire_s": 5, "slurmd_timeout_s": 6, "kill_wait_s": 3}
    box = Sandbox.up(
        folder, layout, slurm_prefix=slurm_prefix, options=SandboxOptions(base_rates={}), **times
    )
    yield box
    box.down()
    assert not processes.ours(box.places)


class Job:
    """``train_copies.py`` from the template, one copy per node.

    ``slowest``: samples/s of the slowest GPU.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        box: Sandbox,
        folder: Path,
        samples: int,
        *,
        nodes: str = "3",
        where: str = "v1,p1,k1",
        slowest: float = 60.0,
    ) -> None:
        self.box, self.folder, self.samples = box, folder, samples
        self.model = f"model{next(self._numbers)}"
        self.pace(slowest)
        script = render(
            "forked_copies",
            {
                "job_name": "copies",
                "output": str(folder / "out"),
                "nodes": nodes,
                "gres": "gpu:1",
                "python": sys.executable,
                "sbatch": [f"--nodelist={where}"] if where else [],
                "command": [
                    *SMALL_TORCH.split(),
                    str(ROOT / "examples" / "train_copies.py"),
                    *("--model", self.model, "--samples", str(samples), "--batch", "8"),
                    *("--round", "1", "--lr", "0.02"),
                    *("--checkpoint", str(folder / "c.pt")),
                    *("--data", str(digits_file(folder))),
                    *("--lineage", str(folder / "lineage.json")),
                ],
            },
        )
        environment = {
            "HADAR_EXCHANGE": str(box.exchange),
            "HADAR_CONTROLLER_UID": str(os.getuid()),
            "HADAR_PROGRESS_S": "0.2",
            "OMP_NUM_THREADS": "1",
        }
        self.id = sbatch(box, script, environment)

    def pace(self, slowest: float) -> None:
        """Set the speeds; a job that runs learns of them when it is started again."""
        content = json.loads(self.box.true_rates.read_text())
        content["rates"][self.model] = {
            kind: {"1": slowest * speed} for kind, speed in SPEEDS.items()
        }
        self.box.true_rates.write_text(json.dumps(content))

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text() if (self.folder / "out").exists() else ""

    def wait_for(self, what, restarts: int = 0, seconds: float = 90.0) -> Progress:
        return wait_for_progress(self, what, restarts, seconds, OVER)

    def resize(self, nodes: int, where: str) -> None:
        self.box.run("scontrol", "requeue", self.id)
        self.box.wait_state(self.id, ("PENDING",), 60)
        update = [f"NumNodes={nodes}-{nodes}", f"NumTasks={nodes}", f"NumCPUs={nodes}"]
        # Not in the very second of the requeue: slurmd would refuse it.
        update += [f"ReqNodeList={where}", "StartTime=now+2"]
        self.box.run("scontrol", "update", f"JobId={self.id}", *update)

    def segments(self, seconds: float = 120.0) -> list[Segment]:
        """The lineage when the job is through; it is exact, and nothing of the job is left."""
        state = self.box.wait_state(self.id, OVER, seconds)
        assert state == "COMPLETED", self.out
        content = json.loads((self.folder / "lineage.json").read_text())
        segments = from_plain(content["segments"])
        assert check_lineage(segments, N, samples=self.samples, seed=0) is None
        assert processes.wait_until(lambda: not self.task(0), 60), "something of it is left"
        assert f"{self.samples} samples, test accuracy" in self.out
        return segments

    def copy(self, rank: int) -> int:
        return step_processes.copy(self.box, self.id, rank)

    def task(self, rank: int) -> list[int]:
        return step_processes.task(self.box, self.id, rank)

    def saved(self) -> int:
        return consolidated(self.folder / "c.pt")

    def resumed(self) -> list[int]:
        return [int(part.split()[0]) for part in self.out.split("resumed at ")[1:]]


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    os.kill(pid, number)


def trained(p: Progress) -> bool:
    return p.checkpoint is not None and p.checkpoint.samples > 0 and p.rate > 0


def test_a_killed_copy_is_left_out_and_the_others_train_its_samples(box, tmp_path):
    job = Job(box, tmp_path, 3000)
    before = job.wait_for(trained)
    assert before.gpus == 3 and before.in_step
    kill(job.copy(2))
    began = time.monotonic()
    job.wait_for(lambda p: p.gpus == 2)
    assert time.monotonic() - began < 45, "the round has no bound"
    segments = job.segments()
    assert {s.attempt for s in segments} == {1}, "the step should not have begun again"
    assert {s.gpus for s in segments} >= {2, 3}
    assert "copy 2 ended with exit code 137; the others go on without it" in job.out


def test_a_copy_that_stands_still_is_waited_for_no_longer_than_a_bound(box, tmp_path):
    job = Job(box, tmp_path, 4000)
    job.wait_for(trained)
    late = job.copy(1)
    kill(late, signal.SIGSTOP)
    job.wait_for(lambda p: p.gpus == 2)
    kill(late, signal.SIGCONT)
    job.wait_for(lambda p: p.gpus == 3)
    kill(late, signal.SIGSTOP)
    # It never comes back, and still the allocation does not wait for it.
    segments = job.segments()
    assert {s.attempt for s in segments} == {1}
    assert processes.wait_until(lambda: not job.task(1), 60)


def test_the_step_begins_again_from_what_was_consolidated(box, tmp_path):
    job = Job(box, tmp_path, 4000)
    saved = []

    def strike(pid: int) -> None:
        kill(pid)
        saved.append(job.saved())
        assert processes.wait_until(lambda: len(job.resumed()) == len(saved), 90), job.out
        assert job.resumed()[-1] >= saved[-1]
        job.wait_for(lambda p: p.samples > saved[-1])

    job.wait_for(trained)
    tracker = job.copy(0)
    until_it_saves(tmp_path / "c.pt")
    strike(tracker)
    # The copies wait in their exchange while the tracker stands still, and then it is dead.
    tracker = job.copy(0)
    step_processes.stop(tracker)
    time.sleep(1.5)
    strike(tracker)
    strike(step_processes.srun(box, job.id))
    segments = job.segments()
    assert [s.attempt for s in segments] == sorted(s.attempt for s in segments)
    assert {s.attempt for s in segments} == {1, 2, 3, 4}
    assert job.out.count("the step broke") == 3


def test_a_node_dies_and_the_job_goes_on_elsewhere(box, tmp_path):
    job = Job(box, tmp_path, 1500, nodes="3-3", where="", slowest=10.0)
    job.wait_for(trained)
    hosts = box.run("squeue", "-h", "-o", "%N", "-j", job.id).strip()
    # The batch script runs on the first node; the last one dies.
    *_, dead = box.run("scontrol", "show", "hostnames", hosts).split()
    step_processes.dies_with_its_node(box, job.id, dead)
    saved = job.saved()
    job.pace(100.0)
    try:
        again = job.wait_for(trained, restarts=1)
        assert again.samples >= saved
        segments = job.segments()
        assert {s.attempt for s in segments} == {1, 2}
    finally:
        box.start_slurmd(dead)

    def idle():
        return set(box.run("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}

    assert processes.wait_until(idle, 60, 0.3), box.run("sinfo", "-N")


def test_2_then_8_then_3_copies_in_the_middle_of_an_epoch(box, tmp_path):
    job = Job(box, tmp_path, 2 * N, nodes="2", where="v1,p1", slowest=20.0)
    job.wait_for(lambda p: p.samples >= 200)
    job.resize(8, "v[1-3],p[1-3],k[1-2]")
    eight = job.wait_for(lambda p: p.gpus == 8 and p.samples > 300, restarts=1)
    assert eight.samples % N
    job.pace(60.0)
    job.resize(3, "v1,p1,k1")
    job.wait_for(lambda p: p.gpus == 3 and p.rate > 0, restarts=2)
    segments = job.segments()
    assert next(s.gpus for s in segments if s.attempt == 1) == 2
    # A copy that is late on a busy machine is left out of a round.
    assert max(s.gpus for s in segments if s.attempt == 2) == 8
    assert max(s.gpus for s in segments if s.attempt == 3) == 3
    assert job.wait_for(lambda p: p.finished, restarts=2).lost == 0
    assert "on TERM; leaving" in job.out


def test_asked_by_the_plan_the_copies_save_answer_and_wait(box, tmp_path):
    job = Job(box, tmp_path, 2000, slowest=30.0)
    job.wait_for(trained)
    write_plan(box.exchange, JobPlan(job.id, gpus={}, copies=3, save="n1", restarts=0))
    acked = job.wait_for(lambda p: p.ack is not None)
    assert acked.ack is not None and acked.ack.save == "n1"
    time.sleep(1)
    assert job.wait_for(lambda p: True).samples == acked.samples, "trains in vain while it waits"
    write_plan(box.exchange, JobPlan(job.id, gpus={}, copies=3, shares=(4.0, 2.0, 1.0), restarts=0))
    job.segments()
