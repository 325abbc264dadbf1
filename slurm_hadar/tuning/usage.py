"""What a history idled, who waited for one GPU type while others were free, and what each account
got.

Idle GPUs are counted by type, not by node: free GPUs that lie on several nodes count as free
together. The nodes are those of today for the whole of the history.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.tuning.requested_types import OPEN
from slurm_hadar.tuning.sacct_history import History
from slurm_hadar.tuning.site import SlurmSite

_MOST_COUNTS = 64
"""Numbers of GPUs by which waits are listed; a history of more takes the next larger one."""
_MOST_EXAMPLES = 3
_LONG_GAP_S = 600.0
_NOTABLE_H = 1 / 60
"""Shorter waits are Slurm's own doing."""
MOST = 20
"""Accounts that are listed, by GPU-hours; the rest is listed as one."""
REST = "(others)"


@dataclass(frozen=True)
class TypeUse:
    """One GPU type over the history, in GPU-hours. ``while_waited_gpu_h``: idle while others waited
    for as many GPUs of another type; ``gaps_gpu_h``: idle in stretches of ten minutes or more of at
    least one GPU; ``beyond``: so many more were in use at once than there are."""

    kind: str
    gpus: int
    offered_gpu_h: float
    used_gpu_h: float
    idle_gpu_h: float
    while_waited_gpu_h: float
    gaps_gpu_h: float
    beyond: int


@dataclass(frozen=True)
class Waits:
    """Jobs that asked for one type only. ``waited_h``: of all of them; ``while_free_h``: other type
    -> job-hours in which as many GPUs of it were free; ``any_free_h``: of any other."""

    kind: str
    jobs: int
    waited_jobs: int
    waited_h: float
    while_free_h: dict[str, float]
    any_free_h: float
    examples: tuple[tuple[str, float], ...]
    """(job, hours that it waited while another type was free), longest first."""


@dataclass(frozen=True)
class Usage:
    """From ``from_s`` to ``to_s``, s since the epoch. ``open_jobs``: asked for no single type."""

    from_s: float
    to_s: float
    types: tuple[TypeUse, ...]
    waits: tuple[Waits, ...]
    open_jobs: int
    open_waited_h: float


def usage(history: History, site: SlurmSite, since_s: float = 0.0) -> Usage:
    """The accounts of a history with at least one job."""
    to = history.until_s
    start = np.minimum(history.start_s, to)
    end = np.minimum(history.end_s, to)
    # A job that was submitted long before the first one ran says nothing about what idled then.
    first = max(float(start.min(initial=to)), since_s)
    arrival = np.clip(history.arrival_s, first, to)
    start, end = np.clip(start, first, to), np.clip(end, first, to)
    times = np.unique(np.concatenate([arrival, start, end, [first, to]]))
    width = np.diff(times) / 3600.0
    at_arrival, at_start, at_end = (np.searchsorted(times, part) for part in (arrival, start, end))
    capacity = np.array([site.gpus[kind] for kind in history.types], dtype=np.int64)
    used = _levels(at_start, at_end, history.held, len(times))
    free: IntArray = np.maximum(capacity[None, :] - used, 0)
    waiting = _asked_levels(history, at_arrival, at_start, len(times))
    others = waiting.sum(axis=1, keepdims=True) - waiting
    types = tuple(
        TypeUse(
            kind=kind,
            gpus=int(capacity[at]),
            offered_gpu_h=float(capacity[at] * width.sum()),
            used_gpu_h=float((np.minimum(used[:, at], capacity[at]) * width).sum()),
            idle_gpu_h=float((free[:, at] * width).sum()),
            while_waited_gpu_h=float((np.minimum(free[:, at], others[:, at]) * width).sum()),
            gaps_gpu_h=_gaps(free[:, at], width),
            beyond=int(max(0, used[:, at].max(initial=0) - capacity[at])),
        )
        for at, kind in enumerate(history.types)
    )
    open_ = history.asked == OPEN
    return Usage(
        from_s=first,
        to_s=to,
        types=types,
        waits=_waits(history, times, free, at_arrival, at_start),
        open_jobs=int(open_.sum()),
        open_waited_h=float((start - arrival)[open_].sum() / 3600.0),
    )


def _levels(begin: IntArray, stop: IntArray, amount: IntArray, points: int) -> IntArray:
    """(points - 1, R) sum of ``amount`` (J, R) over the jobs that hold it between two points."""
    change = np.zeros((points, amount.shape[1]), dtype=np.int64)
    np.add.at(change, begin, amount)
    np.subtract.at(change, stop, amount)
    level: IntArray = change.cumsum(axis=0)[:-1]
    return level


def _asked_levels(history: History, begin: IntArray, stop: IntArray, points: int) -> IntArray:
    wanted = np.zeros(history.held.shape, dtype=np.int64)
    rows = np.flatnonzero(history.asked != OPEN)
    wanted[rows, history.asked[rows]] = history.gpus[rows]
    return _levels(begin, stop, wanted, points)


def _gaps(free: IntArray, width: FloatArray) -> float:
    """GPU-hours in stretches of :data:`_LONG_GAP_S` and more with something free throughout."""
    idle = free > 0
    run = np.cumsum(np.concatenate([[True], idle[1:] != idle[:-1]])) if len(idle) else idle
    length = np.bincount(run.astype(np.int64), weights=width)
    long = length[run.astype(np.int64)] >= _LONG_GAP_S / 3600.0
    return float((free * width)[long].sum())


def _waits(
    history: History, times: FloatArray, free: IntArray, begins: IntArray, ends: IntArray
) -> tuple[Waits, ...]:
    """``times`` (T,) in s; ``free`` (T - 1, R): GPUs between two of them; each job waits from the
    time with the index ``begins`` to the one with ``ends``."""
    width = np.diff(times) / 3600.0
    column, counts = _columns(history.gpus)
    kinds = range(len(history.types))
    typed = [np.flatnonzero(history.asked == kind) for kind in kinds]
    other_h = [np.zeros((len(rows), len(kinds) + 1)) for rows in typed]
    for at, count in enumerate(counts.tolist()):
        room = free >= count
        for kind in kinds:
            mine = column[typed[kind]] == at
            rows = typed[kind][mine]
            if not len(rows):
                continue
            others = [other for other in kinds if other != kind]
            for place, is_free in [
                *((other, room[:, other]) for other in others),
                (len(kinds), room[:, others].any(axis=1)),
            ]:
                total = np.concatenate([[0.0], np.cumsum(is_free * width)])
                other_h[kind][mine, place] = total[ends[rows]] - total[begins[rows]]
    waited = (times[ends] - times[begins]) / 3600.0
    return tuple(
        _of_type(history, kind, typed[kind], waited, other_h[kind])
        for kind in kinds
        if len(typed[kind])
    )


def _columns(gpus: IntArray) -> tuple[IntArray, IntArray]:
    """(J,) place of each job's number of GPUs among the (C,) that are kept apart."""
    counts = np.unique(gpus)
    if len(counts) > _MOST_COUNTS:
        counts = np.unique(np.quantile(gpus, np.linspace(0, 1, _MOST_COUNTS), method="higher"))
    return np.searchsorted(counts, gpus), counts


def _of_type(
    history: History, kind: int, rows: IntArray, waited: FloatArray, other_h: FloatArray
) -> Waits:
    any_h = other_h[:, -1]
    longest = np.argsort(-any_h, kind="stable")[:_MOST_EXAMPLES].tolist()
    return Waits(
        kind=history.types[kind],
        jobs=len(rows),
        waited_jobs=int((waited[rows] > _NOTABLE_H).sum()),
        waited_h=float(waited[rows].sum()),
        while_free_h={
            name: float(other_h[:, other].sum())
            for other, name in enumerate(history.types)
            if other != kind
        },
        any_free_h=float(any_h.sum()),
        examples=tuple(
            (history.ids[rows[at]], float(any_h[at])) for at in longest if any_h[at] > _NOTABLE_H
        ),
    )


@dataclass(frozen=True, slots=True)
class Share:
    """One account. ``slowdown``: the mean of its jobs' time in the system over the time that they
    ran when they were recorded; 1: no job waited."""

    account: str
    jobs: int
    gpu_h: float
    mean_jct_h: float
    slowdown: float


def shares(
    accounts: Sequence[str], jct_s: FloatArray, run_s: FloatArray, gpu_s: FloatArray
) -> list[Share]:
    """By account, most GPU-hours first; (J,) arrays, jobs with a nan time left out."""
    known = np.isfinite(jct_s)
    names = np.array(accounts, dtype=object)
    hours = {name: float(gpu_s[known & (names == name)].sum()) for name in dict.fromkeys(accounts)}
    ranked = sorted(hours, key=lambda name: (-hours[name], name))
    if len(ranked) > MOST:
        names = np.where(np.isin(names, ranked[: MOST - 1]), names, REST)
        ranked = [*ranked[: MOST - 1], REST]
    found = []
    for name in ranked:
        mine = known & (names == name)
        if mine.any():
            slow = jct_s[mine] / np.maximum(run_s[mine], 1.0)
            found.append(
                Share(
                    account=name,
                    jobs=int(mine.sum()),
                    gpu_h=float(gpu_s[mine].sum()) / 3600.0,
                    mean_jct_h=float(jct_s[mine].mean()) / 3600.0,
                    slowdown=float(slow.mean()),
                )
            )
    return found


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 where all are equal, 1/n where one has everything (Jain, Chiu and Hawe,
    DEC-TR-301, 1984; recalled). nan for none."""
    each = np.array(values)
    if not len(each) or not each.any():
        return float("nan")
    return float(each.sum() ** 2 / (len(each) * (each**2).sum()))
