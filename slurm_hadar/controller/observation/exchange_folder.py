"""The exchange folder, listed once a tick: what jobs say of themselves, and files that outlived
their jobs."""

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar import users
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange import progress
from slurm_hadar.exchange.folder import MOST, FolderWindow, Listing
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.folder_probe import ensure_answers
from slurm_hadar.profiles import gpu_sampling_files
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.reports import formats

KEEP_S = 86400.0
"""Files of ended jobs stay this long after they were last written, for inspection."""
_EVERY_S = 3600.0
_MOST_REMOVED = 5000
"""Files that one tick removes; the next ticks go on."""
_OF_A_JOB = re.compile(
    r"(?:plan|steer|progress|gpu)\.(\d{1,10})(?:_\d{1,10})?(?:\.[A-Za-z0-9]{1,64})?\.json"
)
_UNFINISHED = re.compile(r"\.(?:plan|steer)\..*\.[0-9a-f]{16}")
_ASIDE = re.compile(r"\.(?:plan|steer|progress|gpu|heartbeat|prices)\..*\.[0-9a-f]{16}")
"""What a write that was killed leaves."""


@dataclass(frozen=True)
class JobReports:
    """What the jobs' own files say, by job."""

    progress: Mapping[str, Progress] = field(default_factory=dict)
    gpus: Mapping[str, list[NodeUse]] = field(default_factory=dict)
    """What the GPUs of each running job do, node by node."""
    complete: bool = True
    """Whether every progress file was looked at."""


class ExchangeFolder:
    """The folder of one site, between two looks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._window = FolderWindow(path)
        self._listed = Listing(path)
        self._turn = 0
        self._left_out = (0, 0)
        self._unheard: Sequence[Job] = ()
        """Running jobs whose report was not found."""
        self._held: frozenset[str] = frozenset()
        """Of these, jobs whose names are held by others and could not be freed, as was said."""
        self._tidied_s = self._said_s = 0.0
        self._owner_said_s = -_EVERY_S

    def read(self, jobs: Iterable[Job]) -> JobReports:
        """List it, and read what the managed ones of ``jobs`` left there; nothing where it does not
        answer."""
        try:
            ensure_answers(str(self._path))
        except OSError:
            self._listed, self._unheard, self._left_out = Listing(self._path), (), (0, 0)
            return JobReports(complete=False)
        self._listed = self._window.next()
        self._turn += 1
        managed = [job for job in jobs if job.managed]
        # Samplers know Slurm's own number of a job only.
        numbers = {str(job.raw_id): job for job in managed if job.state is JobState.RUNNING}
        owners = {job.id: job.uid for job in managed}
        reported, silent = progress.read_listed(self._listed, owners, self._turn)
        uses, unread = gpu_sampling_files.read_listed(
            self._listed, {number: job.uid for number, job in numbers.items()}, self._turn
        )
        self._left_out = silent, unread
        self._unheard = [job for job in numbers.values() if job.id not in reported]
        gpus = {numbers[number].id: found for number, found in uses.items()}
        # A folder without any name could not be listed: the heartbeat is there.
        complete = bool(self._listed.names) and not self._listed.cut and not silent
        return JobReports(reported, gpus, complete)

    def tidy(
        self,
        jobs: Iterable[Job],
        now: float,
        seen_since: Callable[[float], Iterable[str]] = lambda _: (),
    ) -> list[str]:
        """Once an hour, remove what jobs left that ended, or that Slurm does not know any more.

        ``jobs``: all that Slurm shows; ``seen_since``: ids of those that were seen since a time,
        for one answer that lacks a job does not mean that it has ended. Only what was listed last
        and not written for :data:`KEEP_S`, and only what this user may remove: their own files, and
        all where they own the folder. Returns what the operator should know.
        """
        said = self._freed() + self._too_much(now) + self._strangers(now)
        if now < self._tidied_s + _EVERY_S:
            return said
        old = self._outlived(jobs, seen_since(now - KEEP_S), now - KEEP_S)
        removed = 0
        for path in old[:_MOST_REMOVED]:
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
        if len(old) <= _MOST_REMOVED and self._window.ended:
            self._tidied_s = now
        if removed:
            files = formats.counted(removed, "file")
            said.append(f"{files} of ended jobs removed from {self._path}")
        return said

    def _strangers(self, now: float) -> list[str]:
        """That another user owns it, once an hour: only the owner of an open folder can replace
        or remove what others put there."""
        if not self._listed.names or now < self._owner_said_s + _EVERY_S:
            return []
        try:
            owner = self._path.stat().st_uid
        except OSError:
            return []
        if owner in (os.geteuid(), 0):
            return []
        self._owner_said_s = now
        return [
            f"exchange folder {self._path} belongs to {users.name_of(owner)}, who can replace and "
            "remove all files in it; see: hadar check"
        ]

    def _too_much(self, now: float) -> list[str]:
        """What is not read, once an hour."""
        silent, unread = self._left_out
        said = [f"{self._path} holds more than {MOST} files"] if self._listed.cut else []
        if silent or unread:
            said.append(
                f"too much lies in {self._path} to be read at a time: reports of {silent} jobs and "
                f"{unread} files on GPUs, of users with very many, wait for another tick"
            )
        if not said or now < self._said_s + _EVERY_S:
            return []
        self._said_s = now
        return said

    def _freed(self) -> list[str]:
        """Where other users hold all places of a running job's report, make them free again.

        The folder's owner and root may. One place is enough for a job, and a job that is heard has
        found another: nothing is touched before.
        """
        said, held = [], set()
        for job in self._unheard:
            mine = progress.places(self._path, job.id)
            if not all(_is_foreign(path, job.uid) for path in mine):
                continue
            freed = sum(map(_is_away, mine))
            outcome = f"{freed} of {len(mine)} are free now"
            if not freed:
                held.add(job.id)
                outcome = f"only root or the folder's owner may remove progress.{job.id}.*.json"
            if freed or job.id not in self._held:
                said.append(
                    f"job {job.id}: other users held all names of its report in {self._path}; "
                    + outcome
                )
        self._held = frozenset(held)
        return said

    def remove_unfinished(self) -> None:
        """Remove the files that this user's controllers were about to put in their place.

        For a controller that takes over: another one may have been stopped in the middle of a
        write, and its rename must find nothing when it goes on.
        """
        names: list[str] = []
        with contextlib.suppress(OSError), os.scandir(self._path) as entries:
            # To its end, however full it is: none of them may be left.
            names += (one.name for one in entries if _UNFINISHED.fullmatch(one.name))
        for name in names:
            path = self._path / name
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    path.unlink()

    def _outlived(self, jobs: Iterable[Job], lately: Iterable[str], before_s: float) -> list[Path]:
        alive = {id_.partition("_")[0] for id_ in lately}
        for job in jobs:
            if job.state is not JobState.FINISHED:
                # Not every task of an array is shown by itself.
                number = job.array_job_id or job.raw_id
                alive |= {job.id.partition("_")[0], str(job.raw_id), str(number)}
        me = os.geteuid()
        with contextlib.suppress(OSError):
            all_of_them = me in (0, self._path.stat().st_uid)
            return [
                path
                for path in self._candidates(alive)
                if _is_old(path, before_s, None if all_of_them else me)
            ]
        return []

    def _candidates(self, alive: set[str]) -> Iterable[Path]:
        for name in self._listed.names:
            match = _OF_A_JOB.fullmatch(name)
            if (match and match[1] not in alive) or (match is None and _ASIDE.fullmatch(name)):
                yield self._path / name


def _is_foreign(path: Path, uid: int) -> bool:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid != uid
    return False


def _is_away(path: Path) -> bool:
    """Take away what lies there; a folder may be full and only moves aside."""
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            path.rename(path.with_name(f".{path.name}.{os.urandom(8).hex()}"))
        else:
            path.unlink()
    except OSError:
        return False
    return True


def _is_old(path: Path, before_s: float, uid: int | None) -> bool:
    """Whether it is a regular file, of ``uid`` if one is given, last written before a time."""
    try:
        status = path.lstat()
    except OSError:
        return False
    mine = uid is None or status.st_uid == uid
    return mine and stat.S_ISREG(status.st_mode) and status.st_mtime < before_s
