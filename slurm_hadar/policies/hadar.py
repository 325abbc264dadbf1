"""Hadar: GPU types, counts and nodes by dual prices and a take-or-skip programme over the queue.

arXiv 2503.10918 (IPDPS 2024). Verified there: task-level mixing of GPU types, the aim. Recalled:
utilities, price function and bounds, the programme, FIND_ALLOC. Ours, measured on Gavel's traces:

- the queue is in the order of payoff per price, the price being each type's scarcity over the
  whole horizon (the dual of the shortest makespan), so a job asks first for the type on which it
  has an advantage over the others, not simply for the fastest;
- jobs that the horizon leaves no slack go first;
- an idle GPU costs nothing: what the priced passes leave is handed out without a price, so no GPU
  is idle that somebody waiting could use;
- a running job keeps its place unless leaving pays for its restart several times over.
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, State, View
from slurm_hadar.policies import reasons
from slurm_hadar.policies.allocation import Floor, Parts, Room, floor_of
from slurm_hadar.policies.offers import Market, Offer, Post, Round
from slurm_hadar.policies.settings import Settings
from slurm_hadar.policies.worth import Worth, demand, worth
from slurm_hadar.solvers.prices import DualPrice, dual_price
from slurm_hadar.solvers.take_or_skip import Take, take_or_skip

_FREE_PASSES = (1.0, 0.5, 0.0)
"""What is left at the prices is handed out free, first to those whom it suits: the patience of
these passes, in parts of the setting. Measured on trace_480: 3% of makespan."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an option that cannot be understood."""
    settings = Settings.read(view.options)
    if not view.jobs.ids:
        return Plan(notes=("no managed job waits or runs",)), dict(state)
    if not view.nodes.gpus.any() and not len(view.jobs.held):
        why = "no node has a GPU that managed jobs may use"
        return Plan(waiting=dict.fromkeys(view.jobs.ids, why), notes=(why,)), dict(state)
    floor = floor_of(view)
    valued = worth(view, floor, settings)
    planner = _Planner(view, floor, valued, settings)
    rules = planner.run()
    plan = reasons.plan(planner.market, planner.room, planner.given, planner.order, rules)
    prices = {
        kind: float(price) for kind, price in zip(view.types, valued.scarcity.price, strict=True)
    }
    return plan, {"scarcity": prices, "horizon_s": valued.horizon_s}


class _Planner:
    """Passes over the queue until the cluster is full or nobody waits."""

    def __init__(self, view: View, floor: Floor, valued: Worth, settings: Settings) -> None:
        self.view, self.settings, self.worth = view, settings, valued
        self.market = Market(view, floor, valued, settings)
        self.room = Room(view, floor)
        self.given: dict[int, Offer] = {}
        self._anchored: dict[int, Parts] = {}
        """Jobs whose place is already taken out of the room."""
        self._place_running(floor)
        self._best = valued.rank.max(axis=(1, 2), initial=0.0)
        self._gangs = _frugal_counts(view, valued)
        self.order = self._queue()
        waiting = np.isfinite(valued.base).any(axis=1)
        needed = float(self._gangs[waiting].sum())
        self._gpus = int(view.nodes.gpus.sum())
        self.market.growth = self._gpus / needed if needed else 1.0

    def run(self) -> list[Round]:
        """The passes over those still open: one at prices, the rest free of charge.

        Returns their rules.
        """
        patience = self.settings.patience
        free = [Round(None, 0.0, part * patience) for part in _FREE_PASSES]
        done: list[Round] = []
        for rules in [None, *free]:
            queue = [job for job in self.order if self._open(job)]
            if not queue or self._full(queue):
                break
            done.append(rules or self._rules(queue))
            self._pass(queue, done[-1])
        return done

    def _full(self, queue: Sequence[int]) -> bool:
        """Whether nobody can get anything any more; sets what the smallest gang needs."""
        self.room.smallest = max(1, min(self._least_count(job) for job in queue))
        return self.room.full()

    def _open(self, job: int) -> bool:
        offer = self.given.get(job)
        post = self.market.posts.get(job)
        return offer is None or (offer.stay and post is not None and post.movable)

    def _place_running(self, floor: Floor) -> None:
        view, jobs = self.view, self.view.jobs
        held: dict[int, list[tuple[int, int]]] = {}
        for job, node, kind, count in jobs.held.tolist():
            if count > 0:
                held.setdefault(job, []).append((floor.slot_of[node, kind], count))
        for job, rows in held.items():
            parts = tuple(rows)
            stayed = view.now - float(jobs.since_s[job]) >= self.settings.min_stay_s
            movable = bool(jobs.movable[job]) and stayed
            self.market.posts[job] = Post(parts, self._seconds_there(job, parts, floor), movable)
        self.room.make_room_for(
            [(post.parts, self.market.needs[job]) for job, post in self.market.posts.items()]
        )
        for job, post in self.market.posts.items():
            soft = self.settings.preempt and post.movable
            self.room.take(post.parts, self.market.needs[job], soft=soft)
            if not soft:
                self._anchored[job] = post.parts
                self.given[job] = Offer(post.parts, post.seconds, 0.0, 0.0, 0.0, stay=True)

    def _seconds_there(self, job: int, parts: Parts, floor: Floor) -> float:
        """Time left where the job is, bound by its slowest type; inf where that is not known."""
        count = sum(n for _, n in parts)
        if count not in self.view.counts:
            return float("inf")
        at = self.view.counts.index(count)
        kinds = sorted({int(floor.gpu_type[slot]) for slot, _ in parts})
        rate = float(self.view.jobs.rate[job, kinds, at].min())
        if rate <= 0.0:
            return float("inf")
        spread = 1.0 + self.settings.communication if len(parts) > 1 else 1.0
        return max(1.0, float(self.view.jobs.left[job]) / rate * spread)

    def _queue(self) -> list[int]:
        jobs = self.view.jobs
        key = self._best.copy()
        if self.settings.preempt:
            # Stopping a job must gain several times its restart: it counts as that much nearer
            # to its end.
            for job, post in self.market.posts.items():
                margin = self.settings.gain_over_cost * float(jobs.restart_s[job])
                if np.isfinite(post.seconds):
                    key[job] *= post.seconds / max(1.0, post.seconds - margin)
        number = np.arange(len(key))
        order: list[int] = np.lexsort((number, jobs.arrival_s, -jobs.priority, -key)).tolist()
        return order

    def _rules(self, queue: Sequence[int]) -> Round:
        waiting = np.zeros(len(self.view.jobs.ids), dtype=bool)
        waiting[[job for job in queue if job not in self._anchored]] = True
        free = sum(max(0, n) for n in self.room.left)
        reserve = demand(self.worth, self._gangs, waiting, free)
        return Round(self._price(waiting, free), reserve, self.settings.patience)

    def _price(self, waiting: BoolArray, gpus: int) -> DualPrice:
        valued, view = self.worth, self.view
        rows = np.flatnonzero(waiting & ~valued.critical)
        seconds, utility = valued.seconds[rows], valued.utility[rows]
        gpu_seconds = seconds * np.asarray(view.counts, float)
        doable = np.isfinite(seconds)
        density = np.where(doable, utility / gpu_seconds, 0.0).max(axis=2, initial=0.0)
        longest: FloatArray = np.where(doable, gpu_seconds, 0.0).max(axis=(1, 2), initial=0.0)
        slowest = np.where(doable, seconds, 0.0).max(axis=(1, 2), initial=0.0)
        # A job that ends at the horizon instead keeps this part of its least utility.
        least = np.where(doable, utility, np.inf).min(axis=(1, 2), initial=np.inf)
        last = least * np.minimum(1.0, slowest / max(valued.horizon_s, 1.0))
        return dual_price(density, last, longest, float(max(gpus, 1)), view.round_s)

    def _pass(self, queue: Sequence[int], rules: Round) -> None:
        market, settings = self.market, self.settings
        free = sum(max(0, n) for n in self.room.left)
        width = 1 if rules.price is None else _width(settings, min(len(queue), free))
        best_left = self._suffix(queue) if width > 1 else None

        def options(room: Room, job: int) -> list[Take[Offer]]:
            self._step_out(room, job)
            offers = market.offers(room, job, rules, settings.branch if width > 1 else 1)
            self._step_back(room, job)
            return [Take(max(o.payoff, 0.0) / o.seconds, o) for o in offers]

        def apply(room: Room, job: int, offer: Offer, alone: bool) -> Room:
            after = room if alone else room.copy()
            self._step_out(after, job)
            after.take(offer.parts, market.needs[job])
            return after

        def promise(room: Room, position: int) -> float:
            if best_left is None or position >= len(best_left):
                return 0.0
            price = self.worth.scarcity.price
            kinds = self.market.floor.pool_type
            worth_of_free = sum(
                max(0, n) * float(price[kind]) for n, kind in zip(room.left, kinds, strict=True)
            )
            return float(best_left[position]) * worth_of_free

        result = take_or_skip(self.room, queue, options, apply, promise, width)
        self.room = result.state
        for job, offer in result.chosen.items():
            self.given[job] = offer
            if job in market.posts:
                self._anchored[job] = offer.parts

    def _step_out(self, room: Room, job: int) -> None:
        """A running job looks around as if its own GPUs were free."""
        post = self.market.posts.get(job)
        if post is None:
            return
        anchored = self._anchored.get(job)
        need = self.market.needs[job]
        if anchored is not None:
            room.give(anchored, need)
        else:
            room.give(post.parts, need, soft=True)

    def _step_back(self, room: Room, job: int) -> None:
        post = self.market.posts.get(job)
        if post is None:
            return
        anchored = self._anchored.get(job)
        need = self.market.needs[job]
        if anchored is not None:
            room.take(anchored, need)
        else:
            room.take(post.parts, need, soft=True)

    def _least_count(self, job: int) -> int:
        cells = self.market.cells(job)
        return min((cell.count for cell in cells), default=1)

    def _suffix(self, queue: Sequence[int]) -> FloatArray:
        best = self._best[list(queue)]
        result: FloatArray = np.maximum.accumulate(best[::-1])[::-1]
        return result


def _width(settings: Settings, length: int) -> int:
    return max(1, min(settings.beam, settings.effort // max(1, length)))


def _frugal_counts(view: View, valued: Worth) -> IntArray:
    """(J,) GPUs of the count that needs the fewest GPU-seconds."""
    counts = np.asarray(view.counts, dtype=np.int64)
    gpu_seconds = valued.seconds * counts
    at = gpu_seconds.reshape(len(gpu_seconds), -1).argmin(axis=1) % len(counts)
    chosen: IntArray = counts[at]
    return chosen
