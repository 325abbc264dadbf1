"""What became of every job, by looking at the queue again and again."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.soak.jobs import Sent, inexact, last_words, starts
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.job import Job, JobState

_LAUNCH_FAILED = "launch failed"


@dataclass
class Books:
    """All submissions, and the last that was seen of each job."""

    sent: dict[str, Sent] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    seen: dict[str, Job] = field(default_factory=dict)
    strayed: set[str] = field(default_factory=set)
    """Ids of jobs that opted in and were read as if they had not."""
    cancelled: set[str] = field(default_factory=set)
    """Ids of jobs that the soak cancelled."""
    released: Counter[str] = field(default_factory=Counter)
    """Ordinary jobs that Slurm held after a failed launch, released as an operator would."""

    def look(self, jobs: Sequence[Job]) -> None:
        """Note what Slurm shows now."""
        for job in jobs:
            if job.name in self.sent:
                self.seen[job.id] = job
                if self.sent[job.name].managed and not job.managed:
                    self.strayed.add(job.id)

        shown = {job.id for job in jobs}
        for id_ in (self.cancelled & self.seen.keys()) - shown:
            # Slurm keeps no record of a task that is cancelled before it left its array.
            if "_" in id_ and self.seen[id_].state is not JobState.FINISHED:
                gone = replace(self.seen[id_], state=JobState.FINISHED, slurm_state="CANCELLED")
                self.seen[id_] = gone

    def alive(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in self.seen.values() if job.state is not JobState.FINISHED]

    def missing(self) -> list[str]:
        """Submissions of which Slurm has not shown all jobs."""
        shown = Counter(job.name for job in self.seen.values())
        return [
            name
            for name, one in self.sent.items()
            if shown[name] < one.tasks and name not in self.refused
        ]

    def held_by_slurm(self, releases: Mapping[str, int], most: int) -> list[Job]:
        """Jobs for the operator: held after a failed launch, and not or no longer ours to free."""
        return [
            job
            for job in self.alive()
            if job.state is JobState.PENDING
            and job.held
            and _LAUNCH_FAILED in job.reason.lower().replace("_", " ")
            and (not job.managed or releases.get(job.id, 0) >= most)
        ]


@dataclass
class Account:
    """What it all came to. ``wrong``: sentences, empty where every promise held."""

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, end) -> jobs."""
    exact: int = 0
    lineages: int = 0
    restarts: int = 0
    bare: int = 0
    """Starts without a GPU, by Slurm, of jobs that ask for one: seen on 22.05.8 where a job was
    COMPLETING on a silent node as slurmctld restarted, without any software of ours too."""
    failed_bare: int = 0
    """Jobs that FAILED in such a start."""
    wrong: list[str] = field(default_factory=list)


def account(books: Books, folder: Path, silent: Collection[str]) -> Account:
    """Every job in its place. ``silent``: nodes on which a job may run on unseen by Slurm."""
    found = Account()
    for name in books.missing():
        found.wrong.append(f"{name} ({books.sent[name].kind}): Slurm never showed it")
    for job in books.seen.values():
        sent = books.sent[job.name]
        found.restarts += job.restarts
        who = f"job {job.id} ({sent.kind})"
        end = job.slurm_state.split()[0] if job.slurm_state else "?"
        if job.state is not JobState.FINISHED:
            found.wrong.append(f"{who}: still {job.slurm_state} ({job.reason}), held {job.held}")
        elif end.startswith("CANCELLED"):
            if job.id not in books.cancelled and job.id.split("_")[0] not in books.cancelled:
                found.wrong.append(f"{who}: cancelled, and not by us")
        elif end == "FAILED" and _begun(folder, job, sent)[-1:] == ["bare"]:
            found.failed_bare += 1
        elif end != "COMPLETED":
            said = last_words(folder, [sent.name])
            found.wrong.append(f"{who}: ended as {job.slurm_state} ({job.reason}); it said: {said}")
        if job.id in books.strayed:
            found.wrong.append(f"{who}: it opted in, and was read as if it had not")
        found.ended[sent.kind, end] += 1
        found.bare += _begun(folder, job, sent).count("bare")
        found.wrong += _twice(folder, job, sent, silent, who)
        if end == "COMPLETED" and sent.samples:
            found.lineages += 1
            fault = inexact(folder, sent)
            found.exact += not fault
            found.wrong += [f"{who}: its lineage is not exact: {fault}"] if fault else []
    return found


def _lines(folder: Path, job: Job, sent: Sent) -> list[tuple[str, str]]:
    task = f"_{job.id.split('_')[1]}" if "_" in job.id else ""
    return starts(folder, f"{sent.name}{task}")


def _begun(folder: Path, job: Job, sent: Sent) -> list[str]:
    """Its starts; ``bare`` follows one without a GPU, where its request still names one."""
    request = job.request
    asks = any(sum(gpus.values()) for gpus in (request.per_node, request.per_job, request.per_task))
    words = [word for word, _ in _lines(folder, job, sent)]
    return words if asks else [word for word in words if word != "bare"]


def _twice(folder: Path, job: Job, sent: Sent, silent: Collection[str], who: str) -> list[str]:
    lines = _lines(folder, job, sent)
    counts = Counter(word for word, _ in lines if word not in ("twice", "bare"))
    wrong = [f"{who}: its start {n} came {times} times" for n, times in counts.items() if times > 1]
    if not {node for _, node in lines} & set(silent):
        wrong += [f"{who}: it ran twice at a time" for word, _ in lines if word == "twice"][:1]
    if job.slurm_state.startswith("COMPLETED") and not counts:
        wrong.append(f"{who}: completed and never began")
    return wrong


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


_ABOUT_JOBS = ("journal", "told", "decision", "attained")


def _count(store: Store, table: str) -> int:
    return int(store.connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


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
