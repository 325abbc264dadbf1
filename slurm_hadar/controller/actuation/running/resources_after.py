"""What a job has of a resource and in which partitions it may be, once an action is carried out."""

from collections.abc import Mapping, Sequence
from math import inf

from slurm_hadar.controller.actuation.actions import Action
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.billing import weights

_CPUS = frozenset({"CPUsPerTask", "MinCPUsNode", "MinMemoryNode", "MinMemoryCPU"})
_SIZE = _CPUS | {"TresPerNode", "TresPerJob", "NumNodes", "NumTasks", "NumCPUs"}
"""Fields of an update after which a job has other resources than before."""

Amounts = Mapping[str, float]
"""Resource -> amount, memory in MB."""


def partitions_after(action: Action) -> tuple[str, ...]:
    """The partitions of the job when it is requeued."""
    asked = action.fields.get("Partition", "")
    return tuple(asked.split(",")) if asked else action.job.partitions


def amount_after(tres: str, action: Action, has: Amounts, seen: Observation) -> float:
    """What the job has of a resource after the action, at most; inf: that is not known.

    ``has``: what it has before.
    """
    job, placement = action.job, action.placement
    kinds: Mapping[str, int] = {}
    if job.whole_nodes and (placement is None or tres in ("cpu", "mem", "billing")):
        # Other nodes may have more of them, and it gets all.
        return inf
    if placement is None:
        if _SIZE & action.fields.keys():
            return inf
        gpus, ratio = float(job.gpu_count), 1.0
    else:
        gpus, kinds = float(placement.gpu_count), placement.gpus
        nodes = len(placement.nodes) or placement.copies
        ratio = max(1.0, gpus / max(1, job.gpu_count), nodes / max(1, job.node_count))
    if tres == "gres/gpu":
        return gpus
    if tres.startswith("gres/gpu:"):
        kind = tres.partition(":")[2].lower()
        of_kind = sum(count for name, count in kinds.items() if name.lower() == kind)
        return float(of_kind) if placement else gpus
    if tres in ("cpu", "mem", "billing") and _CPUS & action.fields.keys():
        return inf
    if tres == "cpu":
        most = action.fields.get("NumCPUs", "").rpartition("-")[2]
        return max(ratio * has.get(tres, 0.0), float(most) if most.isdecimal() else 0.0)
    if tres == "billing":
        return _billed(action, has, ratio, seen)
    return ratio * has.get(tres, 0.0)


def amount_of_a_node(tres: str, action: Action, amount: float) -> float:
    """What it has on one node after the action, at most, of ``amount`` in all."""
    placement = action.placement
    if placement is not None and placement.nodes and tres == "gres/gpu":
        return float(max(sum(gpus.values()) for gpus in placement.nodes.values()))
    nodes = (len(placement.nodes) or placement.copies) if placement is not None else 0
    return amount / max(1, nodes or action.job.node_count)


def _billed(action: Action, has: Amounts, ratio: float, seen: Observation) -> float:
    """By the weights of the partitions that it may go to, at most."""
    here = _weights(action.job.partitions, seen)
    there = _weights(partitions_after(action), seen)
    if ratio == 1.0 and len(here) == 1 and here == there:
        return has.get("billing", 0.0)
    bills = [0.0]
    for text in there:
        prices = weights(text) if text else {"cpu": 1.0}
        parts = {k: price * amount_after(k, action, has, seen) for k, price in prices.items()}
        bills.append(seen.billing_rule.bill(parts))
    return max(bills)


def _weights(partitions: Sequence[str], seen: Observation) -> set[str]:
    return {seen.partitions[name].billing for name in partitions if name in seen.partitions}
