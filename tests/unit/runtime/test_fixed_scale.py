"""Tasks of one global batch dealt over real MPI processes: the parameters are one process's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import Training, check_lineage, checkpoint, lineage
from slurm_hadar.runtime.fixed_scale import FixedScale, _without

N, BATCH, TASKS = 90, 28, 7
LAUNCHER = Path(sys.executable).with_name("mpiexec")
SMALL_TORCH = str(Path(__file__).parents[3] / "benchmarks")

PROGRAM = """
import json, os, signal, sys, time
import small_torch, torch
from slurm_hadar.runtime.fixed_scale import FixedScale

path, samples, pause, options = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
options = json.loads(options)
die, leave = options.pop("die", -1), options.pop("leave", 0)
torch.set_num_threads(1)
rank = int(os.environ["PMI_RANK"])
torch.manual_seed(0)
x = torch.randn(90, 4)
y = x.sum(1, keepdim=True)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
# What rank 0 begins with is what counts.
torch.manual_seed(rank)
if rank:
    torch.nn.init.normal_(model[0].weight)
run = FixedScale(model, optimizer, dataset_size=90, samples=samples, batch=28, tasks=7, path=path,
                 scheduler=scheduler, log=lambda line: print(line, flush=True), **options)
mine, began = [], time.monotonic()
for batch in run:
    mine.append(batch.indices.tolist())
    if rank == die and len(mine) == 4:
        time.sleep(1000)
    if leave and not rank and len(mine) == leave:
        os.kill(os.getpid(), signal.SIGTERM)
    run.backward(torch.nn.functional.mse_loss(model(x[batch.indices]), y[batch.indices]))
    run.step()
    time.sleep(pause * (1, 2, 4)[rank])
seconds = time.monotonic() - began
with open(f"{path}.result{rank}", "w") as file:
    json.dump({"rank": rank, "tasks": mine, "seconds": seconds, "rounds": run.rounds}, file)
from mpi4py import MPI
if die < 0:
    MPI.Finalize()
"""


def run(folder: Path, samples: int, ranks: int = 3, pause: float = 0.0, **options: object):
    """(output, what each rank did, the model's parameters in the checkpoint)."""
    folder.mkdir(exist_ok=True)
    program = folder / "train.py"
    program.write_text(PROGRAM)
    dropped = ("SLURM", "HADAR", "PMI")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    words = [str(folder / "c.pt"), str(samples), str(pause), json.dumps(options)]
    done = subprocess.run(
        [LAUNCHER, "-n", str(ranks), sys.executable, program, *words],
        env={**kept, "HYDRA_IFACE": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": SMALL_TORCH},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    # Without MPI's own end, as after the death of a copy, mpiexec is not content.
    assert done.returncode == 0 or {"die", "leave"} & set(options), done.stdout
    rows = [json.loads(path.read_text()) for path in folder.glob("c.pt.result*")]
    return done.stdout, {row["rank"]: row for row in rows}, parameters(folder / "c.pt")


def parameters(path: Path) -> dict[str, torch.Tensor]:
    content = checkpoint.read(path)
    return content["parts"]["model"]


def alone(folder: Path, samples: int, kind: type = Training, **options: object):
    """The same training in this process, as one GPU would do it."""
    torch.manual_seed(0)
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    training = kind(
        model,
        optimizer,
        dataset_size=N,
        samples=samples,
        batch=BATCH,
        path=folder / "alone.pt",
        scheduler=scheduler,
        log=lambda line: None,
        **options,
    )
    for batch in training:
        training.backward(torch.nn.functional.mse_loss(model(x[batch.indices]), y[batch.indices]))
        training.step()
    return model.state_dict()


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return all(torch.allclose(found[name], wanted[name], atol=2e-5) for name in wanted)


def test_tasks_dealt_four_two_one_are_faster_and_end_with_the_parameters_of_one_process(tmp_path):
    # Four steps an epoch, the last of 6 samples; two and a half epochs.
    samples, pause = 5 * N // 2, 0.05
    for trial in range(3):
        # Once more where this machine stood still for a while.
        _, rows, even = run(tmp_path / f"even{trial}", samples, pause=pause, shares=[1, 1, 1])
        folder = tmp_path / f"uneven{trial}"
        _, uneven, found = run(folder, samples, pause=pause, shares=[4, 2, 1])
        if uneven[0]["seconds"] < 0.8 * rows[0]["seconds"]:
            break
    wanted = alone(tmp_path, samples)
    assert same(found, wanted) and same(even, wanted)
    assert check_lineage(lineage(folder / "c.pt"), N, samples=samples, seed=0) is None
    assert uneven[0]["rounds"] == 10
    tasks = [uneven[rank]["tasks"] for rank in range(3)]
    assert [[len(task) for task in of[:n]] for of, n in zip(tasks, (4, 2, 1), strict=True)] == [
        [4, 4, 4, 4],
        [4, 4],
        [4],
    ]
    indices = [index for of in tasks for task in of for index in task]
    assert sorted(indices.count(index) for index in range(N)) == [2] * 45 + [3] * 45
    # A round is 4 x 50, 2 x 100 and 1 x 200 ms, instead of 3 x 50, 2 x 100 and 2 x 200.
    assert uneven[0]["seconds"] < 0.8 * rows[0]["seconds"]


def test_a_resumed_run_of_other_processes_ends_with_the_same_parameters(tmp_path):
    run(tmp_path, 46, ranks=2)
    out, _, found = run(tmp_path, 2 * N, ranks=3)
    assert "resumed at 46 samples (attempt 2, 3 copies)" in out
    # The first ended in the middle of a batch, so the same has to be done alone.
    alone(tmp_path, 46)
    assert same(found, alone(tmp_path, 2 * N))
    assert check_lineage(lineage(tmp_path / "c.pt"), N, samples=2 * N, seed=0) is None


def test_tasks_of_a_copy_that_stands_still_are_dealt_anew_in_the_same_step(tmp_path):
    _, rows, found = run(tmp_path, N, shares=[1, 1, 1], die=1)
    assert set(rows) >= {0} and 1 not in rows
    assert same(found, alone(tmp_path, N))
    assert check_lineage(lineage(tmp_path / "c.pt"), N, samples=N, seed=0) is None


def test_on_term_the_step_is_ended_and_saved(tmp_path):
    out, _, _ = run(tmp_path, 10**6, ranks=2, leave=30)
    assert "samples on TERM; leaving" in out
    segments = lineage(tmp_path / "c.pt")
    assert check_lineage(segments, N, seed=0) is None
    done = sum(segment.stop - segment.start for segment in segments)
    assert done and done % N % BATCH == 0


def test_what_no_piece_covers_is_missing():
    assert _without([(0, 10), (20, 30)], [(2, 4, 0), (20, 25, 0)]) == [(0, 2), (4, 10), (25, 30)]
    assert _without([(0, 10)], [(5, 10, 0), (0, 5, 0)]) == []


def test_alone_it_is_an_ordinary_training(tmp_path):
    found = alone(tmp_path, 2 * N, FixedScale, tasks=TASKS)
    (tmp_path / "alone.pt").unlink()
    assert same(found, alone(tmp_path, 2 * N))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 0}, "at least 1 and at most the global batch"),
        ({"tasks": BATCH + 1}, "at least 1 and at most the global batch"),
        ({"tasks": 2, "learning_rate": "sqrt"}, "learning_rate is for copies that are averaged"),
    ],
)
def test_arguments_that_make_no_sense_are_named(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        alone(tmp_path, N, FixedScale, **options)
