"""Synergy's TUNE: jobs get nodes, CPUs and memory one after another [V: from its code].

A job is tried with its best case, then with its fair share. If that does not fit although GPUs are
free, jobs there that have more than their fair share are reset to it: those on the fewest nodes
first, then those with the most CPUs, then the most memory per GPU.

Ours: a running job stays on its GPUs unless a move pays for the restart, and its GPUs are reserved
until its turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.domain.view import FloatArray, View
from slurm_hadar.policies.allocation import Allocation, Demand, FreeCapacity, ResourcePools
from slurm_hadar.policies.synergy.demand_grid import SAME

_NOTHING = Demand()
_NODES_TRIED = 16
_LITTLE = 0.02
"""A running job moves for the good of others if its restart, with the configured margin, takes at
most this fraction of its time left."""


@dataclass(slots=True)
class JobDemand:
    """The demand of a job. A point is (CPUs, MB) per GPU, with the factor of the rate that it
    gives."""

    job: int
    gpus: int
    pools: tuple[int, ...]
    most_nodes: int
    best: Demand
    best_factor: float
    fair: Demand
    floor: float
    present: Demand
    present_factor: float
    own: Allocation = ()
    """The allocation where it runs, to keep if that is as good."""
    only_own: bool = False
    """Whether it may be nowhere else."""
    seconds: float = 0.0
    """Seconds left at factor 1."""
    restart_s: float = 0.0
    """Seconds that a change of a running job must save; 0: not running."""
    hint: Allocation = ()
    """Allocation to try first with the best case."""

    def can_afford(self) -> bool:
        """Whether a restart is short compared to the time left of the job."""
        return self.restart_s <= _LITTLE * self.seconds / max(self.best_factor, SAME)

    def pays(self, factor: float) -> bool:
        """Whether a running job gains enough to be restarted with this factor."""
        now = self.present_factor
        if not self.own or now <= 0:
            return True
        saved = self.seconds / max(now, SAME) - self.seconds / max(factor, SAME)
        return factor > now + SAME and saved > self.restart_s


@dataclass(slots=True)
class Assignment:
    """What a job gets in this plan."""

    demand: JobDemand
    allocation: Allocation
    need: Demand
    factor: float
    fixed: bool = False
    """Whether it keeps this in any case."""


class TunePlacer:
    """The nodes while a plan is made."""

    def __init__(self, view: View, pools: ResourcePools, needs: FloatArray) -> None:
        """``needs`` (J, 2): above 0 if CPUs or memory count at all."""
        # Free capacity counts CPUs and memory only if some job needs them.
        seen = _with_needs(view, needs)
        self.free_capacity = FreeCapacity(seen, pools)
        self.pools = pools
        self.assigned: dict[int, Assignment] = {}
        self._on: dict[int, set[int]] = {}

    def keep(self, demand: JobDemand, allocation: Allocation, need: Demand, factor: float) -> None:
        """Assign to a job what it holds and keeps."""
        self._take(Assignment(demand, allocation, need, factor, fixed=True))

    def reserve(self, demand: JobDemand) -> None:
        """Reserve the GPUs of a running job until its turn."""
        self.free_capacity.take(demand.own, _NOTHING)

    def release(self, demand: JobDemand) -> None:
        """Free the reserved GPUs of a running job that was not placed."""
        self.free_capacity.give(demand.own, _NOTHING)

    def place(self, demand: JobDemand) -> bool:
        """Place a job; False if it does not fit."""
        if demand.own:
            self.release(demand)
            return self._stay(demand) or (not demand.only_own and self._come(demand))
        return self._come(demand)

    def change(self, assignment: Assignment, need: Demand, factor: float) -> None:
        """Other CPUs and memory on the same GPUs."""
        self.free_capacity.give(assignment.allocation, assignment.need)
        assignment.need, assignment.factor = need, factor
        self.free_capacity.take(assignment.allocation, need)

    def lift(self, assignment: Assignment) -> None:
        """Remove a job from its nodes, to put it elsewhere."""
        if assignment.demand.job not in self.assigned:
            return
        self.free_capacity.give(assignment.allocation, assignment.need)
        del self.assigned[assignment.demand.job]
        for node in self.nodes(assignment.allocation):
            self._on[node].discard(assignment.demand.job)

    def put(
        self, assignment: Assignment, allocation: Allocation, need: Demand, factor: float
    ) -> None:
        """Put a removed job on an allocation that is known to be free."""
        assignment.allocation, assignment.need, assignment.factor = allocation, need, factor
        self._take(assignment)

    def nodes(self, allocation: Allocation) -> set[int]:
        """The nodes of an allocation."""
        return {self.pools.node_of[slot] for slot, _ in allocation}

    def on(self, node: int) -> list[Assignment]:
        """The assignments on a node, by job row."""
        return [self.assigned[job] for job in sorted(self._on.get(node, ()))]

    def _stay(self, demand: JobDemand) -> bool:
        same = demand.best == demand.present
        if (same or demand.pays(demand.best_factor)) and self._own(
            demand, demand.best, demand.best_factor
        ):
            return True
        has = demand.present_factor
        if has >= demand.floor - SAME and not same:
            if demand.pays(demand.best_factor) and not demand.only_own and self._best(demand):
                return True
            if self._own(demand, demand.present, has):
                return True
        if self._own(demand, demand.fair, demand.floor):
            return True
        return self._demote(demand, demand.own) and self._own(demand, demand.fair, demand.floor)

    def _come(self, demand: JobDemand) -> bool:
        if self._best(demand):
            return True
        if demand.fair != demand.best and self._anywhere(demand, demand.fair, demand.floor):
            return True
        return any(
            self._demote(demand, allocation)
            and self._at(demand, allocation, demand.fair, demand.floor)
            for allocation in self._with_gpus(demand)
        )

    def _best(self, demand: JobDemand) -> bool:
        if demand.hint and self._at(demand, demand.hint, demand.best, demand.best_factor):
            return True
        return self._anywhere(demand, demand.best, demand.best_factor)

    def _own(self, demand: JobDemand, need: Demand, factor: float) -> bool:
        return self._at(demand, demand.own, need, factor)

    def _at(self, demand: JobDemand, allocation: Allocation, need: Demand, factor: float) -> bool:
        if not self.free_capacity.holds(allocation, need):
            return False
        self._take(Assignment(demand, allocation, need, factor))
        return True

    def _anywhere(self, demand: JobDemand, need: Demand, factor: float) -> bool:
        found: Allocation | None = None
        least = 1 << 30
        for pool in demand.pools:
            allocation = self.free_capacity.one_node(pool, demand.gpus, need)
            if (
                allocation is not None
                and (free := int(self.free_capacity.free[allocation[0][0]])) < least
            ):
                found, least = allocation, free
        if found is None and demand.most_nodes > 1 and demand.gpus > 1 and demand.pools:
            found = self.free_capacity.several_nodes(
                demand.pools, demand.gpus, need, demand.most_nodes
            )
        if found is None:
            return False
        self._take(Assignment(demand, found, need, factor))
        return True

    def _with_gpus(self, demand: JobDemand) -> Iterable[Allocation]:
        """Allocations whose GPUs are free, whether or not CPUs and memory are: single nodes, fewest
        free GPUs first, then the fewest nodes together."""
        if not demand.pools:
            return
        slots = np.concatenate([np.arange(*self.pools.spans[p]) for p in demand.pools])
        free = self.free_capacity.free[slots]
        enough = slots[free >= demand.gpus]
        fullest = np.argsort(self.free_capacity.free[enough], kind="stable")[:_NODES_TRIED]
        for slot in enough[fullest].tolist():
            yield ((slot, demand.gpus),)
        if demand.most_nodes > 1 and demand.gpus > 1:
            allocation = self.free_capacity.several_nodes(
                demand.pools, demand.gpus, _NOTHING, demand.most_nodes
            )
            if allocation is not None and len(allocation) > 1:
                yield allocation

    def _demote(self, demand: JobDemand, allocation: Allocation) -> bool:
        """Reset jobs to their fair share until ``demand.fair`` fits there; changes nothing if it
        cannot fit."""
        if any(self.free_capacity.free[slot] < count for slot, count in allocation):
            return False
        back: dict[int, Assignment] = {}
        per_node: dict[int, int] = {}
        for slot, count in allocation:
            node = self.pools.node_of[slot]
            per_node[node] = per_node.get(node, 0) + count
        for node, count in per_node.items():
            free = self.free_capacity.cpus_and_memory(
                self.pools.same_node[self._slot(allocation, node)][0]
            )
            short = [
                max(0.0, count * need - have)
                for need, have in zip((demand.fair.cpus, demand.fair.mem_mb), free, strict=True)
            ]
            for assignment in self._above(node):
                if not any(amount > 1e-3 for amount in short):
                    break
                excess = self._excess(assignment, node)
                if any(e > 1e-3 and s > 1e-3 for e, s in zip(excess, short, strict=True)):
                    back[assignment.demand.job] = assignment
                    short = [max(0.0, s - e) for s, e in zip(short, excess, strict=True)]
            if any(amount > 1e-3 for amount in short):
                return False
        for assignment in back.values():
            self.change(assignment, assignment.demand.fair, assignment.demand.floor)
        return True

    def _slot(self, allocation: Allocation, node: int) -> int:
        return next(slot for slot, _ in allocation if self.pools.node_of[slot] == node)

    def _above(self, node: int) -> list[Assignment]:
        """Jobs of a node that have more than their fair share and may be changed."""
        found = [
            assignment
            for assignment in self.on(node)
            if not assignment.fixed
            and (
                assignment.need.cpus > assignment.demand.fair.cpus + SAME
                or assignment.need.mem_mb > assignment.demand.fair.mem_mb + SAME
            )
        ]
        return sorted(found, key=lambda g: (len(g.allocation), -g.need.cpus, -g.need.mem_mb))

    def _excess(self, assignment: Assignment, node: int) -> tuple[float, float]:
        count = sum(n for slot, n in assignment.allocation if self.pools.node_of[slot] == node)
        fair = assignment.demand.fair
        return (
            count * (assignment.need.cpus - fair.cpus),
            count * (assignment.need.mem_mb - fair.mem_mb),
        )

    def _take(self, assignment: Assignment) -> None:
        self.free_capacity.take(assignment.allocation, assignment.need)
        self.assigned[assignment.demand.job] = assignment
        for node in self.nodes(assignment.allocation):
            self._on.setdefault(node, set()).add(assignment.demand.job)


def _with_needs(view: View, needs: FloatArray) -> View:
    jobs = replace(view.jobs, cpus_per_gpu=needs[:, 0], mem_per_gpu_mb=needs[:, 1])
    return replace(view, jobs=jobs)
