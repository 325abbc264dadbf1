"""The second half of HadarE: which jobs are forked onto nodes that would be idle.

A node goes to the job where it saves the most: the weight times the seconds by which the job ends
sooner, per GPU. A running job that changes its set of nodes restarts with all its copies, so a
change must pay for that (``gain_over_cost``); jobs that start or restart anyway take nodes freely.
The gain of each further node decreases, so handing out nodes one by one is near the best division;
nodes are handed out again whenever a job ends. Ours; the paper forks each job as often as there are
nodes and lets Hadar choose among the copies (recalled).
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.dealing import dealt_rate
from slurm_hadar.domain.view import BoolArray, FloatArray, View
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadare.main_copies import Seat, Seats, rate_of
from slurm_hadar.policies.options import Part

_ENDLESS = 1e15
"""Samples assumed for work without an end."""
_NOISE = 1e-9
"""Relative differences of a value below this are rounding errors."""
_SLACK = 1e-6
"""CPUs and MB by which a seat may exceed what is left, for rounding errors."""
_STRIDE = 7919
"""A prime: neighbouring jobs begin their search at distant nodes."""
_MOST_STEPS = 20
"""Upper bound of the reassignments per free node, on average; usually one or two are needed."""


class ForkSettings(HadarOptions):
    """The settings that HadarE has beside Hadar's.

    ``min_stay_s`` and ``gain_over_cost`` hold for copies too."""

    averaging: Part = 0.02
    """Part of their speed that copies lose to averaging. The default is assumed: it is what the
    runtime allows itself, by rounds so long that averaging and saving take no more."""


class SpareCapacity:
    """The capacity of each node that no job uses in this round."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.gpus = view.nodes.gpus.copy()
        self._some: BoolArray = self.gpus.max(axis=1, initial=0) > 0
        self.cpus: FloatArray = view.nodes.cpus.astype(np.float64)
        self.mem: FloatArray = view.nodes.mem_mb.astype(np.float64)

    def take(self, job: int, seat: Seat, times: int = 1) -> None:
        """Take a seat for a job; ``times`` -1: give it back."""
        node, kind, count = seat
        jobs = self.view.jobs
        self.gpus[node, kind] -= times * count
        self._some[node] = bool((self.gpus[node] > 0).any())
        self.cpus[node] -= times * count * jobs.cpus_per_gpu[job]
        self.mem[node] -= times * count * jobs.mem_per_gpu_mb[job]

    def short(self, seat: Seat) -> bool:
        """Whether jobs hold more on the seat's node than the view offers."""
        node, kind, _ = seat
        return bool(
            self.gpus[node, kind] < 0 or self.cpus[node] < -_SLACK or self.mem[node] < -_SLACK
        )

    def holds(self, job: int, seat: Seat) -> bool:
        """Whether a copy of the job fits on the seat."""
        node, kind, count = seat
        jobs = self.view.jobs
        return bool(
            self.gpus[node, kind] >= count
            and self.cpus[node] + _SLACK >= count * jobs.cpus_per_gpu[job]
            and self.mem[node] + _SLACK >= count * jobs.mem_per_gpu_mb[job]
        )

    def seats(self, job: int, excluded: Sequence[int], most: int) -> list[tuple[float, Seat]]:
        """(rate, seat) of the fastest seats for copies of the job, at most one per node and none on
        ``excluded`` nodes. Equal nodes are ordered by fewest free GPUs, then in another order for
        each job, so that jobs do not all ask for the same node."""
        jobs, counts = self.view.jobs, self.view.counts
        there = self._some & jobs.groups[job, self.view.nodes.group]
        there[list(excluded)] = False
        some = np.flatnonzero(there)
        gpus, cpus, mem = self.gpus[some], self.cpus[some] + _SLACK, self.mem[some] + _SLACK
        best: FloatArray = np.zeros(len(some))
        kinds, sizes = np.zeros((2, len(some)), dtype=np.int64)
        for kind, column in np.argwhere(jobs.rate[job] > 0).tolist():
            count, rate = counts[column], float(jobs.rate[job, kind, column])
            fits = (gpus[:, kind] >= count) & (rate > best)
            fits &= cpus >= count * jobs.cpus_per_gpu[job]
            fits &= mem >= count * jobs.mem_per_gpu_mb[job]
            best[fits], kinds[fits], sizes[fits] = rate, kind, count
        turn = (some - job * _STRIDE) % len(self.gpus)
        order = np.lexsort((turn, gpus.sum(axis=1), -best))[: max(most, 0)]
        return [
            (float(best[at]), (int(some[at]), int(kinds[at]), int(sizes[at])))
            for at in order.tolist()
            if best[at] > 0
        ]


@dataclass(frozen=True, slots=True)
class _Step:
    """A job's next set of copies, and its value per GPU that it takes."""

    value: float
    seats: Seats


class Forks:
    """Hands out free nodes. ``seats``: job -> its copies so far, the main one included."""

    def __init__(self, view: View, settings: ForkSettings, spare: SpareCapacity) -> None:
        self._view, self._settings, self._spare = view, settings, spare
        self.seats: dict[int, Seats] = {}
        self._charge: dict[int, float] = {}

    def enter(self, job: int, seats: Seats, restart_s: float) -> None:
        """Add a job that may be forked from these seats; ``restart_s``: cost of a change."""
        groups = self._view.nodes.group
        if not all(self._view.jobs.groups[job, groups[node]] for node, _, _ in seats):
            # It may keep a node that is closed to its owner by now, but not restart there.
            return
        self.seats[job], self._charge[job] = seats, max(0.0, restart_s)

    def rate(self, job: int, seats: Seats) -> float:
        """Rate of all copies together, in samples/s; of a job with tasks that of its tasks dealt
        over them, as it averages nothing."""
        rates, tasks = [rate_of(self._view, job, seat) for seat in seats], self._view.jobs.tasks
        if len(seats) == 1:
            return rates[0]
        total = sum(rates)
        if tasks[job] > 1:
            total = dealt_rate(rates, [count for _, _, count in seats], int(tasks[job]))
        return total * (1.0 - self._settings.averaging)

    def hand_out(self) -> None:
        """Fork until no free node saves time."""
        queue: list[tuple[tuple[float, ...], int, _Step]] = []
        given_up = True
        for _ in range(_MOST_STEPS * (len(self._spare.gpus) + len(self.seats))):
            if not queue:
                if not given_up:
                    return
                # A seat that was given up may suit a job that found nothing before.
                given_up = False
                for job in self.seats:
                    self._push(queue, job)
                continue
            _, job, step = heapq.heappop(queue)
            own = self.seats[job]
            if not all(self._spare.holds(job, seat) for seat in step.seats if seat not in own):
                # Another job took one of the seats first: search again. Otherwise the step is still
                # the best one.
                self._push(queue, job)
                continue
            for seat in own:
                self._spare.take(job, seat, -1)
            for seat in step.seats:
                self._spare.take(job, seat)
            self.seats[job], self._charge[job] = step.seats, 0.0
            given_up |= not set(own) <= set(step.seats)
            self._push(queue, job)

    def _push(self, queue: list[tuple[tuple[float, ...], int, _Step]], job: int) -> None:
        step = self._best(job)
        if step is not None:
            jobs = self._view.jobs
            order = (-step.value, -float(jobs.priority[job]), float(jobs.arrival_s[job]))
            heapq.heappush(queue, (order, job, step))

    def _best(self, job: int) -> _Step | None:
        """The change that saves most per GPU: one more node, or as many as pay for a restart. Slow
        copies are given up if no more copies are allowed."""
        jobs, own = self._view.jobs, self.seats[job]
        most = int(jobs.copies[job])
        weight = float(jobs.weight[job])
        now = self.rate(job, own)
        if most < 2 or now <= 0.0 or weight <= 0.0:
            return None
        left = min(max(float(jobs.left[job]), 0.0), _ENDLESS)
        seconds, charge = left / now, self._charge[job]
        spare = self._spare.seats(job, [node for node, _, _ in own], most)
        mine = [(rate_of(self._view, job, seat), seat) for seat in own]
        best: _Step | None = None
        for taken in range(1, len(spare) + 1):
            chosen = sorted(mine + spare[:taken], key=lambda one: (-one[0], one[1]))[:most]
            if spare[taken - 1] not in chosen:
                break
            seats = tuple(sorted(seat for _, seat in chosen))
            saved = seconds - left / self.rate(job, seats)
            if saved - charge <= _NOISE * seconds or (
                saved < self._settings.gain_over_cost * charge
            ):
                continue
            gpus = sum(seat[2] for _, seat in spare[:taken])
            value = weight * (saved - charge) / gpus
            if best is None or value > best.value:
                best = _Step(value, seats)
        return best


def shares_of(view: View, job: int, seats: Seats) -> tuple[float, ...]:
    """The copies' fractions of a round, in proportion to their rates, so that all end together;
    they sum to 1. A copy of unknown speed counts as the slowest."""
    rates = [rate_of(view, job, seat) for seat in seats]
    slowest = min((rate for rate in rates if rate > 0), default=1.0)
    rates = [rate if rate > 0 else slowest for rate in rates]
    total = sum(rates)
    return tuple(rate / total for rate in rates)


def free_text(view: View, spare: SpareCapacity, seats: Mapping[int, Seats]) -> str:
    """The number of forked jobs and the GPUs left, as text for the operator."""
    forked = [len(of) for of in seats.values() if len(of) > 1]
    free = np.maximum(spare.gpus, 0).sum(axis=0).tolist()
    total = view.nodes.gpus.sum(axis=0).tolist()
    left = ", ".join(
        f"{n} of {of} {kind}" for n, of, kind in zip(free, total, view.types, strict=True)
    )
    return (
        f"{len(forked)} jobs are forked into {sum(forked)} copies; free after that: {left or '0'}"
    )
