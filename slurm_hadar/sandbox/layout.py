"""What a sandbox consists of: groups of pretend nodes and the partitions over them."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from slurm_hadar.domain.errors import UsageError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")
_PREFIX = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z-])?")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """``count`` equal nodes named ``prefix1``, ``prefix2``, ...

    ``gpus`` GPUs of ``gpu_type`` each, after them those of ``more`` (type -> number). The types
    and ``features`` become node features. ``started=False``: without a slurmd, known to
    slurmctld as idle cloud nodes that are powered down; thousands of them cost next to nothing, and
    a job that is placed there waits in CONFIGURING. ``rack``: the switch that they hang on; groups
    may share one, and where one group has one all must. ``weight``: Slurm's Weight; it
    takes the lightest free nodes first.
    """

    prefix: str
    count: int
    gpu_type: str = ""
    gpus: int = 0
    cpus: int = 32
    memory_mb: int = 256_000
    more: Mapping[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    started: bool = True
    rack: str = ""
    weight: int = 1

    def __post_init__(self) -> None:
        """Raise UsageError for a group that Slurm could not take."""
        if not _PREFIX.fullmatch(self.prefix):
            raise UsageError(
                f"node group {self.prefix!r}: a prefix is small letters, digits and -, "
                "and does not end in a digit"
            )
        if self.count < 1 or self.cpus < 1 or self.memory_mb < 1 or self.gpus < 0:
            raise UsageError(f"node group {self.prefix}: count, cpus and memory_mb must be above 0")
        if bool(self.gpu_type) != bool(self.gpus) or (self.more and not self.gpus):
            raise UsageError(f"node group {self.prefix}: gpu_type and gpus go together")
        for name in (*self.types, *self.features, *([self.rack] if self.rack else [])):
            if not _NAME.fullmatch(name):
                raise UsageError(
                    f"node group {self.prefix}: {name!r} is no name of a GPU type, "
                    "feature or rack; take small letters, digits and _"
                )
        if self.gpu_type in self.more or any(number < 1 for number in self.more.values()):
            raise UsageError(f"node group {self.prefix}: each type in more once, with 1 or more")

    @property
    def types(self) -> dict[str, int]:
        """GPU type -> GPUs of one node, in the order of the devices; empty on CPU-only nodes."""
        return {**({self.gpu_type: self.gpus} if self.gpu_type else {}), **self.more}

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [f"{self.prefix}{number}" for number in range(1, self.count + 1)]

    @property
    def expression(self) -> str:
        """The nodes as a Slurm node list: ``v[1-2]``."""
        return f"{self.prefix}1" if self.count == 1 else f"{self.prefix}[1-{self.count}]"


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A partition over node groups (prefixes; empty: all groups).

    ``tier``: PriorityTier. Jobs of a ``preempted`` partition are requeued when a higher tier needs
    their nodes.
    """

    name: str
    groups: tuple[str, ...] = ()
    default: bool = False
    tier: int = 10
    preempted: bool = False

    def __post_init__(self) -> None:
        """Raise UsageError for a name that Slurm could not take."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"partition {self.name!r}: take small letters, digits and _")


@dataclass(frozen=True, slots=True)
class Layout:
    """Node groups and partitions.

    Without ``partitions``: ``gpu`` (the default) over all nodes with GPUs, one per GPU type,
    ``cpu`` where there are nodes without GPUs, and ``idle``, whose jobs give way to all others.
    """

    groups: tuple[NodeGroup, ...]
    partitions: tuple[PartitionSpec, ...] = ()

    def __post_init__(self) -> None:
        """Raise UsageError for names that occur twice or are not there."""
        prefixes = [group.prefix for group in self.groups]
        names = [partition.name for partition in self.all_partitions]
        if not prefixes or len(set(prefixes)) < len(prefixes) or len(set(names)) < len(names):
            raise UsageError("a layout needs node groups, and each prefix and partition once")
        for partition in self.partitions:
            if unknown := set(partition.groups) - set(prefixes):
                raise UsageError(f"partition {partition.name}: no node group {min(unknown)!r}")
        if any(group.rack for group in self.groups) and not all(g.rack for g in self.groups):
            raise UsageError("a layout with racks needs one for each node group")
        if not any(group.started for group in self.groups):
            raise UsageError("a layout needs at least one node group that is started")

    @property
    def gpu_types(self) -> list[str]:
        """All GPU types, in order of appearance."""
        return list(dict.fromkeys(kind for group in self.groups for kind in group.types))

    @property
    def racks(self) -> dict[str, list[NodeGroup]]:
        """Rack -> its groups; empty where the layout has none."""
        names = dict.fromkeys(group.rack for group in self.groups if group.rack)
        return {name: [g for g in self.groups if g.rack == name] for name in names}

    @property
    def started(self) -> list[str]:
        """Names of the nodes that have a slurmd."""
        return [name for group in self.groups if group.started for name in group.names]

    @property
    def all_partitions(self) -> tuple[PartitionSpec, ...]:
        """The partitions, or those that stand for none given."""
        if self.partitions:
            return self.partitions
        with_gpus = tuple(group.prefix for group in self.groups if group.types)
        without = tuple(group.prefix for group in self.groups if not group.types)
        found = [PartitionSpec("gpu", with_gpus, default=True)] if with_gpus else []
        for kind in self.gpu_types:
            holders = tuple(group.prefix for group in self.groups if kind in group.types)
            found.append(PartitionSpec(kind, holders))
        if without:
            found.append(PartitionSpec("cpu", without, default=not with_gpus))
        return (*found, PartitionSpec("idle", tier=1, preempted=True))

    def node_types(self) -> dict[str, list[str]]:
        """Started node -> type of each of its GPUs, by index."""
        return {
            name: [kind for kind, number in group.types.items() for _ in range(number)]
            for group in self.groups
            if group.started
            for name in group.names
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data that :meth:`from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Layout":
        """The layout that :meth:`to_json` wrote."""
        return cls(
            tuple(
                NodeGroup(**{**group, "features": tuple(group["features"])})
                for group in data["groups"]
            ),
            tuple(
                PartitionSpec(**{**partition, "groups": tuple(partition["groups"])})
                for partition in data["partitions"]
            ),
        )


DEFAULT = Layout(
    (
        NodeGroup("v", 2, "v100", 2),
        NodeGroup("p", 2, "p100", 2),
        NodeGroup("k", 2, "k80", 2),
    )
)
"""Six nodes, three GPU types, twelve GPUs."""
