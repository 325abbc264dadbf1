"""``prices.json``: what a newcomer must know of each GPU type, published at each tick.

Its reader is :mod:`slurm_hadar.cli.submit_prices`, which spares a submit the imports of this one.
"""

import time
from binascii import crc32
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar.exchange import files

NAME = "prices.json"


@dataclass(frozen=True)
class PriceList:
    """``types``: GPU type -> what is published of it; ``arriving``: GPUs that managed jobs asked
    for within the last ``interval_s`` seconds; ``nodes``: partition -> GPUs, CPUs and MB of its
    largest nodes; ``default``: the partition that Slurm gives a job that names none, empty where
    that is not sure; ``kept``: partition of ``partitions.groups`` -> :func:`marks <mark>` of the
    users whose jobs stay in it as typed, None: of all; ``asleep``: partitions in which a job would
    wait for a node to boot."""

    types: Mapping[str, Mapping[str, object]]
    arriving: int
    interval_s: float
    nodes: Mapping[str, Sequence[tuple[int, int, int]]] = field(default_factory=dict)
    default: str = ""
    kept: Mapping[str, Sequence[int] | None] = field(default_factory=dict)
    asleep: Sequence[str] = ()


def mark(user: str) -> int:
    """A number by which a user finds their own name, so that the file shows none."""
    return crc32(user.encode(errors="surrogateescape"))


def write_prices(folder: Path, prices: PriceList) -> None:
    """Publish. Raises OSError."""
    content = {
        "time": time.time(),
        "interval_s": prices.interval_s,
        "arriving": prices.arriving,
        "types": prices.types,
        "default": prices.default,
        "nodes": dict(prices.nodes),
        "kept": dict(prices.kept),
        "asleep": list(prices.asleep),
    }
    files.write_json(folder / NAME, content)


def withdraw_prices(folder: Path) -> None:
    """Take the file away. Raises OSError."""
    (folder / NAME).unlink(missing_ok=True)
