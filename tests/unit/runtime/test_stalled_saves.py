"""Attempts that are stopped or killed in a save, in processes of their own, for every kind of loop.

Without an exchange folder: what keeps a stale attempt from writing must not depend on it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from forks import Forks
from missing import missing

from slurm_hadar.runtime.attempts import SUPERSEDED, attempts_folder

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).with_name("stalled_training.py")
SAMPLES = 160
OWN = ("Training", "Copies", "FixedScale")
FRAMEWORKS = ("lightning", "huggingface")
POINTS = ("open 1", "os.rename 1", "os.rename 2")


@pytest.fixture(scope="module")
def own_loops():
    loops = (f"slurm_hadar.runtime.{loop}" for loop in ("training", "copies", "fixed_scale"))
    with Forks("benchmarks.small_torch", *loops) as forks:
        yield forks


@pytest.fixture(scope="module")
def frameworks():
    for name in ("lightning", "transformers"):
        if not find_spec(name):
            missing(f"the extra of {name} is not installed")
    callbacks = (f"slurm_hadar.runtime.{kind}" for kind in FRAMEWORKS)
    with Forks("lightning.pytorch", "transformers.trainer", *callbacks) as forks:
        yield forks


@pytest.fixture
def start(request):
    """Starts a training of a kind."""

    def started(kind, folder, restarts, samples=SAMPLES, **env):
        forks = request.getfixturevalue("frameworks" if kind in FRAMEWORKS else "own_loops")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR", "PMI"))}
        job = {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": str(restarts), "OMP_NUM_THREADS": "1"}
        return forks.start(PROGRAM, [kind, folder, samples], {**kept, **job, **env})

    return started


def wait_stopped(process, seconds=120.0):
    end = time.monotonic() + seconds
    while True:
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise AssertionError(f"it did not stop: {process.communicate(timeout=60)}")
        if Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            return
        time.sleep(0.02)


def published(folder):
    """The bytes of all that a next attempt could go on from."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".attempts" not in str(path)
    }


def cases():
    for kind in OWN:
        yield from ((kind, point) for point in POINTS)
    # Their import takes seconds: one point each, the one between the last check and the rename.
    yield from (("lightning", "os.rename 2"), ("huggingface", "os.rename 1"))


@pytest.mark.parametrize(("kind", "point"), list(cases()))
def test_an_attempt_stopped_in_a_save_cannot_write_over_a_finished_training(
    start, tmp_path, kind, point
):
    stale = start(kind, tmp_path, 0, STALL=point)
    wait_stopped(stale)
    second = start(kind, tmp_path, 1)
    out, err = second.communicate(timeout=200)
    assert second.returncode == 0 and out.split()[-1] == str(SAMPLES), err
    before = published(tmp_path)
    stale.send_signal(signal.SIGCONT)
    _, err = stale.communicate(timeout=60)
    assert published(tmp_path) == before
    assert stale.returncode == SUPERSEDED, err
    assert "attempt 2 of job 12 (restart 1) has taken over; leaving without saving" in err
    assert "Traceback" not in err


def test_an_attempt_stopped_before_it_removes_an_old_checkpoint_removes_none(start, tmp_path):
    """Of the checkpoints that were asked for the newest two are kept; the third save ends it."""
    stale = start("huggingface", tmp_path, 0, samples=24, STALL="remove 1")
    wait_stopped(stale)
    second = start("huggingface", tmp_path, 1, samples=24)
    _, err = second.communicate(timeout=200)
    assert second.returncode == 0, err
    before = published(tmp_path)
    stale.send_signal(signal.SIGCONT)
    _, err = stale.communicate(timeout=60)
    assert published(tmp_path) == before
    assert stale.returncode == SUPERSEDED, err


@pytest.mark.parametrize("kind", [*OWN, *FRAMEWORKS])
def test_what_killed_saves_left_is_removed_at_the_next_start(start, tmp_path, kind):
    # A framework's import takes seconds.
    kills = 1 if kind in FRAMEWORKS else 2
    path = tmp_path / ("checkpoint" if kind == "huggingface" else "c.pt")
    point = "os.rename 1" if kind == "huggingface" else "os.rename 2"
    for restarts in range(kills):
        killed = start(kind, tmp_path, restarts, samples=48, STALL=point, STALL_BY="SIGKILL")
        killed.communicate(timeout=200)
        assert killed.returncode == -signal.SIGKILL
    assert sorted(attempts_folder(path).rglob("*.*"))
    # As the release before named them.
    (tmp_path / f".{path.name}.4711").write_bytes(b"x" * 1000)
    (tmp_path / f".{path.name}.4711.link").write_bytes(b"x")
    (tmp_path / f".{path.name}.mine").write_bytes(b"a user's own")
    last = start(kind, tmp_path, kills, samples=48)
    _, err = last.communicate(timeout=200)
    assert last.returncode == 0, err
    left = sorted(one.name for one in tmp_path.iterdir())
    there = ["checkpoint-5", "checkpoint-6"] if kind == "huggingface" else ["c.pt", "c.pt.previous"]
    assert left == [f".{path.name}.attempts", f".{path.name}.mine", *there]
    (newest,) = attempts_folder(path).iterdir()
    assert [one.name for one in newest.iterdir()] == ["owner"]


def test_an_attempt_that_begins_late_leaves_the_training_to_the_later_start(start, tmp_path):
    """It was stopped before it came to its first line, and Slurm has started the job again."""
    second = start("Training", tmp_path, 1)
    second.communicate(timeout=200)
    assert second.returncode == 0
    before = published(tmp_path)
    first = start("Training", tmp_path, 0, samples=2 * SAMPLES)
    _, err = first.communicate(timeout=200)
    assert first.returncode == SUPERSEDED and published(tmp_path) == before
    assert "attempt 1 of job 12 (restart 1) has taken over" in err


def test_a_second_training_of_the_same_job_goes_on_and_another_job_too(start, tmp_path):
    first = start("Training", tmp_path, 1, samples=80)
    first.communicate(timeout=200)
    again = start("Training", tmp_path, 1, samples=120)
    again.communicate(timeout=200)
    other = start("Training", tmp_path, 0, SLURM_JOB_ID="13")
    out, err = other.communicate(timeout=200)
    assert [one.returncode for one in (first, again, other)] == [0, 0, 0], err
    assert "resumed at 120 samples (attempt 3" in err and out.split() == [str(SAMPLES)]


def test_a_full_disk_at_the_end_is_an_exit_code_and_what_follows_the_loop_runs(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(f"""
import atexit, resource, sys, torch
from slurm_hadar.runtime import Training
model = torch.nn.Linear(4, 200)
run = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset_size=8, samples=16,
               batch=8, path={str(tmp_path / "c.pt")!r})
for batch in run:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    run.backward(model(torch.zeros(1, 4)).sum())
    run.step()
atexit.register(print, "exit handlers run")
print("after the loop", end=" ")
""")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=200, env=clean,
        check=False,
    )  # fmt: skip
    assert done.stdout == "after the loop exit handlers run\n"
    assert "cannot be written" in done.stderr
    assert "the end of the training is not in checkpoint" in done.stderr
    assert done.returncode == 74


@pytest.mark.parametrize("kind", [*OWN, *FRAMEWORKS])
def test_a_path_that_cannot_be_written_ends_the_training_at_its_start(start, tmp_path, kind):
    path = tmp_path / ("checkpoint" if kind == "huggingface" else "c.pt")
    attempts_folder(path).write_text("in the way")
    done = start(kind, tmp_path, 0)
    _, err = done.communicate(timeout=200)
    assert done.returncode == 1
    assert f"checkpoint {path} could not be saved" in err.splitlines()[-1]


def test_the_state_tells_the_attempt(start, tmp_path):
    from slurm_hadar.runtime import checkpoint

    for restarts in range(2):
        start("Training", tmp_path, restarts, samples=80 * (restarts + 1)).communicate(timeout=200)
    state = json.loads(checkpoint.read(tmp_path / "c.pt")["state"])
    assert state["attempt"] == 2 and state["format"] == 1
