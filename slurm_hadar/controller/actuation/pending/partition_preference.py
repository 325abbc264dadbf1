"""Which partitions a waiting job prefers, in which order, and whether it ends sooner by waiting for
one of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.pending import queue_head
from slurm_hadar.controller.observation.access import allowed_partitions, unlike_groups
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.partition_access import open_to
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.empty_nodes import EmptyNodes
from slurm_hadar.controller.snapshot.resource_request import accepts, keeps_partition
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.waits import far_slower, run_times
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.placement import Plan
from slurm_hadar.scheduling import narrowing

_CLOSED = Partition("", (), state="DOWN")


@dataclass(frozen=True)
class PreferenceInput:
    """What one tick knows. ``waits``: job -> GPU type -> expected wait, s; empty where no job may
    wait for a type."""

    snapshot: Snapshot
    plan: Plan
    observation: Observation
    config: Config
    empty: EmptyNodes
    waits: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Preference:
    """A job's partitions in the order in which it prefers their types, empty where an order says
    nothing; those of them in which it surely fits now; whether it never fits in one of them; and
    whether its list, or one that it could get, would omit a type that what its owner typed has."""

    names: tuple[str, ...] = ()
    fit: frozenset[str] = frozenset()
    is_unfit: bool = False
    is_cut: bool = False


def without_slower_partitions(
    target: SchedulableJob, preference: Preference, known: PreferenceInput
) -> tuple[str, ...]:
    """The names that it prefers without the types on which the job would end later, even if it
    began there now, than on the one that it waits for: rule 4 of the prototype (theta 0).

    All of them where its work is not known, where the wait is longer than it may be, where the job
    may not fit there, and where a job that is not managed wants the same type.
    """
    names, observation, snapshot, waits = (
        preference.names,
        known.observation,
        known.snapshot,
        known.waits,
    )
    job, view = target.job, snapshot.view
    left_s = job.eligible_s + longest_wait(job, known.config) - observation.now
    declared = job.declaration is not None and job.declaration.total_samples > 0
    if len(names) < 2 or job.id not in waits or not declared or left_s <= 0:
        return names
    row, count = view.jobs.rows[job.id], view.counts.index(target.request.count)
    types = job_updates.types_of([observation.partitions[name] for name in names], observation)
    if not all(view.jobs.known[row, view.types.index(kind), count] for kind in types.values()):
        return names
    times, wait = run_times(target, snapshot), waits[job.id]
    return narrowing.without_slower_types(
        names,
        {name: wait.get(kind, inf) for name, kind in types.items() if name in preference.fit},
        {name: times.get(kind, inf) for name, kind in types.items()},
        left_s,
        lambda name: _wanted_by_others(types[name], job, observation),
    )


def expected_end(target: SchedulableJob, name: str, known: PreferenceInput) -> float:
    """When a job is expected to end that waits for the partition ``name``, s since the epoch."""
    observation = known.observation
    kind = job_updates.types_of([observation.partitions[name]], observation)[name]
    return (
        observation.now + known.waits[target.job.id][kind] + run_times(target, known.snapshot)[kind]
    )


def longest_wait(job: Job, config: Config) -> float:
    """Seconds from its submission in which it may wait for a type: its owner's word, else the
    site's."""
    own = job.declaration.wait if job.declaration is not None else None
    return config.queue.max_wait_s if own is None else own


def _wanted_by_others(kind: str, job: Job, observation: Observation) -> bool:
    """Whether a job that is not managed waits behind this one for GPUs of a type."""
    place = pending_demand.rank(job, observation)
    return any(
        other.state is JobState.PENDING
        and not other.managed
        and pending_demand.rank(other, observation) <= place
        and (not other.request.typed or kind in _kinds(other))
        and any(kind in observation.gpu_types.get(name, ()) for name in other.partitions)
        for other in observation.jobs.values()
    )


def _kinds(job: Job) -> set[str]:
    request = job.request
    return {kind for part in (request.per_node, request.per_job, request.per_task) for kind in part}


def with_returned(
    target: SchedulableJob, known: PreferenceInput
) -> tuple[SchedulableJob, tuple[str, ...]]:
    """The job as if its list had been submitted with the types that :attr:`Snapshot.returned` gives
    back to it, where it fits on them; and that list, empty where it is none other."""
    kinds = known.snapshot.returned.get(target.job.id, frozenset())
    if not kinds:
        return target, ()
    members = allowed_partitions(
        target.job,
        target.job.declaration.partitions if target.job.declaration is not None else (),
        known.observation.partitions,
        known.config.partitions.groups,
    )
    types = job_updates.types_of(members, known.observation)
    fit = known.empty.fits(target, [name for name, kind in types.items() if kind in kinds])
    names = tuple(name for name in types if name in fit or name in target.request.partitions)
    if not fit:
        return target, ()
    return replace(target, request=replace(target.request, partitions=names)), names


def _is_whole_array(
    target: SchedulableJob, types: Mapping[str, str], known: PreferenceInput
) -> bool:
    """Whether a list would say nothing but an order of all ``types`` of the partition in which an
    array waits. In each pass Slurm's backfill starts tasks of an array in one partition of its list
    only (22.05.8 and 24.11.5), so that others behind them may start first."""
    job, config = target.job, known.config
    members = group_types(config).get(",".join(job.partitions), {})
    return (
        bool(job.array_tasks and members)
        and not longest_wait(job, config)
        and types.keys() == members.keys()
        and all(accepts(job, target.request, kind, config) for kind in types.values())
    )


def _closed_types(target: SchedulableJob, known: PreferenceInput) -> frozenset[str]:
    """The GPU types that a job accepts, of partitions that are not UP in the group that its owner
    typed. Slurm takes one that is DRAIN or INACTIVE out of a list at each update, and only a
    controller would put it back; in the one that its owner typed the job waits for all its nodes.
    """
    job, there = target.job, known.observation.partitions
    typed = queue_head.typed_partitions(job, known.observation, known.config)
    members = group_types(known.config).get(",".join(typed), {})
    is_ours = "Partition" not in known.observation.steered(job.id).foreign
    if not (members and is_ours and there.get(typed[0], _CLOSED).up):
        return frozenset()
    if not {*job.partitions} <= {*typed, *members}:
        return frozenset()
    return frozenset(
        kind
        for name, kind in members.items()
        if not there.get(name, _CLOSED).up and accepts(job, target.request, kind, known.config)
    )


def _fits_typed_only(
    target: SchedulableJob, listed: Collection[str], known: PreferenceInput
) -> bool:
    """Whether the list does not serve a job any more that its owner's partition may serve: a member
    of the group has another limit or other users now, or the job fits in none of the list, but in
    another member."""
    job, want, empty = target.job, target.request, known.empty
    there, config = known.observation.partitions, known.config
    typed = queue_head.typed_partitions(job, known.observation, config)
    name, members = ",".join(typed), group_types(config).get(",".join(typed), {})
    if not members or {*typed} == {*job.partitions}:
        return False
    is_listed = {*job.partitions} <= members.keys() and name in there and there[name].up
    if is_listed and unlike_groups({name: config.partitions.groups[name]}, there):
        return True
    others = [
        one
        for one, kind in members.items()
        if one not in listed and one in there and accepts(job, want, kind, config)
    ]
    return (
        bool(listed)
        and empty.is_clear(target)
        and not empty.fits(target, listed, some_day=True)
        and bool(empty.fits(target, others, some_day=True))
    )


def preferred(target: SchedulableJob, known: PreferenceInput) -> Preference:
    """The job's partitions in the order in which it prefers their types; empty where an order says
    nothing."""
    snapshot, observation, config, empty = (
        known.snapshot,
        known.observation,
        known.config,
        known.empty,
    )
    job, want, view = target.job, target.request, snapshot.view
    if keeps_partition(job, observation.steered(job.id), config):
        return Preference()
    if 0 < len(open_to(job, job.partitions, observation)) < len(job.partitions):
        # Slurm passes over the others, and only a controller would put one back that opens again.
        return Preference()
    groups = config.partitions.groups if want.of_one_type else {}
    open_to_it = allowed_partitions(job, want.partitions, observation.partitions, groups)
    types = job_updates.types_of(open_to_it, observation)
    if _is_whole_array(target, types, known):
        return Preference()
    if _fits_typed_only(target, types, known):
        return Preference(is_unfit=True)
    if closed := _closed_types(target, known):
        fast = {types[name] for name in empty.fits(target, types)}
        if not closed <= far_slower(target, snapshot, fast, observation):
            return Preference(is_cut=True)
    if len(types) == 1 and len(job.partitions) > 1 and types.keys() < set(job.partitions):
        # No job starts in the others.
        return Preference(tuple(types))
    if len(types) < 2 or want.count not in view.counts or job.id not in view.jobs.rows:
        return Preference()
    if want.whole and any(want.by_type.get(kind) != (want.count,) for kind in types.values()):
        # It may start with other numbers of GPUs there, of which an order says nothing.
        return Preference()
    return _by_type(target, types, known)


def _by_type(
    target: SchedulableJob, types: Mapping[str, str], known: PreferenceInput
) -> Preference:
    """Of a job with a choice of ``types`` (partition -> GPU type): the faster first."""
    job, want, view, config = target.job, target.request, known.snapshot.view, known.config
    empty = known.empty
    row, count = view.jobs.rows[job.id], view.counts.index(want.count)
    rates = {
        name: float(view.jobs.rate[row, view.types.index(kind), count])
        for name, kind in types.items()
        if kind in view.types
    }
    fit = empty.fits(target, rates)
    possible = {name: rate for name, rate in rates.items() if rate > 0}
    if possible:
        # Where it could start without this tick it still may: estimates err, and a time limit that
        # seems too short on a type begins anew with each requeue.
        groups = config.partitions.groups if want.of_one_type else {}
        now = {one for name in job.partitions for one in (name, *groups.get(name, ()))}
        more = now if fit & possible.keys() else rates.keys()
        possible |= {
            n: rates[n] for n in rates.keys() & more if accepts(job, want, types[n], config)
        }
    open_types = {types[n] for n in possible if n in fit}
    slow = far_slower(target, known.snapshot, open_types, known.observation)
    possible = {n: rate for n, rate in possible.items() if types[n] not in slow}
    if empty.is_clear(target) and not possible.keys() <= empty.fits(
        target, possible, some_day=True
    ):
        # Slurm holds some jobs whose list is changed to one with such a partition.
        return Preference((), fit, is_unfit=True)
    placement = known.plan.placements.get(job.id)
    placed = set(placement.gpus) if placement is not None else set()

    asleep = known.observation.asleep

    def order(name: str) -> tuple[bool, bool, bool, float]:
        return name not in fit, name in asleep, types[name] not in placed, -possible[name]

    return Preference(tuple(sorted(possible, key=order)), fit)
