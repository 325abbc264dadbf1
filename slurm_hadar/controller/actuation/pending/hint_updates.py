"""The update that gives a waiting job its hint, with the steering that records it, and the updates
that restore its owner's values: of a job that is not steered, and of one that runs after a move.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.pending import (
    list_updates,
    queue_head,
    removed_partition_groups,
)
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.actuation.restored_request import (
    limited_to_types,
    restored_where_it_fits,
    within_types,
)
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import obsolete_begin_time
from slurm_hadar.controller.snapshot.empty_nodes import UNFIT
from slurm_hadar.controller.snapshot.resource_request import (
    keeps_partition,
    resource_request,
)
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.reports import formats
from slurm_hadar.slurm.times import at_once

_TYPES = "the partitions that its owner set have GPU types that its types= or gpu_mem= exclude"


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
    typed: str = ""
    """The partition of a former group that it gets back, see :mod:`.removed_partition_groups`."""


@dataclass(frozen=True)
class Wait:
    """A list that is shorter than it may be: up to when (``until_s``) it waits for its first
    partition, and when it is expected to end there. Both s since the epoch."""

    until_s: float
    ends_s: float


@dataclass(frozen=True)
class HintInput:
    """What the hints of all jobs depend on. ``refused``: job -> what Slurm refused of its hints."""

    observation: Observation
    config: Config
    refused: Mapping[str, Refusals] = field(default_factory=dict)

    @property
    def refused_now(self) -> frozenset[str]:
        """Jobs that get no hint for some time, as Slurm refused one."""
        now = self.observation.now
        return frozenset(id_ for id_, refusals in self.refused.items() if not refusals.over(now))

    def is_refused(self, job: Job) -> bool:
        """See :func:`is_refused`."""
        return is_refused(job, self.observation, self.refused)


def updates(
    ids: Iterable[str],
    hint_of: Mapping[str, Hint],
    excluded: Mapping[str, str],
    given: HintInput,
    staying: set[str] | None = None,
) -> list[Action]:
    """The updates that give the pending jobs of ``ids`` their hints; a job without one gets its
    owner's request back. ``excluded``: jobs that are not steered, with the reason; ``staying``
    gets the jobs that do not get the list of their hint, since it would change places in the
    queue."""
    observation, config = given.observation, given.config
    actions = []
    for id_ in ids:
        job = observation.jobs[id_]
        if job.state is not JobState.PENDING:
            continue
        if given.is_refused(job) and not _is_unfit(job, observation):
            continue
        if job.held:
            limit = _limited_while_held(job, observation, config)
            actions += [limit] if limit is not None else []
            continue
        hint = hint_of.get(id_, Hint())
        action = _update(job, hint, excluded.get(id_, ""), observation, config)
        actions += [action] if action is not None else []
        fields = action.fields if action is not None else {}
        is_open = "Partition" not in observation.steered(id_).foreign
        if staying is not None and hint.partitions and is_open:
            staying |= set() if _has(job, hint.partitions, fields) else {id_}
    return actions


def restored(
    ids: Iterable[str],
    excluded: Mapping[str, str],
    given: HintInput,
    preempted: Collection[str] = (),
) -> list[Action]:
    """What makes the requests of these jobs their owners' again, where they wait.

    ``excluded``: those that are not steered, with the reason; ``preempted``: see :class:`Hint`.
    """
    again = dict.fromkeys(preempted, Hint(preempted=True))
    return updates(ids, again, excluded, given)


def restored_after_moves(snapshot: Snapshot, given: HintInput) -> list[Action]:
    """The updates that restore what a move changed until its job runs again."""
    started = [
        target.job
        for target in snapshot.schedulable.values()
        if target.job.state is JobState.RUNNING and not target.starting
    ]
    actions = (
        _restored_after_move(job, given.observation) for job in started if not given.is_refused(job)
    )
    return [action for action in actions if action is not None]


def _restored_after_move(job: Job, observation: Observation) -> Action | None:
    """The owner's Nice and MailType, of a job that runs again: it has its place now."""
    steered = observation.steered(job.id)
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

    steering = replace(
        steered,
        time=observation.now,
        was=rest(steered.was),
        wrote=rest(steered.wrote),
        unsure=rest(steered.unsure),
    )
    why = f"it runs: {' and '.join(sorted(fields))} as set by its owner"
    return Action(Kind.HINT, job, fields, steering, why)


def _update(
    job: Job, hint: Hint, excluded: str, observation: Observation, config: Config
) -> Action | None:
    steered = observation.steered(job.id)
    typed = _typed_again(job, observation, config) if excluded else ()
    if hint.typed:
        steered = replace(steered, was={**steered.was, "Partition": hint.typed})
        again = removed_partition_groups.fields(job, steered, hint.typed, observation, config)
        fields, opened = with_nice(_without_unchanged(again, job), job, hint.nice), False
    elif typed:
        # It counts as what the owner had from now on.
        was = {**steered.was, "Partition": ",".join(typed)}
        steered = replace(steered, was=was)
        fields, opened = _restored_typed(job, steered, config), False
    else:
        fields, opened = _fields(job, hint, excluded, observation, config)
    later = list_updates.comes_later(fields, job, observation)
    if later:
        fields, opened = list_updates.without_list(fields), False
    if job.declaration and "Features" in fields and _has_added_features(job, steered):
        steered = replace(steered, was={**steered.was, "Features": job.declaration.constraint})
    if opened:
        was = {**steered.was, "Partition": ",".join(hint.opened)}
        steered = replace(steered, was=was)
    is_obsolete = obsolete_begin_time(job, steered, observation.now)
    if is_obsolete or hint.preempted:
        fields["StartTime"] = at_once(job, observation.now)
    only_recounts = not fields and list_updates.counts_again(steered, observation)
    if only_recounts:
        fields["Partition"] = ",".join(job.partitions)
    if not fields:
        return None
    steering = recorded(job, fields, steered, observation)
    if later:
        steering = replace(steering, until=steered.until, ends=steered.ends)
    elif hint.wait is not None and _has(job, hint.partitions, fields):
        steering = replace(steering, until=hint.wait.until_s, ends=hint.wait.ends_s)
    if is_obsolete:
        why = "it has a begin time of an earlier version of hbatch or the plugins"
    elif only_recounts:
        why = "its list stays: an update makes Slurm count its age again"
    else:
        why = _reason(hint, fields, steering, excluded)
    return Action(Kind.HINT, job, fields, steering, why)


def _typed_again(job: Job, observation: Observation, config: Config) -> tuple[str, ...]:
    """What the owner typed, of a job whose request cannot be steered any more and whose list of
    partitions omits a type that the owner accepts: it may be the only one that its nodes have."""
    steered = observation.steered(job.id)
    if "Partition" in steered.foreign or job.request.typed or job.declaration is None:
        return ()
    if not isinstance(resource_request(job, steered, config), str):
        return ()
    named, there = {*job.required_nodes}, [*map(observation.partitions.get, job.partitions)]
    if named and any(one is not None and named <= {*one.nodes} for one in there):
        return ()
    typed = queue_head.typed_partitions(job, observation, config)
    members = group_types(config).get(",".join(typed), {})
    is_short = not queue_head.is_whole(job, typed, config)
    return typed if is_short and {*job.partitions} <= {*members} else ()


def _restored_typed(job: Job, steered: Steering, config: Config) -> dict[str, str]:
    """The owner's request, with all the types that its owner accepts."""
    fields = job_updates.undo_fields(job, steered)
    return _without_unchanged(within_types(job, steered, fields, config), job)


def _fields(
    job: Job, hint: Hint, excluded: str, observation: Observation, config: Config
) -> tuple[dict[str, str], bool]:
    """The fields that give a job its hint, and whether its list takes up partitions that it counts
    as submitted with from now on."""
    steered, names = observation.steered(job.id), hint.partitions
    fields = with_nice(job_updates.undo_fields(job, steered), job, hint.nice)
    if "Partition" in steered.foreign:
        return _limited(job, fields, observation, config), False
    if names:
        fields.pop("Partition", None)
        is_same = ",".join(names) == job_updates.current(job, "Partition")
        stays = list_updates.would_change_places(job, steered, observation) and not hint.leaves
        if hint.opened:
            stays = stays and not list_updates.opens_a_free_gpu(job, names, observation)
        elif list_updates.gives_back(job, names, steered):
            # Without it the job might wait far longer than it loses by its age.
            stays = False
        if (is_same or not stays) and job.declaration and _has_added_features(job, steered):
            # The list says the types.
            fields["Features"] = job.declaration.constraint
        if not (is_same or stays):
            fields["Partition"] = ",".join(names)
            return fields, bool(hint.opened)
    elif (
        _is_wider(job, steered)
        and not keeps_partition(job, steered, config)
        and (not excluded or list_updates.would_change_places(job, steered, observation))
        and not _is_closed_out(job, observation)
    ):
        # A list that has sunk back in the queue is left as it is.
        fields.pop("Partition", None)
        if steered.wrote.get("Features") == job.features:
            fields.pop("Features", None)
    else:
        # Also of a job that has its owner's partition: the features beside it may be gone.
        fields.setdefault("Partition", job_updates.current(job, "Partition"))
        limited = restored_where_it_fits if _has_unfit_reason(job) else within_types
        fields = _without_unchanged(limited(job, steered, fields, config), job)
    return fields, False


def _has_added_features(job: Job, steered: Steering) -> bool:
    """Whether a waiting job has the features that its opt-out, or ``hadar set``, wrote for the
    types that its owner declared."""
    ours = "Features" not in (*steered.foreign, *steered.was)
    return (
        job.declaration is not None
        and bool(job.features)
        and (ours and job.declaration.added == job.features != job.declaration.constraint)
    )


def _is_closed_out(job: Job, observation: Observation) -> bool:
    """Whether no partition of its list starts jobs."""
    there = [observation.partitions.get(name) for name in job.partitions]
    return not any(one is not None and one.up for one in there)


def _limited_while_held(job: Job, observation: Observation, config: Config) -> Action | None:
    """The update of a held job, which may be released at any time: nothing but its limit to the
    GPU types that its owner accepts, where nothing says them any more."""
    steered = observation.steered(job.id)
    if "Partition" not in steered.foreign or not (fields := _limited(job, {}, observation, config)):
        return None
    return Action(Kind.HINT, job, fields, recorded(job, fields, steered, observation), _TYPES)


def _limited(
    job: Job, fields: Mapping[str, str], observation: Observation, config: Config
) -> dict[str, str]:
    """As :func:`limited_to_types`, where nodes have features of GPU types."""
    kinds = {kind for name in job.partitions for kind in observation.gpu_types.get(name, ())}
    found = limited_to_types(job, fields, kinds, config)
    names = {gpu.feature for gpu in config.gpu_types.values()}
    there = found.keys() <= fields.keys() or any(
        not names.isdisjoint(node.features) for node in observation.nodes.values()
    )
    return _without_unchanged(found if there else dict(fields), job)


def _without_unchanged(fields: Mapping[str, str], job: Job) -> dict[str, str]:
    """Without partitions and features that the job has."""
    return {
        key: value
        for key, value in fields.items()
        if key not in ("Features", "Partition") or value != job_updates.current(job, key)
    }


def _has(job: Job, names: Sequence[str], fields: Mapping[str, str]) -> bool:
    """Whether the job has this list once ``fields`` are sent: it may have to stay as it is."""
    return fields.get("Partition", job_updates.current(job, "Partition")) == ",".join(names)


def _reason(hint: Hint, fields: Mapping[str, str], steering: Steering, excluded: str) -> str:
    """Why these ``fields`` are sent, for the event log."""
    if fields.keys() == {"Features"} and "Partition" in steering.foreign:
        return _TYPES
    if hint.preempted:
        return "it was preempted, and may start again"
    if "Partition" in fields and hint.typed:
        return removed_partition_groups.WHY
    if "Partition" in fields and hint.wait is not None:
        return f"{waits_for(steering)}: it ends sooner so than where it could begin before"
    if "Partition" in fields and hint.opened:
        return "by measured speeds it is not far slower on a type that a table left out"
    if "Partition" in fields and hint.partitions:
        return "its order of preference"
    if hint.nice and "Nice" in fields:
        return "it has the place of another managed job in the queue, which the policy lets wait"
    return "its owner's request is restored" + (f": {excluded}" if excluded else "")


def with_nice(fields: dict[str, str], job: Job, nice: str) -> dict[str, str]:
    """``fields`` with the Nice of an exchange of places; as they are where ``nice`` is empty."""
    if not nice:
        return fields
    rest = {key: value for key, value in fields.items() if key != "Nice"}
    return rest if nice == str(job.nice) else {**rest, "Nice": nice}


def recorded(
    job: Job, fields: Mapping[str, str], steered: Steering, observation: Observation
) -> Steering:
    """What is known of the job once these are sent: its owner's value of each that differs."""
    names = fields.get("Partition")
    is_changed = names is not None and names != job_updates.current(job, "Partition")
    was = {
        key: value
        for key, value in job_updates.originals(job, fields, steered.was).items()
        if fields.get(key, job_updates.present(job, steered, key)) != value
        # Beside the list that hbatch recorded its owner's partition would look like the owner's
        # own change.
        or (key == "Partition" and key in fields and _listed(job) not in ("", value))
    }
    wrote = {key: fields.get(key, job_updates.present(job, steered, key)) for key in was}
    return Steering(
        time=observation.now,
        moves=steered.moves,
        was=was,
        wrote=wrote,
        foreign=steered.foreign,
        listed=steered.listed,
        age_lost=is_changed and list_updates.takes_age(job, observation),
    )


def _listed(job: Job) -> str:
    """The list of partitions that hbatch recorded; empty where it recorded none."""
    return ",".join(job.declaration.listed) if job.declaration is not None else ""


def waits_for(steered: Steering) -> str:
    """What a job with a list that is shorter than it may be waits for, and up to when."""
    first = steered.wrote.get("Partition", "").partition(",")[0]
    return f"waits for {first} until {formats.moment(steered.until)} at most"


def _is_wider(job: Job, steered: Steering) -> bool:
    return not steered.until and set(steered.wrote.get("Partition", "").split(",")) == set(
        job.partitions
    )


def is_refused(job: Job, observation: Observation, refused: Mapping[str, Refusals]) -> bool:
    """Whether Slurm refused the job's last update, and it is too early to send another."""
    return job.id in refused and not refused[job.id].over(observation.now)


def _is_unfit(job: Job, observation: Observation) -> bool:
    """Whether Slurm says that a job fits nowhere in a partition of a list that is ours."""
    undo = job_updates.undo_fields(job, observation.steered(job.id))
    return _has_unfit_reason(job) and "Partition" in undo


def _has_unfit_reason(job: Job) -> bool:
    return job.reason.split(",")[0] in UNFIT
