"""Whether Slurm would start a job in a partition as the partition is now.

Limits and lists of users that become tighter hold for jobs that wait, not for those that run: such
a job of ``sbatch`` runs to its end, and would not start again.
"""

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Partition

_WITH_CHILDREN, _MAYBE_WITH_CHILDREN = (24, 11), (22, 6)
"""Releases from which AllowAccounts and DenyAccounts name the accounts below too (24.11), and from
which they may (22.05.8 does not)."""


def why_closed(job: Job, partition: Partition, observation: Observation) -> str:
    """Why Slurm would not start the job there; empty where nothing is known. What the accounts
    above a job's allow or forbid, :func:`hangs_on_accounts_above` and the limits guard say."""
    name = partition.name
    if job.time_limit_s > partition.max_time_s:
        return f"its time limit is longer than MaxTime of partition {name}"
    if not partition.min_nodes <= job.node_count <= partition.max_nodes:
        return f"MinNodes or MaxNodes of partition {name} exclude its number of nodes"
    if limit := _over_size(job, partition):
        return f"it has more on a node than {limit} of partition {name}"
    return _why_shut_out(job, partition, observation)


def _over_size(job: Job, partition: Partition) -> str:
    """The partition's limit on the CPUs or memory of a node that the job is over; empty: none."""
    cpus = -(-job.cpus // max(1, job.node_count))
    memory_mb = max(job.mem_per_node_mb, cpus * job.mem_per_cpu_mb)
    if cpus > partition.max_cpus_per_node:
        return "MaxCPUsPerNode"
    if memory_mb > partition.max_mem_per_node_mb:
        return "MaxMemPerNode"
    return "MaxMemPerCPU" if memory_mb > cpus * partition.max_mem_per_cpu_mb else ""


def _why_shut_out(job: Job, partition: Partition, observation: Observation) -> str:
    """Why a partition takes no jobs of such an owner, however long or large they are."""
    name = partition.name
    qos, allowed = job.qos, partition.allow_qos
    if qos and (qos not in allowed if allowed else qos in partition.deny_qos):
        return f"partition {name} excludes its QOS {qos}"
    if _excludes_account(job, partition, observation):
        return f"partition {name} excludes its account {job.account or '(none)'}"
    if partition.reservation_required and not job.reservation:
        return f"partition {name} takes only jobs with a reservation (ReqResv)"
    if partition.root_only and job.uid:
        return f"partition {name} takes only jobs of root (RootOnly)"
    return _excludes_user(job, partition, observation)


def open_to(job: Job, names: tuple[str, ...], observation: Observation) -> tuple[str, ...]:
    """Those of these partitions that Slurm does not close to the job, as far as is known; also the
    one in which it runs. A job that waits may still get another time limit with each."""
    runs = job.state is JobState.RUNNING
    why, held = (why_closed, job.partitions) if runs else (_why_shut_out, ())
    known = observation.partitions
    return tuple(
        name
        for name in names
        if name in held or name not in known or not why(job, known[name], observation)
    )


def hangs_on_accounts_above(job: Job, partition: Partition, observation: Observation) -> bool:
    """Whether an account above the job's decides if the partition takes it."""
    version, own = observation.slurm_version[:2], _plain(job.account)
    if partition.allow_accounts:
        return version >= _WITH_CHILDREN and own not in map(_plain, partition.allow_accounts)
    denied = partition.deny_accounts
    return bool(denied) and version >= _MAYBE_WITH_CHILDREN and own not in map(_plain, denied)


def takes_account(account: str, above: tuple[str, ...], partition: Partition) -> bool:
    """Whether a partition takes jobs of an account that has these ``above`` it, where AllowAccounts
    and DenyAccounts name the accounts below too."""
    line = {_plain(one) for one in (account, *above)}
    if partition.allow_accounts:
        return not line.isdisjoint(map(_plain, partition.allow_accounts))
    return line.isdisjoint(map(_plain, partition.deny_accounts))


def _excludes_account(job: Job, partition: Partition, observation: Observation) -> bool:
    """Whether it surely does, whatever accounts are above that of the job."""
    if not partition.allow_accounts:
        return _plain(job.account) in map(_plain, partition.deny_accounts)
    has_children = observation.slurm_version[:2] >= _WITH_CHILDREN
    return not has_children and job.account not in partition.allow_accounts


def _excludes_user(job: Job, partition: Partition, observation: Observation) -> str:
    groups = partition.allow_groups
    # Slurm takes jobs of root everywhere.
    if not groups or not job.uid or any(observation.is_member(job.user, one) for one in groups):
        return ""
    names = ", ".join(groups)
    return f"partition {partition.name} takes only jobs of the groups {names} (AllowGroups)"


def _plain(account: str) -> str:
    """Slurm keeps accounts in lower case."""
    return account.lower()
