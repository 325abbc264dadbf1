"""Jobs in turn, each offered the best free places by tier; a job that holds something keeps it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import TIERS
from slurm_hadar.domain.view import BoolArray, FloatArray, View
from slurm_hadar.policies.allocation import Allocation, placement_of
from slurm_hadar.policies.network.outlook import Outlook
from slurm_hadar.policies.network.places import ANYWHERE, Ask, Ground
from slurm_hadar.policies.network.settings import NetworkOptions

WHERE = ("on one machine", "in one rack", "over several racks")
"""The tiers as text."""


@dataclass(frozen=True, slots=True)
class RackOffer:
    """A free place. ``best``: the nearest tier that could ever hold the job on that type."""

    parts: Allocation
    kind: int
    count: int
    tier: int
    best: int
    seconds: float
    """Expected time to the end there."""
    lost: float
    """Time there over the time at the best tier, less 1."""


Answer = Callable[[int, RackOffer], tuple[bool, str]]
"""Whether a job takes an offer, and why."""


class OfferLoop:
    """One decision: what is placed so far, and who waits."""

    def __init__(self, view: View, settings: NetworkOptions, carries: float = 0.0) -> None:
        """``carries``: see :class:`Outlook`."""
        self.view, self.ground = view, Ground(view)
        self.held: dict[int, Allocation] = {}
        for job, node, kind, count in view.jobs.held.tolist():
            if count > 0:
                slot = self.ground.pools.slot_of[node, kind]
                self.held[job] = (*self.held.get(job, ()), (slot, count))
        for job, parts in self.held.items():
            self.ground.room.take(parts, self.ground.needs[job])
        self.tier_now = {job: self.ground.tier_of(parts) for job, parts in self.held.items()}
        self.outlook = Outlook(view, settings, self.tier_now, carries)
        self._nic_load = [0.0] * len(view.nodes.names)
        for job, parts in self.held.items():
            self._traffic(job, parts, 1.0)
        possible = view.jobs.rate > 0
        self._column: list[int] = (
            possible.any(axis=1).argmax(axis=1).tolist() if possible.size else []
        )
        self.placements: dict[str, Placement] = {}
        self.near_s, self.horizon_s = self._work()
        """(J,) each job's least time to its end, 0: not known; the least for all the work."""
        most = settings.critical * self.horizon_s
        self.critical: BoolArray = (self.near_s > 0) & (self.near_s >= most)
        """(J,) who goes first and gives way to nobody."""
        self.moved: set[int] = set()
        """Running jobs that were given another place."""
        self._declined: dict[int, str] = {}
        self._why: dict[tuple[Ask, ...], str] = {}

    def order(self) -> list[int]:
        """The waiting jobs: priority, then who decides when all the work ends, then least attained
        service, then age."""
        return [job for job in self.sorted() if job not in self.held]

    def sorted(self) -> list[int]:
        """All jobs in that order."""
        jobs = self.view.jobs
        index = np.arange(len(jobs.ids))
        keys = (index, jobs.arrival_s, jobs.attained, ~self.critical, -jobs.priority)
        found: list[int] = np.lexsort(keys).tolist()
        return found

    def goes_first(self, jobs: Sequence[int]) -> None:
        """These go first too, and do not give way."""
        self.critical[list(jobs)] = True

    def seconds_near(self, job: int, ask: Ask) -> float:
        """Time to the end at the nearest tier that could ever hold the job; inf: not known."""
        column, tier = self._column[job], self.ground.best_tier(ask)
        if tier > ANYWHERE:
            return float("inf")
        factor = self.outlook.factor(job, ask.kind, column, tier)
        rate = float(self.view.jobs.rate[job, ask.kind, column])
        return float(self.view.jobs.left[job]) / (rate * factor)

    def _work(self) -> tuple[FloatArray, float]:
        """(J,) each job's least time to its end, near by, 0 where it is not known; and the least
        in which all of them could end."""
        jobs = len(self.view.jobs.ids)
        seconds, gpus = np.zeros(jobs), np.zeros(jobs)
        for job in range(jobs):
            least = min((self.seconds_near(job, ask) for ask in self.asks(job)), default=np.inf)
            if least < np.inf:
                seconds[job], gpus[job] = least, self.count(job)
        capacity = max(1, int(self.view.nodes.gpus.sum()))
        return seconds, max(float(seconds @ gpus) / capacity, float(seconds.max(initial=0.0)))

    def count(self, job: int) -> int:
        """GPUs that a job would get: the least number that it can run on."""
        return self.view.counts[self._column[job]]

    def offers(self, job: int, most_tier: int = ANYWHERE) -> list[RackOffer]:
        """A free place on each type that has one, of the nearest tier there, the soonest to end
        first."""
        jobs, found = self.view.jobs, []
        if not self._column:
            return []
        column = self._column[job]
        count, left = self.view.counts[column], float(jobs.left[job])
        for kind in np.flatnonzero(jobs.rate[job, :, column] > 0).tolist():
            ask = self.ground.ask(job, kind, count)
            best = self.ground.best_tier(ask)
            for widest in range(best, most_tier + 1):
                parts = self.ground.find(ask, widest)
                if parts is not None:
                    tier = max(best, self.ground.tier_of(parts))
                    factor = self.outlook.factor(
                        job, kind, column, tier, self._busiest_nic(job, parts)
                    )
                    lost = self.outlook.factor(job, kind, column, best) / factor - 1.0
                    seconds = left / (float(jobs.rate[job, kind, column]) * factor)
                    found.append(RackOffer(parts, kind, count, tier, best, seconds, max(0.0, lost)))
                    break
        return sorted(found, key=lambda offer: (offer.seconds, offer.kind))

    def seconds_now(self, job: int) -> float:
        """Time to the end of a running job where it is, at its present speed; inf: not known."""
        jobs, parts = self.view.jobs, self.held[job]
        count = sum(number for _, number in parts)
        if count not in self.view.counts:
            return float("inf")
        kinds = [int(self.ground.pools.gpu_type[slot]) for slot, _ in parts]
        rate = float(jobs.rate[job, kinds, self.view.counts.index(count)].min())
        rate *= float(self.outlook.slowed[job])
        return float(jobs.left[job]) / rate if rate > 0 else float("inf")

    def factor_at_best(self, job: int) -> float:
        """What a running job would keep of its speed at the nearest tier for it, on its type."""
        parts = self.held[job]
        kind, count = int(self.ground.pools.gpu_type[parts[0][0]]), sum(n for _, n in parts)
        if count not in self.view.counts:
            return 0.0
        best = self.ground.best_tier(self.ground.ask(job, kind, count))
        column = self.view.counts.index(count)
        return self.outlook.factor(job, kind, column, best) if best <= ANYWHERE else 0.0

    def asks(self, job: int) -> tuple[Ask, ...]:
        """What a job asks for, on each type on which it can run."""
        if not self._column:
            return ()
        kinds = np.flatnonzero(self.view.jobs.rate[job, :, self._column[job]] > 0).tolist()
        return tuple(self.ground.ask(job, kind, self.count(job)) for kind in kinds)

    def keep(self, job: int, why: str) -> None:
        """A running job stays where it is."""
        self._place(job, self.held[job], why)

    def take(self, job: int, offer: RackOffer, why: str) -> None:
        """Place a job."""
        self.ground.room.take(offer.parts, self.ground.needs[job])
        self._traffic(job, offer.parts, 1.0)
        if job in self.held:
            self.moved.add(job)
            if self.tier_now[job] == ANYWHERE:
                self.outlook.leaves(job)
        if offer.tier == ANYWHERE:
            self.outlook.joins(job)
        self._place(job, offer.parts, why)

    def release(self, job: int) -> Allocation:
        """Give back what a running job holds, for now."""
        parts = self.held[job]
        self.ground.room.give(parts, self.ground.needs[job])
        self._traffic(job, parts, -1.0)
        return parts

    def retake(self, job: int) -> None:
        """Undo :meth:`release`."""
        self.ground.room.take(self.held[job], self.ground.needs[job])
        self._traffic(job, self.held[job], 1.0)

    def stop(self, job: int) -> Allocation:
        """Send a running job that is over several racks back to the queue; returns what it held."""
        parts = self.release(job)
        self.outlook.leaves(job)
        del self.held[job], self.placements[self.view.jobs.ids[job]]
        return parts

    def unstop(self, job: int, parts: Allocation) -> None:
        """The opposite of :meth:`stop`."""
        self.held[job] = parts
        self.retake(job)
        self.outlook.joins(job)
        self.keep(job, f"stays {WHERE[self.tier_now[job]]}")

    def serve(self, order: Sequence[int], answer: Answer) -> list[int]:
        """Offer each job of ``order`` what is free in turn; who declines is passed over.

        Returns those that still wait.
        """
        left = []
        for job in order:
            said = ""
            for offer in self.offers(job):
                taken, said = answer(job, offer)
                if taken:
                    self.take(job, offer, said)
                    self._declined.pop(job, None)
                    break
            else:
                self._declined[job] = said
                left.append(job)
        return left

    def waits(self, job: int) -> bool:
        """Whether a job was offered something and got nothing."""
        return job in self._declined

    def plan(self, notes: tuple[str, ...] = ()) -> Plan:
        """What was decided."""
        ids = self.view.jobs.ids
        if not ids:
            notes = ("no managed job waits or runs", *notes)
        waiting = {ids[job]: said or self._short(job) for job, said in self._declined.items()}
        return Plan(self.placements, waiting, notes)

    def _short(self, job: int) -> str:
        """Why there is no place for a job at all."""
        asks = self.asks(job)
        if not asks:
            return "no GPU type and count that it can run with"
        if asks not in self._why:
            pools = [
                p for ask in asks for some in self.ground.open_pools(ask).values() for p in some
            ]
            ask = asks[0]
            short = self.ground.room.shortage(pools, ask.count, ask.need, ask.most_nodes)
            self._why[asks] = f"short of {short}"
        return self._why[asks]

    def _traffic(self, job: int, parts: Allocation, sign: float) -> None:
        """A job on several nodes keeps their network cards busy, or no longer does."""
        nodes = {self.ground.pools.node_of[slot] for slot, _ in parts}
        if len(nodes) > 1:
            for node in nodes:
                self._nic_load[node] += sign * self.outlook.nic_share(job)

    def _busiest_nic(self, job: int, parts: Allocation) -> float:
        """How busy the busiest of these nodes' cards would be."""
        nodes = {self.ground.pools.node_of[slot] for slot, _ in parts}
        if len(nodes) == 1:
            return 0.0
        return max(self._nic_load[node] for node in nodes) + self.outlook.nic_share(job)

    def _place(self, job: int, parts: Allocation, why: str) -> None:
        pools, view = self.ground.pools, self.view
        placed = placement_of(view, pools, parts, why)
        tier = TIERS[self.ground.tier_of(parts)]
        self.placements[view.jobs.ids[job]] = replace(placed, tier=tier)


def one_round(view: View, answer: Answer) -> Plan:
    """The plan of one round in which running jobs keep their place. Raises UsageError for an option
    that cannot be understood."""
    offers = OfferLoop(view, NetworkOptions.read(view.options))
    for job in offers.held:
        offers.keep(job, "keeps what it holds")
    offers.serve(offers.order(), answer)
    return offers.plan()
