"""``prices.json``: what a newcomer must know of each GPU type, published at each tick.

Its reader is :mod:`slurm_hadar.cli.submit_prices`, which spares a submit the imports of this one.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from slurm_hadar.exchange import files

NAME = "prices.json"


def write_prices(
    folder: Path,
    types: Mapping[str, Mapping[str, object]],
    arriving: int,
    interval_s: float,
    nodes: Mapping[str, Sequence[tuple[int, int, int]]] = MappingProxyType({}),
    default: str = "",
) -> None:
    """Publish. ``types``: GPU type -> what is published of it; ``arriving``: GPUs that managed jobs
    asked for within the last ``interval_s`` seconds; ``nodes``: partition -> GPUs, CPUs and MB of
    its largest nodes; ``default``: the partition that Slurm gives a job that names none, empty
    where that is not sure. Raises OSError."""
    content = {"interval_s": interval_s, "arriving": arriving, "types": types, "default": default}
    files.write_json(folder / NAME, {"time": time.time(), **content, "nodes": dict(nodes)})


def withdraw_prices(folder: Path) -> None:
    """Take the file away. Raises OSError."""
    (folder / NAME).unlink(missing_ok=True)
