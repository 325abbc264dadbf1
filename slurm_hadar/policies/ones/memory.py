"""The state of the ones policy between rounds, as plain JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from slurm_hadar.domain.view import IntArray, State, View
from slurm_hadar.policies.allocation import ResourcePools
from slurm_hadar.policies.batches import chooses
from slurm_hadar.policies.ones.limits import BatchLimits
from slurm_hadar.policies.ones.problem import BatchProblem, PlacedRound
from slurm_hadar.solvers.evolution import Best

_VERSION = 2
_DECIDED = {1: "laid", _VERSION: "decided"}
_MEAN_JOBS = {1: "crowd", _VERSION: "mean_jobs"}
"""Version of the state -> its key for these values."""
_LARGE = 1e15
_FAR = 2.0
"""A noise scale that differs from the former one by this factor starts a new search."""
_MEAN_JOBS_S = 4 * 3600.0
"""Time constant of the mean number of jobs, s."""

PlainCandidate = Mapping[str, Sequence[int]]
"""job -> (option, batch in samples)."""


@dataclass(frozen=True)
class OnesState:
    """``decided``: options and batches of the last choice; ``mean_jobs``: moving average of the
    number of jobs; ``best``: the best candidates of the population."""

    names: tuple[str, ...] = ()
    decisions: int = 0
    chosen_s: float = -np.inf
    present: tuple[str, ...] = ()
    decided: PlainCandidate = field(default_factory=dict)
    best: Sequence[PlainCandidate] = ()
    limits: Mapping[str, list[int]] = field(default_factory=dict)
    mean_jobs: float = -1.0
    now: float = 0.0
    noise: Mapping[str, float] = field(default_factory=dict)
    """Noise scales used by the last search."""

    def mean_job_count(self, view: View) -> float:
        """Number of present jobs, averaged over the last hours."""
        number = float(len(view.jobs.ids))
        if self.mean_jobs < 0:
            return number
        old = float(np.exp(-max(view.now - self.now, 0.0) / _MEAN_JOBS_S))
        return self.mean_jobs * old + number * (1.0 - old)

    def price(self, view: View, factor: float) -> float:
        """Weighted s that one GPU-second costs future jobs, assuming that as many as now will each
        be delayed on their share of the cluster."""
        gpus = float(view.nodes.gpus.sum())
        return factor * self.mean_job_count(view) / max(gpus, 1.0) / 2.0

    def still_valid(self, view: View, problem: BatchProblem, every_s: float) -> bool:
        """Whether the last choice is still valid: same jobs, all as decided, not too old."""
        if view.now - self.chosen_s >= every_s or self.present != view.jobs.ids:
            return False
        if _changed(self.noise, _noise_of(view)):
            return False
        here = {
            id_: [int(option), int(size)]
            for id_, option, size in zip(
                view.jobs.ids,
                problem.options.now.tolist(),
                problem.sizes[np.arange(len(problem.sizes)), problem.now_batch].tolist(),
                strict=True,
            )
            if option != -1
        }
        return here == {id_: list(pair) for id_, pair in self.decided.items()}

    def elites(self, view: View, problem: BatchProblem) -> list[tuple[IntArray, IntArray]]:
        """The best candidates of the last search, without what is no longer possible."""
        row = {id_: at for at, id_ in enumerate(view.jobs.ids)}
        space = problem.space
        found = []
        for plain in self.best:
            option = np.full(len(row), -1, dtype=np.int64)
            batch = np.zeros(len(row), dtype=np.int64)
            free = space.capacity.copy()
            for id_, (wanted, size) in plain.items():
                job = row.get(id_, -1)
                if job < 0 or not 0 <= wanted < len(space.gpus):
                    continue
                at = int(np.abs(space.sizes[job] - size).argmin())
                pool, gpus = space.pool[wanted], space.gpus[wanted]
                if np.isfinite(space.seconds[job, wanted, at]) and gpus <= free[pool]:
                    option[job], batch[job] = wanted, at
                    free[pool] -= gpus
            found.append((option, batch))
        return found

    def after(
        self, placed: PlacedRound, limits: BatchLimits | None, searched: Best | None
    ) -> State:
        """The state after this round."""
        view, problem, allocations = placed.view, placed.problem, placed.places.allocations
        kept = replace(
            self,
            limits=limits.kept if limits is not None else {},
            mean_jobs=self.mean_job_count(view),
            now=view.now,
        )
        if searched is not None:
            ids = view.jobs.ids
            pairs = [(searched.option, searched.batch), *searched.others]
            kept = replace(
                kept,
                names=tuple(_names(view, placed.pools)),
                decisions=self.decisions + 1,
                chosen_s=view.now,
                present=ids,
                noise=_noise_of(view),
                decided=_as_plain(ids, problem, placed.option, placed.batch, sorted(allocations)),
                best=[
                    _as_plain(ids, problem, *p, np.flatnonzero(p[0] >= 0).tolist()) for p in pairs
                ],
            )
        return {
            "version": _VERSION,
            "names": list(kept.names),
            "decisions": kept.decisions,
            "chosen_s": kept.chosen_s,
            "present": list(kept.present),
            "decided": dict(kept.decided),
            "best": list(kept.best),
            "limits": dict(kept.limits),
            "mean_jobs": kept.mean_jobs,
            "now": kept.now,
            "noise": dict(kept.noise),
        }


def from_state(state: State, view: View, pools: ResourcePools) -> OnesState:
    """The state; empty if there is none, without placements if the cluster has changed. Reads
    version 1 too, in which ``decided`` and ``mean_jobs`` had other names."""
    if state.get("version") not in (*_DECIDED,):
        return OnesState()
    kept = cast(dict[str, Any], state)
    version = kept["version"]
    past = OnesState(
        names=tuple(kept["names"]),
        decisions=int(kept["decisions"]),
        chosen_s=float(kept["chosen_s"]),
        present=tuple(kept["present"]),
        decided=kept[_DECIDED[version]],
        best=kept["best"],
        limits=kept["limits"],
        mean_jobs=float(kept[_MEAN_JOBS[version]]),
        now=float(kept["now"]),
        noise=kept["noise"],
    )
    if past.names != tuple(_names(view, pools)):
        return replace(past, decided={}, best=(), present=(), chosen_s=-np.inf)
    return past


def _as_plain(
    ids: Sequence[str],
    problem: BatchProblem,
    option: IntArray,
    batch: IntArray,
    jobs: Sequence[int],
) -> dict[str, list[int]]:
    return {ids[job]: [int(option[job]), int(problem.sizes[job, batch[job]])] for job in jobs}


def _noise_of(view: View) -> dict[str, float]:
    """job -> its noise scale, a large number for infinity; jobs without a choice of batches have no
    entry."""
    batches = view.jobs.batches
    if batches is None:
        return {}
    rows = np.flatnonzero(chooses(batches)).tolist()
    noise = np.minimum(batches.noise, _LARGE).tolist()
    return {view.jobs.ids[row]: noise[row] for row in rows}


def _changed(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether a noise scale is newly measured, or far from its former value."""
    old = [before.get(id_, 0.0) for id_ in now]
    pairs = zip(old, now.values(), strict=True)
    return any(max(a, b) > _FAR * min(a, b) for a, b in pairs if a != b)


def _names(view: View, pools: ResourcePools) -> list[str]:
    """Identifies the options; candidates with other names are discarded."""
    rows = zip(pools.pool_type, pools.pool_group, strict=True)
    names = [f"{view.types[kind]}/{group}" for kind, group in rows]
    return [*names, ",".join(str(count) for count in view.counts)]
