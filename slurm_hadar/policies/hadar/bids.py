"""FIND_ALLOC of Hadar: the placements that a job could take now, and the value of each to it.

Candidates per GPU type and allowed count, best first: consolidated on one node; on several nodes,
at a communication cost; mixed over several types, at the speed of the slowest, if the job can mix
types.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Allocation, FreeCapacity, ResourcePools, demands_of
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadar.utility import TypeOption, TypeOptions, Utilities
from slurm_hadar.solvers.prices import DualPrice

_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Bid:
    """A placement with its value to the job. ``allocation``: (slot, GPUs) per node; ``seconds``:
    time until the job would end, a restart included; ``charge``: price of the GPUs taken; ``rank``:
    payoff per price; ``stay``: the job holds this allocation already."""

    allocation: Allocation
    seconds: float
    utility: float
    charge: float
    rank: float
    stay: bool = False

    @property
    def payoff(self) -> float:
        """mu_j of the paper: utility minus price."""
        return self.utility - self.charge


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The placement that a running job has now: its allocation, the seconds that the job still
    needs there, whether it may be moved, and whether it may be stopped (if not, it may always
    stay)."""

    allocation: Allocation
    seconds: float
    movable: bool
    stoppable: bool


class PassTerms:
    """The terms of one pass over the queue.

    ``price``: Hadar's dual price; None if the GPUs that are left cost nothing. ``reserve``: payoff
    per price of the first job that must wait, which is the least price of a GPU. ``patience``: a
    job takes no placement of less than this fraction of its best rank.
    """

    def __init__(
        self,
        price: DualPrice | None,
        reserve: float,
        patience: float,
        utilities: Utilities,
        pools: ResourcePools,
    ) -> None:
        self.price, self.patience = price, patience
        self._pools = pools
        self._least = [reserve * float(utilities.scarcity.price[kind]) for kind in pools.pool_type]
        self._units: dict[tuple[int, int], float] = {}

    def unit_price(self, free_capacity: FreeCapacity, pool: int) -> float:
        """Price of a GPU of the pool now, in utility per GPU-second."""
        if self.price is None:
            return 0.0
        key = (pool, free_capacity.left[pool])
        if key not in self._units:
            kind, capacity = self._pools.pool_type[pool], self._pools.capacity[pool]
            today = self.price.at(kind, capacity - free_capacity.left[pool], capacity)
            self._units[key] = max(today, self._least[pool])
        return self._units[key]


class Market:
    """Makes the bids of jobs. What does not change during a decision is computed once."""

    def __init__(
        self,
        view: View,
        pools: ResourcePools,
        type_options: TypeOptions,
        incumbents: Mapping[int, Incumbent],
        settings: HadarOptions,
    ) -> None:
        self.view, self.pools, self.settings = view, pools, settings
        self.utilities = type_options.utilities
        self.incumbents, self._type_options = incumbents, type_options
        jobs = view.jobs
        self.needs = demands_of(view)
        self._most_nodes: list[int] = jobs.max_nodes.tolist()
        self._mixable: list[bool] = jobs.mixable.tolist()
        self._restart: list[float] = [max(0.0, seconds) for seconds in jobs.restart_s.tolist()]
        self._masks = [row.tobytes() for row in jobs.groups]
        self._open_pools: dict[bytes, tuple[tuple[int, ...], ...]] = {}

    def open_pools(self, job: int) -> tuple[tuple[int, ...], ...]:
        """Per type: the pools that are open to the job."""
        key = self._masks[job]
        if key not in self._open_pools:
            mask = self.view.jobs.groups[job]
            self._open_pools[key] = tuple(
                tuple(p for p in of_type if mask[self.pools.pool_group[p]])
                for of_type in self.pools.of_type
            )
        return self._open_pools[key]

    def type_options(self, job: int) -> tuple[TypeOption, ...]:
        """The types and counts that the job may run on, best first."""
        return self._type_options.of(job)

    def fit_class(self, job: int) -> tuple[object, ...]:
        """A key that is equal for jobs that fit the same allocations."""
        return (
            self._masks[job],
            self.needs[job],
            self._most_nodes[job],
            self._mixable[job],
            self._type_options.pattern[job],
        )

    def fits(self, free_capacity: FreeCapacity, job: int) -> bool:
        """Whether any allocation for the job is free."""
        kind = self.fit_class(job)
        if kind in free_capacity.hopeless:
            return False
        if any(self._place(free_capacity, job, option, None) for option in self.type_options(job)):
            return True
        free_capacity.hopeless.add(kind)
        return False

    def could_gain(self, job: int) -> bool:
        """Whether some placement would be worth a move of this running job if it were free."""
        return self._type_options.quickest[job] <= self._longest_worthwhile_s(job)

    def may_gain(self, free_capacity: FreeCapacity, job: int, rules: PassTerms) -> bool:
        """Whether a placement that is worth a move may be free: a quick test without false
        negatives."""
        options, own = self.type_options(job), self.incumbents[job].allocation
        least = rules.patience * options[0].rank if options else 0.0
        return self._may_fit(free_capacity, job, own, self._longest_worthwhile_s(job), least)

    def faster_bid(
        self, free_capacity: FreeCapacity, job: int, bid: Bid, rules: PassTerms
    ) -> Bid | None:
        """A free placement where a job that is about to start would end sooner than with this
        bid."""
        longest = bid.seconds * (1.0 - _TIE)
        if self._type_options.quickest[job] >= longest:
            return None
        if not self._may_fit(free_capacity, job, bid.allocation, longest, 0.0):
            return None
        need = self.needs[job]
        hopeless = free_capacity.hopeless
        free_capacity.give(bid.allocation, need)
        best: Bid | None = None
        for option in self.type_options(job):
            if option.seconds >= longest:
                continue
            allocation = self._place(free_capacity, job, option, rules)
            other = self._bid(free_capacity, job, option, allocation, rules) if allocation else None
            if other is not None and other.payoff > 0.0 and other.seconds < longest:
                best, longest = other, other.seconds
        free_capacity.take(bid.allocation, need)
        free_capacity.hopeless = hopeless
        return best

    def _may_fit(
        self, free_capacity: FreeCapacity, job: int, own: Allocation, longest: float, least: float
    ) -> bool:
        options = self.type_options(job)
        for option in options:
            if option.rank < least:
                return False
            if option.seconds > longest:
                continue
            if self._most_nodes[job] > 1 and option.count > 1:
                return True
            for slot, count in own:
                same = self.pools.gpu_type[slot] == option.gpu_type
                if same and max(0, free_capacity.free[slot]) + count >= option.count:
                    return True
            need, pools = self.needs[job], self.open_pools(job)[option.gpu_type]
            if any(free_capacity.one_node(pool, option.count, need) for pool in pools):
                return True
        return False

    def _longest_worthwhile_s(self, job: int) -> float:
        """The run time (s) above which another placement is not worth a move of this running
        job."""
        seconds = self.incumbents[job].seconds
        if not isfinite(seconds):
            return -1.0
        longest = seconds - self._required_saving_s(job, seconds) - self._restart[job]
        return longest * (1.0 + _TIE)

    def bids(self, free_capacity: FreeCapacity, job: int, rules: PassTerms, most: int) -> list[Bid]:
        """At most ``most`` bids with a payoff above 0, best first.

        A running job may stay at no price; other placements are included only if they are worth the
        move.
        """
        incumbent = self.incumbents.get(job)
        stay = self._stay(free_capacity, job, incumbent) if incumbent is not None else None
        options = self.type_options(job)
        least = rules.patience * options[0].rank if options else 0.0
        found: list[Bid] = []
        for option in options:
            # One more than needed: the charge may change the order.
            if option.rank < least or len(found) > most:
                break
            allocation = self._place(free_capacity, job, option, rules)
            if not allocation:
                continue
            bid = self._bid(free_capacity, job, option, allocation, rules)
            if bid.payoff > 0.0 and (stay is None or self._pays(job, stay, bid)):
                found.append(bid)
        found.sort(key=lambda bid: -bid.rank)
        return found[:most] if stay is None else [*found[: max(1, most - 1)], stay]

    def _stay(self, free_capacity: FreeCapacity, job: int, incumbent: Incumbent) -> Bid | None:
        if incumbent.stoppable and not free_capacity.holds(incumbent.allocation, self.needs[job]):
            return None
        kinds = {int(self.pools.gpu_type[slot]) for slot, _ in incumbent.allocation}
        count = sum(n for _, n in incumbent.allocation)
        slowest = [c for c in self.type_options(job) if c.count == count and c.gpu_type in kinds]
        if not slowest:
            return Bid(incumbent.allocation, incumbent.seconds, 0.0, 0.0, 0.0, stay=True)
        option = min(slowest, key=lambda c: c.rank)
        return Bid(
            incumbent.allocation, incumbent.seconds, option.utility, 0.0, option.rank, stay=True
        )

    def _pays(self, job: int, stay: Bid, bid: Bid) -> bool:
        """Whether a running job should leave its placement for this one."""
        if bid.allocation == stay.allocation or not isfinite(stay.seconds):
            return False
        saved = stay.seconds - bid.seconds
        if self._restart[job] <= 0.0:
            better = bid.rank > stay.rank * (1.0 + _TIE)
            return better if self.settings.preempt else better and saved > 0.0
        return saved >= self._required_saving_s(job, stay.seconds)

    def _required_saving_s(self, job: int, seconds: float) -> float:
        """Seconds that a move must save a job that needs ``seconds`` where it is."""
        restart = self._restart[job]
        if restart <= 0.0:
            return 0.0
        return max(self.settings.gain_over_cost * restart, self.settings.least_gain * seconds)

    def _place(
        self, free_capacity: FreeCapacity, job: int, option: TypeOption, rules: PassTerms | None
    ) -> Allocation | None:
        """``rules`` None: at any price."""
        need, pools = self.needs[job], self.open_pools(job)[option.gpu_type]
        mixable = self._mixable[job] and self._most_nodes[job] > 1
        if rules is not None and rules.price is not None:
            if len(pools) > 1:
                pools = tuple(sorted(pools, key=lambda p: rules.unit_price(free_capacity, p)))
            # More nodes cost more; only a mix of types could be cheaper.
            if pools and not mixable:
                charge = rules.unit_price(free_capacity, pools[0]) * option.count * option.seconds
                if charge >= option.utility:
                    return None
        for pool in pools:
            allocation = free_capacity.one_node(pool, option.count, need)
            if allocation is not None:
                return allocation
        most_nodes = self._most_nodes[job]
        if most_nodes <= 1 or option.count <= 1 or not pools:
            return None
        allocation = free_capacity.several_nodes(pools, option.count, need, most_nodes)
        if allocation is not None or not mixable:
            return allocation
        # The cell's type is the slowest of the mix: add the types that are at least as fast.
        rate = self.view.jobs.rate[job, :, self.view.counts.index(option.count)]
        faster = np.flatnonzero((rate >= rate[option.gpu_type]) & (rate > 0)).tolist()
        others = [
            p for kind in faster if kind != option.gpu_type for p in self.open_pools(job)[kind]
        ]
        if not others:
            return None
        return free_capacity.several_nodes((*pools, *others), option.count, need, most_nodes)

    def _bid(
        self,
        free_capacity: FreeCapacity,
        job: int,
        option: TypeOption,
        allocation: Allocation,
        rules: PassTerms,
    ) -> Bid:
        spread = 1.0 + self.settings.communication if len(allocation) > 1 else 1.0
        seconds = option.seconds * spread
        pool = self.pools.pool_of
        unit = sum(n * rules.unit_price(free_capacity, pool[slot]) for slot, n in allocation)
        charge = unit * seconds
        utility = option.utility / spread
        if job in self.incumbents:
            seconds += self._restart[job]
        # Payoff per price over the whole horizon; on several nodes the run is longer by ``spread``.
        rank = option.rank / spread**2 * max(0.0, 1.0 - charge / utility) if utility else 0.0
        return Bid(allocation, seconds, utility, charge, rank)
