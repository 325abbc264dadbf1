"""What slurmctld's log explains: faults of Slurm itself that jobs of a soak suffer.

What was seen to cause a start without a GPU: jobs that were COMPLETING as slurmctld restarted,
and steps that ended when their job was pending again.

Slurm 22.05.8 brings such a job back before its select plugin is ready ("plugin still
initializing"), and the job that it starts next on the same node may get no GPU. Seen for four such
jobs in one run; the log lines of other releases were not looked at.

A step may outlive the requeue of its job: on a silent node, or when its process was stopped. When
it ends, slurmctld logs ``step_partial_comp: JobId=231141 pending``, and at the end of the job's
next start ``gres/gpu: job 231141 dealloc of node p2 bad node_offset 0 count is 0``. Seen for two of
five such steps in one run of 22.05.8: the next start of the same job had no GPU.

And what was seen to end a job as FAILED as it started: a node comes back with a step of a job that
waits again, and slurmctld starts the job there in the second in which it has that step killed.
slurmd takes the new credential for the revoked one.
"""

import re
from collections.abc import Mapping
from datetime import datetime

_BROUGHT_BACK = re.compile(r"_sync_nodes_to_comp_job: JobId=(\d+(?:_\d+)?)\S* in completing state")

_LATE_STEP = re.compile(r"step_partial_comp: JobId=(\d+(?:_\d+)?)\S* pending")


_BACK_WITH_A_STEP = re.compile(
    r"^\[(\S+)\] error: Registered PENDING JobId=(\d+(?:_\d+)?)(?:\((\d+)\))? StepId=", re.M
)
_REVOKED = re.compile(
    r"^\[(\S+)\] Killing non-startable batch JobId=(\d+): Job credential revoked", re.M
)
_SOON_S = 2.0
"""slurmd keeps seconds; the log has the time at which the refusal came back."""


def completing(log: str) -> list[str]:
    """Ids of the jobs that were, by slurmctld's log, once for each restart."""
    return _BROUGHT_BACK.findall(log)


def late_steps(log: str) -> list[str]:
    """Ids of the jobs of which a step ended when they were pending, once for each step."""
    return _LATE_STEP.findall(log)


def most_bare(log: str, nodes: Mapping[str, int]) -> int:
    """How many starts without a GPU that explains. ``nodes``: job -> most that it may run on."""
    return sum(nodes.get(job, 1) for job in completing(log)) + len(late_steps(log))


def revoked(log: str) -> set[str]:
    """Ids of the jobs that slurmctld ended as they started on a node that had come back with their
    old step at that moment. One that failed so without such a step is not among them: that would be
    a start in the second of a requeue, which a controller must not ask for."""
    ended = [(_at(when), number) for when, number in _REVOKED.findall(log)]
    return {
        job
        for back, job, number in _BACK_WITH_A_STEP.findall(log)
        if any(one == (number or job) and 0 <= at - _at(back) <= _SOON_S for at, one in ended)
    }


def _at(printed: str) -> float:
    return datetime.fromisoformat(printed).timestamp()
