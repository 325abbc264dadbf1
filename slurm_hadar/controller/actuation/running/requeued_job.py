"""What becomes of a requeued job: where its move sends it, or why it stays its owner's, such as by
what the owner declared while it was being moved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.entry_details import (
    UNKNOWN,
    batch_of_entry,
    copies_of,
    steering_of,
)
from slurm_hadar.controller.actuation.job_updates import UNTIL_IT_RUNS
from slurm_hadar.controller.actuation.move_steps import MOVED
from slurm_hadar.controller.actuation.restored_request import limited_to_types, within_types
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.observation.access import declared_list
from slurm_hadar.controller.observation.returned_nodes import ended_by
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.controller.snapshot.constraints import with_feature
from slurm_hadar.controller.snapshot.resource_request import (
    ResourceRequest,
    accepts,
    may_have,
    resource_request,
)
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node, asleep_partitions
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.plan_file import JobPlan
from slurm_hadar.slurm.times import at_once, begin_time, begins_as_set


def excluded_by_owner(context: ActionContext, entry: Entry, job: Job | None) -> str:
    """See :func:`_excluded`; empty of a job that is not managed any more."""
    if job is None or not job.managed:
        return ""
    return _excluded(entry, job, context.steering_of(job), context.config)


def _steering(context: ActionContext, entry: Entry, job: Job, now: float) -> Steering:
    """What the move was to write, with what it did to the job's mails and Nice since."""
    ours, known = steering_of(entry.details, now), context.steering_of(job)
    keys = {"MailType"} & set(known.was)
    if steering_store.has_our_nice(job, known):
        keys.add("Nice")

    def merged(move: Mapping[str, str], since: Mapping[str, str]) -> dict[str, str]:
        # As they stood when the move was decided they may be of an earlier move, and its owner's.
        rest = {key: value for key, value in move.items() if key not in UNTIL_IT_RUNS}
        return {**rest, **{key: since[key] for key in keys if key in since}}

    return replace(
        ours,
        was=merged(ours.was, known.was),
        wrote=merged(ours.wrote, known.wrote),
        unsure=merged(ours.unsure, known.unsure),
    )


def _changed_since(context: ActionContext, entry: Entry, job: Job, now: float) -> tuple[str, ...]:
    """The fields that another user changed since the move was decided; none where the entry does
    not say how they stood, as those of earlier versions."""
    stood = entry.details.get("stood")
    if not isinstance(stood, dict):
        return ()
    # What the move itself writes, where it was sent before and not answered, is ours too.
    sent = steering_of(entry.details, 0.0).wrote
    ours = Steering(wrote=stood, unsure={key: value for key, value in sent.items() if key in stood})
    unknown = entry.details.get(UNKNOWN)
    found = steering_store.changed_by_others(job, ours, context.config, now)
    return tuple(key for key in found if not (isinstance(unknown, list) and key in unknown))


_HELD = "it was held while it moved; its owner or an admin decides"
_WAITS = "and it waits with its owner's request"


@dataclass(frozen=True)
class RequeuedUpdate:
    """What becomes of a requeued job. ``before``: what is kept of it until Slurm has taken its
    update, ``sure``: from then on; ``changes``: of its fields; ``plan``: for the job, None: it goes
    by what Slurm gives it; ``left``: why it stays unplaced after all, empty: it does not;
    ``starts``: when it starts then."""

    before: Steering
    sure: Steering
    changes: dict[str, str]
    plan: JobPlan | None
    left: str = ""
    starts: str = "and Slurm starts it"


def requeued_update(context: ActionContext, entry: Entry, job: Job, now: float) -> RequeuedUpdate:
    """What to write for a job that its move ``entry`` has had requeued."""
    before = context.steering_of(job)
    ours = _steering(context, entry, job, now)
    theirs = _changed_since(context, entry, job, now)
    excluded = excluded_by_owner(context, entry, job) or _powered_down(context, entry)
    begins = _begins_later(context, entry, job, now)
    if theirs or excluded or begins or job.held:
        # Where it should go is not what its owner wants any more, or may not be.
        stays = _stays_so((*theirs, *(["its begin time"] if begins else [])))
        left = excluded or stays
        known = replace(before, gpus={}, nodes={}, time=now, moves=ours.moves)
        known = steering_store.given_up(known, theirs, job)
        if excluded or job.held:
            changes, sure = accepted_request(job, known, context.nodes, context.config)
            changes, sure = _awake_first(context, job, changes, sure)
        else:
            changes, sure = _within_types(context, job, known)
        if job.held:
            # Under priority/basic a Nice releases a held job.
            changes.pop("Nice", None)
            # When it is released it starts without the delay of the requeue.
            changes |= _at_once(entry, job, now, context.requeue_delay_s)
            return RequeuedUpdate(known, sure, changes, None, _HELD, _WAITS)
        if begins:
            left = left if left == stays else f"{left}; {stays}"
            return RequeuedUpdate(known, sure, changes, None, left, "and Slurm starts it then")
        return RequeuedUpdate(known, sure, _with_start(changes, entry, job, now), None, left)
    (copies, shares), batch = copies_of(entry.details), batch_of_entry(entry.details)
    reason, fields = str(entry.details.get("reason", "")), entry.details.get("fields")
    plan = JobPlan(job.id, gpus=ours.gpus, batch=batch, copies=copies, shares=shares, reason=reason)
    changes = _with_start(fields if isinstance(fields, dict) else {}, entry, job, now)
    return RequeuedUpdate(before, ours, changes, plan)


def _powered_down(context: ActionContext, entry: Entry) -> str:
    """Why it would wait for a node to boot: one that a job requeues itself for may be powered down
    until the controller may release it. Empty where none of its nodes is."""
    known, there = context.nodes, steering_of(entry.details, 0.0).nodes
    asleep = [name for name in there if name in known and known[name].asleep]
    return f"node {asleep[0]}, where it was to go, was powered down meanwhile" if asleep else ""


def _awake_first(
    context: ActionContext, job: Job, changes: dict[str, str], sure: Steering
) -> tuple[dict[str, str], Steering]:
    """The changes with those partitions last in which only nodes that are powered down have a GPU
    left: Slurm would boot one of these although another type is free."""
    names = changes.get("Partition", ",".join(job.partitions)).split(",")
    asleep = asleep_partitions(context.nodes.values())
    ordered = sorted(names, key=lambda name: name in asleep)
    if ordered == names or "Partition" in sure.foreign:
        return changes, sure
    fields = {"Partition": ",".join(ordered)}
    was = job_updates.originals(job, fields, sure.was)
    return {**changes, **fields}, replace(sure, was=was, wrote={**sure.wrote, **fields})


def _within_types(
    context: ActionContext, job: Job, known: Steering
) -> tuple[dict[str, str], Steering]:
    """What keeps a job whose owner set other partitions or features from the GPU types that its
    owner excludes, and what is kept of the job then."""
    nodes = (node for node in context.nodes.values() if {*node.partitions} & {*job.partitions})
    kinds = {kind for node in nodes for kind in node.gpus}
    fields = limited_to_types(job, {}, kinds, context.config)
    was = job_updates.originals(job, fields, known.was)
    return fields, replace(known, was=was, wrote={**known.wrote, **fields})


def begin_time_returned(entry: Entry, job: Job, now: float, delay_s: float) -> dict[str, str]:
    """What an unmanaged job gets that its move ``entry`` has had requeued: it need not wait for the
    begin time of that requeue. Empty where it waits for another reason. ``delay_s``: as of
    :func:`begins_as_set`; inf while it is not known, then the begin time may be its owner's."""
    return {} if job.held else _at_once(entry, job, now, delay_s)


def _at_once(entry: Entry, job: Job, now: float, delay_s: float) -> dict[str, str]:
    """What takes the begin time of a move's requeue away from a job that waits; empty where its
    begin time is another one, or may be."""
    waits = job.state is JobState.PENDING
    if not (waits and ended_by(entry, job) and _may_start_at_once(entry, now)):
        return {}
    if job.eligible_s <= now or delay_s == inf or begins_as_set(job, now, delay_s):
        return {}
    return {"StartTime": at_once(job, now)}


def _stays_so(changed: Sequence[str]) -> str:
    verb, ends = ("was", "s") if len(changed) == 1 else ("were", "")
    return f"{' and '.join(changed)} {verb} changed while it moved, and stay{ends} so"


def _begins_later(context: ActionContext, entry: Entry, job: Job, now: float) -> bool:
    """Whether another user gave it a begin time that the move would take away."""
    return _may_start_at_once(entry, now) and begins_as_set(job, now, context.requeue_delay_s)


def _may_start_at_once(entry: Entry, now: float) -> bool:
    # Nothing was promised of what a chained job left: it may start again as soon as it is its turn.
    return bool(steering_of(entry.details, now).gpus) or chaining.DETAIL in entry.details


def _with_start(fields: Mapping[str, str], entry: Entry, job: Job, now: float) -> dict[str, str]:
    """The fields with when the job may start."""
    if _may_start_at_once(entry, now):
        return {**fields, "StartTime": at_once(job, now)}
    if not fields:
        # A stop: Slurm's own begin time stays, so that others get what it left.
        return {"StartTime": begin_time(job.eligible_s)}
    return dict(fields)


def steering_until_taken(context: ActionContext, update: RequeuedUpdate) -> Steering:
    """What is kept of the job until Slurm has taken its update."""
    before, ours = update.before, update.sure
    if ours.gpus or context.in_the_job:
        return ours
    # It gets its owner's request back, which is kept until Slurm has taken it.
    return replace(ours, was={**before.was, **ours.was}, wrote={**before.wrote, **ours.wrote})


def done_text(ours: Steering) -> tuple[str, str]:
    """How a move that was carried out ends, and what becomes of the job then."""
    if not ours.gpus:
        return "stopped", "waits for its turn"
    where = " + ".join(f"{count} x {kind}" for kind, count in sorted(ours.gpus.items()))
    return MOVED, f"to start on {where}"


def _excluded(entry: Entry, job: Job, steered: Steering, config: Config) -> str:
    """Why the owner, by the present declaration, does not accept where the move ``entry`` goes;
    empty: it is accepted, or the move goes nowhere, as a stop.

    ``steered``: what is kept of the job.
    """
    gpus, declared = steering_of(entry.details, 0.0).gpus, job.declaration or Declaration()
    want = resource_request(job, steered, config)
    if not gpus or isinstance(want, str):
        return ""
    words = declared.assignments()
    for kind in sorted(gpus):
        if want.types and kind not in want.types:
            return f"its owner declared types={words.get('types', '')} meanwhile, without {kind}"
        if not accepts(job, want, kind, config):
            least = f"gpu_mem={declared.gpu_mem / 1024:g}G"
            return f"its owner declared {least} meanwhile, more than {kind} has"
    copies, _ = copies_of(entry.details)
    if copies > 1 and not want.copies[0] <= copies <= want.copies[1]:
        return f"its owner declared fork={words.get('fork', '1')} meanwhile, not {copies} copies"
    there = len(steering_of(entry.details, 0.0).nodes)
    if copies == 1 and there > want.most_nodes:
        return f"its owner declared nodes={words.get('nodes', '1')} meanwhile, fewer than {there}"
    count, fixed = sum(gpus.values()), want.whole or want.copies[1] > 1
    if not fixed and count not in want.counts and not may_have(declared, count, True):
        return f"its owner declared gpus={words['gpus']} meanwhile, without {count}"
    return ""


def accepted_request(
    job: Job, steered: Steering, nodes: Mapping[str, Node], config: Config
) -> tuple[job_updates.Fields, Steering]:
    """What makes the request of a job that waits its owner's again, limited to the types that the
    owner accepts now, and what is kept of the job then. ``steered``: what is kept of it."""
    want = resource_request(job, steered, config)
    fields, was = job_updates.undo_fields(job, steered), dict(steered.was)
    if not isinstance(want, str) and not job.request.typed:
        names = was["Partition"].split(",") if "Partition" in was else list(job.partitions)
        wish = _limited(job, want, names, nodes, config)
        # What hbatch would have written for the owner's types counts as the owner's.
        was |= {
            key: value
            for key, value in wish.items()
            if key not in steered.foreign
            and (key == "Features" or not {*value.split(",")} <= {*names})
        }
        fields |= wish
    fields = within_types(job, steered, fields, config)
    fields = {
        key: value
        for key, value in fields.items()
        if key not in steered.foreign and value != job_updates.current(job, key)
    }
    was = job_updates.originals(job, fields, was)
    return fields, replace(steered, was=was, wrote={**steered.wrote, **fields})


def _limited(
    job: Job,
    want: ResourceRequest,
    names: Sequence[str],
    nodes: Mapping[str, Node],
    config: Config,
) -> job_updates.Fields:
    """``names``: the owner's partitions."""
    types = {
        name: {kind for node in nodes.values() if name in node.partitions for kind in node.gpus}
        for name in names
    }
    if all(len(kinds) == 1 for kinds in types.values()):
        open_ = [n for n in names if all(accepts(job, want, kind, config) for kind in types[n])]
        return {"Partition": ",".join(open_ or _anew(job, want, names, config) or names)}
    there = [kind for kind in config.gpu_types if any(kind in kinds for kinds in types.values())]
    features = [
        config.gpu_types[kind].feature for kind in there if accepts(job, want, kind, config)
    ]
    if not features or len(features) == len(there):
        return {}
    either = "|".join(features)
    return {"Features": with_feature(want.constraint, f"({either})" if want.constraint else either)}


def _anew(job: Job, want: ResourceRequest, names: Sequence[str], config: Config) -> list[str]:
    """The list that hbatch would write for the owner's types, where ``names`` is one that it wrote
    for others; else empty."""
    declared = job.declaration or Declaration()
    types = group_types(config).get(",".join(declared.partitions), {})
    if not {*names} <= {*types} or {*names} != {*(declared.listed or names)}:
        return []
    listed = declared_list(declared, config)
    return [name for name in listed if accepts(job, want, types[name], config)]
