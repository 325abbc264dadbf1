"""What moves cost the moved jobs: places that others took meanwhile, and priority.

Times are s since the epoch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf

_START = re.compile(
    r"^\[(?P<at>[\d:.T-]+)\] (?:sched: Allocate JobId=(?P<main>\d+) NodeList=(?P<on>\S+)"
    r"|.*\bbackfill: (?:\w+: )?Started JobId=(?P<backfill>\d+) in \S+ on (?P<there>\S+))"
)
_SUBMIT = re.compile(r"^\[(?P<at>[\d:.T-]+)\] _slurm_rpc_submit_batch_job: JobId=(?P<job>\d+)")
_END = re.compile(
    r"^\[(?P<at>[\d:.T-]+)\] (?:_job_complete: JobId=(?P<done>\d+) done"
    r"|Requeuing JobId=(?P<again>\d+))"
)


@dataclass(frozen=True, slots=True)
class Start:
    """A start in slurmctld's log, of a job on one node."""

    job: str
    at_s: float
    node: str
    until_s: float
    """When it ended or was requeued."""


@dataclass(frozen=True, slots=True)
class Look:
    """A job as squeue showed it: ``at_s`` is when squeue was asked."""

    at_s: float
    state: str
    priority: int
    nice: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that Slurm took: decided by a tick that looked at the queue at ``decided_s``, the
    job's requeue was sent at ``requeued_s``, its place is on one of the nodes ``to``."""

    job: str
    requeued_s: float
    to: tuple[str, ...]
    decided_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What became of a move. ``node``: where the job started, at ``started_s``; empty and 0 where
    it did not. ``taken_by``: jobs that started on a node of its place before it did, and left there
    fewer GPUs than those need that were on their way; each with when it was submitted, s after the
    move was decided (the requeue comes later). ``before``, ``after``: priority as it last ran, and
    as it started again; -1: not seen. ``lower_s``: how long it was seen waiting with less than
    before, s."""

    move: Moved
    node: str
    started_s: float
    taken_by: Mapping[str, float]
    before: int
    after: int
    lower_s: float

    @property
    def place_lost(self) -> bool:
        """Whether jobs that waited as it was decided started on its place, or it did not start at
        all."""
        return any(after_s <= 0 for after_s in self.taken_by.values()) or not self.node

    @property
    def contested(self) -> bool:
        """Whether only later submissions took GPUs of its place. The controller could know of none
        of them when it decided, and of none that came after the requeue at all."""
        return bool(self.taken_by) and not self.place_lost

    @property
    def elsewhere(self) -> bool:
        """Whether it started on its other type, though it had a place: Slurm starts nothing on a
        node that a job leaves at that moment, and the list of partitions is a preference only."""
        return bool(self.node) and self.node not in self.move.to

    @property
    def priority_lost(self) -> bool:
        """Whether it started with less than it had before."""
        return self.after < self.before

    @property
    def seen(self) -> bool:
        """Whether both priorities were seen."""
        return self.before >= 0 and self.after >= 0


def starts(log: str) -> list[Start]:
    """The starts in the text of slurmctld's log, in order."""
    found: list[Start] = []
    running: dict[str, int] = {}
    for line in log.splitlines():
        match = _START.match(line) or _END.match(line)
        if match is None:
            continue
        at_s = datetime.fromisoformat(match["at"]).timestamp()
        words = match.groupdict()
        if job := words.get("done") or words.get("again"):
            if job in running:
                number = running.pop(job)
                found[number] = replace(found[number], until_s=at_s)
        elif job := words["main"] or words["backfill"]:
            running[job] = len(found)
            found.append(Start(job, at_s, words["on"] or words["there"] or "", inf))
    return found


def submissions(log: str) -> dict[str, float]:
    """Job -> when it was submitted, from the text of slurmctld's log."""
    found = {}
    for line in log.splitlines():
        if match := _SUBMIT.match(line):
            found[match["job"]] = datetime.fromisoformat(match["at"]).timestamp()
    return found


@dataclass(frozen=True)
class Account:
    """What the log tells of all jobs. ``gpus``: job -> GPUs that it has on its node, 0 where it is
    not named; ``there``: node -> its GPUs; ``moves``: all of them; ``submitted``: job -> when."""

    started: Sequence[Start]
    gpus: Mapping[str, int]
    there: Mapping[str, int]
    moves: Sequence[Moved]
    submitted: Mapping[str, float] = field(default_factory=dict)

    def cost(self, move: Moved, looks: Sequence[Look]) -> Cost:
        """What a move cost. ``looks``: at its job, in order."""
        own = self._next(move)
        until_s = own.at_s if own is not None else inf
        taken_by = {
            one.job: self.submitted.get(one.job, 0.0) - move.decided_s
            for one in self.started
            if move.requeued_s < one.at_s <= until_s
            and one.node in move.to
            and one.job not in {other.job for other in self.moves}
            and self._free(one) < self._on_their_way(one)
        }
        ran = [
            one.priority for one in looks if one.state == "RUNNING" and one.at_s < move.requeued_s
        ]
        again = [one for one in looks if one.state == "RUNNING" and one.at_s > until_s][:1]
        # A look that comes late shows a job that has its owner's Nice again.
        again += [
            one
            for one in looks
            if again
            and one.state == "PENDING"
            and move.requeued_s < one.at_s < until_s
            and one.nice < again[0].nice
        ]
        before = ran[-1] if ran else -1
        lower = [
            one.at_s
            for one in looks
            if one.state == "PENDING"
            and move.requeued_s < one.at_s < until_s
            and one.priority < before
        ]
        return Cost(
            move,
            own.node if own is not None else "",
            own.at_s if own is not None else 0.0,
            taken_by,
            before,
            max((one.priority for one in again), default=-1),
            max(lower) - min(lower) if lower else 0.0,
        )

    def _next(self, move: Moved) -> Start | None:
        later = (s for s in self.started if s.job == move.job and s.at_s > move.requeued_s)
        return next(later, None)

    def _free(self, start: Start) -> int:
        """GPUs that were free on its node as it had started."""
        used = sum(
            self.gpus.get(one.job, 0)
            for one in self.started
            if one.node == start.node and one.at_s <= start.at_s < one.until_s
        )
        return self.there[start.node] - used

    def _on_their_way(self, start: Start) -> int:
        """GPUs that jobs on their way to its node were to get, as it started."""
        found = 0
        for move in self.moves:
            own = self._next(move)
            until_s = own.at_s if own is not None else inf
            if start.node in move.to and move.requeued_s < start.at_s < until_s:
                found += self.gpus[move.job]
        return found
