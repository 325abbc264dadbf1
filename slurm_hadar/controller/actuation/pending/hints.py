"""Steering jobs that wait, by nothing but the order of their partition list, and by their Nice
where they exchange places in the queue.

A waiting managed job is an ordinary eligible job. With a partition per GPU type the order of its
list says what it prefers when several types are free; when all are busy it takes the first that is
freed, so the order never makes it wait. No other field of a waiting job is changed, except that
what a move or an earlier release left there is taken back.

Measured on 22.05.8 and 24.11.5: a list costs other jobs nothing, while Features that are narrowed
make those behind wait for backfill, 2 to 23 s.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.pending import list_updates, queue_head
from slurm_hadar.controller.actuation.pending.partition_preference import (
    PreferenceInput,
    expected_end,
    longest_wait,
    preferred,
    with_returned,
    worth_waiting,
)
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob, obsolete_begin_time
from slurm_hadar.controller.snapshot.empty_nodes import UNFIT, EmptyNodes
from slurm_hadar.controller.snapshot.resource_request import accepts
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.waits import expected_waits
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.steering import Steering
from slurm_hadar.reports import formats
from slurm_hadar.slurm.times import at_once

_DEEP = "its list comes back when it is near the head of the queue"


@dataclass(frozen=True)
class Hint:
    """What a waiting job shall have: its ``partitions`` in this order, empty as they are; a
    ``nice`` other than its owner's, where it has another job's place in the queue; for what a
    shorter list makes it ``wait``; whether it was ``preempted``, and may start before the begin
    time that Slurm gave it when it requeued it; and whether its list names a partition that is
    being removed (``leaves``): Slurm ends such jobs then."""

    partitions: tuple[str, ...] = ()
    nice: str = ""
    wait: "Wait | None" = None
    preempted: bool = False
    leaves: bool = False
    opened: tuple[str, ...] = ()
    """The list that it is to have as if it had been submitted with it; empty: as it was."""


@dataclass(frozen=True)
class Wait:
    """A list that is shorter than it may be: up to when (``until_s``) it waits for its first
    partition, and when it is expected to end there. Both s since the epoch."""

    until_s: float
    ends_s: float


def hints(
    snapshot: Snapshot,
    plan: Plan,
    seen: Observed,
    config: Config,
    refused: Mapping[str, Refusals],
    nices: Mapping[str, str] = MappingProxyType({}),
) -> list[Action]:
    """What is sent to the jobs that wait: nothing where nothing changes.

    ``refused``: job -> its refusals; ``nices``: of jobs with another job's place in the queue.
    """
    waiting = _waiting(snapshot, seen)
    wanted = {id_: Hint(nice=nice) for id_, nice in nices.items()}
    most = queue_head.most_records(seen.queue_depth)
    left, deep = most, list[list[SchedulableJob]]()
    unfit: dict[str, tuple[str, ...]] = {}
    may_wait = any(longest_wait(target.job, config) for target in waiting)
    empty = EmptyNodes(seen)
    waits = expected_waits(seen, snapshot, empty) if may_wait and not seen.in_order else {}
    known = PreferenceInput(snapshot, plan, seen, config, empty, waits)
    for targets in _records(waiting):
        placed = next((one for one in targets if one.job.id in plan.placements), targets[0])
        placed, opened = with_returned(placed, known)
        preference = preferred(placed, known)
        # Behind the head of the queue no job gets a list.
        names = worth_waiting(placed, preference, known) if left > 0 else preference.names
        wait = None
        if len(names) < len(preference.names):
            until_s = placed.job.eligible_s + longest_wait(placed.job, config)
            wait = Wait(until_s, expected_end(placed, names[0], known))
        if names and left >= len(names):
            left -= len(names)
            for target in targets:
                nice = nices.get(target.job.id, "")
                leaves = list_updates.names_removed(target.job, seen, config)
                wanted[target.job.id] = Hint(names, nice, wait, leaves=leaves, opened=opened)
        elif preference.is_unfit:
            typed = queue_head.typed_partitions(placed.job, seen, config)
            if set(typed) != set(placed.job.partitions):
                unfit |= {target.job.id: typed for target in targets}
        else:
            deep.append(targets)
    deep_ones = queue_head.too_deep(deep, most - left, seen, config)
    back = [
        *_taken_back(unfit, "it fits in no node of a partition", wanted, known),
        *_taken_back(deep_ones, _DEEP, wanted, known),
    ]
    gone = {action.job.id for action in back}
    ids = [one.job.id for one in waiting if one.job.id not in gone]
    found = _sent([*ids, *snapshot.excluded], wanted, snapshot.excluded, seen, refused)
    found += [action for action in back if not _refused(action.job, seen, refused)]
    return [*found, *_after_moves(snapshot, seen, refused)]


def _waiting(snapshot: Snapshot, seen: Observed) -> list[SchedulableJob]:
    """The jobs that wait, in Slurm's order."""
    found = [
        target
        for target in snapshot.schedulable.values()
        if target.job.state is JobState.PENDING and not target.starting
    ]
    return sorted(found, key=lambda one: pending_demand.queue_key(one.job, seen))


def _records(waiting: Iterable[SchedulableJob]) -> Iterable[list[SchedulableJob]]:
    """The jobs by record: tasks of an array that Slurm keeps in one are one job to it, and stay
    one."""
    found: dict[str, list[SchedulableJob]] = {}
    for target in waiting:
        job = target.job
        found.setdefault(str(job.raw_id) if job.array_tasks else job.id, []).append(target)
    return found.values()


def _taken_back(
    typed: Mapping[str, tuple[str, ...]],
    why: str,
    wanted: Mapping[str, Hint],
    known: PreferenceInput,
) -> list[Action]:
    """These jobs with the partitions that their owner typed, and with the features of the types
    that the owner declared, where the list alone said them."""
    seen, config, found = known.seen, known.config, []
    for id_, names in typed.items():
        job, steered = seen.jobs[id_], seen.steered(id_)
        fields = _with_nice(
            job_updates.undo_fields(job, steered), job, wanted.get(id_, Hint()).nice
        )
        fields["Partition"] = ",".join(names)
        target = known.snapshot.schedulable[id_]
        want = target.request
        kinds = [kind for kind in config.gpu_types if accepts(job, want, kind, config)]
        no_features = not (job.features or target.request.constraint or "Features" in fields)
        if no_features and len(kinds) < len(config.gpu_types):
            fields["Features"] = "|".join(config.gpu_types[kind].feature for kind in kinds)
        ours = _remembered(job, fields, replace(steered, was={**steered.was, **fields}), seen)
        found.append(Action(Kind.HINT, job, fields, ours, why))
    return found


def _refused(job: Job, seen: Observed, refused: Mapping[str, Refusals]) -> bool:
    return job.id in refused and not refused[job.id].over(seen.now)


def unfit(job: Job, seen: Observed) -> bool:
    """Whether Slurm says that a job fits nowhere in a partition of a list that is ours."""
    return job.reason.split(",")[0] in UNFIT and "Partition" in job_updates.undo_fields(
        job, seen.steered(job.id)
    )


def _after_moves(
    snapshot: Snapshot, seen: Observed, refused: Mapping[str, Refusals]
) -> list[Action]:
    started = [
        target.job
        for target in snapshot.schedulable.values()
        if target.job.state is JobState.RUNNING and not target.starting
    ]
    found = (_after_a_move(job, seen) for job in started if not _refused(job, seen, refused))
    return [action for action in found if action is not None]


def _after_a_move(job: Job, seen: Observed) -> Action | None:
    """The owner's Nice and MailType, of a job that runs again: it has its place now."""
    steered = seen.steered(job.id)
    fields = {
        key: value
        for key, value in steered.was.items()
        if key in job_updates.UNTIL_IT_RUNS
        and job_updates.present(job, steered, key)
        in (steered.wrote.get(key), steered.unsure.get(key))
    }
    if not fields:
        return None

    def rest(values: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in values.items() if key not in fields}

    ours = replace(
        steered,
        time=seen.now,
        was=rest(steered.was),
        wrote=rest(steered.wrote),
        unsure=rest(steered.unsure),
    )
    why = f"it runs: {' and '.join(sorted(fields))} as set by its owner"
    return Action(Kind.HINT, job, fields, ours, why)


def restored(
    ids: Iterable[str],
    excluded: Mapping[str, str],
    seen: Observed,
    refused: Mapping[str, Refusals],
    preempted: Collection[str] = (),
) -> list[Action]:
    """What makes the requests of these jobs their owners' again, where they wait.

    ``excluded``: those that are not steered, with the reason; ``preempted``: see :class:`Hint`.
    """
    again = dict.fromkeys(preempted, Hint(preempted=True))
    return _sent(ids, again, excluded, seen, refused)


def _sent(
    ids: Iterable[str],
    wanted: Mapping[str, Hint],
    excluded: Mapping[str, str],
    seen: Observed,
    refused: Mapping[str, Refusals],
) -> list[Action]:
    found = []
    for id_ in ids:
        job = seen.jobs[id_]
        if job.state is not JobState.PENDING or job.held:
            continue
        if _refused(job, seen, refused) and not unfit(job, seen):
            continue
        action = _hint(job, wanted.get(id_, Hint()), excluded.get(id_, ""), seen)
        found += [action] if action is not None else []
    return found


def _hint(job: Job, hint: Hint, excluded: str, seen: Observed) -> Action | None:
    steered, names = seen.steered(job.id), hint.partitions
    fields = _with_nice(job_updates.undo_fields(job, steered), job, hint.nice)
    if "Partition" not in steered.foreign:
        if names:
            fields.pop("Partition", None)
            same = ",".join(names) == job_updates.current(job, "Partition")
            stays = list_updates.would_change_places(job, steered, seen) and not hint.leaves
            if hint.opened:
                stays = stays and not list_updates.opens_a_free_gpu(job, names, seen)
            elif list_updates.gives_back(job, names, steered):
                # Without it the job might wait far longer than it loses by its age.
                stays = False
            if not (same or stays):
                fields["Partition"] = ",".join(names)
                if hint.opened:
                    was = {**steered.was, "Partition": ",".join(hint.opened)}
                    steered = replace(steered, was=was)
        elif _is_wider(job, steered) and (
            not excluded or list_updates.would_change_places(job, steered, seen)
        ):
            # A list that has sunk back in the queue is left as it is.
            fields.pop("Partition", None)
            if steered.wrote.get("Features") == job.features:
                fields.pop("Features", None)
    leased = obsolete_begin_time(job, steered, seen.now)
    if leased or hint.preempted:
        fields["StartTime"] = at_once(job, seen.now)
    again = not fields and list_updates.counts_again(steered, seen)
    if again:
        fields["Partition"] = ",".join(job.partitions)
    if not fields:
        return None
    ours = _remembered(job, fields, steered, seen)
    if hint.wait is not None:
        ours = replace(ours, until=hint.wait.until_s, ends=hint.wait.ends_s)
    if leased:
        why = "it has a begin time of an earlier release of hbatch or the plugins"
    elif again:
        why = "its list stays: an update makes Slurm count its age again"
    elif hint.preempted:
        why = "it was preempted, and may start again"
    elif "Partition" in fields and hint.wait is not None:
        why = f"{waits_for(ours)}: it ends sooner so than where it could begin before"
    elif "Partition" in fields and hint.opened:
        why = "by measured speeds it is not far slower on a type that a table left out"
    elif "Partition" in fields and names:
        why = "its order of preference"
    elif hint.nice and "Nice" in fields:
        why = "it has the place of another managed job in the queue, which the policy lets wait"
    else:
        why = "its owner's request is restored" + (f": {excluded}" if excluded else "")
    return Action(Kind.HINT, job, fields, ours, why)


def _with_nice(fields: dict[str, str], job: Job, nice: str) -> dict[str, str]:
    if not nice:
        return fields
    rest = {key: value for key, value in fields.items() if key != "Nice"}
    return rest if nice == str(job.nice) else {**rest, "Nice": nice}


def _remembered(job: Job, fields: Mapping[str, str], steered: Steering, seen: Observed) -> Steering:
    """What is known of the job once these are sent: its owner's value of each that differs."""
    now, names = seen.now, fields.get("Partition")
    other = names is not None and names != job_updates.current(job, "Partition")
    was = {
        key: value
        for key, value in job_updates.originals(job, fields, steered.was).items()
        if fields.get(key, job_updates.present(job, steered, key)) != value
    }
    wrote = {key: fields.get(key, job_updates.present(job, steered, key)) for key in was}
    return Steering(
        time=now,
        moves=steered.moves,
        was=was,
        wrote=wrote,
        foreign=steered.foreign,
        age_lost=other and list_updates.takes_age(job, seen),
    )


def waits_for(steered: Steering) -> str:
    """What a job with a list that is shorter than it may be waits for, and up to when."""
    first = steered.wrote.get("Partition", "").partition(",")[0]
    return f"waits for {first} until {formats.moment(steered.until)} at most"


def _is_wider(job: Job, steered: Steering) -> bool:
    return not steered.until and set(steered.wrote.get("Partition", "").split(",")) == set(
        job.partitions
    )
