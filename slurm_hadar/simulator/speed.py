"""How fast a job trains on what it was given."""

from collections.abc import Mapping

import numpy as np

from slurm_hadar.domain.dealing import dealt_rate
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.traits import worth
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.seats import Seat
from slurm_hadar.simulator.workload import Workload


class TrueRates:
    """True rates of placements.

    On several types a gang runs at (its GPUs) x (the slowest type's rate per GPU), so at the least
    of the types' rates for its count. Copies (HadarE) train by themselves, one a node; they wait
    for each other at the end of each round: with parts s_i and rates r_i the job's rate is
    min_i r_i / s_i, or the sum of r_i where no parts are given, less what averaging costs. A job
    of several tasks a round averages nothing: it keeps its global batch and deals these tasks out
    by itself, whatever the parts (``FixedScale``), so more GPUs than tasks do not help.

    Where a workload knows them, CPUs and memory, another batch (whose samples count for less or
    more) and the distance of the GPUs take part; traffic of others does not, see ``links.py``.
    What another batch is worth is that of the noise scale at the last :meth:`let_noise_grow`.
    """

    def __init__(self, workload: Workload, cluster: VirtualCluster, costs: Costs) -> None:
        self._rate, self._ids = workload.rate, workload.ids
        self._at = {count: at for at, count in enumerate(workload.counts)}
        self._types = workload.types
        self._most_nodes, self._most_copies = workload.max_nodes, workload.copies
        self._tasks = workload.tasks
        self._cpus, self._mem = workload.cpus_per_gpu, workload.mem_per_gpu_mb
        self._trait, self._batches, self._network = (
            workload.cpu_sensitivity,
            workload.batches,
            workload.network,
        )
        self._noise = self._batches.noise if self._batches is not None else np.zeros(0)
        self._workload, self._grows = workload, workload.noise_growth != 1.0
        self._rack = cluster.rack.tolist()
        self._costs = costs

    def let_noise_grow(self, placed: Mapping[int, Placement], done: FloatArray) -> list[int]:
        """Take the noise scales after so much work (J,); the placed jobs whose rate changes."""
        if self._batches is None or not self._grows.any():
            return []
        self._noise = self._batches.noise * self._workload.noise_factor(done)
        base = self._batches.base
        return [j for j, p in placed.items() if self._grows[j] and p.batch not in (None, base[j])]

    def of(self, job: int, placement: Placement, seats: tuple[Seat, ...]) -> float:
        """Rate in work/s. Raises HadarError for a placement on which the job cannot run."""
        if len(seats) == 1 and placement.copies == 1:
            _, kind, count = seats[0]
            return self._one(job, kind, count, placement.batch) * self._beside(job, placement)
        nodes = {node for node, _, _ in seats}
        if placement.copies > 1:
            rate = self._copies(job, placement, seats)
        else:
            if len(nodes) > self._most_nodes[job]:
                raise HadarError(
                    f"the plan spreads job {self._ids[job]} over {len(nodes)} nodes, "
                    f"it may use {int(self._most_nodes[job])}"
                )
            count = sum(n for _, _, n in seats)
            kinds = {kind for _, kind, _ in seats}
            rate = min(self._one(job, kind, count, placement.batch) for kind in kinds)
            rate *= self._apart(job, nodes)
        return rate * self._beside(job, placement)

    def _apart(self, job: int, nodes: set[int]) -> float:
        if len(nodes) == 1:
            return 1.0
        racks = len({self._rack[node] for node in nodes})
        if self._network is not None:
            return float(self._network.factor[job, 2 if racks > 1 else 1])
        lost = 1.0 - self._costs.node_loss
        return lost * (1.0 - self._costs.rack_loss) if racks > 1 else lost

    def _one(self, job: int, kind: int, count: int, batch: int | None = None) -> float:
        if batch is not None and self._batches is not None and batch != self._batches.base[job]:
            return self._with(job, kind, count, batch)
        rate = float(self._rate[job, kind, self._at[count]]) if count in self._at else 0.0
        if rate <= 0.0:
            raise HadarError(
                f"the plan gives job {self._ids[job]} {count} {self._types[kind]}, "
                "on which it cannot run"
            )
        return rate

    def _with(self, job: int, kind: int, count: int, batch: int) -> float:
        trait = self._batches
        assert trait is not None
        at = np.flatnonzero(trait.sizes[job] == batch)
        rate = 0.0
        if len(at) and batch > 0 and count in self._at:
            rate = float(trait.rate[job, kind, self._at[count], at[0]])
        if rate <= 0.0:
            raise HadarError(
                f"the plan gives job {self._ids[job]} batch {batch} on {count} "
                f"{self._types[kind]}, with which it cannot run"
            )
        noise, base = self._noise[job : job + 1], trait.base[job : job + 1]
        return rate * float(worth(noise, base, np.array([float(batch)]))[0])

    def _copies(self, job: int, placement: Placement, seats: tuple[Seat, ...]) -> float:
        nodes = {node for node, _, _ in seats}
        if placement.copies > self._most_copies[job]:
            raise HadarError(
                f"the plan forks job {self._ids[job]} into {placement.copies} copies, "
                f"it may have {int(self._most_copies[job])}"
            )
        if not placement.copies == len(nodes) == len(seats):
            raise HadarError(
                f"the plan gives {placement.copies} copies of job {self._ids[job]} "
                f"{len(nodes)} nodes; each copy takes GPUs of one type on a node of its own"
            )
        rates = [self._one(job, kind, count) for _, kind, count in seats]
        shares, kept = placement.shares, 1.0 - self._costs.copies_loss
        tasks = int(self._tasks[job])
        if not shares and tasks == 1:
            return kept * sum(rates)
        if shares and len(shares) != len(rates):
            raise HadarError(
                f"the plan gives job {self._ids[job]} {len(shares)} shares for {len(rates)} nodes"
            )
        if shares and (min(shares) < 0.0 or abs(sum(shares) - 1.0) > 1e-6):
            raise HadarError(
                f"the shares of the copies of job {self._ids[job]} do not sum to 1: {shares}"
            )
        if tasks > 1:
            return kept * dealt_rate(rates, [count for _, _, count in seats], tasks)
        slowest = min(rate / part for rate, part in zip(rates, shares, strict=True) if part > 0)
        return kept * slowest

    def cpus_and_memory(self, job: int, placement: Placement) -> tuple[float, float]:
        """CPUs and memory in MB per GPU that a job has: as placed, else what it asked for."""
        cpus, memory = placement.cpus_per_gpu, placement.mem_per_gpu_mb
        return (
            float(self._cpus[job]) if cpus is None else cpus,
            float(self._mem[job]) if memory is None else float(memory),
        )

    def _beside(self, job: int, placement: Placement) -> float:
        factor = 1.0
        if placement.cpus_per_gpu is None and placement.mem_per_gpu_mb is None:
            return factor
        if self._trait is not None:
            return self._trait.at(job, *self.cpus_and_memory(job, placement))
        asked, given = float(self._cpus[job]), placement.cpus_per_gpu
        if self._costs.cpu_exponent and asked > 0 and given is not None:
            factor *= (given / asked) ** self._costs.cpu_exponent
        asked, memory = float(self._mem[job]), placement.mem_per_gpu_mb
        if self._costs.mem_exponent and asked > 0 and memory is not None:
            factor *= (memory / asked) ** self._costs.mem_exponent
        return factor
