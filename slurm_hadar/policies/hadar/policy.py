"""Hadar: GPU types, counts and nodes by dual prices and a take-or-skip programme over the queue.

arXiv 2503.10918 (IPDPS 2024). Verified there: task-level mixing of GPU types, the aim. Recalled:
utilities, price function and bounds, the programme, FIND_ALLOC. Ours, measured on Gavel's traces:

- the queue is in the order of payoff per price, the price being each type's scarcity over the
  whole horizon (the dual of the shortest makespan), so a job asks first for the type on which it
  has an advantage over the others, not simply for the fastest;
- jobs that the horizon leaves no slack go first, and so do gangs of a size that are without
  slack together, since not every GPU is of use to a large gang;
- an idle GPU costs nothing: what the priced passes leave is handed out without a price, so no GPU
  is idle that a waiting job could use;
- a running job keeps its place unless leaving pays for its restart several times over.
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, State, View
from slurm_hadar.policies.allocation import (
    Allocation,
    FreeCapacity,
    ResourcePools,
    demands_of,
    nothing_to_place,
    resource_pools,
)
from slurm_hadar.policies.hadar import reasons
from slurm_hadar.policies.hadar.bids import Bid, Incumbent, Market, Round
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadar.worth import (
    Cells,
    Worth,
    demand,
    frugal_counts,
    todays_price,
    worth,
)
from slurm_hadar.policies.record import Policy, Trait
from slurm_hadar.solvers.take_or_skip import Take, take_or_skip

_FREE_PASSES = (1.0, 0.5, 0.0)
"""What is left at the prices is handed out free, first to those whom it suits: the patience of
these passes, in parts of the setting. Measured on trace_480: 3% of makespan."""
_SETTLING = 20
"""Most times that what is freed by others is handed out again."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an option that cannot be understood."""
    settings = HadarOptions.read(view.options)
    if (nothing := nothing_to_place(view)) is not None:
        return nothing, dict(state)
    pools = resource_pools(view)
    valued = worth(view, pools, settings)
    planner = _Planner(view, pools, valued, settings)
    rules = planner.run()
    plan = reasons.plan(planner.market, planner.room, planner.given, planner.order, rules)
    prices = {
        kind: float(price) for kind, price in zip(view.types, valued.scarcity.price, strict=True)
    }
    return plan, {"scarcity": prices, "horizon_s": valued.horizon_s}


class _Planner:
    """Passes over the queue until the cluster is full or nobody waits."""

    def __init__(
        self, view: View, pools: ResourcePools, valued: Worth, settings: HadarOptions
    ) -> None:
        self.view, self.settings, self.worth = view, settings, valued
        self.room = FreeCapacity(view, pools)
        self.given: dict[int, Bid] = {}
        self._anchored: dict[int, Allocation] = {}
        """Jobs whose place is already taken out of the room."""
        posts = self._place_running(pools)
        self._best: FloatArray = valued.rank.max(axis=(1, 2), initial=0.0)
        counts = np.asarray(view.counts, dtype=np.int64)
        self._gangs = frugal_counts(counts, valued)
        needed = float(self._gangs[np.isfinite(valued.best_s)].sum())
        growth = int(view.nodes.gpus.sum()) / needed if needed else 1.0
        held = np.zeros(len(self._best), dtype=np.int64)
        for job, post in posts.items():
            held[job] = sum(n for _, n in post.parts)
        self._cells = Cells(valued, counts, held, growth)
        self.market = Market(view, pools, valued, settings, posts, self._cells)
        self.order = self._queue()

    def run(self) -> list[Round]:
        """The passes over those still open: one at prices, the rest free of charge.

        Returns their rules.
        """
        done: list[Round] = []
        for part in [None, *_FREE_PASSES]:
            queue = self._queue_now()
            if not queue:
                break
            rules = self._at_prices() if part is None else self._free(part)
            done.append(rules)
            self._pass(queue, rules)
        self._settle()
        return done

    def _settle(self) -> None:
        """Let go round what the last changes freed, so that the next round finds nothing to do."""
        rules = self._free(0.0)
        for _ in range(_SETTLING):
            before = self.room.key()
            self._improve(rules)
            queue = self._queue_now()
            if queue:
                self._pass(queue, rules)
            if self.room.key() == before:
                return

    def _improve(self, rules: Round) -> None:
        """Jobs that are about to start go where they end sooner, if that is left over: asking
        price first, they may have come to a slower place, and later that would cost a restart."""
        for job in self.order:
            offer = self.given.get(job)
            if offer is None or offer.stay:
                continue
            better = self.market.quicker(self.room, job, offer, rules)
            if better is not None:
                self.room.give(offer.parts, self.market.needs[job])
                self.room.take(better.parts, self.market.needs[job])
                self.given[job] = better
                if job in self._anchored:
                    self._anchored[job] = better.parts

    def _queue_now(self) -> list[int]:
        """The jobs that could still get a place, or a better one."""
        market, given = self.market, self.given
        fitting: dict[object, bool] = {}
        queue: list[int] = []
        for job in self.order:
            post = market.posts.get(job)
            if post is None and job not in given:
                kind = market.kind(job)
                if kind not in fitting:
                    fitting[kind] = market.fits(self.room, job)
                if fitting[kind]:
                    queue.append(job)
            elif post is not None and post.movable:
                offer = given.get(job)
                if offer is None or (offer.stay and (post.stoppable or market.gains(job))):
                    queue.append(job)
        return queue

    def _place_running(self, pools: ResourcePools) -> dict[int, Incumbent]:
        view, jobs, settings = self.view, self.view.jobs, self.settings
        needs = demands_of(view)
        held: dict[int, list[tuple[int, int]]] = {}
        for job, node, kind, count in jobs.held.tolist():
            if count > 0:
                held.setdefault(job, []).append((pools.slot_of[node, kind], count))
        places = {job: tuple(rows) for job, rows in held.items()}
        for job, parts in places.items():
            self.room.take(parts, needs[job])
        posts: dict[int, Incumbent] = {}
        for job, parts in places.items():
            stayed = view.now - float(jobs.since_s[job]) >= settings.min_stay_s
            movable = bool(jobs.movable[job]) and stayed
            # Where less is offered than is held, stopping one would not make room for another.
            stoppable = settings.preempt and movable and not self.room.overfull(parts)
            seconds = self._seconds_there(job, parts, pools)
            posts[job] = Incumbent(parts, seconds, movable, stoppable)
        for job, post in posts.items():
            if post.stoppable:
                self.room.give(post.parts, needs[job])
                self.room.take(post.parts, needs[job], soft=True)
            else:
                self._anchored[job] = post.parts
                self.given[job] = Bid(post.parts, post.seconds, 0.0, 0.0, 0.0, stay=True)
        return posts

    def _seconds_there(self, job: int, parts: Allocation, pools: ResourcePools) -> float:
        """Time left where the job is, bound by its slowest type; inf where that is not known."""
        count = sum(n for _, n in parts)
        if count not in self.view.counts:
            return float("inf")
        at = self.view.counts.index(count)
        kinds = sorted({int(pools.gpu_type[slot]) for slot, _ in parts})
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

    def _free(self, part: float) -> Round:
        patience = part * self.settings.patience
        return Round(None, 0.0, patience, self.worth, self.market.pools)

    def _at_prices(self) -> Round:
        waiting = np.zeros(len(self.view.jobs.ids), dtype=bool)
        waiting[[job for job in self.order if job not in self._anchored]] = True
        free = sum(self.room.left)
        reserve = demand(self.worth, self._gangs, waiting, free)
        price = todays_price(self.view, self.worth, waiting, free)
        return Round(price, reserve, self.settings.patience, self.worth, self.market.pools)

    def _pass(self, queue: Sequence[int], rules: Round) -> None:
        market, settings, posts = self.market, self.settings, self.market.posts
        free = sum(self.room.left)
        width = 1 if rules.price is None else _width(settings, min(len(queue), free))
        best_left = self._suffix(queue) if width > 1 else None
        smallest = min(self._cells.least[job] for job in queue)
        scarce = [float(self.worth.scarcity.price[kind]) for kind in market.pools.pool_type]

        def full(room: FreeCapacity) -> bool:
            return sum(room.left) < smallest

        def options(room: FreeCapacity, job: int) -> list[Take[Bid]]:
            most = settings.branch if width > 1 else 1
            post = posts.get(job)
            if post is None:
                if market.kind(job) in room.hopeless:
                    return []
                offers = market.bids(room, job, rules, most)
                if not offers and rules.price is None and rules.patience <= 0.0:
                    market.fits(room, job)  # noted in the room if not
                return [Take(_value(offer), offer) for offer in offers]
            if not post.stoppable and not market.tempted(room, job, rules):
                return []
            hopeless = room.hopeless
            self._step_out(room, job)
            offers = market.bids(room, job, rules, most)
            self._step_back(room, job)
            room.hopeless = hopeless
            if post.stoppable:
                return [Take(_value(offer), offer) for offer in offers]
            # To skip is to stay, so a move counts for what it adds to that.
            now = _value(offers[-1])
            return [Take(_value(offer) - now, offer) for offer in offers[:-1]]

        def apply(room: FreeCapacity, job: int, offer: Bid, alone: bool) -> FreeCapacity:
            after = room if alone else room.copy()
            if job in posts:
                self._step_out(after, job)
            after.take(offer.parts, market.needs[job])
            return after

        def promise(room: FreeCapacity, position: int) -> float:
            if best_left is None or position >= len(best_left):
                return 0.0
            free = sum(n * price for n, price in zip(room.left, scarce, strict=True))
            return float(best_left[position]) * free

        result = take_or_skip(self.room, queue, options, apply, promise, full, width)
        self.room = result.state
        for job, offer in result.chosen.items():
            self.given[job] = offer
            if job in market.posts:
                self._anchored[job] = offer.parts

    def _step_out(self, room: FreeCapacity, job: int) -> None:
        """A running job looks around as if its own GPUs were free."""
        anchored, need = self._anchored.get(job), self.market.needs[job]
        if anchored is not None:
            room.give(anchored, need)
        else:
            room.give(self.market.posts[job].parts, need, soft=True)

    def _step_back(self, room: FreeCapacity, job: int) -> None:
        anchored, need = self._anchored.get(job), self.market.needs[job]
        if anchored is not None:
            room.take(anchored, need)
        else:
            room.take(self.market.posts[job].parts, need, soft=True)

    def _suffix(self, queue: Sequence[int]) -> FloatArray:
        best = self._best[list(queue)]
        result: FloatArray = np.maximum.accumulate(best[::-1])[::-1]
        return result


def _value(offer: Bid) -> float:
    """Payoff per second."""
    return max(offer.payoff, 0.0) / offer.seconds


def _width(settings: HadarOptions, length: int) -> int:
    return max(1, min(settings.beam, settings.effort // max(1, length)))


POLICY = Policy(
    name="hadar",
    decide=decide,
    options=HadarOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER}),
    title="dual prices and take-or-skip over the queue",
    paper="Hadar, arXiv 2503.10918 (IPDPS 2024)",
)
