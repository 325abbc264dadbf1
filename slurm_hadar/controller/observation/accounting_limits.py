"""What the site's Slurm is set to, as far as it binds an operator's controller.

An operator's update goes past limits of the accounting database that Slurm holds its owner to, so
where there are such limits the controller leaves alone what they speak of: CPUs and memory, and
partitions with an association of their own.
"""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from types import MappingProxyType

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.sandbox_detection import is_sandbox, is_slurm_user
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.database import database_cure, database_message
from slurm_hadar.slurm.limits import AccountLimits, enforces_associations
from slurm_hadar.slurm.records import (
    USUAL_QUEUE_DEPTH,
    BillingRule,
    Preemption,
    billing_rule,
    preemption,
    queue_depth,
    requeue_delay_s,
)
from slurm_hadar.slurm.waiting_age import AgePriority, age_priority

_ASK_AGAIN_S = 600.0
_NO_LABELS = ("", "none", "(null)", "n/a")
_TOO_MUCH = "has more rights in Slurm than the controller needs"
_A_USER = "run it as a user of its own with AdminLevel=Operator, see hadar check"
NO_SANDBOX = (
    'site.rights = "sandbox" is for a Slurm that listens on this machine\'s loopback address alone '
    "and whose SlurmUser is who asks, as slurm.conf says"
)


class ForbiddenIdentity(HadarError):
    """This user may not be the controller: no later tick of that user changes that."""


def refuse_root(config: Config) -> None:
    """Raise ForbiddenIdentity where root or SlurmUser would control a site's Slurm.

    A throw-away Slurm of one's own is no site's. An operator's SlurmUser is refused when Slurm has
    said who that is, see :meth:`AccountingLimits.begin_tick`.
    """
    if config.site.rights == "operator":
        if os.geteuid() == 0:
            user = config.site.controller_user
            cure = f"run: sudo -u {user} hadar ..." if user not in ("", "root") else _A_USER
            raise ForbiddenIdentity(f"root {_TOO_MUCH}; {cure}")
    elif not is_sandbox(config):
        if config.site.rights == "sandbox":
            raise ForbiddenIdentity(NO_SANDBOX)
        if os.geteuid() == 0 or is_slurm_user(config):
            who = "root" if os.geteuid() == 0 else "SlurmUser"
            cure = f"{_A_USER}, or as the researcher whose jobs they are"
            raise ForbiddenIdentity(f"{who} {_TOO_MUCH}; {cure}")


FAULTS = "accounting_faults"
"""Under this name the store keeps what was reported of :attr:`AccountingLimits.faults`."""


class AccountingLimits:
    """The configuration is read at the beginning of every tick: what ``scontrol reconfigure`` hides
    (PrivateData), the next tick hides. Limits are read every ten minutes, and before a job may be
    requeued. Which scheduler Slurm has, what it hides, how long it delays a requeued job and which
    QOS preempt others count in every mode. All else binds a site's controller only: an owner's own
    updates are judged by Slurm, and a sandbox has no users to protect. Limits on minutes bind every
    requeue, so an owner's controller looks at them too when it means to move a job."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._asks = config.site.rights == "operator"
        self._sandbox = config.site.rights == "sandbox"
        self._until = self._limits_until = 0.0
        self._cluster_name = ""
        self._slurm_user: int | None = None
        self.ages = False
        """Whether jobs gain priority with age, as far as this controller may know and change it."""
        self.age = AgePriority()
        """What an update does to a waiting job's priority. In every mode."""
        self.in_order = False
        """Whether a job that waits for a type would keep all behind it waiting, as far as known."""
        self.billing_rule = BillingRule.SUM
        """How Slurm adds up what a job is billed for. In every mode."""
        self._preemption = Preemption()
        self.queue_depth = USUAL_QUEUE_DEPTH
        """How many jobs Slurm looks at in a scheduling pass. In every mode."""
        self._associations_are_hidden = True
        self.jobs_are_hidden = False
        """Whether Slurm shows a user no jobs of others (PrivateData)."""
        self.private: frozenset[str] = frozenset(("jobs", "nodes"))
        """What Slurm shows to none but operators, of ``jobs`` and ``nodes``; all of it while that
        is not known. In every mode."""
        self.takes_as_typed = False
        """Whether a job without a partition surely gets Slurm's default one: no plugin of a submit
        may choose another."""
        self.requeue_delay_s = inf
        """See :func:`slurm_hadar.slurm.times.requeue_delay_s`; inf while that is not known."""
        self._enforced = self._associated = self._checks_qos = False
        self.has_database = False
        """Whether accounts may have others above them."""
        self._limits: AccountLimits | None = None
        self._pause_s = 0.0
        """From the last failed reading of the limits to the next one; 0 where it did not fail."""
        self._fault = self._cure = ""

    def begin_tick(self, now: float) -> None:
        """Read the configuration anew. Raises ForbiddenIdentity where this process is SlurmUser,
        who may do all that root may, and SlurmError where the configuration cannot be read.
        """
        self._until = 0.0
        self.read(now)
        if self._slurm_user == os.geteuid():
            raise ForbiddenIdentity(f"SlurmUser {_TOO_MUCH}; {_A_USER}")

    def read(self, now: float) -> None:
        """Ask again where it is time. Raises SlurmError where the configuration cannot be read, but
        of a sandbox: nothing hangs on it there but the scheduler, which is the last one known."""
        try:
            self._read_config(now)
        except SlurmError:
            if not self._sandbox:
                raise
        if self._asks or self._preempts_by_qos:
            self._read_limits(now)

    def _read_config(self, now: float) -> None:
        if now < self._until:
            return
        settings = self._cluster.read_config()
        self.private = _private(settings)
        if self._asks:
            self._slurm_user = _slurm_user(settings)
            self.ages = settings.get("PriorityType", "") == "priority/multifactor"
            hidden = settings.get("PrivateData", "").lower().split(",")
            self.jobs_are_hidden = not {"jobs", "all"}.isdisjoint(hidden)
            self._associations_are_hidden = not {"accounts", "users", "all"}.isdisjoint(hidden)
        self.age = age_priority(settings)
        self.requeue_delay_s = requeue_delay_s(settings)
        self.billing_rule = billing_rule(settings)
        self.queue_depth = queue_depth(settings)
        self.in_order = settings.get("SchedulerType", "") == "sched/builtin"
        self._preemption = preemption(settings)
        names = (settings.get(key, "") for key in ("JobSubmitPlugins", "CliFilterPlugins"))
        self.takes_as_typed = all(name in ("", "(null)") for name in names)
        said = settings.get("AccountingStorageEnforce", "").lower()
        self.has_database = settings.get("AccountingStorageType", "").endswith("slurmdbd")
        self._enforced = any(word in said for word in ("limits", "safe", "all"))
        self._associated = enforces_associations(said)
        self._checks_qos = not {"qos", "all"}.isdisjoint(said.split(","))
        self._cluster_name = settings.get("ClusterName", "")
        self._until = now + _ASK_AGAIN_S

    def _read_limits(self, now: float) -> None:
        if now < self._limits_until or not (self._associated or self._preempts_by_qos):
            return
        self._limits_until = now + _ASK_AGAIN_S
        try:
            self._limits = self._cluster.read_limits(self._cluster_name)
        except SlurmError as error:
            # slurmdbd may be away for long, and each try may take half a minute of a tick; what was
            # known of it holds on.
            self._pause_s = min(_ASK_AGAIN_S, 2 * self._pause_s or _ASK_AGAIN_S / 10)
            self._limits_until = now + self._pause_s
            self._fault = database_message(error)
            self._cure = database_cure(error)
        else:
            self._pause_s, self._fault = 0.0, ""

    @property
    def faults(self) -> dict[str, str]:
        """What is wrong with the accounting database, and what follows; empty where nothing is."""
        return {"database": f"{self._fault}: {self._kept()}"} if self._fault else {}

    def _kept(self) -> str:
        if self._limits is not None:
            return "the limits that it gave before hold on"
        return (
            "until it gives its limits no running job is moved where limits are enforced, and each "
            "job keeps the CPUs, memory and nodes of its request"
        )

    def news(self, known: Mapping[str, object]) -> list[str]:
        """A sentence when the accounting database stops to answer, and one when it does again.
        ``known``: :attr:`faults` as they were reported last."""
        was = bool(known)
        if was == bool(self._fault):
            return []
        if was:
            return ["limits of the accounting database are read again"]
        return [f"{self._fault}: {self._kept()}; {self._cure}"]

    @property
    def _preempts_by_qos(self) -> bool:
        """Whether Slurm asks the database which jobs preempt others: in every mode, and where no
        limit is enforced too."""
        return self.has_database and self._preemption.whose == "all"

    @property
    def preemption(self) -> Preemption:
        """Whose running jobs Slurm ends for others, and when, as far as known."""
        rule, known = self._preemption, self._limits
        if known is None:
            return replace(rule, cancels=True) if self._preempts_by_qos else rule
        usual = "CANCEL" if rule.cancels else ""
        modes = known.preempt_modes
        giving_way = modes if rule.within else known.giving_way
        cancels = (name for name in giving_way if "CANCEL" in (modes.get(name, "") or usual))
        return replace(rule, exempts_qos=known.exempts, cancels_qos=frozenset(cancels))

    @property
    def keeps_ages(self) -> bool:
        """Whether a job whose age an update of its partitions takes can keep its place meanwhile by
        its Nice, and surely gets the age back."""
        limited = self._limits is None or self._limits.aging
        return self.ages and self.age.is_forgotten and not limited

    def enforced_limits(self, now: float) -> AccountLimits | None:
        """The limits, where Slurm holds jobs to any; None: it holds them to none.

        Raises SlurmError where that cannot be known.
        """
        if self._sandbox:
            return None
        self._read_config(now)
        if not self._enforced:
            return None
        self._read_limits(now)
        if self._limits is None:
            raise SlurmError("the accounting database does not answer", retry=True)
        return self._limits

    def renew(self, now: float) -> None:
        """Read the limits again where an owner's QOS may have gone since: before a job is requeued.
        Where the last reading failed, the next one waits for its time."""
        if self._checks_qos and not self._pause_s and self._limits_until < now + _ASK_AGAIN_S:
            self._limits_until = now
            self._read_limits(now)

    def may_use_its_qos(self, job: Job) -> bool:
        """Whether the owner may use the job's QOS still, as far as is known."""
        if not self._checks_qos or self._limits is None:
            return True
        names = self._limits.qos_of.get((job.account, job.user))
        return not job.qos or names is None or job.qos in names

    def applied(
        self,
        jobs: Mapping[str, Job],
        partitions: Mapping[str, Partition],
        steering: Mapping[str, Steering] = MappingProxyType({}),
    ) -> dict[str, Job]:
        """The jobs; those under a limit on CPUs or memory keep the CPUs, memory and nodes that they
        asked for. Where the limits are not known that is every job. ``steering``: tells in which
        partitions a job was submitted; members of a partition's group have its QOS."""
        if not (self._associated and self._asks):
            return dict(jobs)
        found = {id_: self._with_own_partitions(job, partitions) for id_, job in jobs.items()}
        if not self._enforced:
            return found
        return {
            id_: self._bound(job, partitions, steering.get(id_, Steering()))
            for id_, job in found.items()
        }

    def users_bound_to(self, partitions: Collection[str]) -> frozenset[str] | None:
        """The users with an association for one of these partitions; None: any may have one, as
        that is not known or Slurm hides it."""
        if not (self._associated and self._asks):
            return frozenset()
        if self._limits is None:
            return None
        found = frozenset(
            user
            for (_, user), names in self._limits.partitions.items()
            if not names.isdisjoint(partitions)
        )
        return None if found and self._associations_are_hidden else found

    def _with_own_partitions(self, job: Job, partitions: Mapping[str, Partition]) -> Job:
        """Where the associations are not known any partition may have one."""
        if job.declaration is None:
            return job
        if self._limits is None:
            return replace(job, own_partitions=frozenset(partitions))
        own = self._limits.partitions.get((job.account, job.user))
        return replace(job, own_partitions=own) if own else job

    def _bound(self, job: Job, partitions: Mapping[str, Partition], steered: Steering) -> Job:
        declared = job.declaration
        if declared is None:
            return job
        own = steered.was.get("Partition", "").split(",")
        # Also those that are down for a while: a job keeps its copies through that.
        reached = (partitions[name] for name in (*job.partitions, *own) if name in partitions)
        known = self._limits
        if known is not None and not known.bind(
            job.user, job.account, job.qos, *(partition.qos for partition in reached)
        ):
            return job
        kept = replace(declared, cpus=None, mem=None, fork=(1, 1), nodes=None)
        return replace(job, declaration=kept)


def _private(settings: Mapping[str, str]) -> frozenset[str]:
    said = set(settings.get("PrivateData", "").lower().split(","))
    # Labels may hide jobs too (MCSParameters=privatedata).
    labelled = settings.get("MCSPlugin", "").lower().removeprefix("mcs/") not in _NO_LABELS
    found = {one for one in ("jobs", "nodes") if not said.isdisjoint((one, "all"))}
    return frozenset(found | ({"jobs"} if labelled else set()))


def _slurm_user(settings: Mapping[str, str]) -> int | None:
    """UID in ``slurm(64030)``."""
    match = re.search(r"\((\d{1,10})\)$", settings.get("SlurmUser", ""))
    return int(match[1]) if match else None
