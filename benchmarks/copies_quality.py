"""Copies on nodes of speeds 4:2:1 against one run alone, at the same number of samples.

``python -m benchmarks.copies_quality`` (about 5 minutes), ``--seeds N --tasks digits,diabetes
--variants copies,unweighted`` for less.

Real data that scikit-learn ships. The score is the accuracy in percent (digits) or 100 x R^2
(diabetes) on samples kept back; a point is 1 of either. The copies are three MPI processes on this
machine whose shares of each round are 4:2:1.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import benchmarks.small_torch  # noqa: F401  # isort: skip
import torch

SPEEDS = (4.0, 2.0, 1.0)
TOLERANCE = 1.0
"""Points that the copies may be worse in the mean over the seeds."""


@dataclass(frozen=True, slots=True)
class Task:
    """A data set with a training: ``samples`` to train on, ``hidden`` units.

    ``decay``: the learning rate falls to 0 in a straight line. SGD has a momentum of 0.9.
    """

    data: str
    samples: int
    hidden: int
    epochs: int
    batch: int
    rate: float
    adam: bool = False
    decay: bool = True


TASKS = {
    "digits": Task("digits", 1300, 32, 2, 8, 0.01),
    "digits-noisy": Task("digits", 1300, 32, 8, 32, 0.1, decay=False),
    "digits-adam": Task("digits", 1300, 32, 3, 32, 0.003, adam=True),
    "digits-80-steps": Task("digits", 1300, 32, 2, 32, 0.05),
    "diabetes": Task("diabetes", 320, 16, 4, 4, 0.001),
}
"""``digits`` and ``diabetes`` end before they have converged, so that lost progress shows;
``digits-noisy`` ends at a high learning rate, so that the noise of one copy shows."""
OPTIONS: dict[str, dict[str, Any]] = {
    "copies": {},
    "local": {"optimizer_state": "local"},
    "reset": {"optimizer_state": "reset"},
    "rate-sqrt": {"learning_rate": "sqrt"},
    "rate-same": {"learning_rate": "none"},
    "round-1": {"round_epochs": 1.0},
    "unweighted": {},
    "only-0": {},
    "only-1": {},
    "only-2": {},
}
"""What is compared; the last four sabotage the averaging."""
SABOTAGED = ("unweighted", "only-0", "only-1", "only-2")


def data(task: Task, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples and targets to train on, and those kept back, split by ``seed``."""
    x, y = _tables(task.data)
    if task.data == "digits":
        x = x / 16
    else:
        x = x / x.std(0)
        y = ((y - y.mean()) / y.std()).astype(np.float32)
    order = np.random.default_rng(1000 + seed).permutation(len(x))
    first, rest = order[: task.samples], order[task.samples :]
    tensors = (torch.from_numpy(table) for table in (x[first], y[first], x[rest], y[rest]))
    one, two, three, four = tensors
    return one, two, three, four


@cache
def _tables(name: str) -> tuple[Any, Any]:
    """All samples and targets, as scikit-learn's ``load_digits()`` and ``load_diabetes()`` give
    them. To import it takes longer than a training, so its files are read without it."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed")
    folder = Path(found.origin).parent / "datasets" / "data"
    if name == "digits":
        table = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
        return table[:, :-1].astype(np.float32), table[:, -1].astype(int)
    raw = np.loadtxt(folder / "diabetes_data_raw.csv.gz")
    scaled = (raw - raw.mean(0)) / raw.std(0) / len(raw) ** 0.5
    return scaled.astype(np.float32), np.loadtxt(folder / "diabetes_target.csv.gz")


def score(task: Task, model: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    """Accuracy in percent, or 100 x R^2."""
    with torch.no_grad():
        out = model(x)
    if task.data == "digits":
        return 100 * float((out.argmax(1) == y).float().mean())
    error = ((out[:, 0] - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    return 100 * (1 - float(error))


def train(task: Task, seed: int, variant: str) -> float | None:
    """One training; the score on the first process, None on the others."""
    from slurm_hadar.runtime import Copies, Training

    class Sabotaged(Copies):
        def _weights(self, counts: Sequence[int]) -> list[float]:
            if variant == "unweighted":
                return [1 / len(counts)] * len(counts)
            only = min(int(variant[-1]), len(counts) - 1)
            return [float(rank == only) for rank in range(len(counts))]

    x, y, test_x, test_y = data(task, seed)
    torch.manual_seed(seed)
    outputs = 10 if task.data == "digits" else 1
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], task.hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(task.hidden, outputs),
    )
    optimizer: torch.optim.Optimizer
    if task.adam:
        optimizer = torch.optim.Adam(model.parameters(), lr=task.rate)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)
    total = task.epochs * len(x)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(0.0, 1 - step * task.batch / total) if task.decay else 1.0
    )
    run: Any
    shared: dict[str, Any] = {
        "dataset_size": len(x),
        "epochs": task.epochs,
        "batch": task.batch,
        "seed": seed,
        "scheduler": scheduler,
        "schedule": "step",
    }
    if variant == "alone":
        run = Training(model, optimizer, **shared)
    else:
        made = Sabotaged if variant in SABOTAGED else Copies
        # Rounds as on a cluster, where averaging costs next to nothing against a round.
        options = {"shares": SPEEDS, "overhead": 1e9, **OPTIONS[variant]}
        run = made(model, optimizer, **shared, **options)
    for batch in run:
        out = model(x[batch.indices])
        if task.data == "digits":
            run.backward(torch.nn.functional.cross_entropy(out, y[batch.indices]))
        else:
            run.backward(torch.nn.functional.mse_loss(out[:, 0], y[batch.indices]))
        run.step()
    if variant != "alone" and not run.first:
        return None
    assert run.samples == task.epochs * len(x)
    return score(task, model, test_x, test_y)


def measure(tasks: Sequence[str], variants: Sequence[str], seeds: int) -> dict[str, Any]:
    """task -> variant -> scores by seed, from three MPI processes on loopback."""
    words = ["--tasks", ",".join(tasks), "--variants", ",".join(variants), "--seeds", str(seeds)]
    launcher = os.path.join(os.path.dirname(sys.executable), "mpiexec")  # noqa: PTH118, PTH120
    argv = [launcher, "-n", str(len(SPEEDS)), sys.executable, "-m", __spec__.name, "--rank", *words]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR", "PMI"))}
    environment = {**kept, "HYDRA_IFACE": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        argv, env=environment, stdout=subprocess.PIPE, text=True, timeout=1800, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _rank(tasks: Sequence[str], variants: Sequence[str], seeds: int) -> None:
    torch.set_num_threads(1)
    from slurm_hadar.runtime.copies_link import Link

    first = Link().first
    found: dict[str, dict[str, list[float | None]]] = {}
    for name in tasks:
        task = TASKS[name]
        found[name] = {}
        if first:
            found[name]["alone"] = [train(task, seed, "alone") for seed in range(seeds)]
        for variant in variants:
            found[name][variant] = [train(task, seed, variant) for seed in range(seeds)]
    if first:
        print(json.dumps(found), flush=True)
    # Copies end without it, since it would wait for dead ones; but mpiexec, other than srun, kills
    # everybody as soon as one ends so.
    from mpi4py import MPI

    MPI.Finalize()


def difference(scores: dict[str, list[float]], variant: str) -> tuple[float, float]:
    """Mean over the seeds of (variant - alone) in points, and the standard error of that mean."""
    gaps = np.array(scores[variant]) - np.array(scores["alone"])
    return float(gaps.mean()), float(gaps.std(ddof=1) / len(gaps) ** 0.5)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--variants", default=",".join(OPTIONS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    tasks, variants = args.tasks.split(","), args.variants.split(",")
    if args.rank:
        _rank(tasks, variants, args.seeds)
        return
    found = measure(tasks, variants, args.seeds)
    if args.json:
        print(json.dumps({"version": 1, "command": "benchmarks.copies_quality", "result": found}))
        return
    print(f"speeds 4:2:1, {args.seeds} seeds; mean score alone, and mean difference to it (points)")
    print("| variant | " + " | ".join(tasks) + " |")
    print("|---" * (len(tasks) + 1) + "|")
    print("| alone | " + " | ".join(f"{np.mean(found[t]['alone']):.1f}" for t in tasks) + " |")
    for variant in variants:
        cells = [difference(found[task], variant) for task in tasks]
        print(f"| {variant} | " + " | ".join(f"{m:+.2f} ± {e:.2f}" for m, e in cells) + " |")


if __name__ == "__main__":
    main()
