"""Nodes that were down a moment ago.

When a node goes DOWN, Slurm requeues its jobs at once, while their processes there may take as long
as KillWait to leave. A job that starts there again meanwhile is ended with its own last attempt:
Slurm compares the node only (seen on 22.05.8: FAILED, JobLaunchFailure). Slurm itself waits for
cred_expire before it starts a requeued job. A move does not, so the controller plans nothing for
such nodes and releases no job that was requeued meanwhile: Slurm, not the plan, chooses its node.
A node that is only drained or reserved kept its jobs and is used as soon as it is open again.

A node may also go down and come back between two looks. Nothing of that can be seen afterwards, nor
what else requeued a job (its owner, preemption, a lost node), so a job in the middle of a move that
the controller did not requeue itself is released as much later. Trainings on idle nodes do not wait
for that: to be preempted is their daily life, and Slurm requeues a preempted job when its processes
have left.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.slurm.states import node_keeps_its_jobs

_KEPT_AS = "returned nodes"
_SLACK_S = 5.0
"""Slurm's clock and ours differ by less, and the jobs are read a moment before the nodes."""


REQUEUED = "requeued"
"""The phase of a move whose job has been ended here."""
_SAME_REQUEST_S = 1
"""Slurm tells the time of a requeue in whole seconds, by its own clock."""
_OUT_OF_SIGHT_S = 900.0
"""After a longer pause it is unknown whether a node that is down was up meanwhile."""


class Down(NamedTuple):
    """When a node was first and last seen down without a break, s since the epoch; ``back``: it
    was seen up since."""

    first_s: float
    last_s: float
    back: bool


class ReturnedNodes:
    """Remembers when each node was last seen down, over restarts of the controller too."""

    def __init__(self, store: Store, after_s: float) -> None:
        """``after_s``: how long a node that came back is not used yet."""
        self._store, self._after_s = store, after_s
        kept = store.policy_state(_KEPT_AS)
        self._down = {name: found for name, row in kept.items() if (found := _down(row))}

    def applied(self, nodes: Mapping[str, Node], now: float) -> dict[str, Node]:
        """The nodes; those that came back less than ``after_s`` ago still count as unusable."""
        down: dict[str, Down] = {}
        for name, node in nodes.items():
            before = self._down.get(name)
            if not node_keeps_its_jobs(node.state):
                down[name] = Down(_since(before, now), now, False)
            # A time ahead was noted before the clock was set back.
            elif before is not None and 0 <= now - before.last_s < self._after_s:
                down[name] = before._replace(back=True)
        self._down = down
        return {
            name: replace(node, usable=False) if name in down else node
            for name, node in nodes.items()
        }

    def later(
        self, jobs: Mapping[str, Job], now: float, preempted: Collection[str] = ()
    ) -> dict[str, Job]:
        """The jobs; those that a node may have requeued by going down just now get the time from
        which they may start.

        On which nodes a waiting job ran Slurm does not say, so any node that went down counts.
        ``preempted``: jobs that give way to others all the time.
        """
        newest = max((down.first_s for down in self._down.values()), default=-inf)
        requeued = [
            job
            for job in jobs.values()
            if job.restarts > 0
            and job.state is JobState.PENDING
            and now < job.submit_s + self._after_s
        ]
        late = {
            job.id: replace(job, not_before_s=job.submit_s + self._after_s)
            for job in requeued
            if job.submit_s <= newest + _SLACK_S or not (job.id in preempted or self._by_us(job))
        }
        return {**jobs, **late}

    def _by_us(self, job: Job) -> bool:
        """Whether the controller itself ended the job's last attempt, by a move."""
        last = self._store.last(job.id, "move")
        return last is not None and ended_by(last, job)

    def keep(self) -> None:
        """Write down what the next controller must know."""
        self._store.keep_policy_state(_KEPT_AS, {name: list(d) for name, d in self._down.items()})


def ended_by(move: Entry, job: Job) -> bool:
    """Whether this move ended the last attempt of a job that was requeued.

    Another user may have requeued it after it was looked at; to our own request, which changes
    nothing then, Slurm answers all the same.
    """
    sent_s = move.reached_s(REQUEUED)
    return (
        sent_s is not None
        and move.details.get("restarts") == job.restarts - 1
        and job.submit_s >= int(sent_s) - _SAME_REQUEST_S
    )


def _since(before: Down | None, now: float) -> float:
    """When a node that is down now went down, as far as was seen."""
    if before is None or before.back or not 0 <= now - before.last_s <= _OUT_OF_SIGHT_S:
        return now
    return before.first_s


def _down(row: object) -> Down | None:
    match row:
        case [int() | float() as first_s, int() | float() as last_s, bool() as back]:
            return Down(first_s, last_s, back)
    return None
