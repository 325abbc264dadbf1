"""The loop of resource offers: jobs in turn get offers of free GPUs by tier; running jobs keep
theirs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.traits import TIERS
from slurm_hadar.domain.view import BoolArray, FloatArray, View
from slurm_hadar.policies.allocation import Allocation, placement_of
from slurm_hadar.policies.network.expected_slowdown import ExpectedSlowdown
from slurm_hadar.policies.network.rack_capacity import ANYWHERE, GangRequest, RackCapacity
from slurm_hadar.policies.network.settings import NetworkOptions

WHERE = ("on one machine", "in one rack", "over several racks")
"""The tiers as text."""


@dataclass(frozen=True, slots=True)
class RackOffer:
    """A free allocation. ``best``: the nearest tier that could ever hold the job on that type."""

    allocation: Allocation
    kind: int
    count: int
    tier: int
    best: int
    seconds: float
    """Expected seconds to the end there."""
    lost: float
    """Time there over time at the best tier, minus 1."""


Answer = Callable[[int, RackOffer], tuple[bool, str]]
"""Whether a job takes an offer, and why."""


class OfferLoop:
    """One decision: the placements so far, and the jobs that wait."""

    def __init__(self, view: View, settings: NetworkOptions, far_capacity: float = 0.0) -> None:
        """``far_capacity``: see :class:`ExpectedSlowdown`."""
        self.view, self.rack_capacity = view, RackCapacity(view)
        self.held: dict[int, Allocation] = {}
        for job, node, kind, count in view.jobs.held.tolist():
            if count > 0:
                slot = self.rack_capacity.pools.slot_of[node, kind]
                self.held[job] = (*self.held.get(job, ()), (slot, count))
        for job, allocation in self.held.items():
            self.rack_capacity.free_capacity.take(allocation, self.rack_capacity.needs[job])
        self.tier_now = {
            job: self.rack_capacity.tier_of(allocation) for job, allocation in self.held.items()
        }
        self.slowdown = ExpectedSlowdown(view, settings, self.tier_now, far_capacity)
        self._nic_load = [0.0] * len(view.nodes.names)
        for job, allocation in self.held.items():
            self._traffic(job, allocation, 1.0)
        possible = view.jobs.rate > 0
        self._column: list[int] = (
            possible.any(axis=1).argmax(axis=1).tolist() if possible.size else []
        )
        self.placements: dict[str, Placement] = {}
        self.near_s, self.horizon_s = self._work()
        """(J,) least seconds to the end of each job, 0: unknown; and the least seconds for all
        work."""
        most = settings.critical * self.horizon_s
        self.critical: BoolArray = (self.near_s > 0) & (self.near_s >= most)
        """(J,) jobs that go first and are not preempted."""
        self.moved: set[int] = set()
        """Running jobs that got another placement."""
        self._declined: dict[int, str] = {}
        self._why: dict[tuple[GangRequest, ...], str] = {}

    def order(self) -> list[int]:
        """The waiting jobs by priority, then jobs that determine the makespan, then least attained
        service, then age."""
        return [job for job in self.sorted() if job not in self.held]

    def sorted(self) -> list[int]:
        """All jobs in this order."""
        jobs = self.view.jobs
        index = np.arange(len(jobs.ids))
        keys = (index, jobs.arrival_s, jobs.attained, ~self.critical, -jobs.priority)
        found: list[int] = np.lexsort(keys).tolist()
        return found

    def goes_first(self, jobs: Sequence[int]) -> None:
        """Mark these jobs as critical."""
        self.critical[list(jobs)] = True

    def seconds_near(self, job: int, request: GangRequest) -> float:
        """Seconds to the end at the nearest tier that could ever hold the job; inf if unknown."""
        column, tier = self._column[job], self.rack_capacity.best_tier(request)
        if tier > ANYWHERE:
            return float("inf")
        factor = self.slowdown.factor(job, request.kind, column, tier)
        rate = float(self.view.jobs.rate[job, request.kind, column])
        return float(self.view.jobs.left[job]) / (rate * factor)

    def _work(self) -> tuple[FloatArray, float]:
        """(J,) least seconds to the end of each job at its nearest tier, 0 if unknown; and the
        least seconds for all of them."""
        jobs = len(self.view.jobs.ids)
        seconds, gpus = np.zeros(jobs), np.zeros(jobs)
        for job in range(jobs):
            least = min(
                (self.seconds_near(job, request) for request in self.requests(job)), default=np.inf
            )
            if least < np.inf:
                seconds[job], gpus[job] = least, self.count(job)
        capacity = max(1, int(self.view.nodes.gpus.sum()))
        return seconds, max(float(seconds @ gpus) / capacity, float(seconds.max(initial=0.0)))

    def count(self, job: int) -> int:
        """GPUs that a job would get: the least count that it can run on."""
        return self.view.counts[self._column[job]]

    def offers(self, job: int, most_tier: int = ANYWHERE) -> list[RackOffer]:
        """One free allocation per type, at the nearest possible tier; soonest end first."""
        jobs, found = self.view.jobs, []
        if not self._column:
            return []
        column = self._column[job]
        count, left = self.view.counts[column], float(jobs.left[job])
        for kind in np.flatnonzero(jobs.rate[job, :, column] > 0).tolist():
            request = self.rack_capacity.request(job, kind, count)
            best = self.rack_capacity.best_tier(request)
            for widest in range(best, most_tier + 1):
                allocation = self.rack_capacity.find(request, widest)
                if allocation is not None:
                    tier = max(best, self.rack_capacity.tier_of(allocation))
                    factor = self.slowdown.factor(
                        job, kind, column, tier, self._busiest_nic(job, allocation)
                    )
                    lost = self.slowdown.factor(job, kind, column, best) / factor - 1.0
                    seconds = left / (float(jobs.rate[job, kind, column]) * factor)
                    found.append(
                        RackOffer(allocation, kind, count, tier, best, seconds, max(0.0, lost))
                    )
                    break
        return sorted(found, key=lambda offer: (offer.seconds, offer.kind))

    def seconds_now(self, job: int) -> float:
        """Seconds to the end of a running job where it is, at its present speed; inf if unknown."""
        jobs, allocation = self.view.jobs, self.held[job]
        count = sum(number for _, number in allocation)
        if count not in self.view.counts:
            return float("inf")
        kinds = [int(self.rack_capacity.pools.gpu_type[slot]) for slot, _ in allocation]
        rate = float(jobs.rate[job, kinds, self.view.counts.index(count)].min())
        rate *= float(self.slowdown.slowed[job])
        return float(jobs.left[job]) / rate if rate > 0 else float("inf")

    def factor_at_best(self, job: int) -> float:
        """Fraction of its speed that a running job would keep at its nearest tier, on its type."""
        allocation = self.held[job]
        kind, count = (
            int(self.rack_capacity.pools.gpu_type[allocation[0][0]]),
            sum(n for _, n in allocation),
        )
        if count not in self.view.counts:
            return 0.0
        best = self.rack_capacity.best_tier(self.rack_capacity.request(job, kind, count))
        column = self.view.counts.index(count)
        return self.slowdown.factor(job, kind, column, best) if best <= ANYWHERE else 0.0

    def requests(self, job: int) -> tuple[GangRequest, ...]:
        """The requests of a job, one for each type on which it can run."""
        if not self._column:
            return ()
        kinds = np.flatnonzero(self.view.jobs.rate[job, :, self._column[job]] > 0).tolist()
        return tuple(self.rack_capacity.request(job, kind, self.count(job)) for kind in kinds)

    def keep(self, job: int, reason: str) -> None:
        """A running job stays."""
        self._place(job, self.held[job], reason)

    def take(self, job: int, offer: RackOffer, reason: str) -> None:
        """Place a job."""
        self.rack_capacity.free_capacity.take(offer.allocation, self.rack_capacity.needs[job])
        self._traffic(job, offer.allocation, 1.0)
        if job in self.held:
            self.moved.add(job)
            if self.tier_now[job] == ANYWHERE:
                self.slowdown.leaves(job)
        if offer.tier == ANYWHERE:
            self.slowdown.joins(job)
        self._place(job, offer.allocation, reason)

    def release(self, job: int) -> Allocation:
        """Give back what a running job holds, for now."""
        allocation = self.held[job]
        self.rack_capacity.free_capacity.give(allocation, self.rack_capacity.needs[job])
        self._traffic(job, allocation, -1.0)
        return allocation

    def retake(self, job: int) -> None:
        """Undo :meth:`release`."""
        self.rack_capacity.free_capacity.take(self.held[job], self.rack_capacity.needs[job])
        self._traffic(job, self.held[job], 1.0)

    def stop(self, job: int) -> Allocation:
        """Return a running job on several racks to the queue; returns what it held."""
        allocation = self.release(job)
        self.slowdown.leaves(job)
        del self.held[job], self.placements[self.view.jobs.ids[job]]
        return allocation

    def unstop(self, job: int, allocation: Allocation) -> None:
        """Undo :meth:`stop`."""
        self.held[job] = allocation
        self.retake(job)
        self.slowdown.joins(job)
        self.keep(job, f"stays {WHERE[self.tier_now[job]]}")

    def serve(self, order: Sequence[int], answer: Answer) -> list[int]:
        """Offer free GPUs to each job of ``order`` in turn; a job that declines is passed over.

        Returns the jobs that still wait.
        """
        left = []
        for job in order:
            reason = ""
            for offer in self.offers(job):
                taken, reason = answer(job, offer)
                if taken:
                    self.take(job, offer, reason)
                    self._declined.pop(job, None)
                    break
            else:
                self._declined[job] = reason
                left.append(job)
        return left

    def waits(self, job: int) -> bool:
        """Whether a job has had offers and got nothing."""
        return job in self._declined

    def plan(self, notes: tuple[str, ...] = ()) -> Plan:
        """The plan."""
        ids = self.view.jobs.ids
        if not ids:
            notes = ("no managed job waits or runs", *notes)
        waiting = {ids[job]: reason or self._short(job) for job, reason in self._declined.items()}
        return Plan(self.placements, waiting, notes)

    def _short(self, job: int) -> str:
        """Why no allocation fits the job."""
        requests = self.requests(job)
        if not requests:
            return "no GPU type and count that it can run with"
        if requests not in self._why:
            pools = [
                p
                for request in requests
                for some in self.rack_capacity.open_pools(request).values()
                for p in some
            ]
            request = requests[0]
            short = self.rack_capacity.free_capacity.shortage(
                pools, request.count, request.need, request.most_nodes
            )
            self._why[requests] = f"short of {short}"
        return self._why[requests]

    def _traffic(self, job: int, allocation: Allocation, sign: float) -> None:
        """Add (or with ``sign`` -1 remove) the load of a job on several nodes to the NICs of
        these."""
        nodes = {self.rack_capacity.pools.node_of[slot] for slot, _ in allocation}
        if len(nodes) > 1:
            for node in nodes:
                self._nic_load[node] += sign * self.slowdown.nic_share(job)

    def _busiest_nic(self, job: int, allocation: Allocation) -> float:
        """The load that the busiest NIC of these nodes would have."""
        nodes = {self.rack_capacity.pools.node_of[slot] for slot, _ in allocation}
        if len(nodes) == 1:
            return 0.0
        return max(self._nic_load[node] for node in nodes) + self.slowdown.nic_share(job)

    def _place(self, job: int, allocation: Allocation, reason: str) -> None:
        pools, view = self.rack_capacity.pools, self.view
        placed = placement_of(view, pools, allocation, reason)
        tier = TIERS[self.rack_capacity.tier_of(allocation)]
        self.placements[view.jobs.ids[job]] = replace(placed, tier=tier)


def one_round(view: View, answer: Answer) -> Plan:
    """The plan of a round in which running jobs keep their placements. Raises UsageError for an
    invalid option."""
    offers = OfferLoop(view, NetworkOptions.read(view.options))
    for job in offers.held:
        offers.keep(job, "keeps what it holds")
    offers.serve(offers.order(), answer)
    return offers.plan()
