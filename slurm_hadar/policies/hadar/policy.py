"""Hadar: GPU types, counts and nodes by dual prices and a take-or-skip programme over the queue.

arXiv 2503.10918 (IPDPS 2024). Verified in the paper: task-level mixing of GPU types, the objective.
Recalled: utilities, price function and bounds, the programme, FIND_ALLOC. Ours, measured on Gavel's
traces:

- The queue is ordered by payoff per price, the price being the scarcity of each type over the whole
  horizon (the dual of the shortest makespan). So a job bids first for the type on which it has a
  comparative advantage, not simply for the fastest type.
- Jobs that have no slack until the horizon go first, and so do gangs of one size that together have
  none, since a large gang cannot use every GPU.
- An idle GPU costs nothing: what the priced passes leave is given away free, so no GPU stays idle
  that a waiting job could use.
- A running job keeps its placement unless leaving saves several times its restart.
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
from slurm_hadar.policies.hadar.bids import Bid, Incumbent, Market, PassTerms
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadar.utility import (
    TypeOptions,
    Utilities,
    frugal_counts,
    marginal_payoff,
    round_price,
    utilities_of,
)
from slurm_hadar.policies.record import Policy, Trait
from slurm_hadar.solvers.take_or_skip import Search, Take, take_or_skip

_FREE_PASSES = (1.0, 0.5, 0.0)
"""What is left at the prices is given away free, first to the jobs that it suits best: the patience
of these passes, as fractions of the option. Measured on trace_480: 3% of the makespan."""
_SETTLING = 20
"""Most repetitions of handing out what the moves of others free."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    settings = HadarOptions.read(view.options)
    if (nothing := nothing_to_place(view)) is not None:
        return nothing, dict(state)
    pools = resource_pools(view)
    utilities = utilities_of(view, pools, settings)
    planner = _Planner(view, pools, utilities, settings)
    rules = planner.run()
    plan = reasons.plan(
        planner.market, planner.free_capacity, planner.accepted, planner.order, rules
    )
    prices = {
        kind: float(price) for kind, price in zip(view.types, utilities.scarcity.price, strict=True)
    }
    return plan, {"scarcity": prices, "horizon_s": utilities.horizon_s}


class _Planner:
    """Passes over the queue until the cluster is full or no job waits."""

    def __init__(
        self, view: View, pools: ResourcePools, utilities: Utilities, settings: HadarOptions
    ) -> None:
        self.view, self.settings, self.utilities = view, settings, utilities
        self.free_capacity = FreeCapacity(view, pools)
        self.accepted: dict[int, Bid] = {}
        self._reserved: dict[int, Allocation] = {}
        """Jobs whose allocation is already taken from the free capacity."""
        incumbents = self._place_running(pools)
        self._best: FloatArray = utilities.rank.max(axis=(1, 2), initial=0.0)
        counts = np.asarray(view.counts, dtype=np.int64)
        self._gangs = frugal_counts(counts, utilities)
        needed = float(self._gangs[np.isfinite(utilities.best_s)].sum())
        growth = int(view.nodes.gpus.sum()) / needed if needed else 1.0
        held = np.zeros(len(self._best), dtype=np.int64)
        for job, incumbent in incumbents.items():
            held[job] = sum(n for _, n in incumbent.allocation)
        self._type_options = TypeOptions(utilities, counts, held, growth)
        self.market = Market(view, pools, self._type_options, incumbents, settings)
        self.order = self._queue()

    def run(self) -> list[PassTerms]:
        """One pass at prices, then the free ones, over the jobs that are still without a placement.
        Returns the rules of each pass."""
        done: list[PassTerms] = []
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
        """Hand out what the last changes freed, so that the next round finds nothing to change."""
        rules = self._free(0.0)
        for _ in range(_SETTLING):
            before = self.free_capacity.key()
            self._improve(rules)
            queue = self._queue_now()
            if queue:
                self._pass(queue, rules)
            if self.free_capacity.key() == before:
                return

    def _improve(self, rules: PassTerms) -> None:
        """Move jobs that are about to start to free placements where they end sooner. The priced
        pass may have given them a slower one, and a later move would cost a restart."""
        for job in self.order:
            bid = self.accepted.get(job)
            if bid is None or bid.stay:
                continue
            better = self.market.faster_bid(self.free_capacity, job, bid, rules)
            if better is not None:
                self.free_capacity.give(bid.allocation, self.market.needs[job])
                self.free_capacity.take(better.allocation, self.market.needs[job])
                self.accepted[job] = better
                if job in self._reserved:
                    self._reserved[job] = better.allocation

    def _queue_now(self) -> list[int]:
        """The jobs that could still get a placement, or a better one."""
        market, accepted = self.market, self.accepted
        fitting: dict[object, bool] = {}
        queue: list[int] = []
        for job in self.order:
            incumbent = market.incumbents.get(job)
            if incumbent is None and job not in accepted:
                kind = market.fit_class(job)
                if kind not in fitting:
                    fitting[kind] = market.fits(self.free_capacity, job)
                if fitting[kind]:
                    queue.append(job)
            elif incumbent is not None and incumbent.movable:
                bid = accepted.get(job)
                if bid is None or (bid.stay and (incumbent.stoppable or market.could_gain(job))):
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
        for job, allocation in places.items():
            self.free_capacity.take(allocation, needs[job])
        incumbents: dict[int, Incumbent] = {}
        for job, allocation in places.items():
            stayed = view.now - float(jobs.since_s[job]) >= settings.min_stay_s
            movable = bool(jobs.movable[job]) and stayed
            # On a node that has shrunk, stopping a job frees no GPU for another one.
            stoppable = settings.preempt and movable and not self.free_capacity.overfull(allocation)
            seconds = self._seconds_there(job, allocation, pools)
            incumbents[job] = Incumbent(allocation, seconds, movable, stoppable)
        for job, incumbent in incumbents.items():
            if incumbent.stoppable:
                self.free_capacity.give(incumbent.allocation, needs[job])
                self.free_capacity.take(incumbent.allocation, needs[job], soft=True)
            else:
                self._reserved[job] = incumbent.allocation
                self.accepted[job] = Bid(
                    incumbent.allocation, incumbent.seconds, 0.0, 0.0, 0.0, stay=True
                )
        return incumbents

    def _seconds_there(self, job: int, allocation: Allocation, pools: ResourcePools) -> float:
        """Seconds left with this allocation, at the speed of its slowest type; inf if not known."""
        count = sum(n for _, n in allocation)
        if count not in self.view.counts:
            return float("inf")
        at = self.view.counts.index(count)
        kinds = sorted({int(pools.gpu_type[slot]) for slot, _ in allocation})
        rate = float(self.view.jobs.rate[job, kinds, at].min())
        if rate <= 0.0:
            return float("inf")
        spread = 1.0 + self.settings.communication if len(allocation) > 1 else 1.0
        return max(1.0, float(self.view.jobs.left[job]) / rate * spread)

    def _queue(self) -> list[int]:
        jobs = self.view.jobs
        key = self._best.copy()
        if self.settings.preempt:
            # Stopping a job must gain several times its restart: rank it as if it were that much
            # nearer to its end.
            for job, incumbent in self.market.incumbents.items():
                margin = self.settings.gain_over_cost * float(jobs.restart_s[job])
                if np.isfinite(incumbent.seconds):
                    key[job] *= incumbent.seconds / max(1.0, incumbent.seconds - margin)
        number = np.arange(len(key))
        order: list[int] = np.lexsort((number, jobs.arrival_s, -jobs.priority, -key)).tolist()
        return order

    def _free(self, part: float) -> PassTerms:
        patience = part * self.settings.patience
        return PassTerms(None, 0.0, patience, self.utilities, self.market.pools)

    def _at_prices(self) -> PassTerms:
        waiting = np.zeros(len(self.view.jobs.ids), dtype=bool)
        waiting[[job for job in self.order if job not in self._reserved]] = True
        free = sum(self.free_capacity.left)
        reserve = marginal_payoff(self.utilities, self._gangs, waiting, free)
        price = round_price(self.view, self.utilities, waiting, free)
        return PassTerms(price, reserve, self.settings.patience, self.utilities, self.market.pools)

    def _pass(self, queue: Sequence[int], rules: PassTerms) -> None:
        market, settings, incumbents = self.market, self.settings, self.market.incumbents
        free = sum(self.free_capacity.left)
        width = 1 if rules.price is None else _width(settings, min(len(queue), free))
        best_left = self._suffix(queue) if width > 1 else None
        smallest = min(self._type_options.least[job] for job in queue)
        scarce = [float(self.utilities.scarcity.price[kind]) for kind in market.pools.pool_type]

        def full(free_capacity: FreeCapacity) -> bool:
            return sum(free_capacity.left) < smallest

        def options(free_capacity: FreeCapacity, job: int) -> list[Take[Bid]]:
            most = settings.branch if width > 1 else 1
            incumbent = incumbents.get(job)
            if incumbent is None:
                if market.fit_class(job) in free_capacity.hopeless:
                    return []
                bids = market.bids(free_capacity, job, rules, most)
                if not bids and rules.price is None and rules.patience <= 0.0:
                    market.fits(free_capacity, job)  # a misfit is recorded in free_capacity
                return [Take(_value(bid), bid) for bid in bids]
            if not incumbent.stoppable and not market.may_gain(free_capacity, job, rules):
                return []
            hopeless = free_capacity.hopeless
            self._release_own(free_capacity, job)
            bids = market.bids(free_capacity, job, rules, most)
            self._retake_own(free_capacity, job)
            free_capacity.hopeless = hopeless
            if incumbent.stoppable:
                return [Take(_value(bid), bid) for bid in bids]
            # To skip is to stay, so a move has the value that it adds to staying.
            now = _value(bids[-1])
            return [Take(_value(bid) - now, bid) for bid in bids[:-1]]

        def apply(free_capacity: FreeCapacity, job: int, bid: Bid, in_place: bool) -> FreeCapacity:
            after = free_capacity if in_place else free_capacity.copy()
            if job in incumbents:
                self._release_own(after, job)
            after.take(bid.allocation, market.needs[job])
            return after

        def estimate(free_capacity: FreeCapacity, position: int) -> float:
            if best_left is None or position >= len(best_left):
                return 0.0
            free = sum(n * price for n, price in zip(free_capacity.left, scarce, strict=True))
            return float(best_left[position]) * free

        result = take_or_skip(
            self.free_capacity, queue, Search(options, apply, estimate, full), width
        )
        self.free_capacity = result.state
        for job, bid in result.chosen.items():
            self.accepted[job] = bid
            if job in market.incumbents:
                self._reserved[job] = bid.allocation

    def _release_own(self, free_capacity: FreeCapacity, job: int) -> None:
        """Release the job's own GPUs, so that it bids as if they were free."""
        reserved, need = self._reserved.get(job), self.market.needs[job]
        if reserved is not None:
            free_capacity.give(reserved, need)
        else:
            free_capacity.give(self.market.incumbents[job].allocation, need, soft=True)

    def _retake_own(self, free_capacity: FreeCapacity, job: int) -> None:
        reserved, need = self._reserved.get(job), self.market.needs[job]
        if reserved is not None:
            free_capacity.take(reserved, need)
        else:
            free_capacity.take(self.market.incumbents[job].allocation, need, soft=True)

    def _suffix(self, queue: Sequence[int]) -> FloatArray:
        best = self._best[list(queue)]
        result: FloatArray = np.maximum.accumulate(best[::-1])[::-1]
        return result


def _value(bid: Bid) -> float:
    """Payoff per second."""
    return max(bid.payoff, 0.0) / bid.seconds


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
