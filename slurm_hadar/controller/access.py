"""Where a job's owner may go.

An operator's update bypasses the site's limits, so a placement is checked here against what Slurm
itself would have checked at submission (``scontrol show partition``).
"""

import grp
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Partition


def allowed_partitions(
    job: Job,
    asked: Sequence[str],
    partitions: Mapping[str, Partition],
    steer: Sequence[str],
) -> list[Partition]:
    """Partitions that the job may run in: those its owner ``asked`` for, then those of the site.

    A partition that the owner named is Slurm's business and taken as allowed while it is up; any
    other must admit the job's account, QOS, group, time limit and node count.
    """
    named = [partitions[name] for name in asked if name in partitions]
    others = [partitions[name] for name in steer if name in partitions and name not in asked]
    return [p for p in named if p.up] + [p for p in others if refusal(job, p) is None]


def refusal(job: Job, partition: Partition) -> str | None:
    """Why the job's owner may not use a partition; None when he may."""
    if not partition.up:
        return f"partition {partition.name} is not up"
    if partition.root_only or partition.reservation_required:
        return f"partition {partition.name} is closed to ordinary jobs"
    if partition.allow_accounts and job.account not in partition.allow_accounts:
        return f"partition {partition.name} does not admit account {job.account or '(none)'}"
    if job.account and job.account in partition.deny_accounts:
        return f"partition {partition.name} denies account {job.account}"
    if partition.allow_qos and job.qos not in partition.allow_qos:
        return f"partition {partition.name} does not admit QOS {job.qos or '(none)'}"
    if job.qos and job.qos in partition.deny_qos:
        return f"partition {partition.name} denies QOS {job.qos}"
    if partition.allow_groups and not groups_of(job.uid) & set(partition.allow_groups):
        return f"partition {partition.name} does not admit the groups of {job.user}"
    if job.time_limit_s > partition.max_time_s:
        return f"the time limit is above that of partition {partition.name}"
    if not partition.min_nodes <= job.node_count <= partition.max_nodes:
        return f"the node count is outside the limits of partition {partition.name}"
    return None


@lru_cache(maxsize=4096)
def groups_of(uid: int) -> frozenset[str]:
    """Names of a user's groups; empty for a user that this machine does not know."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    member = {group.gr_name for group in grp.getgrall() if entry.pw_name in group.gr_mem}
    with suppress(KeyError):
        member.add(grp.getgrgid(entry.pw_gid).gr_name)
    return frozenset(member)
