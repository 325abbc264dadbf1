"""What was seen to cause a start without a GPU: jobs that were COMPLETING as slurmctld restarted,
and steps that ended when their job was pending again.

Slurm 22.05.8 brings such a job back before its select plugin is ready ("plugin still
initializing"), and the job that it starts next on the same node may get no GPU. Seen for four such
jobs in one run; the log lines of other releases were not looked at.

A step may outlive the requeue of its job: on a silent node, or when its process was stopped. When
it ends, slurmctld logs ``step_partial_comp: JobId=231141 pending``, and at the end of the job's
next start ``gres/gpu: job 231141 dealloc of node p2 bad node_offset 0 count is 0``. Seen for two of
five such steps in one run of 22.05.8: the next start of the same job had no GPU.
"""

import re
from collections.abc import Mapping

_BROUGHT_BACK = re.compile(r"_sync_nodes_to_comp_job: JobId=(\d+(?:_\d+)?)\S* in completing state")

_LATE_STEP = re.compile(r"step_partial_comp: JobId=(\d+(?:_\d+)?)\S* pending")


def completing(log: str) -> list[str]:
    """Ids of the jobs that were, by slurmctld's log, once for each restart."""
    return _BROUGHT_BACK.findall(log)


def late_steps(log: str) -> list[str]:
    """Ids of the jobs of which a step ended when they were pending, once for each step."""
    return _LATE_STEP.findall(log)


def most_bare(log: str, nodes: Mapping[str, int]) -> int:
    """How many starts without a GPU that explains. ``nodes``: job -> most that it may run on."""
    return sum(nodes.get(job, 1) for job in completing(log)) + len(late_steps(log))
