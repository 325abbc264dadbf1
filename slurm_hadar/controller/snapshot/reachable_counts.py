"""How many GPUs the nodes have that are open to a job, whether these are free or not."""

from collections.abc import Mapping, Sequence

import numpy as np

from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.view import BoolArray, IntArray, NodeArrays


def most_gpus(
    open_to: BoolArray,
    accepted: BoolArray,
    targets: Sequence[SchedulableJob],
    nodes: NodeArrays,
    sizes: IntArray,
) -> IntArray:
    """(J, R) GPUs of each type on as many nodes as a job may be spread over; 0 where it may have
    none of the type.

    ``open_to``: (J, G) the groups of nodes that each job may have; ``accepted``: (J, R) the types
    that may serve it together; ``sizes``: (N, R) GPUs of each node.
    """
    most: dict[tuple[bytes, int, bytes], IntArray] = {}
    found = np.zeros((len(targets), sizes.shape[1]), np.int64)
    for row, target in enumerate(targets):
        # One copy is on one node.
        spread = target.request.most_nodes if target.request.copies[1] == 1 else 1
        key = open_to[row].tobytes(), spread, accepted[row].tobytes()
        if key not in most:
            most[key] = _on_nodes(sizes[open_to[row][nodes.group]], spread, accepted[row])
        found[row] = most[key]
    return found


def node_sizes(there: Mapping[str, Node], nodes: NodeArrays, kinds: tuple[str, ...]) -> IntArray:
    """(N, R) all GPUs of each node of the view."""
    rows = [[there[name].gpus.get(kind, 0) for kind in kinds] for name in nodes.names]
    return np.array(rows, np.int64).reshape(len(nodes.names), len(kinds))


def without_larger(offered: BoolArray, most: IntArray, counts: tuple[int, ...]) -> BoolArray:
    """(J, R, C) what an owner accepts, ``offered``, less the numbers of GPUs that no nodes have;
    all of it for a job that this would leave nothing. A type that is closed to a job stays:
    another list of partitions may open it."""
    fits = (most == 0)[:, :, None] | (np.array(counts, np.int64) <= most[:, :, None])
    found: BoolArray = np.where((offered & fits).any(axis=(1, 2))[:, None, None], fits, True)
    return found & offered


def _on_nodes(sizes: IntArray, spread: int, together: BoolArray) -> IntArray:
    """(R,) GPUs on at most ``spread`` of these nodes, (N, R), those of all the types ``together``
    (R,) counted as one."""
    if together.any():
        whole = sizes[:, together].sum(axis=1, keepdims=True)
        sizes = np.where(together & (sizes.sum(axis=0) > 0), whole, sizes)
    found: IntArray = np.sort(sizes, axis=0)[::-1][:spread].sum(axis=0)
    return found
