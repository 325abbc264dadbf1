"""FIND_ALLOC: the places that one job could take now, and what each is worth to it.

For each type, best first, and each allowed count: consolidated on one node; on several nodes, at a
communication cost; over several types, as fast as the slowest, where the job can live with that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Allocation, FreeCapacity, ResourcePools, demands_of
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadar.worth import Cells, TypeOption, Worth
from slurm_hadar.solvers.prices import DualPrice

_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Bid:
    """A place with its worth to the job. ``parts``: (slot, GPUs) per node; ``seconds``: until the
    job would end, a restart included; ``charge``: price of what it takes; ``stay``: it is there
    already."""

    parts: Allocation
    seconds: float
    utility: float
    charge: float
    rank: float
    stay: bool = False

    @property
    def payoff(self) -> float:
        """mu_j: utility minus price."""
        return self.utility - self.charge


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Where a running job is: its place, the seconds it still needs there, whether it may go,
    whether it may be stopped (if not, it may always stay)."""

    parts: Allocation
    seconds: float
    movable: bool
    stoppable: bool


class Round:
    """The rules of one pass over the queue.

    ``price``: Hadar's; None where what is left of the cluster is free of charge. ``reserve``:
    payoff per price of the first job that must wait: a GPU is never cheaper than that.
    ``patience``: no place worth less than this part of the job's best.
    """

    def __init__(
        self,
        price: DualPrice | None,
        reserve: float,
        patience: float,
        worth: Worth,
        pools: ResourcePools,
    ) -> None:
        self.price, self.patience = price, patience
        self._pools = pools
        self._least = [reserve * float(worth.scarcity.price[kind]) for kind in pools.pool_type]
        self._units: dict[tuple[int, int], float] = {}

    def unit_price(self, room: FreeCapacity, pool: int) -> float:
        """Utility per GPU-second that a GPU of the pool costs now."""
        if self.price is None:
            return 0.0
        key = (pool, room.left[pool])
        if key not in self._units:
            kind, capacity = self._pools.pool_type[pool], self._pools.capacity[pool]
            today = self.price.at(kind, capacity - room.left[pool], capacity)
            self._units[key] = max(today, self._least[pool])
        return self._units[key]


class Market:
    """Makes offers to jobs. Everything about a job that does not change is prepared once."""

    def __init__(
        self,
        view: View,
        pools: ResourcePools,
        worth: Worth,
        settings: HadarOptions,
        posts: Mapping[int, Incumbent],
        cells: Cells,
    ) -> None:
        self.view, self.pools, self.worth, self.settings = view, pools, worth, settings
        self.posts, self._cells = posts, cells
        jobs = view.jobs
        self.needs = demands_of(view)
        self._most_nodes: list[int] = jobs.max_nodes.tolist()
        self._mixable: list[bool] = jobs.mixable.tolist()
        self._restart: list[float] = [max(0.0, seconds) for seconds in jobs.restart_s.tolist()]
        self._masks = [row.tobytes() for row in jobs.groups]
        self._open_pools: dict[bytes, tuple[tuple[int, ...], ...]] = {}

    def open_pools(self, job: int) -> tuple[tuple[int, ...], ...]:
        """Per type, the pools open to the job."""
        key = self._masks[job]
        if key not in self._open_pools:
            mask = self.view.jobs.groups[job]
            self._open_pools[key] = tuple(
                tuple(p for p in of_type if mask[self.pools.pool_group[p]])
                for of_type in self.pools.of_type
            )
        return self._open_pools[key]

    def cells(self, job: int) -> tuple[TypeOption, ...]:
        """What the job may run on, best first."""
        return self._cells.of(job)

    def kind(self, job: int) -> tuple[object, ...]:
        """Equal for jobs that fit into the same places."""
        return (
            self._masks[job],
            self.needs[job],
            self._most_nodes[job],
            self._mixable[job],
            self._cells.pattern[job],
        )

    def fits(self, room: FreeCapacity, job: int) -> bool:
        """Whether the job could take any place at all."""
        kind = self.kind(job)
        if kind in room.hopeless:
            return False
        if any(self._place(room, job, cell, None) for cell in self.cells(job)):
            return True
        room.hopeless.add(kind)
        return False

    def gains(self, job: int) -> bool:
        """Whether any place could be worth a move of a running job, if only it were free."""
        return self._cells.quickest[job] <= self._longest(job)

    def tempted(self, room: FreeCapacity, job: int, rules: Round) -> bool:
        """Whether a place that could be worth a move might be free. Quick; may say yes in vain."""
        cells, own = self.cells(job), self.posts[job].parts
        least = rules.patience * cells[0].rank if cells else 0.0
        return self._might(room, job, own, self._longest(job), least)

    def quicker(self, room: FreeCapacity, job: int, offer: Bid, rules: Round) -> Bid | None:
        """A free place where a job that is about to start would end sooner than at this one."""
        longest = offer.seconds * (1.0 - _TIE)
        if self._cells.quickest[job] >= longest:
            return None
        if not self._might(room, job, offer.parts, longest, 0.0):
            return None
        need = self.needs[job]
        hopeless = room.hopeless
        room.give(offer.parts, need)
        best: Bid | None = None
        for cell in self.cells(job):
            if cell.seconds >= longest:
                continue
            parts = self._place(room, job, cell, rules)
            other = self._offer(room, job, cell, parts, rules) if parts else None
            if other is not None and other.payoff > 0.0 and other.seconds < longest:
                best, longest = other, other.seconds
        room.take(offer.parts, need)
        room.hopeless = hopeless
        return best

    def _might(
        self, room: FreeCapacity, job: int, own: Allocation, longest: float, least: float
    ) -> bool:
        cells = self.cells(job)
        for cell in cells:
            if cell.rank < least:
                return False
            if cell.seconds > longest:
                continue
            if self._most_nodes[job] > 1 and cell.count > 1:
                return True
            for slot, count in own:
                same = self.pools.gpu_type[slot] == cell.gpu_type
                if same and max(0, room.free[slot]) + count >= cell.count:
                    return True
            need, pools = self.needs[job], self.open_pools(job)[cell.gpu_type]
            if any(room.one_node(pool, cell.count, need) for pool in pools):
                return True
        return False

    def _longest(self, job: int) -> float:
        """Seconds that a running job may need at a place that is worth a move."""
        seconds = self.posts[job].seconds
        if not isfinite(seconds):
            return -1.0
        longest = seconds - self._least_saving(job, seconds) - self._restart[job]
        return longest * (1.0 + _TIE)

    def bids(self, room: FreeCapacity, job: int, rules: Round, most: int) -> list[Bid]:
        """At most ``most`` places with a payoff above 0, the best first.

        Staying is free. For a running job another place is offered only where going there pays.
        """
        post = self.posts.get(job)
        stay = self._stay(room, job, post) if post is not None else None
        cells = self.cells(job)
        least = rules.patience * cells[0].rank if cells else 0.0
        found: list[Bid] = []
        for cell in cells:
            # One more than wanted: today's prices may turn the order.
            if cell.rank < least or len(found) > most:
                break
            parts = self._place(room, job, cell, rules)
            if not parts:
                continue
            offer = self._offer(room, job, cell, parts, rules)
            if offer.payoff > 0.0 and (stay is None or self._pays(job, stay, offer)):
                found.append(offer)
        found.sort(key=lambda offer: -offer.rank)
        return found[:most] if stay is None else [*found[: max(1, most - 1)], stay]

    def _stay(self, room: FreeCapacity, job: int, post: Incumbent) -> Bid | None:
        if post.stoppable and not room.holds(post.parts, self.needs[job]):
            return None
        kinds = {int(self.pools.gpu_type[slot]) for slot, _ in post.parts}
        count = sum(n for _, n in post.parts)
        slowest = [c for c in self.cells(job) if c.count == count and c.gpu_type in kinds]
        if not slowest:
            return Bid(post.parts, post.seconds, 0.0, 0.0, 0.0, stay=True)
        cell = min(slowest, key=lambda c: c.rank)
        return Bid(post.parts, post.seconds, cell.utility, 0.0, cell.rank, stay=True)

    def _pays(self, job: int, stay: Bid, offer: Bid) -> bool:
        """Whether a running job should leave its place for this one."""
        if offer.parts == stay.parts or not isfinite(stay.seconds):
            return False
        saved = stay.seconds - offer.seconds
        if self._restart[job] <= 0.0:
            better = offer.rank > stay.rank * (1.0 + _TIE)
            return better if self.settings.preempt else better and saved > 0.0
        return saved >= self._least_saving(job, stay.seconds)

    def _least_saving(self, job: int, seconds: float) -> float:
        """Seconds that a move must save a job that needs so many where it is."""
        restart = self._restart[job]
        if restart <= 0.0:
            return 0.0
        return max(self.settings.gain_over_cost * restart, self.settings.least_gain * seconds)

    def _place(
        self, room: FreeCapacity, job: int, cell: TypeOption, rules: Round | None
    ) -> Allocation | None:
        """``rules`` None: whatever it may cost."""
        need, pools = self.needs[job], self.open_pools(job)[cell.gpu_type]
        mixable = self._mixable[job] and self._most_nodes[job] > 1
        if rules is not None and rules.price is not None:
            if len(pools) > 1:
                pools = tuple(sorted(pools, key=lambda p: rules.unit_price(room, p)))
            # On several nodes it is dearer still; only a mix may find cheaper types.
            if pools and not mixable:
                charge = rules.unit_price(room, pools[0]) * cell.count * cell.seconds
                if charge >= cell.utility:
                    return None
        for pool in pools:
            parts = room.one_node(pool, cell.count, need)
            if parts is not None:
                return parts
        most_nodes = self._most_nodes[job]
        if most_nodes <= 1 or cell.count <= 1 or not pools:
            return None
        parts = room.several_nodes(pools, cell.count, need, most_nodes)
        if parts is not None or not mixable:
            return parts
        # The cell's type is the slowest of the mix: add the types that are at least as fast.
        rate = self.view.jobs.rate[job, :, self.view.counts.index(cell.count)]
        faster = np.flatnonzero((rate >= rate[cell.gpu_type]) & (rate > 0)).tolist()
        others = [p for kind in faster if kind != cell.gpu_type for p in self.open_pools(job)[kind]]
        if not others:
            return None
        return room.several_nodes((*pools, *others), cell.count, need, most_nodes)

    def _offer(
        self, room: FreeCapacity, job: int, cell: TypeOption, parts: Allocation, rules: Round
    ) -> Bid:
        spread = 1.0 + self.settings.communication if len(parts) > 1 else 1.0
        seconds = cell.seconds * spread
        pool = self.pools.pool_of
        unit = sum(n * rules.unit_price(room, pool[slot]) for slot, n in parts)
        charge = unit * seconds
        utility = cell.utility / spread
        if job in self.posts:
            seconds += self._restart[job]
        # Ranked by payoff per price over the whole horizon; a spread place is that much slower.
        rank = cell.rank / spread**2 * max(0.0, 1.0 - charge / utility) if utility else 0.0
        return Bid(parts, seconds, utility, charge, rank)
