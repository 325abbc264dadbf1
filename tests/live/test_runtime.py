"""A training inside a real Slurm job: asked, moved, killed softly, resumed, proven."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from shared_steps import sbatch, wait_for_progress
from step_processes import ignores
from trainings import SMALL_TORCH, digits_file

from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.runtime import check_lineage, checkpoint
from slurm_hadar.runtime.samples import from_plain
from slurm_hadar.runtime.without_gpus import asks_for_gpus
from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.templates import render

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
N = 1500
MODEL = "ResNet-18"


class Job:
    """``train_digits.py`` in a job of the sandbox, long enough to be moved."""

    def __init__(
        self, box: Sandbox, folder: Path, template: str, feature: str, before: tuple[str, ...] = ()
    ) -> None:
        """``before``: what stands before the command, in a job that starts when it is asked to."""
        self.box, self.folder = box, folder
        self.feature = feature
        pacing = json.loads(box.true_rates.read_text())
        rates = [pacing["rates"][MODEL][kind]["2"] for kind in two_types(box)]
        # About three seconds on the first type and two on the second.
        self.samples = int((3 * rates[0] + 2 * rates[1]) * pacing["time_scale"])
        script = render(
            template,
            {
                "job_name": "digits",
                "output": str(folder / "out"),
                "sbatch": [f"--constraint={feature}", *(["--begin=now+999"] if before else [])],
                "command": [
                    *before,
                    *(SMALL_TORCH.split() if template == "pytorch_single" else [sys.executable]),
                    str(ROOT / "examples" / "train_digits.py"),
                    *("--model", MODEL, "--samples", str(self.samples)),
                    *("--checkpoint", str(folder / "c.pt")),
                    *("--lineage", str(folder / "lineage.json")),
                    *("--data", str(digits_file(folder))),
                ],
                **({"gres": "gpu:2"} if template == "pytorch_single" else {}),
                **({"nodes": 1, "gpus_per_node": 2} if template == "pytorch_ddp" else {}),
            },
        )
        environment = {
            "HADAR_EXCHANGE": str(box.exchange),
            "HADAR_CONTROLLER_UID": str(os.getuid()),
            "HADAR_PROGRESS_S": "0.3",
            # It waits to be moved for as long as the test may need for that.
            "HADAR_PAUSE_S": "100",
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.id = sbatch(box, script, environment)

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text() if (self.folder / "out").exists() else ""

    def wait_for(self, what, restarts: int = 0, seconds: float = 120.0) -> Progress:
        return wait_for_progress(self, what, restarts, seconds)

    def requeue(self, feature: str) -> float:
        """Seconds until the job waits again, to be started on ``feature``."""
        begin = time.monotonic()
        self.box.run("scontrol", "requeue", self.id)
        self.box.wait_state(self.id, ("PENDING",))
        took = time.monotonic() - begin
        self.feature = feature
        return took

    def resume(self) -> None:
        # Not in the second of the requeue, in which it would fail.
        update = [f"JobId={self.id}", f"Features={self.feature}", "StartTime=now+2"]
        self.box.run("scontrol", "update", *update)

    def fault(self) -> str | None:
        """What the lineage of the final parameters says, once the job is through."""
        self.box.wait_state(self.id, ("COMPLETED",), 150)
        content = json.loads((self.folder / "lineage.json").read_text())
        return check_lineage(from_plain(content["segments"]), N, samples=self.samples, seed=0)


def two_types(box: Sandbox) -> tuple[str, str]:
    pacing = json.loads(box.true_rates.read_text())
    able = {nodes[0] for nodes in pacing["nodes"].values() if len(nodes) >= 2}
    first, second, *_ = sorted(able & set(pacing["rates"][MODEL]))
    return first, second


@pytest.mark.each_slurm
def test_asked_by_the_plan_it_saves_answers_waits_and_resumes_elsewhere(sandbox_each, tmp_path):
    first, second = two_types(sandbox_each)
    job = Job(sandbox_each, tmp_path, "pytorch_single", first)
    running = job.wait_for(lambda p: p.samples > 0 and p.rate > 0)
    assert not running.in_step and running.gpus == 2 and running.model == MODEL
    write_plan(sandbox_each.exchange, JobPlan(job.id, gpus={second: 2}, save="n1", restarts=0))
    acked = job.wait_for(lambda p: p.ack is not None)
    assert acked.ack is not None and acked.ack.save == "n1"
    time.sleep(1)
    assert job.wait_for(lambda p: True).samples == acked.samples, "trains in vain while it waits"
    # By itself: Slurm would end it after KillWait only.
    assert job.requeue(second) < 9.5
    job.resume()
    again = job.wait_for(lambda p: p.restart_s is not None, restarts=1)
    assert again.samples > acked.samples and again.restart_s is not None
    assert 0.5 < again.restart_s < 240
    assert job.fault() is None
    last = job.wait_for(lambda p: p.finished, restarts=1)
    assert last.lost == 0 and last.samples == job.samples
    assert f"resumed at {acked.samples} samples (attempt 2, 2 GPUs)" in job.out
    assert "test accuracy" in job.out


def test_the_signal_may_come_before_the_training_listens(sandbox_each, tmp_path):
    first, _ = two_types(sandbox_each)
    job = Job(sandbox_each, tmp_path, "pytorch_single", first)
    sandbox_each.wait_state(job.id, ("RUNNING",))
    # Slurm shows a job as running before its script has come to its first line, which could not
    # be signalled at all; hadar does so guards.min_between_moves_s after a start.
    assert processes.wait_until(lambda: ignores(sandbox_each, job.id, signal.SIGUSR2), 60, 0.01)
    for _ in range(10):
        sandbox_each.run("scancel", "--batch", "--signal=USR2", job.id)
        time.sleep(0.05)
    running = job.wait_for(lambda p: p.samples > 0)
    sandbox_each.run("scancel", "--batch", "--signal=USR2", job.id)
    job.wait_for(lambda p: p.checkpoint is not None and p.checkpoint.samples >= running.samples)
    sandbox_each.run("scancel", job.id)


def test_term_alone_saves_and_nothing_is_lost(sandbox_each, tmp_path):
    first, second = two_types(sandbox_each)
    job = Job(sandbox_each, tmp_path, "pytorch_single", first)
    job.wait_for(lambda p: p.samples > 0)
    job.requeue(second)
    job.resume()
    assert job.fault() is None
    assert job.wait_for(lambda p: p.finished, restarts=1).lost == 0
    assert "on TERM; leaving" in job.out


@pytest.mark.parametrize("planned", [True, False])
def test_started_without_its_gpus_it_asks_for_another_start_once(sandbox_each, tmp_path, planned):
    """As Slurm 22.05 does it now and then after a start of slurmctld. That cannot be had at will,
    so the first attempt forgets its GPUs by itself. A job that was never moved has no plan."""
    first, second = two_types(sandbox_each)
    forgets = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || unset SLURM_JOB_GPUS CUDA_VISIBLE_DEVICES'
    shell = ("bash", "-c", f'{forgets}; exec "$@"', "bash")
    job = Job(sandbox_each, tmp_path, "pytorch_single", first, shell)
    if planned:
        write_plan(sandbox_each.exchange, JobPlan(job.id, gpus={first: 2}))
    sandbox_each.run("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    until = time.monotonic() + 120
    while "it is asked to requeue the job" not in job.out:
        assert time.monotonic() < until, job.out
        time.sleep(0.2)
    sandbox_each.wait_state(job.id, ("PENDING",))
    job.feature = second
    job.resume()
    assert job.fault() is None
    assert job.wait_for(lambda p: p.finished, restarts=1).gpus == 2
    assert job.out.count("without the job's GPUs") == 1


def test_whether_a_job_asks_for_gpus_is_read_from_its_request(sandbox_each, tmp_path, monkeypatch):
    """Of waiting jobs, since that does not change when one starts; by the real squeue."""
    for key, value in sandbox_each.env.items():
        monkeypatch.setenv(key, value)
    first, _ = two_types(sandbox_each)
    ways = {
        "--gres=gpu:1": True,
        f"--gres=gpu:{first}:2": True,
        "--gpus-per-node=2": True,
        f"--gpus={first}:1": True,
        "--gpus-per-task=1": True,
        "--job-name=gpu:1,gres/gpu:1": False,
        "--exclusive": False,
    }
    common = ("--parsable", "--begin=now+999", "--ntasks=1", f"--output={tmp_path}/none")
    for way, asks in ways.items():
        id_ = sandbox_each.run("sbatch", *common, way, "--wrap=true").strip()
        assert asks_for_gpus(id_) is asks, way
    array = sandbox_each.run("sbatch", *common, "--array=3-4", "--gpus=1", "--wrap=true").strip()
    assert asks_for_gpus(f"{array}_4")
    assert not asks_for_gpus("4000000000")


def test_a_sabotaged_resume_is_caught(sandbox_each, tmp_path):
    first, second = two_types(sandbox_each)
    job = Job(sandbox_each, tmp_path, "pytorch_single", first)
    job.wait_for(lambda p: p.samples > 0)
    job.requeue(second)
    content = checkpoint.read(tmp_path / "c.pt")
    state = json.loads(content["state"])
    state["samples"] -= state["batch"]
    torch.save({**content, "state": json.dumps(state)}, tmp_path / "c.pt")
    job.resume()
    fault = job.fault()
    assert fault is not None and "64 samples went in twice" in fault


def test_two_processes_of_a_step_save_together_and_resume(sandbox_each, tmp_path):
    first, second = two_types(sandbox_each)
    job = Job(sandbox_each, tmp_path, "pytorch_ddp", first)
    running = job.wait_for(lambda p: p.samples > 0)
    assert running.in_step and running.gpus == 2
    sandbox_each.run("scancel", "--signal=USR2", job.id)
    saved = job.wait_for(lambda p: p.checkpoint is not None)
    job.requeue(second)
    job.resume()
    assert job.fault() is None
    assert job.wait_for(lambda p: p.finished, restarts=1).samples == job.samples
    assert f"resumed at {saved.checkpoint.samples} samples (attempt 2, 2 GPUs)" in job.out
