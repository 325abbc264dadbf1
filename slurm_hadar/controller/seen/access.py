"""Where a job's owner may go.

An operator's update bypasses the site's limits, so a placement is checked here against what Slurm
itself would have checked at submission (``scontrol show partition``). Slurm 22.05.8 looks at it
once more before it starts a job, so that one which were placed wrongly would not run, but wait.
"""

import grp
import os
import pwd
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Partition

_GROUPS_KEPT_S = 300.0


def allowed_partitions(
    job: Job,
    asked: Sequence[str],
    partitions: Mapping[str, Partition],
    steer: Sequence[str],
) -> list[Partition]:
    """Partitions that the job may run in: those its owner ``asked`` for, then those of the site.

    A partition that the owner named is Slurm's business and taken as allowed while it is up; any
    other must admit the job's account, QOS, group, time limit and node count, and must not be of
    a higher tier, which would put the job ahead of those that wait.
    """
    named = [partitions[name] for name in asked if name in partitions]
    tier = max((p.priority_tier for p in named), default=1)
    others = [
        partitions[name]
        for name in steer
        if name in partitions and name not in asked and partitions[name].priority_tier <= tier
    ]
    return [p for p in named if p.up] + [p for p in others if refusal(job, p) is None]


def refusal(job: Job, partition: Partition) -> str | None:
    """Why the job's owner may not use a partition; None when he may."""
    if not partition.up:
        return f"partition {partition.name} is not up"
    if partition.root_only or partition.reservation_required:
        return f"partition {partition.name} is closed to ordinary jobs"
    if partition.exclusive:
        return f"partition {partition.name} gives whole nodes"
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
    if partition.submit_hosts:
        return f"partition {partition.name} takes jobs from certain hosts only"
    if (why := _too_large(job, partition)) is not None:
        return why
    if not partition.min_nodes <= job.node_count <= partition.max_nodes:
        return f"the node count is outside the limits of partition {partition.name}"
    return None


def _too_large(job: Job, partition: Partition) -> str | None:
    nodes = max(1, job.node_count)
    if -(-job.cpus // nodes) > partition.max_cpus_per_node:
        return f"it asks for more CPUs than partition {partition.name} gives on a node"
    on_node = job.mem_per_node_mb or job.mem_per_cpu_mb * -(-job.cpus // nodes)
    on_cpu = job.mem_per_cpu_mb or job.mem_per_node_mb * nodes / max(1, job.cpus)
    if on_node > partition.max_mem_per_node_mb or on_cpu > partition.max_mem_per_cpu_mb:
        return f"it asks for more memory than partition {partition.name} gives"
    return None


def groups_of(uid: int) -> frozenset[str]:
    """Names of a user's groups; empty for a user that this machine does not know.

    Looked up again every few minutes, since memberships change while the controller runs.
    """
    return _groups(uid, int(time.monotonic() // _GROUPS_KEPT_S))


@lru_cache(maxsize=4096)
def _groups(uid: int, _period: int) -> frozenset[str]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return frozenset()
    names = set()
    # Unlike grp.getgrall, this also finds groups of a directory that cannot be listed.
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        with suppress(KeyError):
            names.add(grp.getgrgid(gid).gr_name)
    return frozenset(names)
