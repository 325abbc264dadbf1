"""The reasons in the plans of the timetable policy."""

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.policies.allocation import (
    Allocation,
    gang_tier,
    gpus_text,
    nodes_text,
    placement_of,
)
from slurm_hadar.policies.reason_text import (
    UNKNOWN,
    end_here_text,
    end_text,
    move_reason,
    span,
    time_left_text,
)
from slurm_hadar.policies.timetable.choice import RoundChoice
from slurm_hadar.policies.timetable.doubt import restart_factor
from slurm_hadar.policies.timetable.places import PlacedJobs
from slurm_hadar.policies.timetable.plan import Timetable
from slurm_hadar.policies.timetable.round_input import RoundInput
from slurm_hadar.policies.timetable.work import Options
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
        self._limited = inputs.doubt.reach < int(inputs.options.gpus.max(initial=0))
        self._ratio, self._places = inputs.ratio, places
        self._min_stay_s = inputs.settings.min_stay_s
        options = self.options
        self._price = choice.price[options.pool] * options.gpus
        self._likes = np.where(choice.gain > 0, choice.gain - self._price, -np.inf)
        jobs = len(self.view.jobs.ids)
        best = self._likes.argmax(axis=1) if self._likes.size else np.zeros(jobs, dtype=np.int64)
        self._best: list[int] = best.tolist()
        self._possible: list[bool] = np.isfinite(options.best_s).tolist()
        self._full = _full(options)
        self._at = self._placed_options()
        self._next_best = self._next_best_options()

    def _placed_options(self) -> dict[int, int]:
        """Row of a job -> the option that it is placed on; -1: none is like its GPUs."""
        options, pool_of = self.options, self.pools.pool_of
        pairs = zip(options.pool.tolist(), options.gpus.tolist(), strict=True)
        option = {pair: at for at, pair in enumerate(pairs)}
        return {
            job: option.get((pool_of[allocation[0][0]], sum(n for _, n in allocation)), -1)
            for job, allocation in self._places.allocations.items()
        }

    def _next_best_options(self) -> list[int]:
        """For each job the best option besides the one that it is placed on, for a job that was
        there before only among those where it would run faster; -1: none. All jobs at once."""
        at = np.full(len(self._likes), -1, dtype=np.int64)
        at[list(self._at)] = list(self._at.values())
        rows = np.flatnonzero(at >= 0)
        here = at[rows]
        likes = self._likes[rows]
        likes[np.arange(len(rows)), here] = -np.inf
        gain = self.choice.gain[rows]
        slower = gain <= gain[np.arange(len(rows)), here][:, None]
        likes[slower & (self.options.now[rows] == here)[:, None]] = -np.inf
        found = np.full(len(at), -1, dtype=np.int64)
        if likes.size:
            found[rows] = np.where(np.isfinite(likes).any(axis=1), likes.argmax(axis=1), -1)
        others: list[int] = found.tolist()
        return others

    def placement(self, job: int, allocation: Allocation) -> Placement:
        view, pools, options = self.view, self.pools, self.options
        placed = placement_of(view, pools, allocation, "")
        what, where = gpus_text(placed), nodes_text(placed)
        at = self._at[job]
        stays = options.held.get(job) == allocation
        text = f"{'stays on' if stays else ''} {what} ({where})".strip()
        known = at >= 0 and bool(np.isfinite(options.seconds[job, at]))
        if options.bound[job] and stays:
            here_s = float(options.seconds[job, at])
            text += (f", {end_here_text(view, job, here_s)}" if known else "") + self._bound(job)
        elif not known:
            kind = view.types[int(pools.gpu_type[allocation[0][0]])]
            text += f"; its speed on {kind} is not known"
        else:
            text += self._why(job, at, stays)
        return Placement(placed.gpus, placed.nodes, tier=gang_tier(placed), reason=text)

    def _bound(self, job: int) -> str:
        jobs, stay_s = self.view.jobs, self._min_stay_s
        if jobs.movable[job] and self.view.now - jobs.since_s[job] < stay_s:
            return f"; it came here less than {span(stay_s)} ago"
        return "; it cannot be moved now"

    def _why(self, job: int, at: int, stays: bool) -> str:
        text_of = end_here_text if stays else end_text
        end = text_of(self.view, job, float(self.options.seconds[job, at]))
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
            text += move_reason(self.view, job, there_s, here_s)
            text += ", and no other job needs these GPUs"
        elif was >= 0:
            text += self._leaves(job, was, at)
        elif was == -1:
            text += self._instead(job)
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
        follows = []
        if self._limited[job]:
            most = int(self._doubt.reach[job])
            gpus = f"{most} GPU{'s' if most > 1 else ''}"
            follows.append(f"it gets at most {gpus} until it has been tried on so many")
        if not self._doubt.unplanned[job]:
            return "".join(f"; {one}" for one in follows)
        unknown, left = bool(self._doubt.work[job]), float(self._restart[job])
        if stays and left < _MUCH:
            faster = f"only a placement {1.0 / left:.1f} times as fast" if left > 0 else ""
            where = faster or "no other placement"
            follows.append(f"{where} gains more than {self._restarts(job)}")
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
        """What the next restart costs beside those that the job has had."""
        jobs = self.view.jobs
        number = int(jobs.prospects.restarts[job]) if jobs.prospects is not None else 0
        cost = f"{jobs.restart_s[job]:.0f} s"
        if number == 0:
            age_s = max(0.0, self.view.now - float(jobs.arrival_s[job]))
            return f"a restart of {cost} costs, as it was submitted {span(age_s)} ago"
        # Slurm counts a submission anew at each requeue.
        had = f"{number} restart{'s' if number > 1 else ''} of {cost}"
        return f"a further restart costs, as it has had {had}"

    def _stays(self, job: int, at: int) -> str:
        """The best of the placements where it would run faster."""
        other = self._next_best[job]
        if other < 0:
            return "; no other placement has more value for it"
        text = f"; next best {self._compared(job, other)}"
        if self._likes[job, other] > self._likes[job, at]:
            cost = f"{self.view.jobs.restart_s[job]:.0f} s"
            # Between two choices no job moves, even if GPUs have become free since.
            text += f"; when places were last chosen it was taken, or not worth a move ({cost})"
        return text

    def _instead(self, job: int) -> str:
        other = self._next_best[job]
        if other < 0:
            return "; no other GPU type or count is open to it"
        return f"; next best {self._compared(job, other)}"

    def waits(self, job: int, shortage: str) -> str:
        if not self._possible[job]:
            return unavailable(self.view, job)
        best = self._best[job]
        name = self._name(best)
        if shortage:
            return f"chosen for {name}, but short of {shortage}"
        stopped = "stopped for jobs that gain more; " if job in self.options.held else ""
        # At or below its price, other jobs use these GPUs better.
        pays = self.choice.gain[job, best] > self._price[best]
        why = "jobs that gain as much or more fill it" if pays else "other jobs gain more from it"
        if self._full[best]:
            why = "it is full, and no job there can be moved now"
        why = f"best for it: {name}, {self._gain(job, best)}, but {why}"
        left = time_left_text(self.view, job, float(self.options.seconds[job, best]))
        end = f"it would end in {left}" if left else UNKNOWN
        return f"{stopped}{why}; {end}{self._fairly(job)}"

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


def _full(options: Options) -> list[bool]:
    """For each option whether jobs that cannot be moved now leave too few of its GPUs."""
    staying = options.now[options.bound & (options.now >= 0)]
    taken = np.bincount(
        options.pool[staying], weights=options.gpus[staying], minlength=len(options.capacity)
    )
    found: list[bool] = ((options.capacity - taken)[options.pool] < options.gpus).tolist()
    return found


def _time(seconds: float) -> str:
    return "unknown time" if seconds == float("inf") else span(seconds)
