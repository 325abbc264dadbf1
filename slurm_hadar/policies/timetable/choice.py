"""Who runs where until the next choice: the timetable's values, and one assignment of gangs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.policies.timetable.doubt import (
    alike_where_slowest,
    concave,
    move_factor,
    need_factor,
    restart_factor,
)
from slurm_hadar.policies.timetable.plan import Timetable, respond, thrift
from slurm_hadar.policies.timetable.round_input import GivenRound
from slurm_hadar.policies.timetable.work import Options
from slurm_hadar.solvers.gang_assignment import assign

_LEAST = 0.02
"""Part of a job's worth that it never falls below while it waits beyond its planned end."""
_MOST_BONUS = 1.0
_AHEAD = 3.0
"""Value per GPU of a job without slack, in those of the best other."""
_ALONE = 0.98
"""Part of the least time for all the work from which a job that needs it alone has no slack."""
_GOES_ON = 0.97
"""A running job without slack goes before others until its tightness is below this: else it would
be stopped as soon as it has some, and lose that while it waits for a place."""
_SERVED = 2.0
"""What it counts for that a job without a plan runs at all, in the value of the best place."""
_EASY = 0.9
"""Restart factor from which a job may change nodes for another one's sake."""
_MIX = 0.5
"""Weight of the whole plan of a job without slack beside its plan for now."""


@dataclass(frozen=True)
class RoundChoice:
    """``option`` (J,): -1 waits, -2 keeps GPUs that are no option. ``value`` (J, O): what a second
    of running there is worth, weighted s, stay and timetable included; ``gain`` (J, O): without
    these. ``share`` (J, O): the timetable's part of the present bucket. ``price`` (P,): weighted s
    per GPU-second now."""

    option: IntArray
    value: FloatArray
    gain: FloatArray
    share: FloatArray
    critical: BoolArray
    price: FloatArray
    gives_way: BoolArray | None = None
    """(J,) which jobs may change nodes so that a gang gets one; None: none has to."""
    longest: BoolArray | None = None
    """(J,) jobs without a plan that decide when all the work ends; None: it is not looked at."""


def choose(given: GivenRound, table: Timetable, kept: bool = False) -> RoundChoice:
    """The largest sum of values among all assignments that fit.

    A job's value on an option is what the timetable says its whole work is still worth, per second
    of run time there: more where the timetable has it, less where it would have to restart. Jobs
    that cannot be ready by the deadline unless they run all the time go before all others, where
    the timetable has them. ``kept``: it stays as it is, and only the numbers behind it are wanted.
    """
    options, weight, settings = given.options, given.weight, given.settings
    elapsed = given.view.now - table.start_s
    worth, tight, mix, share, price = _present_values(given, table, elapsed)
    left = np.maximum(worth - weight * elapsed, _LEAST * worth)
    possible = np.isfinite(options.seconds)
    gain = np.where(possible, left[:, None] / np.where(possible, options.seconds, 1.0), 0.0)
    gain = np.where(possible & (weight > 0)[:, None], np.maximum(gain, 1e-12), 0.0)
    doubt = given.doubt
    # The plan says what a further GPU is worth; where it does not decide nothing does.
    power = 1.0 - (1.0 - settings.doubt_power) * float(doubt.unplanned.mean())
    gain[options.gpus > doubt.reach[:, None]] = 0.0
    move_part = move_factor(given.view, options, doubt)
    alike_where_slowest(gain, weight, doubt)
    # When a job without a plan ends is a guess: no time in the plan is better than another.
    follow = settings.follow * np.where(doubt.unplanned, 0.0, 1.0)[:, None] * share
    speed = concave(options, power)
    lost = gain * (speed - concave(options, power, move_part))
    longest = _longest(given, table, elapsed)
    need = np.where(longest, 1.0, need_factor(given.view, options, doubt))
    # A restart costs the same GPU time whatever the job counts for.
    value = gain * speed * need[:, None] - lost
    value = np.where(gain > 0, np.maximum(value, 1e-12), 0.0) * (1.0 + follow)
    gain *= speed
    # The tightness allows for GPU counts that were not tried; of jobs without a plan it is unknown.
    goes_on = tight >= np.where(options.now != -1, _GOES_ON, 1.0)
    critical = goes_on & ~doubt.unplanned
    if critical.any():
        top = float((value / options.gpus).max())
        planned = np.where(possible, _MIX * mix + share, 0.0)
        planned /= np.maximum(planned.max(axis=1, initial=0.0), 1e-9)[:, None]
        ahead = _AHEAD * top * tight[:, None] * planned * options.gpus
        value += np.where(critical[:, None] & (gain > 0), ahead * move_part, 0.0)
    _stays(given, table, value)
    _none_stops(given, value)
    option = options.now if kept else _assigned(options, value)
    easy = restart_factor(given.view) >= _EASY if doubt.job.any() else None
    return RoundChoice(option, value, gain, share, critical, price, easy, longest)


def _longest(given: GivenRound, table: Timetable, elapsed: float) -> BoolArray:
    """(J,) jobs without a plan whose declared work alone takes as long as all the work together, on
    counts that waste no GPUs: what delays such a job delays the end of all the work. No
    job where declarations were often wrong."""
    declared = given.doubt.unplanned & ~given.doubt.work & given.relies
    if not declared.any():
        return declared
    own = thrift(given.options, given.settings.waste).min(axis=1)
    least = max(table.least_s - elapsed, 1.0)
    found: BoolArray = declared & np.isfinite(own) & (own >= _ALONE * least)
    return found


def _stays(given: GivenRound, table: Timetable, value: FloatArray) -> None:
    """Change ``value`` (J, O): what a restart costs makes the present place worth more, others
    less. Over which time a move of a job without a plan would pay is not known: there
    ``move_factor`` counts what the moves so far have cost."""
    options, settings = given.options, given.settings
    there = np.flatnonzero((options.now >= 0) & ~given.doubt.unplanned)
    horizon = table.deadline_s - table.start_s
    cost = settings.gain_over_cost * given.view.jobs.restart_s[there]
    present = value[there, options.now[there]]
    # A job that has long to run may well restart, however soon all the others end.
    rest = settings.settle * options.seconds[there, options.now[there]]
    pays_s = np.maximum(settings.choose_every * horizon, rest)
    stay = present * (1.0 + np.minimum(cost / np.maximum(pays_s, 1.0), _MOST_BONUS))
    pays_s = np.maximum(settings.solve_every * horizon, rest)
    other = np.maximum(1.0 - cost / np.maximum(pays_s, 1.0), 0.0)
    value[there] *= other[:, None]
    value[there, options.now[there]] = stay
    _near_end_stays(given, value)


def _near_end_stays(given: GivenRound, value: FloatArray) -> None:
    """Change ``value`` (J, O): a running job without a plan whose work is declared moves to no
    faster place that gains it less than its restart costs, and nowhere when it is about to end."""
    options, doubt = given.options, given.doubt
    there = np.flatnonzero((options.now >= 0) & doubt.unplanned & ~doubt.work)
    here = options.seconds[there, options.now[there]][:, None]
    cost = (given.settings.gain_over_cost * given.view.jobs.restart_s[there])[:, None]
    other = options.seconds[there]
    late = (here <= cost) | ((other < here) & (other + cost >= here))
    late[np.arange(len(there)), options.now[there]] = False
    value[there] = np.where(late, 0.0, value[there])


def _none_stops(given: GivenRound, value: FloatArray) -> None:
    """Change ``value`` (J, O): while all jobs fit on the fewest GPUs that each needs, none without
    a plan waits for another one to have more."""
    options = given.options
    able = value > 0
    some = np.flatnonzero(able.any(axis=1) & given.doubt.unplanned)
    if not len(some):
        return
    least = np.where(able, options.gpus, np.iinfo(np.int64).max).min(axis=1)
    if least[able.any(axis=1)].sum() <= options.capacity.sum():
        value[some] += np.where(able[some], _SERVED * value.max(), 0.0)


class _PresentValues(NamedTuple):
    """What the timetable says of all jobs at this time. ``worth``, ``tight`` (J,): what a job is
    worth, and its tightness, 1: no slack; ``mix``, ``share`` (J, O): the options that it is planned
    to have, over all time and now; ``price`` (P,): of a GPU of each pool."""

    worth: FloatArray
    tight: FloatArray
    mix: FloatArray
    share: FloatArray
    price: FloatArray


def _present_values(given: GivenRound, table: Timetable, elapsed: float) -> _PresentValues:
    ids, options, weight = given.view.jobs.ids, given.options, given.weight
    jobs = len(ids)
    row: Mapping[str, int] = {id_: at for at, id_ in enumerate(table.ids)}
    rows = np.array([row.get(id_, -1) for id_ in ids], dtype=np.int64)
    known = rows >= 0
    bucket = int(np.searchsorted(table.edges, elapsed, side="right")) - 1
    bucket = min(max(bucket, 0), len(table.edges) - 2)
    worth, tight = np.zeros(jobs), np.zeros(jobs)
    worth[known] = table.worth[rows[known]]
    # What is planned to run shrinks with the work, the time until the horizon with the clock.
    best = np.where(np.isfinite(options.best_s), options.best_s, 0.0)[known]
    rest = np.minimum(best / np.maximum(table.best_s[rows[known]], 1.0), 1.0)
    time_left = max(float(table.edges[-1]) - elapsed, 1.0)
    tight[known] = (
        table.run_s[rows[known]] * rest / time_left / np.maximum(table.limit[rows[known]], 1e-6)
    )
    # Who alone takes as long as all the work together decides when it ends: no slack at all.
    least = max(table.least_s - elapsed, 1.0)
    tight[known] = np.maximum(tight[known], best / (_ALONE * least))
    mix, share = np.zeros((2, jobs, len(options.gpus)))
    mix[known] = table.mix[rows[known]]
    if table.share.size:
        at = min(bucket, table.share.shape[2] - 1)
        share[known] = table.share[rows[known], :, at]
    if not known.all():
        new = np.flatnonzero(~known)
        part = Options(
            options.gpus, options.pool, options.capacity, options.seconds[new], options.left[new],
            options.now[new], options.bound[new], {}, (), {},
        )  # fmt: skip
        answer = respond(part, weight[new], table.price, table.edges, np.ones(len(new)))
        worth[new] = answer.worth + weight[new] * elapsed
    return _PresentValues(worth, tight, mix, share, table.price[:, bucket])


def _assigned(options: Options, value: FloatArray) -> IntArray:
    free = options.capacity.copy()
    option: IntArray = np.full(len(value), -1, dtype=np.int64)
    bound = np.flatnonzero(options.bound)
    option[bound] = options.now[bound]
    known = bound[options.now[bound] >= 0]
    np.subtract.at(free, options.pool[options.now[known]], options.gpus[options.now[known]])
    for job in bound[options.now[bound] < 0].tolist():
        free -= options.apart[job]
    free = np.maximum(free, 0)
    open_ = np.flatnonzero(~options.bound)
    option[open_] = assign(value[open_], options.gpus, options.pool, free)
    return option
