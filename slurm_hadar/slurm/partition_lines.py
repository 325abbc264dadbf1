"""Partitions as slurm.conf writes them, their differences, and one partition split by GPU type."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.domain.node import Node, Partition

_KEYS = {
    "max_time_s": "MaxTime",
    "default_time_s": "DefaultTime",
    "min_nodes": "MinNodes",
    "max_nodes": "MaxNodes",
    "max_cpus_per_node": "MaxCPUsPerNode",
    "priority_tier": "PriorityTier",
    "priority_factor": "PriorityJobFactor",
    "preempt_mode": "PreemptMode",
    "grace_s": "GraceTime",
    "allow_groups": "AllowGroups",
    "allow_accounts": "AllowAccounts",
    "deny_accounts": "DenyAccounts",
    "allow_qos": "AllowQos",
    "deny_qos": "DenyQos",
    "root_only": "RootOnly",
    "reservation_required": "ReqResv",
    "exclusive": "OverSubscribe",
    "submit_hosts": "AllocNodes",
    "max_mem_per_node_mb": "MaxMemPerNode",
    "max_mem_per_cpu_mb": "MaxMemPerCPU",
    "qos": "QOS",
    "billing": "TRESBillingWeights",
}
"""Field of a partition -> its key. All but name, nodes, default, state and defaults: access,
limits, order."""
_DEFAULTS = {
    "DefMemPerCPU": ("UNLIMITED", "0"),
    "DefMemPerNode": ("UNLIMITED", "0"),
    "DefCpuPerGPU": ("0",),
    "DefMemPerGPU": ("0",),
    "OverTimeLimit": ("NONE",),
    "OverSubscribe": ("NO", "EXCLUSIVE"),
    "ExclusiveUser": ("NO",),
    "ExclusiveTopo": ("NO",),
    "Exclusive": ("NO", "NODE"),
    "LLN": ("NO",),
    "MaxCPUsPerSocket": ("UNLIMITED", "0"),
    "SelectTypeParameters": ("NONE",),
    "CpuBind": ("NONE",),
    "DisableRootJobs": ("NO",),
    "Topology": (),
}
"""Key that changes what a job gets -> the values by which it changes nothing, or of which another
field tells (exclusive)."""


def difference(one: Partition, other: Partition) -> str:
    """The first key in which two partitions differ beside name, nodes, default and state; or ""."""
    for name, key in _KEYS.items():
        if _plain(one, name) != _plain(other, name):
            return key
    for key in _DEFAULTS:
        if one.defaults.get(key, "").upper() != other.defaults.get(key, "").upper():
            return key
    return ""


def counts_apart(partition: Partition) -> str:
    """Why another partition with the same limits would not do for its jobs; empty where it does.

    What Slurm counts for all jobs of a partition together one may have used up, so that a job in it
    waits beside a node where those in the other start.
    """
    if partition.max_cpus_per_node == inf:
        return ""
    most = f"MaxCPUsPerNode={partition.max_cpus_per_node:.0f}"
    return f"{most} of {partition.name} is counted for each partition by itself"


def defaults(shown: Mapping[str, str]) -> dict[str, str]:
    """See :attr:`Partition.defaults`. ``shown``: key, in any case, -> value, as on a line of
    slurm.conf, or as scontrol shows them, which has the defaults per GPU as ``JobDefaults``."""
    found = {key.lower(): value.strip() for key, value in shown.items()}
    per_gpu = (word.partition("=") for word in found.get("jobdefaults", "").split(","))
    found = {key.lower(): value for key, _, value in per_gpu} | found
    said = {key: found.get(key.lower(), "") for key in _DEFAULTS}
    return {
        key: value
        for key, value in said.items()
        if value.upper() not in ("", "(NULL)", "N/A", *_DEFAULTS[key])
    }


def _plain(partition: Partition, name: str) -> object:
    value = getattr(partition, name)
    return frozenset(value) if isinstance(value, tuple) else value


def keys(partition: Partition, usual_preempt_mode: str = "OFF") -> dict[str, str]:
    """What a PartitionName line needs, beside name and nodes, for such a partition.

    ``usual_preempt_mode``: PreemptMode of the whole cluster, which a partition has by itself.
    """
    usual = replace(
        Partition(""),
        default_time_s=partition.max_time_s,
        min_nodes=min(1, partition.min_nodes),
        preempt_mode=usual_preempt_mode if partition.preempt_mode else "",
    )
    found = {"PriorityTier": str(partition.priority_tier)}
    for name, key in _KEYS.items():
        value = getattr(partition, name)
        if value != getattr(usual, name):
            found[key] = _text(name, value)
    # A partition that is exclusive has that as its OverSubscribe.
    return {**partition.defaults, **found}


def _text(name: str, value: bool | float | str | tuple[str, ...]) -> str:
    if name == "exclusive":
        return "EXCLUSIVE"
    if isinstance(value, bool):
        return "YES"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, str):
        return value
    if value == inf:
        return "UNLIMITED"
    minutes = name in ("max_time_s", "default_time_s")
    return str(max(1, int(value // 60)) if minutes else int(value))


@dataclass(frozen=True, slots=True)
class Split:
    """One partition per GPU type, whose nodes are together those of a partition.

    ``members``: name -> nodes; ``new``: those that Slurm does not have yet; ``why_not``: why there
    is no such split, "" where there is one.
    """

    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    new: tuple[str, ...] = ()
    why_not: str = ""

    def toml(self, name: str) -> tuple[str, str]:
        """The lines of hadar.toml that make them the group of partition ``name``."""
        key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
        return "[partitions.groups]", f"{key} = {json.dumps(list(self.members))}"


def split_by_type(
    common: Partition,
    partitions: Iterable[Partition],
    nodes: Iterable[Node],
    features: Mapping[str, str],
) -> Split:
    """A partition's split by GPU type, with the site's own partitions where they serve.

    A member is named like its type or, where that name is taken, like the type's node feature
    (``features``: type -> feature), since hbatch knows a partition's type by its name.
    """
    if why := counts_apart(common):
        return Split(why_not=why)
    there = {partition.name: partition for partition in partitions}
    gpus = {node.name: node.gpus for node in nodes}
    by_type: dict[str, list[str]] = {}
    at = {name: place for place, name in enumerate(gpus)}
    for name in sorted(common.nodes, key=lambda name: at.get(name, -1)):
        types = [kind for kind, count in gpus.get(name, {}).items() if count > 0]
        if len(types) != 1:
            return Split(
                why_not=f"node {name} has {'several types of GPUs' if types else 'no GPU'}"
            )
        if types[0] == UNTYPED:
            return Split(why_not=f"the GPUs of node {name} have no type")
        by_type.setdefault(types[0], []).append(name)
    if len(by_type) < 2:
        return Split(why_not=f"partition {common.name} has one GPU type only")
    members: dict[str, tuple[str, ...]] = {}
    new: list[str] = []
    for kind, holders in by_type.items():
        names = tuple(dict.fromkeys((kind, features.get(kind) or kind)))
        unfit = {name: _unfit(there[name], common, holders) for name in names if name in there}
        fitting = [name for name in names if unfit.get(name) == ""]
        free = [name for name in names if name not in unfit and name not in (common.name, *members)]
        if not fitting and not free:
            why = next(iter(unfit.values()), f"{common.name} is the name of a GPU type")
            return Split(why_not=why)
        name = (fitting or free)[0]
        members[name] = tuple(holders)
        if not fitting:
            new.append(name)
    return Split(members, tuple(new))


def _unfit(partition: Partition, common: Partition, holders: Iterable[str]) -> str:
    if partition.name == common.name:
        return f"partition {common.name} over several GPU types is named like one of them"
    if set(partition.nodes) != set(holders):
        return f"partition {partition.name} has other nodes than the GPU type of its name"
    if key := difference(partition, common):
        return f"partition {partition.name} has another {key} than {common.name}"
    return ""
