"""Signals, plans and TERM, met by the real example in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forks import Forked, Forks

from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.runtime import check_lineage
from slurm_hadar.runtime.samples import from_plain

pytestmark = pytest.mark.timeout(600)

SCRIPT = Path(__file__).parents[3] / "examples" / "train_digits.py"
N = 1500


class Job:
    """The example as Slurm would start it, paced at 5,000 samples/s."""

    forks: Forks

    def __init__(self, folder: Path, samples: int, *options: str) -> None:
        self.folder, self.samples, self.options = folder, samples, options
        self.exchange = folder / "exchange"
        self.exchange.mkdir()
        pace = {
            "version": 1,
            "time_scale": 1.0,
            "nodes": {"v1": ["v100"]},
            "rates": {"m": {"v100": {"1": 5000.0}}},
        }
        (folder / "true_rates.json").write_text(json.dumps(pace))
        self.restarts, self.id, self.pause_s = 0, "12", 2

    def start(self) -> Forked:
        env = {
            **os.environ,
            "SLURM_JOB_ID": self.id,
            "SLURM_RESTART_COUNT": str(self.restarts),
            "SLURMD_NODENAME": "v1",
            "SLURM_JOB_NODELIST": "v1",
            "CUDA_VISIBLE_DEVICES": "0",
            "HADAR_EXCHANGE": str(self.exchange),
            "HADAR_TRUE_RATES": str(self.folder / "true_rates.json"),
            "HADAR_EMULATION": "slurm_hadar.sandbox.gpu_emulation",
            "HADAR_PROGRESS_S": "0.2",
            "HADAR_PAUSE_S": str(self.pause_s),
        }
        words = ["--model", "m", "--samples", str(self.samples), "--lineage", "lineage.json"]
        # Tests share the data: a process that has to make them imports scikit-learn.
        words += ["--data", str(self.folder.parent / "digits.npy")]
        words += ["--checkpoint", "c.pt", *self.options]
        return self.forks.start(SCRIPT, words, env, self.folder)

    def progress(self):
        return read_progress(self.exchange, self.id, os.getuid())

    def wait_for(self, what, seconds: float = 90.0):
        """The first progress of this attempt for which ``what`` holds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.progress()
            if found and found.restarts == self.restarts and what(found):
                return found
            time.sleep(0.02)
        raise AssertionError(f"waited {seconds} s; last progress: {self.progress()}")


@pytest.fixture(scope="module", autouse=True)
def forks():
    with Forks("torch", "slurm_hadar.runtime.training") as Job.forks:
        yield


@pytest.fixture
def job(tmp_path):
    """One that goes on for 12 s: what is done to it on a slow machine must come before its end."""
    return Job(tmp_path, 60_000)


def proven(job: Job) -> None:
    content = json.loads((job.folder / "lineage.json").read_text())
    segments = from_plain(content["segments"])
    assert check_lineage(segments, N, samples=job.samples, seed=0) is None


def test_a_move_asked_by_plan_alone(job):
    process = job.start()
    job.wait_for(lambda p: p.samples > 1000)
    write_plan(job.exchange, JobPlan("12", gpus={"v100": 1}, save="old", restarts=5))
    write_plan(job.exchange, JobPlan("12", gpus={"v100": 1}, save="n1", restarts=0))
    acked = job.wait_for(lambda p: p.ack is not None)
    assert acked.ack.save == "n1" and acked.checkpoint.samples == acked.ack.samples
    time.sleep(0.5)
    assert job.progress().samples == acked.samples, "it trains in vain while it waits"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert f"saved at {acked.samples} samples" in err
    job.restarts, job.samples = 1, acked.samples + 8000
    process = job.start()
    again = job.wait_for(lambda p: p.restart_s is not None)
    # The nonce of the life before is not answered again.
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "as asked" not in err and f"resumed at {acked.samples} samples" in err
    assert 0 < again.restart_s < 120
    last = job.progress()
    assert last.finished and last.samples == job.samples and last.lost == 0
    # Held back to 5,000 samples/s; a busy machine may be slower.
    assert last.ack is None and 0 < last.rate < 7500
    assert len(list(job.exchange.glob("progress.*"))) == 1
    proven(job)


def test_a_new_job_from_an_old_checkpoint_was_not_moved(job):
    process = job.start()
    job.wait_for(lambda p: p.samples > 1000)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    job.id, job.samples = "13", job.progress().samples + 3000
    process = job.start()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "resumed at" in err
    assert job.progress().restart_s is None


def test_a_signal_without_a_plan_saves_and_goes_on(tmp_path):
    job = Job(tmp_path, 20_000)
    process = job.start()
    job.wait_for(lambda p: p.samples > 1000)
    begin = time.monotonic()
    process.send_signal(signal.SIGUSR2)
    saved = job.wait_for(lambda p: p.checkpoint is not None)
    assert saved.samples < job.samples and not saved.finished
    job.wait_for(lambda p: p.samples > saved.samples)
    assert time.monotonic() - begin > 1.9
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "was not moved; going on" in err
    proven(job)


def test_a_wish_taken_back_ends_the_pause(tmp_path):
    job = Job(tmp_path, 20_000)
    job.pause_s = 80
    process = job.start()
    job.wait_for(lambda p: p.samples > 1000)
    write_plan(job.exchange, JobPlan("12", gpus={"v100": 1}, save="n1", restarts=0))
    process.send_signal(signal.SIGUSR2)
    acked = job.wait_for(lambda p: p.ack is not None)
    begin = time.monotonic()
    write_plan(job.exchange, JobPlan("12", gpus={"v100": 1}))
    job.wait_for(lambda p: p.samples > acked.samples)
    assert time.monotonic() - begin < 40
    process.communicate(timeout=60)
    proven(job)


def test_kill_loses_what_was_not_saved_and_says_how_much(job):
    process = job.start()
    job.wait_for(lambda p: p.samples > 1000)
    process.send_signal(signal.SIGUSR2)
    saved = job.wait_for(lambda p: p.checkpoint is not None).samples
    before = job.wait_for(lambda p: p.samples > saved + 1000)
    process.kill()
    process.communicate(timeout=60)
    seen = job.progress().samples
    assert seen >= before.samples
    job.restarts, job.samples = 1, seen + 5000
    process = job.start()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert job.progress().lost == seen - saved
    # It trained on after that save, so the time since then is not the cost of a move.
    assert job.progress().restart_s is None
    proven(job)


def test_a_plan_changes_the_batch_within_the_range(tmp_path):
    job = Job(tmp_path, 20_000, "--batch", "64:256")
    process = job.start()
    job.wait_for(lambda p: p.samples > 1000)
    write_plan(job.exchange, JobPlan("12", gpus={"v100": 1}, batch=512))
    refused = "the plan's batch 512 is not taken; allowed are 64 to 256"
    assert any(refused in line for line in process.stderr)
    write_plan(job.exchange, JobPlan("12", gpus={"v100": 1}, batch=128))
    job.wait_for(lambda p: p.batch == 128)
    _, err = process.communicate(timeout=60)
    assert "global batch 64 -> 128" in err and "learning rate x 2 (linear)" in err
    proven(job)


def test_works_without_slurm_hadar_around_it(tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    words = ["--epochs", "2", "--checkpoint", "c.pt", "--lineage", "lineage.json"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *words],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    assert "3000 samples, test accuracy" in done.stdout
    assert done.stderr == ""
