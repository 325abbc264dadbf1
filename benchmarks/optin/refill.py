"""How long a freed GPU waits for the next job, where a job waits for one GPU such as this.

Slurm starts no job at the end of another: its main scheduler looks through the queue
``batch_sched_delay`` (3 s) after it last did, at an end, a submission or an update. So most of that
time says how close together the events of a run are. What the requests of waiting jobs decide is
whether that pass gives the GPU to one of them, or leaves it to later ones and to backfill.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.optin.overtaking import CYCLE_S, FREED_S, SETTLE_S, before, on_nodes, place, usable
from benchmarks.optin.records import RunRecord

_PASS_S = 0.5
"""Slurm's pass through this queue takes less, on a busy machine too."""


@dataclass(frozen=True, slots=True)
class Refill:
    """A GPU of ``node`` was free for ``seconds``, then a job started there that had waited for it
    all the time. ``managed``: whether that one was; ``beyond_s``: from Slurm's first pass through
    its queue that found the GPU free to that start, s, 0 where backfill was sooner. ``closed_by``:
    of one that the pass left free, the first job ahead that waited on in a partition of that node
    (Slurm's main scheduler then starts no later job there); empty where none is seen."""

    node: str
    seconds: float
    managed: bool
    beyond_s: float = 0.0
    closed_by: str = ""

    @property
    def left_free(self) -> bool:
        """Whether that pass gave the GPU to no job."""
        return self.beyond_s > _PASS_S


def refills(run: RunRecord) -> list[Refill]:
    """Of each end of a job: the next start on its node, where the job that starts waited as the
    GPU was freed. Left out are ends that no job waited for, and starts of jobs on two GPUs."""
    jobs = run.by_name()
    starts = sorted((one.start_s, one.node, job.name) for job in run.jobs for one in job.attempts)
    taken: set[tuple[float, str, str]] = set()
    found = []
    ends = sorted((one.end_s, one.node, job.name) for job in run.jobs for one in job.attempts)
    for end_s, node, _ in ends:
        look = before(run.looks, end_s)
        if look is None:
            continue
        waiting = {
            row.name
            for row in look.waiting
            if max(row.eligible_s, jobs[row.name].submit_s) <= end_s - SETTLE_S
            and jobs[row.name].gpus == 1
            and usable(run, jobs[row.name], node)
        }
        following = (one for one in starts if one[1] == node and one[0] >= end_s)
        start = next((one for one in following if one not in taken), None)
        if start is not None and start[2] in waiting:
            taken.add(start)
            pass_s = min(start[0], _next_pass(run.passes, end_s + FREED_S))
            one = Refill(node, start[0] - end_s, jobs[start[2]].managed, start[0] - pass_s)
            if one.left_free:
                one = replace(one, closed_by=_closed_by(run, node, pass_s, start[2]))
            found.append(one)
    return found


def _closed_by(run: RunRecord, node: str, pass_s: float, next_job: str) -> str:
    """See Refill. ``next_job``: which got the GPU then."""
    look, jobs = before(run.looks, pass_s), run.by_name()
    if look is None:
        return ""
    mine = next((place(row) for row in look.waiting if row.name == next_job), None)
    for row in sorted(look.waiting, key=place):
        if mine is not None and place(row) >= mine:
            break
        begins = [one.start_s for one in jobs[row.name].attempts if one.start_s > pass_s]
        waits_on = min(begins, default=math.inf) > pass_s + CYCLE_S
        if waits_on and row.name != next_job and node in on_nodes(run, row.partitions):
            return row.name
    return ""


def _next_pass(passes: Sequence[float], at_s: float) -> float:
    return next((one for one in passes if one >= at_s), math.inf)
