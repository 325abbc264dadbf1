"""Reasons of the plans of the timetable policy."""

from dataclasses import replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.policies.allocation import (
    Allocation,
    gang_tier,
    gpus_text,
    nodes_text,
    placement_of,
)
from slurm_hadar.policies.ends import UNKNOWN, ends, ends_here, moves, time_left
from slurm_hadar.policies.timetable.choice import RoundChoice
from slurm_hadar.policies.timetable.doubt import restart_factor
from slurm_hadar.policies.timetable.places import PlacedJobs
from slurm_hadar.policies.timetable.plan import Timetable
from slurm_hadar.policies.timetable.round_input import GivenRound

_ALIKE = 0.1
"""A weight that fairness changes by less is not named."""
_MUCH = 0.9
"""Restart factor below which a job stays for its restarts' sake."""


def tell(given: GivenRound, choice: RoundChoice, places: PlacedJobs, table: Timetable) -> Plan:
    """The plan, each placement and each wait with its reason."""
    view, words = given.view, _Words(given, choice, table, places)
    placements = {view.jobs.ids[job]: words.placement(job, p) for job, p in places.parts.items()}
    waiting = {
        id_: words.waits(job, places.short.get(job, ""))
        for job, id_ in enumerate(view.jobs.ids)
        if id_ not in placements
    }
    return Plan(placements, waiting, words.notes())


class _Words:
    def __init__(
        self, given: GivenRound, choice: RoundChoice, table: Timetable, places: PlacedJobs
    ) -> None:
        self.view, self.floor, self.options = given.view, given.floor, given.options
        self.choice, self.table = choice, table
        self._doubt, self._restart = given.doubt, restart_factor(given.view)
        self._ratio, self._places = given.ratio, places
        options = self.options
        self._price = choice.price[options.pool] * options.gpus
        net = np.where(choice.gain > 0, choice.gain - self._price, -np.inf)
        self._best = net.argmax(axis=1) if net.size else np.zeros(0, dtype=np.int64)
        self._likes = np.where(choice.gain > 0, net, -np.inf)

    def placement(self, job: int, parts: Allocation) -> Placement:
        view, floor, options = self.view, self.floor, self.options
        placed = placement_of(view, floor, parts, "")
        what, where = gpus_text(placed), nodes_text(placed)
        kind_index = int(floor.gpu_type[parts[0][0]])
        count = sum(n for _, n in parts)
        at = next(
            (
                o
                for o in np.flatnonzero(options.gpus == count).tolist()
                if int(options.pool[o]) == int(floor.pool[parts[0][0]])
            ),
            -1,
        )
        stays = options.held.get(job) == parts
        words = f"{'stays on' if stays else ''} {what} ({where})".strip()
        if options.bound[job] and stays:
            words += "; it cannot be moved now"
        elif at < 0 or not np.isfinite(options.seconds[job, at]):
            words += f"; its speed on {view.types[kind_index]} is not known"
        else:
            words += self._why(job, at, stays)
        return replace(placed, tier=gang_tier(placed), reason=words)

    def _why(self, job: int, at: int, stays: bool) -> str:
        gain, price = float(self.choice.gain[job, at]), float(self._price[at])
        end = (ends_here if stays else ends)(self.view, job, float(self.options.seconds[job, at]))
        words = (
            f", {end}: an hour here is "
            f"worth {gain:.3g} h of waiting, its GPUs cost the others {price:.3g} h"
        )
        if self.choice.critical[job]:
            words += "; ahead of others, as it must run all the time to be ready by the horizon"
        elif self.choice.share[job, at] > 0:
            words += f"; the timetable has it here {100 * self.choice.share[job, at]:.0f}% of now"
        else:
            words += "; it fills GPUs that the timetable's gangs leave"
        was = int(self.options.now[job])
        if was == at and not stays:
            words += "; it changes nodes, so that a gang that is larger gets one of its own"
        elif not stays and job in self._places.onto_idle:
            here_s, there_s = self.options.seconds[job, [was, at]].tolist()
            words += f"{moves(self.view, job, there_s, here_s)}, and no other job needs these GPUs"
        elif not stays and was >= 0:
            words += f"; it moves from {self._name(was)}, worth {self.choice.gain[job, was]:.3g} h"
        elif not stays and was == -1:
            words += self._instead(job, at)
        return (
            words + self._fairly(job) + (self._doubts(job, stays) if self._doubt.job[job] else "")
        )

    def _fairly(self, job: int) -> str:
        """What finish-time fairness makes of the job's weight."""
        ratio = float(self._ratio[job])
        if abs(ratio - 1.0) < _ALIKE:
            return ""
        place = "behind" if ratio > 1.0 else "ahead of"
        return f"; it counts {ratio:.2g} times, as its user is {place} an equal part of the cluster"

    def _doubts(self, job: int, stays: bool) -> str:
        """What follows from what is not known of the job."""
        words, most, left = "", int(self._doubt.reach[job]), float(self._restart[job])
        if most < int(self.options.gpus.max(initial=0)):
            words += f"; at most {most} GPUs until it has been tried on so many"
        if self._doubt.unplanned[job]:
            unknown = bool(self._doubt.work[job])
            words += f"; {'its work is' if unknown else 'some of its speeds are'} not known, so "
            words += "each further GPU counts for less than the last, and it counts "
            if self.choice.longest is not None and self.choice.longest[job]:
                words += "in full, as it decides when all the work ends"
            else:
                words += "for less the more "
                words += "GPU time it has had" if unknown else "work it has left"
        if self._doubt.unplanned[job] and stays and left < _MUCH:
            more = f"{1.0 / left:.1f} times as much" if left > 0 else "more than any is"
            words += f"; after its restarts so far another place must be worth {more}"
        return words

    def _instead(self, job: int, at: int) -> str:
        likes = self._likes[job]
        others = np.flatnonzero(np.isfinite(likes) & (np.arange(len(likes)) != at))
        if not len(others):
            return "; no other GPU type or count is open to it"
        other = int(others[likes[others].argmax()])
        return (
            f"; next best {self._name(other)}: worth {self.choice.gain[job, other]:.3g} h, "
            f"cost {self._price[other]:.3g} h"
        )

    def waits(self, job: int, short: str) -> str:
        if not np.isfinite(self.options.seconds[job]).any():
            return "no GPU type and count that it can run with is open to it here"
        best = int(self._best[job])
        name = self._name(best)
        if short:
            return f"chosen for {name}, but short of {short}"
        gain, price = float(self.choice.gain[job, best]), float(self._price[best])
        stopped = "stopped for jobs that gain more; " if job in self.options.held else ""
        if gain <= price:
            why = f"{name} suits it best, worth {gain:.3g} h per hour, but costs {price:.3g} h"
        else:
            why = f"{name} would pay, worth {gain:.3g} h per hour, but gangs that gain more fill it"
        left = time_left(self.view, job, float(self.options.seconds[job, best]))
        end = f"it would end in {left}" if left else UNKNOWN
        return f"{stopped}{why}; {end}{self._fairly(job)}"

    def _name(self, option: int) -> str:
        kind = self.floor.pool_type[int(self.options.pool[option])]
        return f"{int(self.options.gpus[option])} x {self.view.types[kind]}"

    def notes(self) -> tuple[str, ...]:
        table, floor = self.table, self.floor
        left = max(0.0, table.deadline_s - self.view.now)
        notes = [
            f"timetable to a horizon in {_time(left)}; all work could be done at the earliest in "
            f"{_time(max(0.0, table.start_s + table.least_s - self.view.now))}"
        ]
        for pool, kind in enumerate(floor.pool_type):
            notes.append(
                f"{self.view.types[kind]}: {max(0, self._places.room.left[pool])} of "
                f"{int(self.options.capacity[pool])} GPUs stay free, an hour of one costs "
                f"{self.choice.price[pool]:.3g} h of waiting"
            )
        return tuple(notes)


def _time(seconds: float) -> str:
    if seconds == float("inf"):
        return "unknown time"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
