"""Which kind of checkpoint a training has: one file, or a file and shards beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.checkpoint_store import CheckpointStore
from slurm_hadar.runtime.core import SessionCore
from slurm_hadar.runtime.ranks import is_sharded


def open_store(
    path: Path | None, parts: Mapping[str, Any], core: SessionCore, *, trusted: bool
) -> CheckpointStore:
    """The store that fits the parts; in every process alike, after :meth:`SessionCore.join`.

    Raises UsageError where the parts cannot be kept in it.
    """
    options = core.options
    if path is None or options.sharded is False:
        return CheckpointStore(path, parts, core.say, trusted=trusted)
    wanted = bool(options.sharded) or options.background or any(map(has_shards, parts.values()))
    there = core.ranks.first and not wanted and _are_there(path, trusted=trusted)
    if wanted or core.ranks.gather(there)[0]:
        # Late: a training on one GPU does without DCP, which takes time to import.
        from slurm_hadar.runtime.sharded_store import ShardedStore

        return ShardedStore(path, parts, core, trusted=trusted)
    return CheckpointStore(path, parts, core.say, trusted=trusted)


def has_shards(part: Any) -> bool:
    """Whether it is a model of which each process has a part."""
    parameters = getattr(part, "parameters", None)
    return callable(parameters) and any(map(is_sharded, parameters()))


def _are_there(path: Path, *, trusted: bool) -> bool:
    """Whether the checkpoint that is there has shards."""
    for one in (path, checkpoint.previous(path)):
        try:
            return "shards" in checkpoint.read(one, trusted=trusted, lazy=True)
        except (OSError, HadarError):
            continue
    return False
