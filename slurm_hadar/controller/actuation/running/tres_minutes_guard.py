"""Whether a job that would be requeued fits into Slurm's limits on minutes once more.

Slurm starts a job only where what is used, what running jobs may still use and its own time limit
stay within GrpTRESMins (``AccountingStorageEnforce=safe``), GrpTRESRunMins and GrpWall. A running
job passed that once. Requeued it must pass it again with its whole time limit, while what it has
used stays used: in a tight budget it would wait forever, although it would have run to its end.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.bills import weights
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.minutes import GRP_WALL, MINS, WALL, MinuteLimit, Minutes

_LATE_S = 60.0
"""A requeue may come so much later than ``moving.ack_wait_s`` says."""
_FLUSHED_S = 900.0
"""Wall time of running jobs is counted at least this often: three times Slurm's default."""
_ROUNDING = 2.0
"""Slurm shows whole minutes, used ones and running ones apart, both rounded down."""
_SOON_S = 600.0
"""A waiting job whose begin time is no farther off may start while ours is requeued."""
_CPUS = frozenset({"CPUsPerTask", "MinCPUsNode", "MinMemoryNode", "MinMemoryCPU"})
_SIZE = _CPUS | {"TresPerNode", "TresPerJob", "NumNodes", "NumTasks", "NumCPUs"}
"""Fields of an update after which a job has other resources than before."""

Amounts = Mapping[str, float]
"""Resource -> amount, memory in MB."""


@dataclass
class TresMinutesGuard:
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
            try:
                self._known = self._ask(actions)
            except SlurmError as error:
                self._fault = f"Slurm's limits on minutes cannot be read: {error}"
        if self._fault:
            return {action.job.id: self._fault for action in actions}
        return self._known.refused(actions, self.moving) if self._known and actions else {}

    def _ask(self, actions: Sequence[Action]) -> "_Known | None":
        limits = self.rules.minute_limits(self.observation.now)
        if limits is None:
            return None
        users = {action.job.user for action in actions}
        users |= {job.user for id_, job in self.observation.jobs.items() if id_ in self.moving}
        minutes = self.cluster.read_minutes(users)
        late_s = self.config.moving.ack_wait_s + _LATE_S
        return _Known(self.observation, limits, minutes, self.cluster.read_use(), late_s)


class _Known:
    """What Slurm says of limits and of what jobs have. ``late_s``: how much later than now a job
    may be requeued."""

    def __init__(
        self,
        observation: Observation,
        limits: AccountLimits,
        minutes: Minutes,
        use: Mapping[int, Amounts],
        late_s: float,
    ) -> None:
        self._seen, self._limits, self._minutes = observation, limits, minutes
        self._use, self._late_s = use, late_s
        self._waiting: dict[MinuteLimit, float] | None = None
        self._of_each: dict[tuple[str, str, str], Amounts] = {}
        self._uncounted: dict[MinuteLimit, float] = {}

    def refused(self, actions: Sequence[Action], moving: Collection[str]) -> dict[str, str]:
        """See :meth:`TresMinutesGuard.refused`."""
        taken: dict[MinuteLimit, float] = {}
        for id_ in moving:
            job = self._seen.jobs.get(id_)
            if job is not None and job.state is JobState.RUNNING:
                own = self._use.get(job.raw_id, {})
                for limit in self._binding(job, job.partitions):
                    taken[limit] = taken.get(limit, 0.0) + self._more(limit, job, own, own)
        found = {}
        for action in actions:
            job, partitions = action.job, self._partitions(action)
            both = (*job.partitions, *partitions)
            has = self._use.get(job.raw_id)
            why, needs = self._why_not(job, both), dict[MinuteLimit, float]()
            if has is None:
                found[job.id] = why or "Slurm does not show what it has"
                continue
            here = self._binding(job, job.partitions)
            for limit in [] if why else self._binding(job, both):
                then = {limit.tres: self._then(limit.tres, action, has)}
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
            return "Slurm does not show all limits on minutes that bind it"
        return ""

    def _partitions(self, action: Action) -> tuple[str, ...]:
        """Of the job when it is requeued."""
        asked = action.fields.get("Partition", "")
        return tuple(asked.split(",")) if asked else action.job.partitions

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
        if limit.tres != WALL and not wants.get(limit.tres):
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
        if tres == WALL:
            return 1.0
        return use.get(tres, use.get("gres/gpu", 0.0) if tres.startswith("gres/gpu:") else 0.0)

    def _then(self, tres: str, action: Action, has: Amounts) -> float:
        """What the job has of a resource after the action, at most; inf: that is not known."""
        job, placement = action.job, action.placement
        kinds: Mapping[str, int] = {}
        if job.whole_nodes and (placement is None or tres in ("cpu", "mem", "billing")):
            # Other nodes may have more of them, and it gets all.
            return inf
        if placement is None:
            if _SIZE & action.fields.keys():
                return inf
            gpus, ratio = float(job.gpu_count), 1.0
        else:
            gpus, kinds = float(placement.gpu_count), placement.gpus
            nodes = len(placement.nodes) or placement.copies
            ratio = max(1.0, gpus / max(1, job.gpu_count), nodes / max(1, job.node_count))
        if tres == "gres/gpu":
            return gpus
        if tres.startswith("gres/gpu:"):
            kind = tres.partition(":")[2].lower()
            of_kind = sum(count for name, count in kinds.items() if name.lower() == kind)
            return float(of_kind) if placement else gpus
        if tres in ("cpu", "mem", "billing") and _CPUS & action.fields.keys():
            return inf
        if tres == "cpu":
            most = action.fields.get("NumCPUs", "").rpartition("-")[2]
            return max(ratio * has.get(tres, 0.0), float(most) if most.isdecimal() else 0.0)
        if tres == "billing":
            return self._billed(action, has, ratio)
        return ratio * has.get(tres, 0.0)

    def _billed(self, action: Action, has: Amounts, ratio: float) -> float:
        """By the weights of the partitions that it may go to, at most."""
        here = self._weights(action.job.partitions)
        there = self._weights(self._partitions(action))
        if ratio == 1.0 and len(here) == 1 and here == there:
            return has.get("billing", 0.0)
        bills = [0.0]
        for text in there:
            prices = weights(text) if text else {"cpu": 1.0}
            parts = {k: price * self._then(k, action, has) for k, price in prices.items()}
            bills.append(self._seen.billing_rule.bill(parts))
        return max(bills)

    def _weights(self, partitions: Sequence[str]) -> set[str]:
        known = self._seen.partitions
        return {known[name].billing for name in partitions if name in known}
