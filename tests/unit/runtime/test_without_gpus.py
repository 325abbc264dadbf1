"""An attempt that Slurm gave no GPU asks for another start, but not for ever."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.files import write_json
from slurm_hadar.exchange.job_side import Exchange
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.runtime import Training, without_gpus
from slurm_hadar.runtime.framework_loop import Hosted
from slurm_hadar.runtime.leaving import LeftOnTerm
from slurm_hadar.runtime.signals import Signals
from slurm_hadar.runtime.without_gpus import given_none, leave_without_gpus

GIVEN = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A job whose plan names a GPU, on a node where it was given none."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for key in (
        *GIVEN,
        "HADAR_TRUE_RATES",
        "HADAR_EMULATION",
        "SLURM_RESTART_COUNT",
        "SLURM_ARRAY_JOB_ID",
    ):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "v1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HADAR_EXCHANGE", str(tmp_path))
    write_plan(tmp_path, JobPlan("7", gpus={"v100": 1}))
    return tmp_path


def scontrol(folder, monkeypatch, then="exit 0"):
    """A stand-in for Slurm's program, which is not what is tested here."""
    program = folder / "scontrol"
    program.write_text(f"#!/bin/bash\necho $* >> {folder}/asked\n{then}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def squeue(folder, monkeypatch, then):
    """Another one; what the real one answers is tested live."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/bash\necho $* >> {folder}/looked\n{then}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def report_progress(folder, restarts, gpus=1):
    one = Progress("7", 1.0, restarts, "n", 1, True, 1.0, "m", 5, 1.0, 1.0, 8, gpus)
    write_json(folder / f"progress.7.{'a' * 16}.json", asdict(one))


def exchange():
    return Exchange.from_env(print)


def test_no_gpu_is_seen_where_the_plan_names_one(bare):
    assert given_none(exchange())


@pytest.mark.parametrize(
    ("key", "value", "none"),
    [
        ("CUDA_VISIBLE_DEVICES", "0", False),
        ("SLURM_STEP_GPUS", "1", False),
        ("SLURM_JOB_GPUS", "0,1", False),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", True),
        ("CUDA_VISIBLE_DEVICES", "", True),
    ],
)
def test_what_slurm_says_of_gpus_counts(bare, monkeypatch, key, value, none):
    monkeypatch.setenv(key, value)
    assert given_none(exchange()) is none


@pytest.mark.parametrize("shown", ["gres:gpu:1", ""])
def test_a_job_whose_plan_names_none_misses_none(bare, monkeypatch, shown):
    squeue(bare, monkeypatch, f"echo {shown}")
    (bare / "plan.7.json").unlink()
    write_plan(bare, JobPlan("7", gpus={}))
    assert not given_none(exchange())
    assert not (bare / "looked").exists()


@pytest.mark.parametrize(
    ("shown", "none"),
    [
        ("N/A  gres:gpu:1  N/A  N/A", True),
        ("N/A  gres/gpu:v100:2  N/A  N/A", True),
        ("N/A  gres/craynetwork:4,gres/gpu:2  N/A  N/A", True),
        ("gres/gpu=2  N/A  N/A  N/A", True),
        ("N/A  gpu  N/A  N/A", True),
        ("N/A  N/A  N/A  N/A", False),
        ("N/A  gres/shard:1,license/gpus:1  N/A  N/A", False),
        ("", False),
    ],
)
def test_without_a_plan_the_request_counts(bare, monkeypatch, shown, none):
    """As where Slurm started the job by itself, before any controller had a plan for it."""
    squeue(bare, monkeypatch, f"echo '{shown}'")
    (bare / "plan.7.json").unlink()
    assert given_none(exchange()) is none
    asked = (bare / "looked").read_text()
    assert "--jobs=7 " in asked and "tres-per-node" in asked


@pytest.mark.parametrize("then", ["echo gres:gpu:1; exit 1", "printf '\\xff'", None])
def test_a_request_that_cannot_be_had_names_none(bare, monkeypatch, then):
    (bare / "plan.7.json").unlink()
    if then is None:
        monkeypatch.setenv("PATH", str(bare))
    else:
        squeue(bare, monkeypatch, then)
    assert not given_none(exchange())


def test_slurm_is_not_asked_where_a_gpu_is_seen(bare, monkeypatch):
    squeue(bare, monkeypatch, "echo gres:gpu:1")
    (bare / "plan.7.json").unlink()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert not given_none(exchange())
    assert not (bare / "looked").exists()


def test_outside_of_a_job_nothing_is_missed(bare, monkeypatch):
    monkeypatch.delenv("SLURMD_NODENAME")
    assert not given_none(exchange())
    monkeypatch.delenv("HADAR_EXCHANGE")
    assert exchange() is None and not given_none(None)


def test_a_gpu_that_is_seen_without_slurm_is_one(bare, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert not given_none(exchange())


@pytest.mark.parametrize(
    ("attempt", "before", "asks"),
    [(0, None, True), (1, None, False), (1, 0, True), (3, 1, False), (3, 2, True)],
)
@pytest.mark.parametrize("hosted", [True, False])
def test_it_asks_once_and_leaves(bare, monkeypatch, attempt, before, asks, hosted):
    """``before``: the attempt that last reported its progress."""
    scontrol(bare, monkeypatch)
    monkeypatch.setattr(without_gpus, "WAIT_S", 0.5)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(attempt))
    if before is not None:
        report_progress(bare, before)
    said: list[str] = []
    if asks:
        with pytest.raises(LeftOnTerm):
            begun(bare, hosted, said)
        assert (bare / "asked").read_text() == "requeue Incomplete 7\n"
        assert said == ["Slurm started this attempt without the job's GPUs; it is asked to requeue "
                        "the job"]  # fmt: skip
    else:
        begun(bare, hosted, said)
        assert not (bare / "asked").exists()
        assert any("scontrol requeue 7 gives it another start" in line for line in said)


def begun(folder, hosted, said):
    if hosted:
        host = Hosted(8, log=said.append)
        try:
            host.take_over(folder / "c", lambda: None)
            host.open(100, 100, None)
        finally:
            host.signals.restore()
        return
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handlers = {which: signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        run = Training(model, optimizer, dataset_size=100, epochs=1, batch=8, log=said.append)
    finally:
        for which, handler in handlers.items():
            signal.signal(which, handler)
    assert run.samples == 0


def test_of_an_array_its_own_task_alone_is_requeued(bare, monkeypatch):
    """SLURM_JOB_ID of one of the tasks is the array's own number."""
    scontrol(bare, monkeypatch)
    monkeypatch.setattr(without_gpus, "WAIT_S", 0.5)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    write_plan(bare, JobPlan("7_3", gpus={"v100": 1}))
    with pytest.raises(LeftOnTerm):
        leave_without_gpus(exchange(), Signals(), print)
    assert (bare / "asked").read_text() == "requeue Incomplete 7_3\n"


def test_a_job_that_is_being_ended_is_not_brought_back(bare, monkeypatch):
    scontrol(bare, monkeypatch)
    ending = Signals()
    ending.leave = True
    leave_without_gpus(exchange(), ending, print)
    assert not (bare / "asked").exists()


def test_where_no_attempt_ever_sees_a_gpu_only_the_first_one_asks(bare, monkeypatch):
    scontrol(bare, monkeypatch)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    report_progress(bare, 1, gpus=0)
    leave_without_gpus(exchange(), Signals(), print)
    assert not (bare / "asked").exists()


@pytest.mark.parametrize("then", ["exit 1", None])
def test_where_slurm_refuses_it_is_said_and_the_training_goes_on(bare, monkeypatch, then):
    if then is None:
        monkeypatch.setenv("PATH", str(bare))
    else:
        scontrol(bare, monkeypatch, then)
    said: list[str] = []
    leave_without_gpus(exchange(), Signals(), said.append)
    assert [line.split(":")[0] for line in said[1:2]] == ["that was refused"]
    assert said[-1].endswith("scontrol requeue 7 gives it another start")


def test_it_leaves_where_no_signal_reaches_it_too(bare, monkeypatch):
    scontrol(bare, monkeypatch)
    monkeypatch.setattr(without_gpus, "WAIT_S", 0.5)
    with pytest.raises(LeftOnTerm):
        leave_without_gpus(exchange(), Signals(), print)


@pytest.mark.parametrize(("attempt", "asks"), [(0, True), (2, False)])
def test_the_launcher_of_copies_asks_before_its_step(bare, monkeypatch, attempt, asks):
    scontrol(bare, monkeypatch, "kill $PPID")
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(attempt))
    (bare / "srun").write_text(f"#!/bin/bash\ntouch {bare}/step\n")
    (bare / "srun").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.runtime.copies_launch", "--", "train"],
        # The program's own torch must not see a GPU of this machine either.
        env={**os.environ, "SLURM_JOB_NUM_NODES": "1", "CUDA_VISIBLE_DEVICES": "NoDevFiles"},
        timeout=60,
        check=False,
    )
    assert (done.returncode == 143) is asks
    assert (bare / "asked").exists() is asks and (bare / "step").exists() is not asks


def test_a_pretend_gpu_is_still_missed(bare, monkeypatch):
    """In a sandbox a training without a GPU has no speed: it ends with one sentence."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    (bare / "true_rates.json").write_text(
        '{"nodes": {"v1": ["v100"]}, "rates": {"m": {"v100": {"1": 5}}}, "time_scale": 1}'
    )
    monkeypatch.setenv("HADAR_TRUE_RATES", str(bare / "true_rates.json"))
    monkeypatch.setenv("HADAR_EMULATION", "slurm_hadar.sandbox.gpu_emulation")
    with pytest.raises(HadarError, match="no emulated GPU"):
        begun(bare, True, [])
