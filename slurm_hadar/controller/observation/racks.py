"""The site's racks, and how far apart a job's GPUs are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from slurm_hadar.domain.node import Node
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.traits import TIERS
from slurm_hadar.domain.view import IntArray, NodeArrays
from slurm_hadar.slurm.cluster import Cluster

_ASK_AGAIN_S = 3600.0
"""A site without a tree of switches is asked again after this time."""


class Topology:
    """Reads the racks once a tick, where the policy looks at them and the site has a tree."""

    def __init__(self, cluster: Cluster, wanted: bool) -> None:
        self._cluster, self._wanted = cluster, wanted
        self._flat_until = 0.0

    def read(self, now: float) -> Mapping[str, str]:
        """Node -> leaf switch; empty where there is none. Raises SlurmError."""
        if not self._wanted or now < self._flat_until:
            return {}
        found = self._cluster.read_topology()
        if not found:
            self._flat_until = now + _ASK_AGAIN_S
        return found


def numbers(racks: Mapping[str, str], nodes: Sequence[str]) -> IntArray:
    """(N,) rack of each node; all 0 without racks. A node on no switch is a rack of its own."""
    if not racks:
        return np.zeros(len(nodes), dtype=np.int64)
    at: dict[tuple[str, str], int] = {}
    keys = [(racks.get(node, ""), "" if node in racks else node) for node in nodes]
    return np.array([at.setdefault(key, len(at)) for key in keys], dtype=np.int64)


def with_whole(found: NodeArrays, nodes: Sequence[Node], kinds: Sequence[str]) -> NodeArrays:
    """The nodes with what they have when no job holds anything: how near a job could ever be."""
    there = [node if node.usable else Node(node.name, cpus=0) for node in nodes]
    whole = replace(
        found,
        gpus=np.array(
            [[node.gpus.get(kind, 0) for kind in kinds] for node in there], dtype=np.int64
        ).reshape(len(there), len(kinds)),
        cpus=np.array([node.cpus for node in there], dtype=np.int64),
        mem_mb=np.array([node.memory_mb for node in there], dtype=np.int64),
    )
    return replace(found, whole=whole)


def tier_of(nodes: Iterable[str], racks: Mapping[str, str]) -> int:
    """Index in ``TIERS`` of a place on these nodes."""
    names = set(nodes)
    if len(names) < 2:
        return 0
    switches = {racks.get(name) for name in names}
    return 1 if len(switches) == 1 and None not in switches else 2


def pinned(placement: Placement, racks: Mapping[str, str]) -> bool:
    """Whether Slurm must be given this placement's nodes by name for its tier to come about.

    ``--switches=1@time`` will not do: Slurm cuts that time to 5 minutes by default
    (max_switch_wait), and 22.05 does not show it in ``squeue --json``, so it could not be undone.
    """
    near = placement.tier in TIERS[:2] and len(placement.nodes) > 1
    return near and bool(racks)
