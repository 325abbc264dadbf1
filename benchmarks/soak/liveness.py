"""Whether a job waits beside an idle GPU that it could use."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node

BF_INTERVAL_S = 5.0
"""Of the sandbox's slurm.conf."""
SLACK_S = 15.0
"""Two looks, a cycle of the main scheduler, and a busy machine: Slurm alone needs that too."""
CYCLES = 3
"""Backfill cycles that end while a job waits, two of them whole ones: with fewer, Slurm itself had
no time to start it. With a load of 10 on 2 cores one cycle was seen in 20 s, seven jobs waiting."""
LONGEST_S = 60.0
"""A wait that counts however few cycles there are: too many requests would hold them up as well."""

_BACKFILL = re.compile(r"Backfilling stats.*?^\s*Total cycles:\s*(\d+)", re.DOTALL | re.MULTILINE)
_BUSY = re.compile(r"^NodeName=(\S+) .*?\bLastBusyTime=(\S+)", re.MULTILINE)


def backfill_cycles(text: str) -> int:
    """Cycles of the backfill scheduler that have ended, from ``sdiag``; 0 where it tells none."""
    found = _BACKFILL.search(text)
    return int(found[1]) if found else 0


def idle_since(text: str) -> dict[str, float]:
    """Node -> when its last job ended or it came back, s since the epoch, from ``scontrol -o show
    node``; nodes without such a time are left out."""
    found = {}
    for name, time in _BUSY.findall(text):
        # Unknown, of a node that no job has used.
        if time[:1].isdigit():
            found[name] = datetime.fromisoformat(time).timestamp()
    return found


@dataclass(frozen=True)
class Look:
    """What Slurm shows at one moment."""

    at_s: float
    """On the monotonic clock."""
    epoch_s: float
    jobs: Sequence[Job]
    nodes: Sequence[Node]
    idle_since: Mapping[str, float] = field(default_factory=dict)
    cycles: int = 0


class _Since(NamedTuple):
    at_s: float
    epoch_s: float
    cycles: int


@dataclass
class Liveness:
    """Looks at the queue and the nodes one after another. A GPU may be idle, and a job wait that
    fits it, for a bf_interval and :data:`SLACK_S`: the same attempt of a job and the same node all
    that time, in which no other job used the node."""

    most_s: float = BF_INTERVAL_S + SLACK_S
    longest_s: float = 0.0
    """The longest time that a job waited beside one idle GPU, s."""
    looks: int = 0
    _cycles: int = 0
    _since: dict[tuple[str, int, str], _Since] = field(default_factory=dict)
    _late: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Job -> seconds, and the sentence on it."""

    def look(self, seen: Look, any_gpu: Collection[str]) -> None:
        """Note what Slurm shows. ``any_gpu``: names of jobs that may run on one GPU of any node."""
        self.looks += 1
        if seen.cycles < self._cycles:
            # slurmctld was restarted since.
            self.forget()
        self._cycles = seen.cycles
        idle = [
            node.name
            for node in seen.nodes
            if node.usable
            and node.state.lower() == "idle"
            and sum(node.gpus.values()) > sum(node.gpus_used.values())
        ]
        waits = [
            job
            for job in seen.jobs
            if job.managed
            and job.name in any_gpu
            and job.state is JobState.PENDING
            and not job.held
            and not job.dependency
            and 0 < job.eligible_s <= seen.epoch_s
            and job.not_before_s <= seen.epoch_s
        ]
        before, self._since = self._since, {}
        now = _Since(seen.at_s, seen.epoch_s, seen.cycles)
        for job in waits:
            for node in idle:
                pair = (job.id, job.restarts, node)
                since = before.get(pair, now)
                if seen.idle_since.get(node, 0.0) > since.epoch_s:
                    # Between two looks it had another job.
                    since = now
                self._since[pair] = since
                self._note(job, node, seen.at_s - since.at_s, seen.cycles - since.cycles)

    def _note(self, job: Job, node: str, seconds: float, cycles: int) -> None:
        self.longest_s = max(self.longest_s, seconds)
        if seconds <= self.most_s or (cycles < CYCLES and seconds <= LONGEST_S):
            return
        words = (
            f"job {job.id} waited for {seconds:.0f} s and {cycles} backfill cycles beside an idle "
            f"GPU of {node} (reason {job.reason or 'none'}, partitions "
            f"{','.join(job.partitions)}, {job.restarts} restarts)"
        )
        self._late[job.id] = max(self._late.get(job.id, (0.0, "")), (seconds, words))

    def forget(self) -> None:
        """Slurm did not answer: nothing is known of the time until the next look."""
        self._since = {}

    @property
    def wrong(self) -> list[str]:
        """A sentence for each job that waited too long."""
        return [words for _, (_, words) in sorted(self._late.items())]
