"""What became of every job, by looking at the queue again and again."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.soak.jobs import TRAINS, Sent, Start, ends, inexact, last_words, starts
from benchmarks.soak.silence import Silence, hidden
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.runtime.attempts import SUPERSEDED

_LAUNCH_FAILED = "launch failed"
_AT_ONCE_S = 2.0
"""A job of the soak may begin as soon as it is submitted; Slurm's times are whole seconds."""


@dataclass
class Books:
    """All submissions, and the last that was seen of each job."""

    sent: dict[str, Sent] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    seen: dict[str, Job] = field(default_factory=dict)
    strayed: set[str] = field(default_factory=set)
    """Ids of jobs that opted in and were read as if they had not."""
    delayed: set[str] = field(default_factory=set)
    """Ids of jobs that waited, before their first start, for a begin time."""
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
                waits = job.state is JobState.PENDING and not job.restarts
                if waits and job.eligible_s > job.submit_s + _AT_ONCE_S:
                    self.delayed.add(job.id)
        shown = {job.id for job in jobs}
        for id_ in (self.cancelled & self.seen.keys()) - shown:
            # Slurm keeps no record of a task that is cancelled before it left its array.
            if "_" in id_ and self.seen[id_].state is not JobState.FINISHED:
                gone = replace(self.seen[id_], state=JobState.FINISHED, slurm_state="CANCELLED")
                self.seen[id_] = gone

    def cancel(self, job: str, refused: HadarError | None) -> bool:
        """Note a cancel; whether it was carried out, or may have been with its answer lost."""
        if refused is not None and not getattr(refused, "retry", False):
            return False
        self.cancelled.add(job)
        return True

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

    def nodes(self) -> dict[str, int]:
        """Job -> the most nodes that it may run on at a time."""
        return {id_: self.sent[job.name].most_nodes for id_, job in self.seen.items()}

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
    COMPLETING on that node as slurmctld restarted, without any software of ours too."""
    failed_bare: int = 0
    """Jobs that FAILED in such a start: without our runtime, or in the second one running."""
    failed_revoked: int = 0
    """Jobs that FAILED as Slurm started them on a node that had just come back with their old step
    (:func:`benchmarks.soak.slurm_log.revoked`)."""
    hidden: int = 0
    """Starts of jobs without a checkpoint beside another attempt of the same job that ran on,
    unseen by Slurm, on a silent node: nothing prevents that both write."""
    hidden_trainings: int = 0
    """The same of jobs that train: there only the newest attempt can write the checkpoint."""
    superseded: int = 0
    """Attempts that ended by themselves as a later one had taken over."""
    wrong: list[str] = field(default_factory=list)


def account(
    books: Books, folder: Path, silences: Sequence[Silence], revoked: Collection[str] = ()
) -> Account:
    """Every job in its place. ``silences``: when a job might run on at a node unseen by Slurm;
    ``revoked``: ids of jobs that Slurm ended as they started."""
    found = Account()
    for name in books.missing():
        found.wrong.append(f"{name} ({books.sent[name].kind}): Slurm never showed it")
    for job in books.seen.values():
        sent = books.sent[job.name]
        found.restarts += job.restarts
        who = f"job {job.id} ({sent.kind})"
        end = job.slurm_state.split()[0] if job.slurm_state else "?"
        began = _began(folder, job, sent)
        bare = _bare(began, job)
        if job.state is not JobState.FINISHED:
            found.wrong.append(f"{who}: still {job.slurm_state} ({job.reason}), held {job.held}")
        elif end.startswith("CANCELLED"):
            if job.id not in books.cancelled and job.id.split("_")[0] not in books.cancelled:
                found.wrong.append(f"{who}: cancelled, and not by us")
        elif end == "FAILED" and _no_more_to_ask(bare, sent):
            found.failed_bare += 1
        elif end == "FAILED" and job.id in revoked:
            found.failed_revoked += 1
        elif end != "COMPLETED":
            said = last_words(folder, [sent.name])
            found.wrong.append(f"{who}: ended as {job.slurm_state} ({job.reason}); it said: {said}")
        if job.id in books.strayed:
            found.wrong.append(f"{who}: it opted in, and was read as if it had not")
        if job.id in books.delayed:
            found.wrong.append(f"{who}: it waited for a begin time that nobody asked for")
        found.ended[sent.kind, end] += 1
        found.bare += sum(bare)
        found.superseded += sum(one.code == SUPERSEDED for one in ends(folder, sent.name))
        beside = _once(found, began, silences, who)
        if sent.kind in TRAINS:
            found.hidden_trainings += beside
        else:
            found.hidden += beside
        if end == "COMPLETED" and not began:
            found.wrong.append(f"{who}: completed and never began")
        if end == "COMPLETED" and sent.samples:
            found.lineages += 1
            fault = inexact(folder, sent)
            found.exact += not fault
            found.wrong += [f"{who}: its lineage is not exact: {fault}"] if fault else []
    return found


def _began(folder: Path, job: Job, sent: Sent) -> list[Start]:
    task = f"_{job.id.split('_')[1]}" if "_" in job.id else ""
    return starts(folder, f"{sent.name}{task}")


def _bare(began: Sequence[Start], job: Job) -> list[bool]:
    """Of each start, whether it had no GPU although the request still names one."""
    request = job.request
    asks = any(sum(gpus.values()) for gpus in (request.per_node, request.per_job, request.per_task))
    found: list[bool] = []
    for start in began:
        if start.counts:
            found.append(False)
        elif start.word == "bare" and found:
            found[-1] = asks
    return found


def _no_more_to_ask(bare: Sequence[bool], sent: Sent) -> bool:
    """Whether its last start was without a GPU, and it had no way, or no second one, to ask for
    another start."""
    return bare[-2:] == [True, True] or (sent.kind not in TRAINS and bare[-1:] == [True])


def _once(found: Account, began: Sequence[Start], silences: Sequence[Silence], who: str) -> int:
    """No start twice, and none beside another one that Slurm could see; how many there were beside
    one that it could not see."""
    counts = Counter(start.word for start in began if start.counts)
    for word, times in counts.items():
        if times > 1:
            found.wrong.append(f"{who}: its start {word} came {times} times")
    beside: list[Start] = []
    alone, unseen = True, 0
    for start in began:
        if start.counts:
            # A start that finds no other one running shows that all before it are over.
            beside = [start] if alone else [*beside, start]
            alone = True
        elif start.word == "twice":
            alone = False
            if hidden(beside, start.at_s, silences):
                unseen += 1
            else:
                found.wrong.append(f"{who}: it ran twice at a time, from {start.at_s:.1f} on")
    return unseen
