"""Links that jobs share: a network card per node, an uplink per rack; see docs/network.md.

A training on several nodes exchanges its gradients by a ring all-reduce after every step: with n
GPUs and M bytes of gradients 2 (n - 1) / n M bytes go into and out of every node of the ring, and
of every rack where it leaves its rack (Patarasu and Yuan, JPDC 2009). An iteration takes

    compute + max(0, exchange - overlap x compute)

as part of the exchange hides behind the backward pass. Bandwidth is shared max-min fairly among
the jobs' average needs, as if they never spoke at the same moment: the least that sharing costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.traits import NetworkTrait
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.seats import Seat
from slurm_hadar.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class Fabric:
    """The cluster's network; within a node GPUs are taken to be as the rates have it."""

    nic_gbps: float = 25.0
    """A node's network card, Gbit/s each way."""
    oversubscription: float = 1.0
    """What a rack's cards have together, over its uplink."""
    overlap: float = 0.5
    """Part of the compute time behind which the exchange can hide, 0-1."""

    def __post_init__(self) -> None:
        limits = {"nic_gbps": (1e-3, 1e6), "oversubscription": (1.0, 1e6), "overlap": (0.0, 1.0)}
        for field in fields(self):
            low, high = limits[field.name]
            if not low <= getattr(self, field.name) <= high:
                raise UsageError(
                    f"network {field.name} is {getattr(self, field.name)}; "
                    f"it must be {low:g} to {high:g}"
                )

    @property
    def card(self) -> float:
        """Bytes/s of one card."""
        return self.nic_gbps * 1e9 / 8.0

    def uplink(self, nodes: int | IntArray) -> FloatArray:
        """Bytes/s of the uplink of racks with so many nodes."""
        return np.asarray(nodes, dtype=np.float64) * self.card / self.oversubscription


@dataclass(frozen=True, slots=True)
class _Flow:
    """One job on its seats. Times per unit of work, alone on the network."""

    compute_s: float
    bytes: float
    alone_s: float
    links: tuple[int, ...]


class Contention:
    """The links of one simulation. ``workload`` comes from :func:`networked`."""

    def __init__(self, workload: Workload, cluster: VirtualCluster, fabric: Fabric) -> None:
        self._rate, self._gradients = workload.rate, workload.gradients
        self._column = {count: at for at, count in enumerate(workload.counts)}
        if workload.network is None:
            raise ValueError("Contention takes what networked() made of a workload")
        self._charged = workload.network.factor
        self._fabric, self._rack = fabric, cluster.rack.tolist()
        nodes, racks = len(cluster.names), int(cluster.rack.max(initial=-1)) + 1
        uplinks = fabric.uplink(np.bincount(cluster.rack, minlength=racks))
        self._capacity: FloatArray = np.concatenate([np.full(nodes, fabric.card), uplinks])
        self._nodes = nodes
        self._known: dict[int, tuple[tuple[Seat, ...], _Flow | None]] = {}

    def factors(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> FloatArray:
        """(K,) true rate over the one that the simulator charges for the tier; where a job runs
        on a slower type than its fastest it may be above 1, as it then exchanges less."""
        flows = self._flows(jobs, seats)
        on = [flow for flow in flows if flow is not None]
        truth: FloatArray = np.ones(len(jobs))
        if on:
            sent = np.array([flow.bytes for flow in on])
            pairs = [(at, link) for at, flow in enumerate(on) for link in flow.links]
            who, where = np.array(pairs, dtype=np.int64).T
            demand = sent / np.array([flow.alone_s for flow in on])
            share = max_min(demand, who, where, self._capacity)
            compute = np.array([flow.compute_s for flow in on])
            truth[[row for row, flow in enumerate(flows) if flow is not None]] = (
                compute * share / sent
            )
        return truth / self._charged_for(jobs, seats)

    def alone(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> FloatArray:
        """(K,) what the simulator charges for the tier."""
        return self._charged_for(jobs, seats)

    def _charged_for(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> FloatArray:
        tiers = [self._tier(at) for at in seats]
        charged: FloatArray = self._charged[jobs, tiers]
        return charged

    def _tier(self, seats: tuple[Seat, ...]) -> int:
        nodes = {node for node, _, _ in seats}
        racks = {self._rack[node] for node in nodes}
        return 2 if len(racks) > 1 else int(len(nodes) > 1)

    def _flows(self, jobs: IntArray, seats: Sequence[tuple[Seat, ...]]) -> list[_Flow | None]:
        """None for a job that needs no network."""
        found: list[_Flow | None] = []
        for job, at in zip(jobs.tolist(), seats, strict=True):
            known = self._known.get(job)
            if known is None or known[0] is not at:
                known = self._known[job] = (at, self._flow(job, at))
            found.append(known[1])
        return found

    def _flow(self, job: int, seats: tuple[Seat, ...]) -> _Flow | None:
        nodes = {node for node, _, _ in seats}
        count = sum(number for _, _, number in seats)
        # Copies of a forked job exchange once a round only: their count has no rate of its own.
        if len(nodes) == 1 or count not in self._column:
            return None
        rate = min(float(self._rate[job, kind, self._column[count]]) for _, kind, _ in seats)
        sent = ring_bytes(float(self._gradients[job]), count)
        if rate <= 0.0 or sent <= 0.0:
            return None
        racks = {self._rack[node] for node in nodes}
        uplinks = tuple(self._nodes + rack for rack in sorted(racks)) if len(racks) > 1 else ()
        links = (*sorted(nodes), *uplinks)
        band = float(self._capacity[list(links)].min())
        compute = 1.0 / rate
        return _Flow(
            compute_s=compute,
            bytes=sent,
            alone_s=compute + exposed(sent / band, compute, self._fabric.overlap),
            links=links,
        )


def ring_bytes(gradients: float, gpus: int) -> float:
    """Bytes that a ring all-reduce sends through each link for ``gradients`` bytes."""
    return 2.0 * (gpus - 1) / gpus * gradients


def exposed(exchange_s: float, compute_s: float, overlap: float) -> float:
    """Seconds of an exchange that do not hide behind compute."""
    return max(0.0, exchange_s - overlap * compute_s)


def networked(workload: Workload, cluster: VirtualCluster, fabric: Fabric) -> Workload:
    """The workload with what each job loses at each tier, links to itself, on the type on which it
    is fastest, at its request."""
    rows = np.arange(len(workload.ids))
    counts = np.asarray(workload.counts)
    rate = workload.rate[rows, :, np.searchsorted(counts, workload.request)].max(axis=1)
    sent = 2.0 * (workload.request - 1) / workload.request * workload.gradients
    sizes = np.bincount(cluster.rack)
    wide = min(fabric.card, float(fabric.uplink(int(sizes.max(initial=1)))))
    factor = np.ones((len(rows), 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        compute = np.where(rate > 0, 1.0 / rate, 1.0)
    for tier, band in ((1, fabric.card), (2, wide)):
        hidden = fabric.overlap * compute
        factor[:, tier] = compute / (compute + np.maximum(0.0, sent / band - hidden))
    return replace(workload, network=NetworkTrait(factor, np.ones(len(rows))))


# Max-min fair shares of links (progressive filling; Bertsekas and Gallager, Data Networks).
_EQUAL = 1.0 + 1e-9


def max_min(demand: FloatArray, who: IntArray, where: IntArray, capacity: FloatArray) -> FloatArray:
    """(K,) share of each flow, in the unit of ``demand`` (K,) and ``capacity`` (L,).

    Flow ``who[p]`` crosses link ``where[p]``, each pair once; a flow has one share, the same on
    all its links. No flow gets more than its demand, no link carries more than its capacity, and
    none could get more unless one with no larger share got less.
    """
    flows, links = len(demand), len(capacity)
    share: FloatArray = np.zeros(flows)
    left, active = capacity.astype(np.float64), np.ones(flows, dtype=bool)
    while active.any():
        keep = active[who]
        who, where = who[keep], where[keep]
        level = np.full(links, np.inf)
        used = np.bincount(where, minlength=links)
        np.divide(left, used, out=level, where=used > 0)
        least = np.full(flows, np.inf)
        np.minimum.at(least, who, level[where])
        settled: BoolArray = active & (demand <= least * _EQUAL)
        if not settled.any():
            # A link whose level is the least one of all its flows binds them, whatever others do.
            worst = np.full(links, np.inf)
            np.minimum.at(worst, where, least[who])
            tight = (used > 0) & (level <= worst * _EQUAL)
            settled[who[tight[where]]] = True
        share[settled] = np.minimum(demand[settled], least[settled])
        gone = settled[who]
        left -= np.bincount(where[gone], weights=share[who[gone]], minlength=links)
        np.maximum(left, 0.0, out=left)
        active &= ~settled
    return share
