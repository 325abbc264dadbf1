"""The pretend cluster: how many GPUs of which type on each node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import IntArray, NodeArrays
from slurm_hadar.reading import shown

_MOST = 1_000_000


@dataclass(frozen=True)
class VirtualCluster:
    """N nodes with R types of GPUs; each node has one type."""

    types: tuple[str, ...]
    names: tuple[str, ...]
    gpus: IntArray
    """(N, R)"""
    rack: IntArray
    """(N,) index of the node's rack."""
    cpus_per_gpu: int = 0
    """CPUs that stand beside each GPU; 0: CPUs are not looked at."""
    mem_per_gpu_mb: int = 0
    """Memory beside each GPU in MB; 0: memory is not looked at."""

    @property
    def capacity(self) -> IntArray:
        """(R,) GPUs per type."""
        total: IntArray = self.gpus.sum(axis=0)
        return total

    @property
    def text(self) -> str:
        """``20 v100, 20 k80``."""
        return ", ".join(
            f"{n} {t}" for t, n in zip(self.types, self.capacity.tolist(), strict=True)
        )

    def arrays(self) -> NodeArrays:
        """The nodes as a policy sees them: one access group."""
        each, count = self.gpus.sum(axis=1), len(self.names)
        return NodeArrays(
            names=self.names,
            gpus=self.gpus,
            cpus=each * self.cpus_per_gpu,
            mem_mb=each * self.mem_per_gpu_mb,
            group=np.zeros(count, np.int64),
            rack=self.rack,
        )


def build(
    gpus: Mapping[str, int], per_node: int | Mapping[str, int] = 4, per_rack: int = 0
) -> VirtualCluster:
    """A cluster of whole nodes; a type's last node has what is left over.

    ``per_rack``: nodes in a rack, in order; 0: all in one.
    """
    rows: list[tuple[str, int, int]] = []
    for kind, (name, number) in enumerate(gpus.items()):
        size = per_node if isinstance(per_node, int) else per_node[name]
        sizes = [size] * (number // size) + ([number % size] if number % size else [])
        rows += [(f"{name}-{i + 1}", kind, n) for i, n in enumerate(sizes)]
    table = np.zeros((len(rows), len(gpus)), dtype=np.int64)
    for at, (_, kind, number) in enumerate(rows):
        table[at, kind] = number
    rack = np.arange(len(rows)) // per_rack if per_rack else np.zeros(len(rows))
    return VirtualCluster(
        tuple(gpus), tuple(name for name, _, _ in rows), table, rack.astype(np.int64)
    )


def parse(text: str, per_node: str = "4", per_rack: int = 0) -> VirtualCluster:
    """A cluster from ``v100=20,k80=8`` and GPUs per node ``4`` or ``v100=8,k80=4``.

    Raises UsageError naming the option at fault.
    """
    gpus = _pairs("--cluster", text)
    if re.fullmatch(r"\d+", per_node.strip(), re.ASCII):
        size = _count(per_node)
        if size is None:
            raise UsageError(f"--gpus-per-node {shown(per_node)}: it must be 1 to {_MOST}")
        return build(gpus, size, per_rack)
    sizes = _pairs("--gpus-per-node", per_node)
    if missing := [kind for kind in gpus if kind not in sizes]:
        raise UsageError(f"--gpus-per-node {shown(per_node)}: {missing[0]} is missing")
    return build(gpus, sizes, per_rack)


def _pairs(option: str, text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        name, size = name.strip().lower(), _count(number)
        if not re.fullmatch(r"[a-z0-9_.:/@+-]{1,60}", name) or size is None:
            raise UsageError(
                f"{option} {shown(text)!r}: {shown(part.strip())!r} is not TYPE=NUMBER; "
                "for instance v100=20,p100=20"
            )
        if name in found:
            raise UsageError(f"{option} {shown(text)!r}: {name} is named twice")
        found[name] = size
    return found


def _count(text: str) -> int | None:
    words = text.strip()
    size = int(words) if re.fullmatch(r"\d{1,9}", words, re.ASCII) else 0
    return size if 1 <= size <= _MOST else None
