"""``gpu.<job>.<random>.json`` in the exchange folder: what a job's GPUs on one node do.

Written by the sampler that the prolog starts, as the job's own user. So, as with the progress
files, a file counts for the job of its owner only, and a field of the wrong kind voids it. The job
is named by Slurm's own number, each task of an array by its own.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_hadar.exchange import files
from slurm_hadar.exchange.folder import Listing, listing, round_robin
from slurm_hadar.profiles.gpu_sampling import GpuUse

_NAME = re.compile(r"gpu\.(\d{1,10})\.([A-Za-z0-9]{1,64})\.json")
_PER_JOB = 2048
"""Files of one job that are looked into; each of its nodes has one."""
_MOST_GPUS = 64
_LOOKS = 2 * _PER_JOB
"""Names of one job that are looked at."""
ALL_BYTES = 16 << 20
"""Most that is read at a time, see :func:`round_robin`: 4,096 files of nodes with up to 16 GPUs.
What is made of them takes three times the memory."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One file. ``time``: s since the epoch; ``finished``: the job has left this node."""

    job: str
    host: str
    pid: int
    time: float
    finished: bool
    gpus: tuple[GpuUse, ...]


def new_path(folder: Path, job: str) -> Path:
    """A name for a file of this job that cannot be there before."""
    return folder / f"gpu.{job}.{os.urandom(8).hex()}.json"


def write_use(path: Path, use: NodeUse) -> None:
    """Write one node's file. Raises OSError, and ValueError for one that is too large."""
    files.write_json(path, asdict(use))


def parse(source: Mapping[str, object]) -> NodeUse | None:
    """The record in a file's contents; None when a field is missing or of the wrong kind."""
    try:
        gpus = source.get("gpus")
        if not isinstance(gpus, list) or len(gpus) > _MOST_GPUS:
            return None
        return NodeUse(
            job=files.text(source, "job", 30),
            host=files.text(source, "host"),
            pid=files.whole(source, "pid"),
            time=files.number(source, "time", 1e11),
            finished=files.flag(source, "finished"),
            gpus=tuple(_gpu(one) for one in gpus),
        )
    except files.Malformed:
        return None


def _gpu(source: object) -> GpuUse:
    if not isinstance(source, dict):
        raise files.Malformed("gpus")
    return GpuUse(
        uuid=files.text(source, "uuid", 80),
        name=files.text(source, "name"),
        seconds=files.number(source, "seconds", 1e9),
        utilization=_optional(source, "utilization", 1.0),
        memory_mb=_optional(source, "memory_mb", 1e9),
        most_memory_mb=_optional(source, "most_memory_mb", 1e9),
        power_w=_optional(source, "power_w", 1e6),
        busy_s=files.number(source, "busy_s", 1e9),
        held_idle_s=files.number(source, "held_idle_s", 1e9),
        unused_s=files.number(source, "unused_s", 1e9),
    )


def _optional(source: Mapping[str, object], key: str, most: float) -> float | None:
    return None if source.get(key) is None else files.number(source, key, most)


def read_all_uses(folder: Path, uids: Mapping[str, int]) -> dict[str, list[NodeUse]]:
    """The newest file of each node of each job of ``uids`` (job id -> UID of its owner).

    Jobs without a believable file are left out; a folder that cannot be listed gives an empty
    answer.
    """
    return read_listed(listing(folder), uids)[0]


def read_listed(
    listed: Listing, uids: Mapping[str, int], turn: int = 0
) -> tuple[dict[str, list[NodeUse]], int]:
    """:func:`read_all_uses` of what is listed; and how many files were not read, since there is too
    much. Another ``turn`` reads others."""
    counted: dict[str, int] = {}
    there: list[tuple[int, int, tuple[str, str]]] = []
    for job, status, path in listed.owned(_NAME, uids, _LOOKS):
        counted[job] = counted.get(job, 0) + 1
        if counted[job] <= _PER_JOB and status.st_size <= files.LIMIT:
            there.append((uids[job], status.st_size, (job, path)))
    read, left_out = round_robin(there, ALL_BYTES, turn)
    found: dict[str, dict[str, NodeUse]] = {}
    for job, path in read:
        source = files.read_owned(path, (uids[job],))
        use = parse(source) if source is not None else None
        if use is None or use.job != job:
            continue
        nodes = found.setdefault(job, {})
        if use.host not in nodes or nodes[use.host].time < use.time:
            nodes[use.host] = use
    return {job: [nodes[host] for host in sorted(nodes)] for job, nodes in found.items()}, left_out


def own_uses(folder: Path, job: str, host: str, uid: int) -> list[tuple[Path, NodeUse]]:
    """The files of a job about one node that belong to ``uid``."""
    found = []
    for _, _, path in listing(folder).owned(_NAME, {job: uid}, _LOOKS):
        source = files.read_owned(path, (uid,))
        use = parse(source) if source is not None else None
        if use is not None and use.host == host and use.job == job:
            found.append((Path(path), use))
    return found
