"""Seconds that a policy needs for one decision on a large synthetic cluster.

``python -m benchmarks.decide --jobs 10000 --gpus 10000 --types 4 --policy hadar --json``

The first decision meets an empty cluster and a full queue. Before each later one the plan is
applied, the jobs train for a round, and those that end (some of them by chance) are replaced.

``--sizes 1000 3000 10000`` takes so many jobs on so many GPUs one after the other, and says how the
processor's seconds of a later decision grow: with the size to the power that is printed.

``--fits`` adds the fits of each job's step-time model, and the rates that follow from them: of all
jobs before the first decision, then of those that are new and, at random, of ``--anew`` of the
others, which reported anew. Seconds are then of fits and decision together, those of the fits are
also said alone.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.fitted_rates import FittedRates
from slurm_hadar import policies
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import FloatArray, JobArrays, NodeArrays, State, View

_COUNTS = (1, 2, 4, 8)
_ASKED = ((1,), (1, 2), (1, 2, 4), (2, 4), (4,), (8,))
_ASKED_SHARE = (0.4, 0.2, 0.15, 0.1, 0.1, 0.05)
_MODELS = 24
_ROUND_S = 360.0
_PER_NODE = 4
_TURNOVER = 0.02
"""Part of the running jobs that ends early in each round."""


class Scene:
    """A seeded cluster and its jobs over several rounds."""

    def __init__(self, jobs: int, gpus: int, types: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        nodes = max(1, round(gpus / _PER_NODE))
        kind = np.arange(nodes) % types
        count = np.zeros((nodes, types), dtype=np.int64)
        count[np.arange(nodes), kind] = _PER_NODE
        count[0, kind[0]] += max(0, gpus - _PER_NODE * nodes)
        # Faster types first; each model has its own advantage on each of them.
        speed = 4.0 ** (-np.arange(types) / max(1, types - 1))
        taste = self._random.lognormal(0.0, 0.5, (_MODELS, types))
        self._model_rate = 1000.0 * speed * taste
        self._scaling = self._random.uniform(0.7, 0.98, _MODELS)
        self._next_id = 1
        self.view = View(
            now=0.0,
            round_s=_ROUND_S,
            seed=seed,
            types=tuple(f"t{kind}" for kind in range(types)),
            counts=_COUNTS,
            nodes=NodeArrays(
                names=tuple(f"n{n:05d}" for n in range(nodes)),
                gpus=count,
                cpus=np.full(nodes, 32, dtype=np.int64),
                mem_mb=np.full(nodes, 256_000, dtype=np.int64),
                group=np.arange(nodes, dtype=np.int64) % 2,
                rack=np.arange(nodes, dtype=np.int64) // 16,
            ),
            jobs=self._arrivals(jobs, 0.0),
        )

    def _arrivals(self, number: int, now: float) -> JobArrays:
        random = self._random
        model = random.integers(_MODELS, size=number)
        asked = random.choice(len(_ASKED), number, p=_ASKED_SHARE)
        allowed = np.array([[c in counts for c in _COUNTS] for counts in _ASKED])[asked]
        gain = np.asarray(_COUNTS) * self._scaling[model][:, None] ** np.log2(_COUNTS)
        rate = self._model_rate[model][:, :, None] * gain[:, None, :] * allowed[:, None, :]
        hours = random.lognormal(0.5, 1.2, number)
        total = rate.max(axis=(1, 2)) * hours * 3600.0
        first, self._next_id = self._next_id, self._next_id + number
        groups = np.ones((number, 2), dtype=bool)
        groups[:, 1] = random.random(number) < 0.8
        distributed = asked == len(_ASKED) - 1
        ids = tuple(str(first + job) for job in range(number))
        return JobArrays(
            ids=ids,
            arrival_s=now - random.uniform(0.0, 3600.0, number),
            weight=np.where(random.random(number) < 0.1, 2.0, 1.0),
            priority=random.integers(1, 5, number).astype(np.float64),
            total=total,
            left=total.copy(),
            rate=rate,
            known=rate > 0,
            running=np.zeros(number, dtype=bool),
            movable=np.ones(number, dtype=bool),
            mixable=distributed,
            held=np.zeros((0, 4), dtype=np.int64),
            since_s=np.zeros(number),
            restart_s=random.uniform(10.0, 60.0, number),
            attained=np.zeros(number),
            cpus_per_gpu=random.choice([2.0, 4.0, 6.0], number),
            mem_per_gpu_mb=random.choice([8000.0, 32000.0], number),
            groups=groups,
            max_nodes=np.where(distributed, 4, 1).astype(np.int64),
        )

    def advance(self, plan: Plan) -> None:
        """Apply the plan, train for one round, replace the jobs that ended."""
        view = self.view
        jobs, now = view.jobs, view.now + view.round_s
        held = _rows(view, plan)
        running = np.zeros(len(jobs.ids), dtype=bool)
        running[held[:, 0]] = True
        left = np.maximum(jobs.left - _speed(view, held) * view.round_s, 0.0)
        gpus = np.bincount(held[:, 0], weights=held[:, 3], minlength=len(left))
        ended = (left <= 0.0) | (running & (self._random.random(len(left)) < _TURNOVER))
        fresh = self._arrivals(int(ended.sum()), now)
        before = replace(
            jobs,
            left=left,
            running=running,
            since_s=np.where(_same(jobs, held), jobs.since_s, np.where(running, view.now, 0.0)),
            attained=jobs.attained + gpus * view.round_s,
        )
        keep = np.flatnonzero(~ended)
        row = np.full(len(left), -1, dtype=np.int64)
        row[keep] = np.arange(len(keep))
        held = held[row[held[:, 0]] >= 0]
        held[:, 0] = row[held[:, 0]]
        self.view = replace(view, now=now, jobs=_joined(before, keep, fresh, held))


def _joined(before: JobArrays, keep: np.ndarray, fresh: JobArrays, held: np.ndarray) -> JobArrays:
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(before, name)[keep], getattr(fresh, name)])
        for name in JobArrays.__dataclass_fields__
        if name not in ("ids", "held", "cpu_sensitivity", "batches", "network", "prospects")
    }
    ids = (*(before.ids[job] for job in keep.tolist()), *fresh.ids)
    return JobArrays(ids=ids, held=held, **joined)


def _rows(view: View, plan: Plan) -> np.ndarray:
    """(K, 4) what the plan gives; a placement without nodes gets the first that have room."""
    node = {name: row for row, name in enumerate(view.nodes.names)}
    kind = {name: row for row, name in enumerate(view.types)}
    free = view.nodes.gpus.copy()
    rows: list[tuple[int, int, int, int]] = []
    open_: list[tuple[int, Placement]] = []
    for job, id_ in enumerate(view.jobs.ids):
        placement = plan.placements.get(id_)
        if placement is None:
            continue
        if not placement.nodes:
            open_.append((job, placement))
        for name, gpus in placement.nodes.items():
            for type_, count in gpus.items():
                rows.append((job, node[name], kind[type_], count))
                free[node[name], kind[type_]] -= count
    for job, placement in open_:
        for type_, wanted in placement.gpus.items():
            column = free[:, kind[type_]]
            while wanted > 0 and column.any():
                at = int(np.argmax(np.minimum(column, wanted)))
                count = int(min(column[at], wanted))
                rows.append((job, at, kind[type_], count))
                column[at] -= count
                wanted -= count
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _speed(view: View, held: np.ndarray) -> FloatArray:
    """(J,) samples/s of what is held: GPUs times the rate per GPU of the slowest type."""
    number = len(view.jobs.ids)
    gpus = np.bincount(held[:, 0], weights=held[:, 3], minlength=number)
    column = np.searchsorted(view.counts, gpus[held[:, 0]]).clip(0, len(view.counts) - 1)
    speed = np.full(number, np.inf)
    np.minimum.at(speed, held[:, 0], view.jobs.rate[held[:, 0], held[:, 2], column])
    return np.where(np.isfinite(speed), speed, 0.0)


def _same(jobs: JobArrays, held: np.ndarray) -> np.ndarray:
    """(J,) whether the job holds exactly what it held."""
    places: list[dict[int, set[tuple[int, ...]]]] = []
    for rows in (jobs.held, held):
        of_job: dict[int, set[tuple[int, ...]]] = {}
        for job, *place in rows.tolist():
            of_job.setdefault(job, set()).add(tuple(place))
        places.append(of_job)
    return np.array([places[0].get(j) == places[1].get(j, 0) for j in range(len(jobs.ids))])


def measure(
    name: str,
    jobs: int,
    gpus: int,
    types: int,
    rounds: int,
    seed: int,
    options: Mapping[str, object],
    anew: float | None = None,
) -> dict[str, object]:
    """Seconds of the first decision and of ``rounds`` later ones. ``anew``: the part of the jobs
    that reports anew before each later one, 0-1; None: without fits."""
    decide = policies.get(name)
    scene = Scene(jobs, gpus, types, seed)
    scene.view = replace(scene.view, options=options)
    state: State = {}
    fitted = None if anew is None else FittedRates(_COUNTS, types, _PER_NODE, seed)
    random = np.random.default_rng([seed, 32])
    met = 0
    fits: list[int] = []
    fits_s: list[float] = []
    fits_cpu: list[float] = []
    seconds: list[float] = []
    cpu: list[float] = []
    placed: list[int] = []
    used: list[int] = []
    for _ in range(1 + rounds):
        view = scene.view
        if fitted is not None:
            ids = np.array(view.jobs.ids, dtype=np.int64)
            fitted.meet(view.jobs)
            at = np.flatnonzero((ids > met) | (random.random(len(ids)) < (anew or 0.0)))
            seen, met = fitted.reports(view.jobs, at), int(ids.max(initial=met))
            fits.append(len(at))
        gc.collect()
        began, busy = time.perf_counter(), time.process_time()
        if fitted is not None:
            fitted.fit(view.jobs, at, seen)
            view = replace(view, jobs=replace(view.jobs, rate=fitted.of(view.jobs)))
            fits_s.append(time.perf_counter() - began)
            fits_cpu.append(time.process_time() - busy)
        plan, state = decide(view, state)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - busy)
        placed.append(len(plan.placements))
        used.append(sum(p.gpu_count for p in plan.placements.values()))
        scene.advance(plan)
    return {
        "policy": name,
        "jobs": jobs,
        "gpus": int(scene.view.nodes.gpus.sum()),
        "types": types,
        "seed": seed,
        "first_s": seconds[0],
        "later_median_s": statistics.median(seconds[1:]) if rounds else None,
        "later_max_s": max(seconds[1:]) if rounds else None,
        "rounds_s": seconds,
        "rounds_cpu_s": cpu,
        "later_median_cpu_s": statistics.median(cpu[1:]) if rounds else None,
        "placed_jobs": placed,
        "used_gpus": used,
        "fits": fits,
        "fits_s": fits_s,
        "fits_cpu_s": fits_cpu,
    }


def growth(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The power of the size with which the seconds grow, by least squares of the logarithms; 1 is
    linear. Wants at least two sizes."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(seconds, 1e-6)), 1)[0])


def _growth(found: Sequence[Mapping[str, object]], names: Sequence[str]) -> list[str]:
    lines = []
    for name in names:
        rows = [one for one in found if one["policy"] == name]
        cpu = [float(str(one["later_median_cpu_s"])) for one in rows]
        words = ", ".join(
            f"{seconds:.3f} s at {one['jobs']}" for one, seconds in zip(rows, cpu, strict=True)
        )
        power = growth([float(str(one["jobs"])) for one in rows], cpu)
        lines.append(f"{name}: processor {words}: grows with the size to the power {power:.2f}")
    return lines


def _fits(one: Mapping[str, Any]) -> str:
    lines = ["", "  fits, seconds (processor) of them, seconds (processor) of fits and decision:"]
    names = ("fits", "fits_s", "fits_cpu_s", "rounds_s", "rounds_cpu_s")
    for number, alone, alone_cpu, both, both_cpu in zip(*(one[n] for n in names), strict=True):
        lines.append(f"  {number:7,}  {alone:.3f} ({alone_cpu:.3f})  {both:.3f} ({both_cpu:.3f})")
    return "\n".join(lines)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", help="in place of --jobs and --gpus")
    parser.add_argument("--types", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="decisions after the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", action="append", choices=policies.names())
    parser.add_argument("--options", type=json.loads, default={}, help="the policy's, as JSON")
    parser.add_argument("--fits", action="store_true", help="with the fits of step-time models")
    parser.add_argument("--anew", type=float, default=0.01, help="part that reports anew, 0-1")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    anew = args.anew if args.fits else None
    names = list(dict.fromkeys(args.policy or ["hadar"]))
    sizes = [(n, n) for n in args.sizes] if args.sizes else [(args.jobs, args.gpus)]
    found = [
        measure(name, jobs, gpus, args.types, args.rounds, args.seed, args.options, anew)
        for jobs, gpus in sizes
        for name in names
    ]
    if args.json:
        print(json.dumps({"version": 1, "command": "benchmarks.decide", "result": found}))
        return
    for one in found:
        print(
            f"{one['policy']}: {one['jobs']} jobs, {one['gpus']} GPUs of {one['types']} types: "
            f"first {one['first_s']:.3f} s, later {one['later_median_s'] or 0.0:.3f} s (median of "
            f"{args.rounds}, most {one['later_max_s'] or 0.0:.3f} s), {one['placed_jobs']} placed"
            + (_fits(one) if args.fits else "")
        )
    if len(sizes) > 1 and args.rounds:
        print("\n".join(_growth(found, names)))


if __name__ == "__main__":
    main()
