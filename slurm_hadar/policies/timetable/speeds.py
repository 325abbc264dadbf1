"""The speeds of jobs as observed: measured values replace estimates that were wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from slurm_hadar.domain.view import FloatArray, IntArray, State, View
from slurm_hadar.policies.network.compose import spread_too_far

_EXACT = 0.02
"""Relative error below which an estimate is kept."""
_PLAUSIBLE = 8.0
"""Measured speeds that differ from the estimate by more than this factor are ignored."""
_SPAN_S = 300.0
"""Length of one measurement, s."""
_REPORT_S = 10.0
"""Longest interval between two reports of a job, s. In a shorter span the age of the reports may
change the apparent work by so many seconds, so only a larger deviation counts."""
_KEY = "speeds"
_FEW = 10.0
_FADES = 0.98
"""Weight of an ended job, per job that has ended since."""
_RARELY = 0.1
"""Declared work is relied on while at most this fraction of the declarations is wrong."""
_NEVER = (0.0, -1.0, 0.0, 0.0, -np.inf, 0.0)
"""The record of a job not seen before: the fields of ``memory``, with the start of the measurement
and the work left at that time at the end."""
_OFF = 0.1
"""A declaration is wrong if it misses the work by more than this fraction."""


@dataclass(frozen=True)
class ObservedRates:
    """``rate`` (J, R, C): samples/s, measured where the job has run for a while and the view's
    value was wrong. ``guessed`` (J,): 1 if a speed of the job is an unmeasured estimate, else 0.
    ``wrong``: fraction of the ended jobs, weighted to recent ones, whose declared work was wrong.
    ``memory``: state for the next round, plain JSON."""

    rate: FloatArray
    guessed: FloatArray
    wrong: float
    memory: dict[str, object]

    @property
    def declarations_reliable(self) -> bool:
        """Whether declared work was rarely wrong."""
        return self.wrong <= _RARELY


def learn(view: View, state: State) -> ObservedRates:
    """Compare the work left with that of an earlier round, for jobs that ran throughout.

    A deviation from the previous speed that exceeds what the age of a report explains counts at
    once, a smaller one after :data:`_SPAN_S`.

    A speed counts for its own type and count only: other pairs need not have the same error. The
    speed of a job that is spread over more racks or nodes than necessary says something about its
    placement, not about type and count, and is ignored.

    If the view has measured one option of a job and estimates the others, the view's own values
    count: see :func:`_corrected`.
    """
    jobs = view.jobs
    past = cast(Mapping[str, Any], state.get(_KEY, {}))
    measured: dict[str, dict[str, float]] = {}
    rate = jobs.rate
    place = _places(view)
    ended, wrong = 0.0, 0.0
    began: dict[int, tuple[float, float]] = {}
    if past:
        ended, wrong = _ended(view, past)
        measured, began = _measured(view, past, place)
        rate = _corrected(view, measured)
    running = np.flatnonzero(place >= 0).tolist()
    speeds, left, total = _there(rate, place), jobs.left.tolist(), jobs.total.tolist()
    places = place.tolist()
    kept = {
        jobs.ids[job]: [
            left[job], float(places[job]), total[job], speeds[job],
            *began.get(job, (view.now, left[job])),
        ]
        for job in running
    }  # fmt: skip
    memory = {
        "now": view.now, "jobs": kept, "measured": measured, "ended": ended, "wrong": wrong
    }  # fmt: skip
    return ObservedRates(rate, _guessed(view), min(1.0, wrong / max(ended, _FEW)), memory)


def _measured(
    view: View, past: Mapping[str, Any], place: IntArray
) -> tuple[dict[str, dict[str, float]], dict[int, tuple[float, float]]]:
    """Job -> option -> its speed where that is not the view's, and since when the speed of each job
    at its ``place`` is measured, with the work left then, where that is not for long enough."""
    jobs = view.jobs
    places, left, total = place.tolist(), jobs.left.tolist(), jobs.total.tolist()
    viewed = _there(jobs.rate, place)
    old = cast(Mapping[str, dict[str, float]], past["measured"])
    before = cast(Mapping[str, list[float]], past["jobs"])
    measured = {id_: old[id_] for id_ in jobs.ids if id_ in old} if old else {}
    began: dict[int, tuple[float, float]] = {}
    apart = spread_too_far(view)
    trains_s = (jobs.since_s + jobs.restart_s).tolist()
    for job in np.flatnonzero((place >= 0) & ~apart).tolist():
        id_ = jobs.ids[job]
        _, where, _, _, since, then = (*before.get(id_, ()), *_NEVER)[:6]
        if where != places[job] or trains_s[job] > since:
            continue
        span = view.now - since
        if span < _SPAN_S:
            began[job] = since, then
        expected = viewed[job]
        own = measured.get(id_, {})
        speed = (then - left[job]) / span if span > 0 else 0.0
        near_end = left[job] <= max(1.0, 1e-3 * total[job])
        if near_end or not expected / _PLAUSIBLE < speed < expected * _PLAUSIBLE:
            continue
        name = _name(view, places[job])
        if not _counts(speed, own.get(name, expected), span):
            continue
        measured[id_] = {one: value for one, value in own.items() if one != name}
        if abs(speed / expected - 1.0) > _EXACT:
            measured[id_][name] = speed
    return measured, began


def _counts(speed: float, believed: float, span: float) -> bool:
    """Whether a speed measured over ``span`` seconds deviates by more than the age of a report
    explains."""
    deviation = abs(speed / believed - 1.0)
    return span >= _SPAN_S or deviation > max(_EXACT, _REPORT_S / span)


def with_speeds(state: State, observed: ObservedRates) -> State:
    """The policy's state with what was observed."""
    return {**state, _KEY: observed.memory}


def _ended(view: View, past: Mapping[str, Any]) -> tuple[float, float]:
    """(ended jobs, ended jobs whose declared work was wrong), older ones with less weight.

    A job that is gone with much work left had declared too much, or was cancelled; one that went on
    after its declared work had declared too little.
    """
    ended, wrong = float(past["ended"]), float(past["wrong"])
    here = set(view.jobs.ids)
    passed = max(view.now - float(past["now"]), 0.0)
    for id_, (left, _, total, speed, *_) in past["jobs"].items():
        if id_ in here or not 0.0 < total < np.inf:
            continue
        much = left - speed * passed > _OFF * total
        overdue = left <= min(1.0, 1e-3 * total)
        ended, wrong = ended * _FADES + 1.0, wrong * _FADES + float(much or overdue)
    return ended, wrong


def _guessed(view: View) -> FloatArray:
    jobs = view.jobs
    guessed = np.asarray(((jobs.rate > 0) & ~jobs.known).any(axis=(1, 2)))
    return guessed.astype(np.float64)


def _places(view: View) -> IntArray:
    """(J,) type and count that the job runs on, as one index; -1: none, several, or no option."""
    jobs, counts = view.jobs, np.asarray(view.counts, dtype=np.int64)
    number = len(jobs.ids)
    place: IntArray = np.full(number, -1, dtype=np.int64)
    held = jobs.held
    if not len(held) or not len(counts):
        return place
    gpus = np.bincount(held[:, 0], weights=held[:, 3], minlength=number).astype(np.int64)
    kind = np.full(number, -1, dtype=np.int64)
    kind[held[:, 0]] = held[:, 2]
    mixed = np.zeros(number, dtype=bool)
    mixed[held[kind[held[:, 0]] != held[:, 2], 0]] = True
    column = np.minimum(np.searchsorted(counts, gpus), len(counts) - 1)
    fits = (kind >= 0) & ~mixed & (counts[column] == gpus)
    place[fits] = kind[fits] * len(counts) + column[fits]
    place[fits] = np.where(jobs.rate[fits, kind[fits], column[fits]] > 0, place[fits], -1)
    return place


def _there(rate: FloatArray, place: IntArray) -> list[float]:
    """Samples/s of each job on its place; without a place any number."""
    flat = rate.reshape(len(place), -1)
    if not flat.size:
        return [0.0] * len(place)
    found: list[float] = flat[np.arange(len(place)), place].tolist()
    return found


def _name(view: View, place: int) -> str:
    kind, column = divmod(place, len(view.counts))
    return f"{view.counts[column]} {view.types[kind]}"


def _corrected(view: View, measured: Mapping[str, Mapping[str, float]]) -> FloatArray:
    """(J, R, C) the view's rates with the measured ones, except for measured rates of a job for
    which the view estimates others.

    The view derives the estimates from its own measurement, so their errors agree. If only the
    measured one were replaced, the present option would seem better or worse than all others; and
    for a training that becomes faster as it goes on, the options that it left would seem ever
    worse.
    """
    if not measured:
        return view.jobs.rate
    rate = view.jobs.rate.copy()
    consistent = view.jobs.known & (_guessed(view) > 0)[:, None, None]
    row = {id_: at for at, id_ in enumerate(view.jobs.ids)}
    where = {_name(view, p): p for p in range(len(view.types) * len(view.counts))}
    for id_, speeds in measured.items():
        job = row[id_]
        for name, speed in speeds.items():
            place = where.get(name, -1)
            if place >= 0 and rate[job].flat[place] > 0 and not consistent[job].flat[place]:
                rate[job].flat[place] = speed
    return rate
