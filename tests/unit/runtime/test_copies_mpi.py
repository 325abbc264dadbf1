"""Copies as real MPI processes on this machine: one lineage, one set of parameters, no hang."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.plan_file import JobPlan, write_plan
from slurm_hadar.runtime import Copies, Training, check_lineage, checkpoint, lineage
from slurm_hadar.runtime.fixed_scale import FixedScale
from slurm_hadar.sandbox.gpu_emulation import GpuEmulation

N = 60
LAUNCHER = Path(sys.executable).with_name("mpiexec")
SMALL_TORCH = str(Path(__file__).parents[3] / "benchmarks")

PROGRAM = """
import json, os, sys, time
import small_torch, torch
from slurm_hadar.runtime import Copies

path, samples, pause, options = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
rank = int(os.environ["PMI_RANK"])
torch.manual_seed(0)
x = torch.randn(60, 4)
y = x.sum(1, keepdim=True)
torch.manual_seed(rank)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
run = Copies(model, optimizer, dataset_size=60, samples=samples, batch=4, path=path,
             log=lambda line: print(line, flush=True), **json.loads(options))
mine = []
with open(f"{path}.pid{rank}", "w") as file:
    file.write(str(os.getpid()))
for batch in run:
    mine += batch.indices.tolist()
    run.backward(torch.nn.functional.mse_loss(model(x[batch.indices]), y[batch.indices]))
    run.step()
    if len(mine) >= 40:
        open(f"{path}.busy{rank}", "w").close()
    time.sleep(pause * (1 + rank))
with open(f"{path}.result{rank}", "w") as file:
    json.dump([rank, run.samples, mine, run.speeds.get(rank)], file)
# mpiexec kills the others when one ends without this; under Slurm the launcher sees to it.
from mpi4py import MPI
MPI.Finalize()
"""


def start(folder: Path, ranks: int, samples: int, pause: float = 0.0, **options: object):
    program = folder / "train.py"
    program.write_text(PROGRAM)
    # mpiexec mixes the ranks' output within lines, so what tests need goes into files.
    for old in [
        *folder.glob("c.pt.result*"),
        *folder.glob("c.pt.pid*"),
        *folder.glob("c.pt.busy*"),
    ]:
        old.unlink()
    dropped = ("SLURM", "HADAR", "PMI")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    words = [str(folder / "c.pt"), str(samples), str(pause), json.dumps(options)]
    return subprocess.Popen(
        [LAUNCHER, "-n", str(ranks), sys.executable, program, *words],
        env={**kept, "HYDRA_IFACE": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": SMALL_TORCH},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process, code: int = 0):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == code, out
    folder = Path(process.args[4]).parent
    found = [json.loads(path.read_text()) for path in folder.glob("c.pt.result*")]
    return out, {row[0]: row for row in found}


def test_three_then_two_then_one_copy_in_the_middle_of_an_epoch(tmp_path):
    _, rows = finish(start(tmp_path, 3, 100))
    assert rows[0][1] == 100 and sum(len(row[2]) for row in rows.values()) == 100
    assert all(len(row[2]) for row in rows.values()), "a copy had nothing to do"
    out, _ = finish(start(tmp_path, 2, 150, optimizer_state="reset"))
    assert "resumed at 100 samples (attempt 2, 2 copies)" in out
    finish(start(tmp_path, 1, 200))
    segments = lineage(tmp_path / "c.pt")
    assert check_lineage(segments, N, samples=200, seed=0) is None
    assert {s.attempt for s in segments} == {1, 2, 3}


def test_the_processes_leave_no_file_in_memory(tmp_path):
    """MPICH removes its file when MPI is finalized, which a copy never waits for."""
    program = tmp_path / "begin.py"
    program.write_text(
        "import pathlib\n"
        "from slurm_hadar.runtime.copies_link import Link\n"
        "link = Link()\n"
        "maps = pathlib.Path('/proc/self/maps').read_text().splitlines()\n"
        f"seen = pathlib.Path({str(tmp_path)!r}, f'maps.{{link.rank}}')\n"
        "seen.write_text('\\n'.join(line for line in maps if '/mpich_shm_' in line))\n"
        "numbers = link._comm.allgather(link.rank)\n"
        "assert numbers == list(range(link.size)), numbers\n"
        "from mpi4py import MPI\n"
        "MPI.Finalize()\n"
    )
    environment = {**os.environ, "HYDRA_IFACE": "lo"}
    argv = [LAUNCHER, "-n", "3", sys.executable, program]
    subprocess.run(argv, env=environment, check=True, timeout=120)
    for rank in range(3):
        mapped = (tmp_path / f"maps.{rank}").read_text().splitlines()
        assert mapped and all(line.endswith(" (deleted)") for line in mapped)


def test_the_work_follows_the_measured_speeds(tmp_path):
    _, rows = finish(start(tmp_path, 2, 1200, pause=0.02, round_epochs=1.0))
    first, second = len(rows[0][2]), len(rows[1][2])
    # The second copy is slowed down to half the speed of the first, but for what both compute.
    assert 1.2 < first / second < 2.6


def test_the_shares_can_be_given(tmp_path):
    _, rows = finish(start(tmp_path, 3, 600, shares=[4, 2, 1], round_epochs=1.0, overhead=1e9))
    counts = [len(rows[rank][2]) for rank in range(3)]
    assert [round(7 * count / 600) for count in counts] == [4, 2, 1]


def test_the_parameters_of_all_are_in_the_average(tmp_path):
    finish(start(tmp_path, 3, 6000, round_epochs=1.0))
    content = checkpoint.read(tmp_path / "c.pt")
    assert torch.allclose(content["parts"]["model"]["weight"], torch.ones(1, 4), atol=0.05)


def test_term_to_the_tracker_saves_all_that_was_done(tmp_path):
    process = start(tmp_path, 2, 10**6, pause=0.02)
    pid, end = tmp_path / "c.pt.pid0", time.monotonic() + 60
    while len(list(tmp_path.glob("c.pt.busy*"))) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    os.kill(int(pid.read_text()), signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert "samples on TERM; leaving" in out
    content = checkpoint.read(tmp_path / "c.pt")
    state = json.loads(content["state"])
    assert state["samples"] > 0
    assert check_lineage(lineage(tmp_path / "c.pt"), N, seed=0) is None


def alone(path, samples, **options):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    quiet = {"dataset_size": N, "samples": samples, "batch": 4, "log": lambda line: None}
    return model, optimizer, {**quiet, "path": path, **options}


def loop(run, model):
    for batch in run:
        run.backward(model(torch.ones(len(batch.indices), 4)).square().mean())
        run.step()


def test_the_plan_may_say_the_shares_before_speeds_are_known(tmp_path, monkeypatch):
    monkeypatch.setenv("HADAR_EXCHANGE", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    write_plan(tmp_path, JobPlan("7", gpus={"v100": 1, "k80": 2}, copies=3, shares=(0.5, 0.3, 0.2)))
    model, optimizer, words = alone(tmp_path / "a.pt", N)
    run = Copies(model, optimizer, **words)
    assert run._steering.planned_shares(3) == (0.5, 0.3, 0.2)
    assert run._steering.planned_shares(2) == ()
    run._signals.restore()


@pytest.mark.parametrize("epochs", [0.4, 0.45])
def test_alone_it_is_an_ordinary_training(tmp_path, epochs):
    """However long its rounds are, it makes the same updates."""
    torch.manual_seed(0)
    model, optimizer, words = alone(tmp_path / "a.pt", 2 * N)
    loop(Copies(model, optimizer, round_epochs=epochs, **words), model)
    torch.manual_seed(0)
    other, optimizer, words = alone(tmp_path / "b.pt", 2 * N)
    loop(Training(other, optimizer, **words), other)
    assert torch.allclose(model.weight, other.weight, atol=1e-6)
    assert check_lineage(lineage(tmp_path / "a.pt"), N, samples=2 * N, seed=0) is None


@pytest.mark.parametrize("kind", [Copies, partial(FixedScale, tasks=2)])
def test_a_sandbox_holds_it_back_once_for_each_sample(tmp_path, monkeypatch, kind):
    pace = {"nodes": {"v1": ["v100"]}, "rates": {"m": {"v100": {"1": 200}}}, "time_scale": 1}
    (tmp_path / "true_rates.json").write_text(json.dumps(pace))
    monkeypatch.setenv("HADAR_TRUE_RATES", str(tmp_path / "true_rates.json"))
    monkeypatch.setenv("HADAR_EMULATION", "slurm_hadar.sandbox.gpu_emulation")
    monkeypatch.setenv("SLURMD_NODENAME", "v1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    model, optimizer, words = alone(None, 4 * N, name="m")
    held = []
    monkeypatch.setattr(GpuEmulation, "hold", lambda self, size, stop: held.append(size))
    loop(kind(model, optimizer, **words), model)
    assert sum(held) == 4 * N


def test_a_training_does_not_take_up_a_checkpoint_with_gaps(tmp_path):
    model, optimizer, words = alone(tmp_path / "a.pt", N)
    run = Copies(model, optimizer, **words)
    run._ledger.record([(8, 16, 1)], 1)
    run._steering.save()
    with pytest.raises(UsageError, match="go on with Copies"):
        Training(model, optimizer, **words)
    model, optimizer, words = alone(tmp_path / "a.pt", N)
    assert Copies(model, optimizer, **words).samples == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer_state": "keep"}, "average, local or reset"),
        ({"learning_rate": "linear"}, "auto, sqrt, none"),
        ({"round_s": 0}, "must be above 0"),
        ({"shares": (1, 2)}, "one per copy"),
        ({"schedule": "round"}, "epoch or step"),
    ],
)
def test_arguments_that_make_no_sense_are_named(tmp_path, options, message):
    model, optimizer, words = alone(tmp_path / "a.pt", N)
    with pytest.raises(UsageError, match=message):
        Copies(model, optimizer, **{**words, **options})
