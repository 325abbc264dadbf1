"""What the controller keeps at the end: its journal and the files in the exchange folder."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.controller.actuation.pending.queue_head import most_records
from slurm_hadar.controller.journal.decision_history import MOST_DECISIONS
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.exchange_folder import KEEP_S, ExchangeFolder
from slurm_hadar.slurm.records import USUAL_QUEUE_DEPTH

_ABOUT_JOBS = ("journal", "told", "decision", "attained", "steering")
_ONE_A_JOB = ("decision", "attained", "steering", "least_declared", "job_owner")
_A_START = 3
"""Entries of the journal for one start, hints apart; 1.2 were seen."""
_HINTS_A_TICK = most_records(USUAL_QUEUE_DEPTH) // 3
"""A tick writes no more lists of three partitions; beside them each job's own is restored."""
_BESIDE = 64
"""Rows of any other table: policies, speeds by model and GPU type."""
_MB_A_ROW = 1 / 1024
_EMPTY_MB = 1.0


@dataclass(frozen=True)
class Work:
    """What all of it was for."""

    jobs: int
    starts: int
    """Of all jobs, with their restarts."""
    ticks: int
    """Begun ones too."""
    kills: int
    """Of the controller: what it was writing may lie aside."""


@dataclass(frozen=True)
class Journal:
    """The controller's file at the end. Sizes in MB."""

    actions: Mapping[str, int]
    moved: int
    still_open: int
    rows: Mapping[str, int]
    size_mb: float
    left_when_old: int
    """Rows about jobs that stay when all of them are older than they are kept."""

    def wrong(self, work: Work) -> list[str]:
        """A sentence for each thing that grows with more than the work."""
        found = []
        if self.still_open or self.left_when_old:
            found.append(
                f"the journal keeps {self.still_open} open entries, "
                f"{self.left_when_old} that it never forgets"
            )
        hints = self.actions.get("hint", 0)
        most = dict.fromkeys(self.rows, _BESIDE)
        most |= dict.fromkeys(_ONE_A_JOB, work.jobs)
        most |= {"journal": hints + _A_START * work.starts}
        # Where it ran, once for each start; a requeue that two ticks see differently is one more.
        most |= {"stay": 2 * work.starts}
        # Of its progress, and of its GPUs.
        most |= {"last_report": 2 * work.jobs}
        # What is decided on a job that waits may differ at each tick, so in a short soak this can
        # only tell of more than one row a tick; in a long one, that what is kept has no end.
        most["told"] = work.jobs * min(work.ticks, MOST_DECISIONS)
        if hints > (most_hints := _HINTS_A_TICK * work.ticks + work.jobs):
            found.append(f"{hints} hints in {work.ticks} ticks; at most {most_hints} were expected")
        found += [
            f"the state file has {count} rows of {name}; at most {most[name]} were expected"
            for name, count in self.rows.items()
            if count > most[name]
        ]
        if self.size_mb > _EMPTY_MB + sum(self.rows.values()) * _MB_A_ROW:
            found.append(f"the state file has {self.size_mb:.1f} MB for {self.rows}")
        return found


def read_journal(folder: Path, now: float) -> Journal:
    """Read the state file; at the end old entries are forgotten, so nobody may need it any more."""
    store = Store.open(folder)
    try:
        rows = {
            str(name): _count(store, str(name))
            for (name,) in store.connection.execute(
                "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
        }
        kinds = store.connection.execute("SELECT kind, COUNT(*) FROM journal GROUP BY kind")
        actions = {str(kind): int(count) for kind, count in kinds.fetchall()}
        moved = store.connection.execute(
            "SELECT COUNT(*) FROM journal WHERE kind='move' AND outcome IN ('moved', 'stopped')"
        ).fetchone()[0]
        still_open = len(store.open_entries())
        size = sum(file.stat().st_size for file in folder.glob("hadar.sqlite*"))
        store.forget(now + 1)
        left = sum(_count(store, name) for name in rows if name in _ABOUT_JOBS)
    finally:
        store.close()
    return Journal(actions, int(moved), still_open, rows, size / 2**20, left)


def _count(store: Store, table: str) -> int:
    return int(store.connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def releases_of(folder: Path) -> dict[str, int]:
    """Job -> how often the controller released it after a failed launch."""
    store = Store.open(folder)
    try:
        rows = store.connection.execute(
            "SELECT job, COUNT(*) FROM journal WHERE kind='release' GROUP BY job"
        )
        return {str(job): int(count) for job, count in rows.fetchall()}
    finally:
        store.close()


@dataclass(frozen=True)
class Exchange:
    """The exchange folder at the end."""

    files: Mapping[str, int]
    """``plan``, ``steer``, ``progress``, ``aside`` and so on -> files."""
    left_when_old: tuple[str, ...]
    """Files of jobs that stay when all of them are older than they are kept."""

    def wrong(self, work: Work) -> list[str]:
        """A sentence for each kind of file that grows with more than the work."""
        most = {
            "plan": work.jobs,
            "steer": work.jobs,
            "progress": work.starts,
            "aside": work.kills + work.starts,
            "heartbeat": 1,
            "prices": 1,
        }
        found = [
            f"the exchange folder has {count} files of {kind}; at most {most.get(kind, 0)} were "
            "expected"
            for kind, count in self.files.items()
            if count > most.get(kind, 0)
        ]
        if self.left_when_old:
            found.append(f"the exchange folder keeps for ever: {', '.join(self.left_when_old[:5])}")
        return found


def read_exchange(folder: Path) -> Exchange:
    """Count the files; then what ended jobs left is removed, as it is when it is old."""
    files = Counter(_kind(path.name) for path in folder.iterdir())
    keeper = ExchangeFolder(folder)
    keeper.read([])
    # No job is alive any more, and a day has gone.
    keeper.tidy([], time.time() + KEEP_S + 60)
    names = (path.name for path in folder.iterdir())
    left = sorted(name for name in names if _kind(name) not in ("heartbeat", "prices"))
    return Exchange(dict(files), tuple(left))


def _kind(name: str) -> str:
    return "aside" if name.startswith(".") else name.partition(".")[0]
