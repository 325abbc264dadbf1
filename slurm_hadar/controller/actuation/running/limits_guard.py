"""Whether a job that would be requeued fits into the limits of the accounting database once more.

A running job passed them once. They may have become tighter since, which ends no job and holds for
its next start: a requeued job that is longer or larger than they allow now would wait forever
(:mod:`slurm_hadar.slurm.size_limits`). An account above its own may have been shut out of its
partition, or its owner of its QOS, too.

And there are limits on minutes, which it used up itself. Slurm starts a job only where what is
used, what running jobs may still use and its own time limit stay within GrpTRESMins
(``AccountingStorageEnforce=safe``), GrpTRESRunMins and GrpWall. Requeued it must pass that again
with its whole time limit, while what it has used stays used: in a tight budget it would wait
forever, although it would have run to its end.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action
from slurm_hadar.controller.actuation.running.resources_after import (
    Amounts,
    amount_after,
    amount_of_a_node,
    partitions_after,
)
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.partition_access import (
    hangs_on_accounts_above,
    takes_account,
)
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Partition
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.minutes import GRP_WALL, MINS, MinuteLimit, Minutes
from slurm_hadar.slurm.minutes import WALL as OF_TIME
from slurm_hadar.slurm.size_limits import LEAST, MINUTES, NODE, OF_ALL, WALL, SizeLimit

_NOT_AGAIN = "Slurm would not start it again"
_LATE_S = 60.0
"""A requeue may come so much later than ``moving.ack_wait_s`` says."""
_FLUSHED_S = 900.0
"""Wall time of running jobs is counted at least this often: three times Slurm's default."""
_ROUNDING = 2.0
"""Slurm shows whole minutes, used ones and running ones apart, both rounded down."""
_SOON_S = 600.0
"""A waiting job whose begin time is no farther off may start while ours is requeued."""


@dataclass
class LimitsGuard:
    """For one tick. Slurm is asked when the first job is about to be requeued, once.

    ``moving``: jobs in the middle of a move, which need what they have used as well.
    """

    cluster: Cluster
    rules: AccountingLimits
    observation: Observation
    config: Config
    moving: Collection[str] = ()
    _known: "_Known | None" = field(default=None, init=False)
    _asked: bool = field(default=False, init=False)
    _fault: str = field(default="", init=False)

    def refused(self, actions: Sequence[Action]) -> dict[str, str]:
        """Those of these moves and stops that may not be sent, together with all others of them,
        with the reason; by job."""
        if actions and not self._asked:
            self._asked = True
            self.rules.renew(self.observation.now)
            try:
                self._known = self._ask(actions)
            except SlurmError as error:
                return self._failed(actions, error)
        if self._fault:
            return {action.job.id: self._fault for action in actions}
        found = {
            action.job.id: f"{_NOT_AGAIN}: its user may not use QOS {action.job.qos} any more"
            for action in actions
            if not self.rules.may_use_its_qos(action.job)
        }
        left = [action for action in actions if action.job.id not in found]
        try:
            return found | (self._known.refused(left, self.moving) if self._known and left else {})
        except SlurmError as error:
            return self._failed(actions, error)

    def _failed(self, actions: Sequence[Action], error: SlurmError) -> dict[str, str]:
        self._fault = f"Slurm's limits cannot be read: {error}"
        return {action.job.id: self._fault for action in actions}

    def _ask(self, actions: Sequence[Action]) -> "_Known | None":
        seen = self.observation
        limits = self.rules.enforced_limits(seen.now)
        if limits is None and not any(
            hangs_on_accounts_above(action.job, partition, seen)
            for action in actions
            for partition in _partitions(action, seen)
        ):
            return None
        users = {action.job.user for action in actions}
        users |= {job.user for id_, job in self.observation.jobs.items() if id_ in self.moving}
        minutes = self.cluster.read_minutes(users)
        accounts = _Accounts(minutes, self.rules.has_database)
        late_s = self.config.moving.ack_wait_s + _LATE_S
        return _Known(seen, limits, accounts, self.cluster.read_use, late_s)


@dataclass(frozen=True)
class _Accounts:
    """What the association manager shows. ``there``: whether there is an accounting database."""

    minutes: Minutes
    there: bool

    def why_shut_out(self, job: Job, partition: Partition) -> str:
        """Why an account above the job's keeps it out of a partition; empty where none does."""
        line = tuple(self.minutes.above(job.account))
        name = partition.name
        if self.there and not all(one in self.minutes.accounts for one in line):
            return f"Slurm does not show whether partition {name} takes account {job.account}"
        if takes_account(job.account, line, partition):
            return ""
        return f"{_NOT_AGAIN}: partition {name} excludes its account {line[0]}"


class _Known:
    """What Slurm says of limits and of what jobs have. ``limits``: None where none is enforced;
    ``late_s``: how much later than now a job may be requeued."""

    def __init__(
        self,
        observation: Observation,
        limits: AccountLimits | None,
        accounts: _Accounts,
        read_use: Callable[[], Mapping[int, Amounts]],
        late_s: float,
    ) -> None:
        self._seen, self._enforced = observation, limits is not None
        self._limits, self._accounts = limits or AccountLimits(), accounts
        self._minutes, self._late_s = accounts.minutes, late_s
        self._read_use = read_use
        self._waiting: dict[MinuteLimit, float] | None = None
        self._of_each: dict[tuple[str, str, str], Amounts] = {}
        self._uncounted: dict[MinuteLimit, float] = {}

    @cached_property
    def _use(self) -> Mapping[int, Amounts]:
        """What jobs have; of most jobs no limit asks for it."""
        return self._read_use()

    def refused(self, actions: Sequence[Action], moving: Collection[str]) -> dict[str, str]:
        """See :meth:`LimitsGuard.refused`."""
        found = {
            action.job.id: why
            for action in actions
            for partition in _partitions(action, self._seen)
            if hangs_on_accounts_above(action.job, partition, self._seen)
            and (why := self._accounts.why_shut_out(action.job, partition))
        }
        if not self._enforced:
            return found
        left = [action for action in actions if action.job.id not in found]
        found |= self._too_large(left)
        left = [action for action in left if action.job.id not in found]
        return found | self._out_of_minutes(left, moving)

    def _too_large(self, actions: Sequence[Action]) -> dict[str, str]:
        """Those that a limit on the size, the length or the number of jobs would keep waiting."""
        found = {}
        taken: dict[tuple[str, str, str], float] = {}
        for action in actions:
            job, grows = action.job, dict[tuple[str, str, str], float]()
            here = {one for p in job.partitions for one in self._sizes(job, p)}
            sizes = [one for p in self._both(action) for one in self._sizes(job, p)]
            for limit in dict.fromkeys(sizes):
                place = (limit.owner, limit.name, limit.tres)
                why, grows[place] = self._over(limit, action, limit in here, taken.get(place, 0.0))
                if why:
                    found[job.id] = why
                    break
            else:
                for place, more in grows.items():
                    taken[place] = taken.get(place, 0.0) + max(0.0, more)
        return found

    def _over(
        self, limit: SizeLimit, action: Action, counted: bool, taken: float
    ) -> tuple[str, float]:
        """Why the requeued job would wait for a limit, and by how much it adds to what counts for
        it. ``counted``: whether the job itself does; ``taken``: what other moves add."""
        job, minutes = action.job, action.job.time_limit_s / 60
        why = f"{_NOT_AGAIN}: it is over {limit}"
        if limit.name == WALL:
            return (why if minutes > limit.limit else ""), 0.0
        if not limit.tres:
            more = 0.0 if counted else 1.0
            return (why if limit.used + more + taken > limit.limit else ""), more
        has = self._use.get(job.raw_id)
        if has is None:
            return "Slurm does not show what it has", 0.0
        then = amount_after(limit.tres, action, has, self._seen)
        if limit.name == LEAST:
            return (why if then < limit.limit else ""), 0.0
        if not then:
            # Slurm looks at what a job asks for only.
            return "", 0.0
        if limit.name in OF_ALL or limit.name.removesuffix("PU").removesuffix("PA") in OF_ALL:
            more = then - (has.get(limit.tres, 0.0) if counted else 0.0)
            return (why if limit.used + more + taken > limit.limit else ""), more
        if limit.name == NODE:
            then = amount_of_a_node(limit.tres, action, then)
        if limit.name == MINUTES:
            then *= minutes
        return (why if then > limit.limit else ""), 0.0

    def _sizes(self, job: Job, name: str) -> Sequence[SizeLimit]:
        """Those that bind it in a partition."""
        known = self._seen.partitions
        of_partition = known[name].qos if name in known else ""
        qos = [one for one in (of_partition, job.qos) if one]
        if job.qos in self._limits.over_partitions:
            qos.reverse()
        accounts = tuple(self._minutes.above(job.account))
        return self._minutes.sizes.binding((job.user, job.uid), accounts, qos)

    def _out_of_minutes(self, actions: Sequence[Action], moving: Collection[str]) -> dict[str, str]:
        """Those that limits on minutes would keep waiting, or others that wait under them."""
        taken: dict[MinuteLimit, float] = {}
        for id_ in moving:
            job = self._seen.jobs.get(id_)
            if job is not None and job.state is JobState.RUNNING:
                binding = self._binding(job, job.partitions)
                own = self._use.get(job.raw_id, {}) if binding else {}
                for limit in binding:
                    taken[limit] = taken.get(limit, 0.0) + self._more(limit, job, own, own)
        found = {}
        for action in actions:
            job = action.job
            both = self._both(action)
            why, needs = self._why_not(job, both), dict[MinuteLimit, float]()
            binding = [] if why else self._binding(job, both)
            has = self._use.get(job.raw_id) if binding else {}
            if has is None:
                found[job.id] = "Slurm does not show what it has"
                continue
            here = self._binding(job, job.partitions) if binding else []
            for limit in binding:
                then = {limit.tres: amount_after(limit.tres, action, has, self._seen)}
                # Of a QOS of a partition that it would come to it holds nothing yet.
                needs[limit] = self._more(limit, job, has if limit in here else {}, then)
                left = limit.limit - limit.taken - _ROUNDING - taken.get(limit, 0.0)
                if needs[limit] <= 0:
                    continue
                if needs[limit] > left:
                    why = f"requeued it would not fit into {limit} with its whole time limit"
                elif needs[limit] > left - self._wanted(limit):
                    why = f"jobs that wait may take what {limit} leaves while it is requeued"
            if why:
                found[job.id] = why
                continue
            for limit, more in needs.items():
                taken[limit] = taken.get(limit, 0.0) + more
        return found

    def _why_not(self, job: Job, partitions: Sequence[str]) -> str:
        qos = self._qos(job, partitions)
        if not self._minutes.known(job.user, job.account, *qos):
            return "Slurm does not show all limits that bind it"
        return ""

    def _both(self, action: Action) -> tuple[str, ...]:
        """The partitions in which it is now and those in which it may be then."""
        return (*action.job.partitions, *partitions_after(action))

    def _qos(self, job: Job, partitions: Sequence[str]) -> tuple[str, ...]:
        own = (self._seen.partitions[p].qos for p in partitions if p in self._seen.partitions)
        return tuple(name for name in dict.fromkeys((job.qos, *own)) if name)

    def _binding(self, job: Job, partitions: Sequence[str]) -> list[MinuteLimit]:
        qos = self._qos(job, partitions)
        found = self._minutes.binding(job.user, job.account, *qos)
        for name in qos:
            for slurms, limits, whose in (
                ("MaxTRESRunMinsPU", self._limits.per_user, job.user),
                ("MaxTRESRunMinsPA", self._limits.per_account, job.account),
            ):
                for tres, most in limits.get(name, {}).items():
                    running = self._running(name, slurms, whose).get(tres, 0.0)
                    owner = f"QOS {name}"
                    found.append(MinuteLimit(owner, slurms, tres, most, running, whose))
        return found

    def _running(self, qos: str, slurms: str, whose: str) -> Amounts:
        """Minutes of each resource that running jobs of a user or an account in a QOS may still
        use, at most: Slurm counts what they have used later. 22.05 does not show it."""
        key = (qos, slurms, whose)
        if key not in self._of_each:
            found: dict[str, float] = {}
            for job in self._seen.jobs.values():
                who = job.user if slurms.endswith("U") else job.account
                if job.state is not JobState.RUNNING or who != whose:
                    continue
                if qos in self._qos(job, job.partitions):
                    ran_s = max(0.0, self._seen.now - job.start_s - _FLUSHED_S)
                    minutes = self._factor(job) * max(0.0, job.time_limit_s - ran_s) / 60
                    for tres, number in self._use.get(job.raw_id, {}).items():
                        found[tres] = found.get(tres, 0.0) + minutes * number
            self._of_each[key] = found
        return self._of_each[key]

    def _more(self, limit: MinuteLimit, job: Job, has: Amounts, wants: Amounts) -> float:
        """Minutes that the requeued job needs beyond what it still holds."""
        if limit.tres != OF_TIME and not wants.get(limit.tres):
            # Slurm looks at what a job asks for only.
            return 0.0
        ran_s = max(0.0, self._seen.now - job.start_s)
        if limit.name == MINS:
            # What it runs until then stays used; running minutes become fewer at the same time.
            ran_s += self._late_s
        factor = self._factor(job)
        if limit.name == GRP_WALL:
            return max(1.0, factor) * (job.time_limit_s + self._uncounted_s(limit)) / 60
        left_s = max(0.0, job.time_limit_s - ran_s)
        if left_s == inf:
            return inf
        need = max(1.0, factor) * job.time_limit_s * wants[limit.tres]
        return (need - factor * left_s * has.get(limit.tres, 0.0)) / 60

    def _factor(self, job: Job) -> float:
        return self._limits.factors.get(job.qos, 1.0)

    def _uncounted_s(self, limit: MinuteLimit) -> float:
        """Wall time of running jobs that is not counted yet, or will run up until a requeue."""
        if limit not in self._uncounted:
            self._uncounted[limit] = sum(
                min(max(0.0, self._seen.now - job.start_s), _FLUSHED_S) + self._late_s
                for job in self._seen.jobs.values()
                if job.state is JobState.RUNNING and limit in self._binding(job, job.partitions)
            )
        return self._uncounted[limit]

    def _wanted(self, limit: MinuteLimit) -> float:
        """Minutes of all jobs under the limit that wait and may start."""
        if self._waiting is None:
            self._waiting = {}
            for job in self._seen.jobs.values():
                if not self._may_start(job):
                    continue
                for one in self._binding(job, job.partitions):
                    asks = self._asks(one.tres, self._use.get(job.raw_id, {}))
                    if asks:
                        minutes = max(1.0, self._factor(job)) * job.time_limit_s * asks / 60
                        self._waiting[one] = self._waiting.get(one, 0.0) + minutes
        return self._waiting.get(limit, 0.0)

    def _may_start(self, job: Job) -> bool:
        soon = job.may_start_at(self._seen.now + _SOON_S)
        return soon and not job.reason.startswith("Dependency")

    def _asks(self, tres: str, use: Amounts) -> float:
        """What a waiting job may have of a resource; it may get any type of GPU."""
        if tres == OF_TIME:
            return 1.0
        return use.get(tres, use.get("gres/gpu", 0.0) if tres.startswith("gres/gpu:") else 0.0)


def _partitions(action: Action, seen: Observation) -> list[Partition]:
    """Those in which it is now and those in which it may be then."""
    names = dict.fromkeys((*action.job.partitions, *partitions_after(action)))
    return [seen.partitions[name] for name in names if name in seen.partitions]
