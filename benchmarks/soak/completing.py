"""Jobs that were COMPLETING as slurmctld restarted: what was seen to cause a start without a GPU.

Slurm 22.05.8 brings such a job back before its select plugin is ready ("plugin still
initializing"), and the job that it starts next on the same node may get no GPU. Seen for four such
jobs in one run; the log lines of other releases were not looked at.
"""

import re
from collections.abc import Mapping

_BROUGHT_BACK = re.compile(r"_sync_nodes_to_comp_job: JobId=(\d+(?:_\d+)?)\S* in completing state")


def completing(log: str) -> list[str]:
    """Ids of the jobs that were, by slurmctld's log, once for each restart."""
    return _BROUGHT_BACK.findall(log)


def most_bare(log: str, nodes: Mapping[str, int]) -> int:
    """How many starts without a GPU that explains. ``nodes``: job -> most that it may run on."""
    return sum(nodes.get(job, 1) for job in completing(log))
