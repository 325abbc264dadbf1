"""FIND_ALLOC: the places that one job could take now, and what each is worth to it.

For each type, best first, and each allowed count: consolidated on one node; on several nodes, at a
communication cost; over several types, as fast as the slowest, where the job can live with that.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from slurm_hadar.domain.view import View
from slurm_hadar.policies.allocation import Floor, Need, Parts, Room
from slurm_hadar.policies.settings import Settings
from slurm_hadar.policies.worth import Worth
from slurm_hadar.solvers.prices import DualPrice

_TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Cell:
    """One (type, count) that a job may run on. ``rank``: payoff per price, ``seconds``: run time,
    ``utility``: U_j there; all before anything is taken."""

    gpu_type: int
    count: int
    seconds: float
    utility: float
    rank: float


@dataclass(frozen=True, slots=True)
class Offer:
    """A place with its worth to the job. ``parts``: (slot, GPUs) per node; ``seconds``: until the
    job would end, a restart included; ``charge``: price of what it takes; ``stay``: it is there
    already."""

    parts: Parts
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
class Post:
    """Where a running job is: its place, the seconds it still needs there, whether it may go."""

    parts: Parts
    seconds: float
    movable: bool


@dataclass(frozen=True, slots=True)
class Round:
    """The rules of one pass over the queue.

    ``price``: Hadar's; None where what is left of the cluster is free of charge. ``reserve``:
    payoff per price of the first job that must wait: a GPU is never cheaper than that.
    ``patience``: no place worth less than this part of the job's best.
    """

    price: DualPrice | None
    reserve: float
    patience: float


class Market:
    """Makes offers to jobs. Everything about a job that does not change is prepared once."""

    def __init__(self, view: View, floor: Floor, worth: Worth, settings: Settings) -> None:
        self.view, self.floor, self.worth, self.settings = view, floor, worth, settings
        jobs = view.jobs
        self.needs = [
            Need(c, m)
            for c, m in zip(jobs.cpus_per_gpu.tolist(), jobs.mem_per_gpu_mb.tolist(), strict=True)
        ]
        self.posts: dict[int, Post] = {}
        self.growth = 1.0
        self._most_nodes = jobs.max_nodes.tolist()
        self._mixable = jobs.mixable.tolist()
        self._restart = np.maximum(jobs.restart_s, 0.0).tolist()
        self._pools: dict[bytes, tuple[tuple[int, ...], ...]] = {}
        self._cells: dict[int, tuple[Cell, ...]] = {}

    def pools(self, job: int) -> tuple[tuple[int, ...], ...]:
        """Per type, the pools open to the job."""
        mask = self.view.jobs.groups[job]
        key = mask.tobytes()
        if key not in self._pools:
            self._pools[key] = tuple(
                tuple(p for p in of_type if mask[self.floor.pool_group[p]])
                for of_type in self.floor.of_type
            )
        return self._pools[key]

    def cells(self, job: int) -> tuple[Cell, ...]:
        """What the job may run on, best first.

        Counts above the most frugal one are left out while others would have to wait for them:
        ``growth`` is how many times over the demand could be served.
        """
        if job not in self._cells:
            worth, counts = self.worth, self.view.counts
            seconds = worth.seconds[job]
            found = []
            for r, c in zip(*np.nonzero(np.isfinite(seconds)), strict=True):
                time = float(seconds[r, c])
                found.append(
                    Cell(int(r), counts[c], time, float(worth.utility[job, r, c]),
                         float(worth.rank[job, r, c]))
                )  # fmt: skip
            best: dict[int, tuple[float, int]] = {}
            for cell in found:
                work = (cell.seconds * cell.count, cell.count)
                best[cell.gpu_type] = min(best.get(cell.gpu_type, work), work)
            held = sum(n for _, n in self.posts[job].parts) if job in self.posts else 0
            found = [
                cell
                for cell in found
                if cell.count <= max(held, best[cell.gpu_type][1] * max(1.0, self.growth))
            ]
            found.sort(key=lambda cell: (-cell.rank, cell.count, cell.gpu_type))
            self._cells[job] = tuple(found)
        return self._cells[job]

    def unit_price(self, room: Room, pool: int, rules: Round) -> float:
        """Utility per GPU-second that a GPU of the pool costs now."""
        if rules.price is None:
            return 0.0
        kind, capacity = self.floor.pool_type[pool], self.floor.capacity[pool]
        today = rules.price.at(kind, capacity - room.left[pool], capacity)
        return max(today, rules.reserve * float(self.worth.scarcity.price[kind]))

    def offers(self, room: Room, job: int, rules: Round, most: int) -> list[Offer]:
        """At most ``most`` places with a payoff above 0, the best first.

        Staying is free. For a running job another place is offered only where going there pays.
        """
        post = self.posts.get(job)
        stay = self._stay(room, job, post) if post is not None else None
        if stay is not None and post is not None and not post.movable:
            return [stay]
        cells = self.cells(job)
        least = rules.patience * cells[0].rank if cells else 0.0
        found: list[Offer] = []
        for cell in cells:
            # One more than wanted: today's prices may turn the order.
            if cell.rank < least or len(found) > most:
                break
            offer = self._place(room, job, cell, rules)
            if offer is None or offer.payoff <= 0.0:
                continue
            if stay is None or self._pays(job, stay, offer):
                found.append(offer)
        found.sort(key=lambda offer: -offer.rank)
        return found[:most] if stay is None else [*found[: max(1, most - 1)], stay]

    def _stay(self, room: Room, job: int, post: Post) -> Offer | None:
        if not room.holds(post.parts, self.needs[job]):
            return None
        kinds = {int(self.floor.gpu_type[slot]) for slot, _ in post.parts}
        count = sum(n for _, n in post.parts)
        slowest = [c for c in self.cells(job) if c.count == count and c.gpu_type in kinds]
        if not slowest:
            return Offer(post.parts, post.seconds, 0.0, 0.0, 0.0, stay=True)
        cell = min(slowest, key=lambda c: c.rank)
        return Offer(post.parts, post.seconds, cell.utility, 0.0, cell.rank, stay=True)

    def _pays(self, job: int, stay: Offer, offer: Offer) -> bool:
        """Whether a running job should leave its place for this one."""
        restart = self._restart[job]
        if offer.parts == stay.parts or not isfinite(stay.seconds):
            return False
        saved = stay.seconds - offer.seconds
        if restart <= 0.0:
            better = offer.rank > stay.rank * (1.0 + _TIE)
            return better if self.settings.preempt else better and saved > 0.0
        least = self.settings.least_gain * stay.seconds
        return bool(saved >= max(self.settings.gain_over_cost * restart, least))

    def _place(self, room: Room, job: int, cell: Cell, rules: Round) -> Offer | None:
        need, pools = self.needs[job], self.pools(job)[cell.gpu_type]
        if len(pools) > 1:
            pools = tuple(sorted(pools, key=lambda p: self.unit_price(room, p, rules)))
        for pool in pools:
            parts = room.one_node(pool, cell.count, need)
            if parts is not None:
                return self._offer(room, job, cell, parts, rules)
        most_nodes = self._most_nodes[job]
        if most_nodes <= 1 or cell.count <= 1 or not pools:
            return None
        parts = room.several_nodes(pools, cell.count, need, most_nodes)
        if parts is not None:
            return self._offer(room, job, cell, parts, rules)
        if not self._mixable[job]:
            return None
        # The cell's type is the slowest of the mix: add the types that are at least as fast.
        faster = [
            other
            for other in self.cells(job)
            if other.count == cell.count
            and other.seconds <= cell.seconds
            and other.gpu_type != cell.gpu_type
        ]
        if not faster:
            return None
        open_ = [p for other in faster for p in self.pools(job)[other.gpu_type]]
        parts = room.several_nodes([*pools, *open_], cell.count, need, most_nodes)
        return None if parts is None else self._offer(room, job, cell, parts, rules)

    def _offer(self, room: Room, job: int, cell: Cell, parts: Parts, rules: Round) -> Offer:
        spread = 1.0 + self.settings.communication if len(parts) > 1 else 1.0
        seconds = cell.seconds * spread
        pool = self.floor.pool
        unit = sum(n * self.unit_price(room, int(pool[slot]), rules) for slot, n in parts)
        charge = unit * seconds
        utility = cell.utility / spread
        if job in self.posts:
            seconds += self._restart[job]
        # Ranked by payoff per price over the whole horizon; a spread place is that much slower.
        rank = cell.rank / spread**2 * max(0.0, 1.0 - charge / utility) if utility else 0.0
        return Offer(parts, seconds, utility, charge, rank)
