"""The reasons in the plans of the timetable policy."""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import BoolArray
from slurm_hadar.policies.allocation import (
    Allocation,
    gang_tier,
    gpus_text,
    nodes_text,
    placement_of,
)
from slurm_hadar.policies.ends import UNKNOWN, ends, ends_here, moves, span, time_left
from slurm_hadar.policies.timetable.choice import RoundChoice
from slurm_hadar.policies.timetable.doubt import restart_factor
from slurm_hadar.policies.timetable.places import PlacedJobs
from slurm_hadar.policies.timetable.plan import Timetable
from slurm_hadar.policies.timetable.round_input import RoundInput
from slurm_hadar.policies.unavailable import unavailable

_ALIKE = 0.1
"""Changes of a weight by fairness are mentioned from this size on."""
_MUCH = 0.9
"""Below this restart factor the reason to stay names the past restarts."""
_UNPLANNED = "the plan has it elsewhere or later, but no job that gains more takes these GPUs"


def plan_with_reasons(
    inputs: RoundInput, choice: RoundChoice, places: PlacedJobs, table: Timetable
) -> Plan:
    """The plan with the reason of each placement and each wait."""
    view, reasons = inputs.view, _Reasons(inputs, choice, table, places)
    placements = {
        view.jobs.ids[job]: reasons.placement(job, p) for job, p in places.allocations.items()
    }
    waiting = {
        id_: reasons.waits(job, places.unplaced.get(job, ""))
        for job, id_ in enumerate(view.jobs.ids)
        if id_ not in placements
    }
    return Plan(placements, waiting, reasons.notes())


class _Reasons:
    def __init__(
        self, inputs: RoundInput, choice: RoundChoice, table: Timetable, places: PlacedJobs
    ) -> None:
        self.view, self.pools, self.options = inputs.view, inputs.pools, inputs.options
        self.choice, self.table = choice, table
        self._doubt, self._restart = inputs.doubt, restart_factor(inputs.view)
        self._ratio, self._places = inputs.ratio, places
        self._min_stay_s = inputs.settings.min_stay_s
        options = self.options
        self._price = choice.price[options.pool] * options.gpus
        net = np.where(choice.gain > 0, choice.gain - self._price, -np.inf)
        self._best = net.argmax(axis=1) if net.size else np.zeros(0, dtype=np.int64)
        self._likes = np.where(choice.gain > 0, net, -np.inf)

    def placement(self, job: int, allocation: Allocation) -> Placement:
        view, pools, options = self.view, self.pools, self.options
        placed = placement_of(view, pools, allocation, "")
        what, where = gpus_text(placed), nodes_text(placed)
        kind_index = int(pools.gpu_type[allocation[0][0]])
        count = sum(n for _, n in allocation)
        at = next(
            (
                o
                for o in np.flatnonzero(options.gpus == count).tolist()
                if int(options.pool[o]) == int(pools.pool[allocation[0][0]])
            ),
            -1,
        )
        stays = options.held.get(job) == allocation
        text = f"{'stays on' if stays else ''} {what} ({where})".strip()
        known = at >= 0 and bool(np.isfinite(options.seconds[job, at]))
        if options.bound[job] and stays:
            here_s = float(options.seconds[job, at])
            text += (f", {ends_here(view, job, here_s)}" if known else "") + self._bound(job)
        elif not known:
            text += f"; its speed on {view.types[kind_index]} is not known"
        else:
            text += self._why(job, at, stays)
        return replace(placed, tier=gang_tier(placed), reason=text)

    def _bound(self, job: int) -> str:
        jobs, stay_s = self.view.jobs, self._min_stay_s
        if jobs.movable[job] and self.view.now - jobs.since_s[job] < stay_s:
            return f"; it came here less than {span(stay_s)} ago"
        return "; it cannot be moved now"

    def _why(self, job: int, at: int, stays: bool) -> str:
        end = (ends_here if stays else ends)(self.view, job, float(self.options.seconds[job, at]))
        text = f", {end}; {self._gain(job, at)}"
        if self.choice.critical[job]:
            text += (
                "; before others: it must run nearly all the time, or all the work ends later than "
                "planned"
            )
        elif not self._doubt.unplanned[job]:
            part = float(self.choice.share[job, at])
            planned = f"the plan has it here for {100 * part:.0f}% of the coming time"
            text += f"; {planned if part > 0 else _UNPLANNED}"
        was = int(self.options.now[job])
        if was == at and stays:
            text += self._stays(job, at)
        elif was == at:
            text += "; it changes nodes, so that a job with more GPUs gets one of its own"
        elif job in self._places.onto_idle:
            here_s, there_s = self.options.seconds[job, [was, at]].tolist()
            text += f"{moves(self.view, job, there_s, here_s)}, and no other job needs these GPUs"
        elif was >= 0:
            text += self._leaves(job, was, at)
        elif was == -1:
            text += self._instead(job, at)
        return text + self._fairly(job) + self._doubts(job, stays)

    def _leaves(self, job: int, was: int, at: int) -> str:
        """The value that it gives up; for other jobs, if they gain more from it."""
        here, there = self.choice.gain[job, [was, at]].tolist()
        left = f"{self._name(was)}, value {here:.3g}"
        others = (
            self._places.free_capacity.left[int(self.options.pool[was])] < self.options.gpus[was]
        )
        if here > there and others:
            return f"; it gives {left}, to jobs that gain more there"
        return f"; it moves from {left}"

    def _compared(self, job: int, option: int) -> str:
        """Another placement with its gain or, for a job without a plan, whose reason is longer
        already, its value and price only."""
        gain = self._gain(job, option)
        if self._doubt.unplanned[job]:
            return f"{self._name(option)}, {gain.partition(' = ')[2]}"
        return f"{self._name(option)}: {gain}"

    def _gain(self, job: int, at: int) -> str:
        value, price = float(self.choice.gain[job, at]), float(self._price[at])
        return f"gain {value - price:.3g} = value {value:.3g} - price {price:.3g}"

    def _fairly(self, job: int) -> str:
        """The effect of finish-time fairness on the job's weight."""
        ratio = float(self._ratio[job])
        if abs(ratio - 1.0) < _ALIKE:
            return ""
        place = "behind" if ratio > 1.0 else "ahead of"
        return f"; it counts {ratio:.2g} times, as its user is {place} an equal part of the cluster"

    def _doubts(self, job: int, stays: bool) -> str:
        """A sentence on the consequences of what is unknown about the job; empty if all is
        known."""
        follows, most, left = [], int(self._doubt.reach[job]), float(self._restart[job])
        if most < int(self.options.gpus.max(initial=0)):
            gpus = f"{most} GPU{'s' if most > 1 else ''}"
            follows.append(f"it gets at most {gpus} until it has been tried on so many")
        if not self._doubt.unplanned[job]:
            return "".join(f"; {one}" for one in follows)
        unknown = bool(self._doubt.work[job])
        if stays and left < _MUCH:
            more = f"{1.0 / left:.1f} times the value" if left > 0 else "more value than any has"
            follows.append(f"{self._restarts(job)} another placement needs {more}")
        elif not follows:
            follows.append(self._counts(job, unknown))
        what = "Its work is" if unknown else "Some of its speeds are"
        return f". {what} not known, so {' and '.join(follows)}"

    def _counts(self, job: int, unknown: bool) -> str:
        if self.choice.longest is not None and self.choice.longest[job]:
            return "it counts in full, as it decides when all the work ends"
        what = "GPU time it has had" if unknown else "work it has left"
        return f"it counts for less the more {what}"

    def _restarts(self, job: int) -> str:
        prospects = self.view.jobs.prospects
        number = int(prospects.restarts[job]) if prospects is not None else 0
        if number == 0:
            return "while its submission is recent"
        return f"after {number} restart{'s' if number > 1 else ''} so far"

    def _best_other(self, job: int, at: int, among: BoolArray) -> int | None:
        likes = self._likes[job]
        others = np.flatnonzero(np.isfinite(likes) & among & (np.arange(len(likes)) != at))
        return int(others[likes[others].argmax()]) if len(others) else None

    def _stays(self, job: int, at: int) -> str:
        """The best of the placements where it would run faster."""
        faster = self.choice.gain[job] > self.choice.gain[job, at]
        other = self._best_other(job, at, faster)
        if other is None:
            return "; no other placement has more value for it"
        text = f"; next best {self._compared(job, other)}"
        if self._likes[job, other] > self._likes[job, at]:
            cost = f"{self.view.jobs.restart_s[job]:.0f} s"
            # Between two choices no job moves, even if GPUs have become free since.
            text += f"; when places were last chosen it was taken, or not worth a move ({cost})"
        return text

    def _instead(self, job: int, at: int) -> str:
        other = self._best_other(job, at, np.ones(len(self._likes[job]), dtype=np.bool_))
        if other is None:
            return "; no other GPU type or count is open to it"
        return f"; next best {self._compared(job, other)}"

    def waits(self, job: int, shortage: str) -> str:
        if not np.isfinite(self.options.seconds[job]).any():
            return unavailable(self.view, job)
        best = int(self._best[job])
        name = self._name(best)
        if shortage:
            return f"chosen for {name}, but short of {shortage}"
        stopped = "stopped for jobs that gain more; " if job in self.options.held else ""
        # At or below its price, other jobs use these GPUs better.
        pays = self.choice.gain[job, best] > self._price[best]
        why = "jobs that gain more fill it" if pays else "other jobs gain more from it"
        if self._is_full(best):
            why = "it is full, and no job there can be moved now"
        why = f"best for it: {name}, {self._gain(job, best)}, but {why}"
        left = time_left(self.view, job, float(self.options.seconds[job, best]))
        end = f"it would end in {left}" if left else UNKNOWN
        return f"{stopped}{why}; {end}{self._fairly(job)}"

    def _is_full(self, option: int) -> bool:
        """Whether jobs that cannot be moved now leave too few of its GPUs."""
        options, pool = self.options, int(self.options.pool[option])
        staying = np.flatnonzero(options.bound & (options.now >= 0))
        there = options.now[staying][options.pool[options.now[staying]] == pool]
        left = int(options.capacity[pool]) - int(options.gpus[there].sum())
        return left < int(options.gpus[option])

    def _name(self, option: int) -> str:
        kind = self.pools.pool_type[int(self.options.pool[option])]
        return f"{int(self.options.gpus[option])} x {self.view.types[kind]}"

    def notes(self) -> tuple[str, ...]:
        table, pools = self.table, self.pools
        left = max(0.0, table.deadline_s - self.view.now)
        notes = [
            f"all present work is planned to end in {_time(left)}, and could end in "
            f"{_time(max(0.0, table.start_s + table.least_s - self.view.now))} at the earliest"
        ]
        for pool, kind in enumerate(pools.pool_type):
            notes.append(
                f"{self.view.types[kind]}: {max(0, self._places.free_capacity.left[pool])} of "
                f"{int(self.options.capacity[pool])} GPUs stay free, price "
                f"{self.choice.price[pool]:.3g} per GPU"
            )
        return tuple(notes)


def _time(seconds: float) -> str:
    return "unknown time" if seconds == float("inf") else span(seconds)
