"""What the ones policy remembers between rounds, as plain JSON."""

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

_VERSION = 1
_LARGE = 1e15
_FAR = 2.0
"""A noise scale that is so many times another one is worth a new search."""
_CROWD_S = 4 * 3600.0
"""Time over which the number of jobs is averaged."""

Plain = Mapping[str, Sequence[int]]
"""job -> option, samples of its batch."""


@dataclass(frozen=True)
class OnesState:
    """``laid``: what was decided; ``crowd``: mean number of jobs lately; ``best``: the population's
    best candidates."""

    names: tuple[str, ...] = ()
    decisions: int = 0
    chosen_s: float = -np.inf
    present: tuple[str, ...] = ()
    laid: Plain = field(default_factory=dict)
    best: Sequence[Plain] = ()
    limits: Mapping[str, list[int]] = field(default_factory=dict)
    crowd: float = -1.0
    now: float = 0.0
    noise: Mapping[str, float] = field(default_factory=dict)
    """Noise scales that the last search went by."""

    def mean_crowd(self, view: View) -> float:
        """Jobs present, averaged over the last hours."""
        number = float(len(view.jobs.ids))
        if self.crowd < 0:
            return number
        old = float(np.exp(-max(view.now - self.now, 0.0) / _CROWD_S))
        return self.crowd * old + number * (1.0 - old)

    def price(self, view: View, factor: float) -> float:
        """Weighted s that a GPU-second costs jobs that will come: as many as there are now would
        each be served later by its part of the cluster."""
        gpus = float(view.nodes.gpus.sum())
        return factor * self.mean_crowd(view) / max(gpus, 1.0) / 2.0

    def stands(self, view: View, problem: BatchProblem, every_s: float) -> bool:
        """Whether the last choice still holds: same jobs, all where they were put, not long ago."""
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
        return here == {id_: list(pair) for id_, pair in self.laid.items()}

    def elites(self, view: View, problem: BatchProblem) -> list[tuple[IntArray, IntArray]]:
        """The population's best of the last search, without what is no longer possible."""
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
        """The memory after this round."""
        view, problem, parts = placed.view, placed.problem, placed.places.parts
        kept = replace(
            self,
            limits=limits.kept if limits is not None else {},
            crowd=self.mean_crowd(view),
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
                laid=_plain(ids, problem, placed.option, placed.batch, sorted(parts)),
                best=[_plain(ids, problem, *p, np.flatnonzero(p[0] >= 0).tolist()) for p in pairs],
            )
        return {
            "version": _VERSION,
            "names": list(kept.names),
            "decisions": kept.decisions,
            "chosen_s": kept.chosen_s,
            "present": list(kept.present),
            "laid": dict(kept.laid),
            "best": list(kept.best),
            "limits": dict(kept.limits),
            "crowd": kept.crowd,
            "now": kept.now,
            "noise": dict(kept.noise),
        }


def recall(state: State, view: View, pools: ResourcePools) -> OnesState:
    """The memory; an empty one where there is none, without places where the cluster changed."""
    if state.get("version") != _VERSION:
        return OnesState()
    kept = cast(dict[str, Any], state)
    past = OnesState(
        names=tuple(kept["names"]),
        decisions=int(kept["decisions"]),
        chosen_s=float(kept["chosen_s"]),
        present=tuple(kept["present"]),
        laid=kept["laid"],
        best=kept["best"],
        limits=kept["limits"],
        crowd=float(kept["crowd"]),
        now=float(kept["now"]),
        noise=kept["noise"],
    )
    if past.names != tuple(_names(view, pools)):
        return replace(past, laid={}, best=(), present=(), chosen_s=-np.inf)
    return past


def _plain(
    ids: Sequence[str],
    problem: BatchProblem,
    option: IntArray,
    batch: IntArray,
    jobs: Sequence[int],
) -> dict[str, list[int]]:
    return {ids[job]: [int(option[job]), int(problem.sizes[job, batch[job]])] for job in jobs}


def _noise_of(view: View) -> dict[str, float]:
    """job -> its noise scale; no entry where it has no choice, a large number for infinity."""
    batches = view.jobs.batches
    if batches is None:
        return {}
    rows = np.flatnonzero(chooses(batches)).tolist()
    noise = np.minimum(batches.noise, _LARGE).tolist()
    return {view.jobs.ids[row]: noise[row] for row in rows}


def _changed(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Whether a noise scale was measured anew, or is far from what it was."""
    old = [before.get(id_, 0.0) for id_ in now]
    pairs = zip(old, now.values(), strict=True)
    return any(max(a, b) > _FAR * min(a, b) for a, b in pairs if a != b)


def _names(view: View, pools: ResourcePools) -> list[str]:
    """What the options mean; a memory with other names is of no use."""
    rows = zip(pools.pool_type, pools.pool_group, strict=True)
    names = [f"{view.types[kind]}/{group}" for kind, group in rows]
    return [*names, ",".join(str(count) for count in view.counts)]
