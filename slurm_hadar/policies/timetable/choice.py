"""The placements until the next choice: values from the timetable, and one assignment of gangs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from slurm_hadar.policies.timetable.plan import Timetable, best_response, frugal_run_times
from slurm_hadar.policies.timetable.round_input import RoundInput
from slurm_hadar.policies.timetable.work import Options
from slurm_hadar.solvers.gang_assignment import assign

_LEAST = 0.02
"""Least fraction of its worth that a job keeps while it waits beyond its planned end."""
_MOST_BONUS = 1.0
_AHEAD = 3.0
"""Value per GPU of a job without slack, in multiples of the best other value."""
_ALONE = 0.98
"""A job has no slack if it needs this fraction of the least time for all work by itself."""
_GOES_ON = 0.97
"""A running job without slack goes before others until its tightness is below this: else it would
be stopped as soon as it has some, and lose that while it waits for a place. Not where declarations
were often wrong: a job that declared too much would keep its GPUs while many others wait."""
_SERVED = 2.0
"""Bonus for running a job without a plan at all, in multiples of the best value."""
_EASY = 0.9
"""Restart factor from which a job may change nodes so that another one fits."""
_MIX = 0.5
"""Weight of the plan over all time of a job without slack, beside its plan for now."""


@dataclass(frozen=True)
class RoundChoice:
    """``option`` (J,): -1 waits, -2 keeps GPUs that match no option. ``value`` (J, O): weighted s
    per second of running there, with the bonus for staying and the timetable's share; ``gain`` (J,
    O): without these two. ``share`` (J, O): the timetable's share of the present bucket.
    ``critical`` (J,): no slack. ``price`` (P,): weighted s per GPU-second now."""

    option: IntArray
    value: FloatArray
    gain: FloatArray
    share: FloatArray
    critical: BoolArray
    price: FloatArray
    gives_way: BoolArray | None = None
    """(J,) jobs that may change nodes to make a node free for a gang; None: no job needs to."""
    longest: BoolArray | None = None
    """(J,) jobs without a plan that determine the makespan; None: not computed."""


def choose(inputs: RoundInput, table: Timetable, unchanged: bool = False) -> RoundChoice:
    """The assignment with the largest sum of values among all that fit.

    The value of an option to a job is the worth of its remaining work in the timetable, per second
    of run time there: more where the timetable has it, less where the job would have to restart.
    Jobs that miss the deadline unless they run all the time go before all others, where the
    timetable has them. ``unchanged``: keep the present options and compute only the numbers behind
    them.
    """
    options, weight, settings = inputs.options, inputs.weight, inputs.settings
    elapsed = inputs.view.now - table.start_s
    worth, tight, mix, share, price = _present_values(inputs, table, elapsed)
    left = np.maximum(worth - weight * elapsed, _LEAST * worth)
    possible = np.isfinite(options.seconds)
    gain = np.where(possible, left[:, None] / np.where(possible, options.seconds, 1.0), 0.0)
    gain = np.where(possible & (weight > 0)[:, None], np.maximum(gain, 1e-12), 0.0)
    doubt = inputs.doubt
    # The plan values further GPUs; for jobs without a plan a concave function does.
    power = 1.0 - (1.0 - settings.doubt_power) * float(doubt.unplanned.mean())
    gain[options.gpus > doubt.reach[:, None]] = 0.0
    move_part = move_factor(inputs.view, options, doubt)
    alike_where_slowest(gain, weight, doubt)
    # The end of a job without a plan is a guess, so its share of the plan does not count.
    follow = settings.follow * np.where(doubt.unplanned, 0.0, 1.0)[:, None] * share
    speed = concave(options, power)
    lost = gain * (speed - concave(options, power, move_part))
    longest = _decides_makespan(inputs, table, elapsed)
    need = np.where(longest, 1.0, need_factor(inputs.view, options, doubt))
    # A restart costs the same GPU time whatever the weight of the job.
    value = gain * speed * need[:, None] - lost
    value = np.where(gain > 0, np.maximum(value, 1e-12), 0.0) * (1.0 + follow)
    gain *= speed
    # The tightness includes untried GPU counts; for jobs without a plan it is unknown.
    runs_on = (options.now != -1) & inputs.declarations_reliable
    goes_on = tight >= np.where(runs_on, _GOES_ON, 1.0)
    critical = goes_on & ~doubt.unplanned
    if critical.any():
        top = float((value / options.gpus).max())
        planned = np.where(possible, _MIX * mix + share, 0.0)
        planned /= np.maximum(planned.max(axis=1, initial=0.0), 1e-9)[:, None]
        ahead = _AHEAD * top * tight[:, None] * planned * options.gpus
        value += np.where(critical[:, None] & (gain > 0), ahead * move_part, 0.0)
    _discourage_moves(inputs, table, value)
    _serve_all_first(inputs, value)
    option = options.now if unchanged else _in_queue_order(inputs, value, _assigned(options, value))
    easy = restart_factor(inputs.view) >= _EASY if doubt.job.any() else None
    return RoundChoice(option, value, gain, share, critical, price, easy, longest)


def choose_without(inputs: RoundInput, choice: RoundChoice, jobs: Sequence[int]) -> RoundChoice:
    """Another choice in which none of these jobs gets the option that it has in this one."""
    value = choice.value.copy()
    value[jobs, choice.option[jobs]] = 0.0
    option = _in_queue_order(inputs, value, _assigned(inputs.options, value))
    return replace(choice, option=option, value=value)


def _decides_makespan(inputs: RoundInput, table: Timetable, elapsed: float) -> BoolArray:
    """(J,) jobs without a plan whose declared work alone takes as long as all work together, on
    counts that waste no GPUs: a delay of such a job delays the end of all work. None of the jobs if
    declarations were often wrong."""
    declared = inputs.doubt.unplanned & ~inputs.doubt.work & inputs.declarations_reliable
    if not declared.any():
        return declared
    own = frugal_run_times(inputs.options, inputs.settings.waste).min(axis=1)
    least = max(table.least_s - elapsed, 1.0)
    found: BoolArray = declared & np.isfinite(own) & (own >= _ALONE * least)
    return found


def _discourage_moves(inputs: RoundInput, table: Timetable, value: FloatArray) -> None:
    """Change ``value`` (J, O): the cost of a restart raises the value of the present option and
    lowers the others. For a job without a plan the time over which a move would pay is unknown;
    :func:`.doubt.move_factor` counts the cost of its past moves instead."""
    options, settings = inputs.options, inputs.settings
    there = np.flatnonzero((options.now >= 0) & ~inputs.doubt.unplanned)
    horizon = table.deadline_s - table.start_s
    cost = settings.gain_over_cost * inputs.view.jobs.restart_s[there]
    present = value[there, options.now[there]]
    # A job that has long to run may restart even if all others end soon.
    rest = settings.settle * options.seconds[there, options.now[there]]
    pays_s = np.maximum(settings.choose_every * horizon, rest)
    stay = present * (1.0 + np.minimum(cost / np.maximum(pays_s, 1.0), _MOST_BONUS))
    pays_s = np.maximum(settings.solve_every * horizon, rest)
    other = np.maximum(1.0 - cost / np.maximum(pays_s, 1.0), 0.0)
    value[there] *= other[:, None]
    value[there, options.now[there]] = stay
    _no_moves_near_end(inputs, value)


def _no_moves_near_end(inputs: RoundInput, value: FloatArray) -> None:
    """Change ``value`` (J, O): a running job without a plan whose work is declared does not move to
    a faster option that saves less than its restart costs, and not at all when it is about to
    end."""
    options, doubt = inputs.options, inputs.doubt
    there = np.flatnonzero((options.now >= 0) & doubt.unplanned & ~doubt.work)
    here = options.seconds[there, options.now[there]][:, None]
    cost = (inputs.settings.gain_over_cost * inputs.view.jobs.restart_s[there])[:, None]
    other = options.seconds[there]
    late = (here <= cost) | ((other < here) & (other + cost >= here))
    late[np.arange(len(there)), options.now[there]] = False
    value[there] = np.where(late, 0.0, value[there])


def _serve_all_first(inputs: RoundInput, value: FloatArray) -> None:
    """Change ``value`` (J, O): while all jobs fit on the fewest GPUs that each needs, no job
    without a plan waits so that another one gets more."""
    options = inputs.options
    able = value > 0
    some = np.flatnonzero(able.any(axis=1) & inputs.doubt.unplanned)
    if not len(some):
        return
    least = np.where(able, options.gpus, np.iinfo(np.int64).max).min(axis=1)
    if least[able.any(axis=1)].sum() <= options.capacity.sum():
        value[some] += np.where(able[some], _SERVED * value.max(), 0.0)


class _PresentValues(NamedTuple):
    """The timetable's numbers for all jobs now. ``worth`` (J,): worth of a job; ``tight`` (J,):
    tightness, 1: no slack; ``mix``, ``share`` (J, O): planned options, over all time and now;
    ``price`` (P,): of a GPU of each pool."""

    worth: FloatArray
    tight: FloatArray
    mix: FloatArray
    share: FloatArray
    price: FloatArray


def _present_values(inputs: RoundInput, table: Timetable, elapsed: float) -> _PresentValues:
    ids, options, weight = inputs.view.jobs.ids, inputs.options, inputs.weight
    jobs = len(ids)
    row: Mapping[str, int] = {id_: at for at, id_ in enumerate(table.ids)}
    rows = np.array([row.get(id_, -1) for id_ in ids], dtype=np.int64)
    known = rows >= 0
    bucket = int(np.searchsorted(table.edges, elapsed, side="right")) - 1
    bucket = min(max(bucket, 0), len(table.edges) - 2)
    worth, tight = np.zeros(jobs), np.zeros(jobs)
    worth[known] = table.worth[rows[known]]
    # Planned run time shrinks with the remaining work, the horizon with the clock.
    best = np.where(np.isfinite(options.best_s), options.best_s, 0.0)[known]
    rest = np.minimum(best / np.maximum(table.best_s[rows[known]], 1.0), 1.0)
    time_left = max(float(table.edges[-1]) - elapsed, 1.0)
    tight[known] = (
        table.run_s[rows[known]] * rest / time_left / np.maximum(table.limit[rows[known]], 1e-6)
    )
    # A job that takes as long as all work together determines the makespan: no slack.
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
        answer = best_response(part, weight[new], table.price, table.edges, np.ones(len(new)))
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


def _in_queue_order(inputs: RoundInput, value: FloatArray, option: IntArray) -> IntArray:
    """``option`` (J,) where of waiting jobs that are alike those start that are first in Slurm's
    order: the values of jobs that the timetable knows for a while fall below those of new ones."""
    options, priority = inputs.options, inputs.view.jobs.priority
    waits = np.flatnonzero((options.now == -1) & np.isfinite(options.best_s))
    starts = option[waits] >= 0
    if starts.all() or not starts.any():
        return option
    found = option.copy()
    finite = np.where(np.isfinite(options.seconds[waits]), options.seconds[waits], -1.0)
    known = np.column_stack([finite, inputs.weight[waits], inputs.doubt.reach[waits]])
    kinds = np.unique(known, axis=0, return_inverse=True)[1].reshape(-1)
    for kind in np.flatnonzero(np.bincount(kinds, weights=starts) > 0).tolist():
        alike = waits[kinds == kind]
        chosen = option[alike]
        # An equal rank keeps the order of the view.
        ranked = alike[np.argsort(-priority[alike], kind="stable")]
        worth = np.where(chosen >= 0, value[alike, chosen], -np.inf)
        found[ranked] = chosen[np.argsort(-worth, kind="stable")]
    return found
