"""``progress.<job>.<one of a few>.json``: what a job says of itself.

A job writes the first of :data:`PLACES` that is free or its own, so that it is found by name
however full the folder is; where strangers hold all of them, and in releases before, a random name.

The controller reads these; users write them. So: the newest file that belongs to the job's own
user counts, whatever its name promises, and a field of the wrong kind voids the file.
Neither torch nor numpy is imported here.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.exchange import files
from slurm_hadar.exchange.folder import Listing, listing, round_robin

_NAME = re.compile(r"progress\.(\d{1,10}(?:_\d{1,10})?)\.([A-Za-z0-9]{1,64})\.json")
PLACES = "01234567"
"""Of one character, for :meth:`Listing.owned`: no others come before them."""
_PER_OWNER = 8
"""Files of one job that are looked into; the runtime keeps one."""
_LOOKS = 128
"""Names of one job that are looked at, more than there are of one character."""
MOST_BYTES = 8192
"""Largest progress file; one has some 500 bytes."""
ALL_BYTES = 128 << 20
"""Most that is read at a time, see :func:`round_robin`: the files of 32,768 jobs."""
SLOWEST, FASTEST = 1e-6, 1e9
"""Rates of a job that are believed, samples/s. Ratios and logarithms of what is believed have to
stay finite, for all users of a model."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: position in samples, when (s since the epoch), and the seconds that it took."""

    samples: int
    time: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to a plan's ``save`` nonce."""

    save: str
    time: float
    samples: int


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress file. Times in s since the epoch, ``rate`` in samples/s (0: not known yet)."""

    job: str
    time: float
    restarts: int
    host: str
    pid: int
    in_step: bool
    started: float
    model: str
    samples: int
    rate: float
    window_s: float
    batch: int
    gpus: int
    noise_scale: float | None = None
    checkpoint: Saved | None = None
    ack: Ack | None = None
    restart_s: float | None = None
    lost: int = 0
    finished: bool = False
    nonfinite: bool = False
    """Whether the loss or a parameter is NaN or infinite, so that nothing is saved."""
    whole_s: float | None = None
    """Of a watcher: when it saw a whole checkpoint last; None: never."""


def parse(source: Mapping[str, object]) -> Progress | None:
    """The record in a file's contents; None when any field is missing or of the wrong kind."""
    try:
        saved, ack = files.section(source, "checkpoint"), files.section(source, "ack")
        rate = files.number(source, "rate", FASTEST)
        optional = {
            key: None if source.get(key) is None else files.number(source, key)
            for key in ("noise_scale", "restart_s", "whole_s")
        }
        return Progress(
            job=files.text(source, "job", 30),
            time=files.number(source, "time", 1e11),
            restarts=files.whole(source, "restarts", 10**6),
            host=files.text(source, "host"),
            pid=files.whole(source, "pid"),
            in_step=files.flag(source, "in_step"),
            started=files.number(source, "started", 1e11),
            model=files.text(source, "model"),
            samples=files.whole(source, "samples"),
            rate=rate if rate >= SLOWEST else 0.0,
            window_s=files.number(source, "window_s", 1e9),
            batch=files.whole(source, "batch", 10**12),
            gpus=files.whole(source, "gpus", 10**6),
            noise_scale=optional["noise_scale"],
            checkpoint=None
            if saved is None
            else Saved(
                files.whole(saved, "samples"),
                files.number(saved, "time", 1e11),
                files.number(saved, "seconds", 1e9),
            ),
            ack=None
            if ack is None
            else Ack(
                files.text(ack, "save", 64),
                files.number(ack, "time", 1e11),
                files.whole(ack, "samples"),
            ),
            restart_s=optional["restart_s"],
            lost=files.whole(source, "lost"),
            finished=files.flag(source, "finished"),
            nonfinite="nonfinite" in source and files.flag(source, "nonfinite"),
            whole_s=optional["whole_s"],
        )
    except files.Malformed:
        return None


def places(folder: Path, job_id: str) -> list[Path]:
    """Where the progress of a job lies, in the order in which it tries them."""
    return [folder / f"progress.{job_id}.{place}.json" for place in PLACES]


def read_progress(folder: Path, job_id: str, uid: int) -> Progress | None:
    """What job ``job_id`` of user ``uid`` said last; None when it said nothing believable."""
    return read_all_progress(folder, {job_id: uid}).get(job_id)


def read_all_progress(folder: Path, uids: Mapping[str, int]) -> dict[str, Progress]:
    """What each job of ``uids`` (job id -> UID of its owner) said last.

    Jobs without a believable file are left out. A folder that cannot be listed gives an empty
    answer.
    """
    return read_listed(listing(folder), uids)[0]


def read_listed(
    listed: Listing, uids: Mapping[str, int], turn: int = 0
) -> tuple[dict[str, Progress], int]:
    """:func:`read_all_progress` of what is listed; and of how many jobs nothing was read, since
    there is too much. Another ``turn`` reads others."""
    by_job: dict[str, list[tuple[int, int, str]]] = {}
    for job, status, path in _owned(listed, uids):
        if status.st_size <= MOST_BYTES:
            by_job.setdefault(job, []).append((status.st_mtime_ns, status.st_size, path))
    newest = {job: sorted(found, reverse=True)[:_PER_OWNER] for job, found in by_job.items()}
    jobs, left_out = round_robin(
        ((uids[job], sum(size for _, size, _ in those), job) for job, those in newest.items()),
        ALL_BYTES,
        turn,
    )
    found: dict[str, Progress] = {}
    for job in jobs:
        for _, _, path in newest[job]:
            source = files.read_owned(path, (uids[job],), MOST_BYTES)
            progress = parse(source) if source is not None else None
            if progress is not None and progress.job == job:
                found[job] = progress
                break
    return found, left_out


def own_files(folder: Path, job_id: str, uid: int, listed: Listing | None = None) -> list[Path]:
    """The progress files of a job that belong to ``uid``, whatever they contain, as far as the
    folder is listed."""
    return [Path(path) for _, _, path in _owned(listed or listing(folder), {job_id: uid})]


def _owned(listed: Listing, uids: Mapping[str, int]) -> Iterable[tuple[str, os.stat_result, str]]:
    names = (path.name for job in uids for path in places(listed.folder, job))
    return listed.with_first(names).owned(_NAME, uids, _LOOKS)
