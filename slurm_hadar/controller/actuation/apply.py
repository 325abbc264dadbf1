"""Carrying actions out: written down first, sent in one batch, with Slurm's answer beside it.

Whether it holds is seen at a later tick (:mod:`.action_outcomes`).
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.entry_details import (
    action_details,
    hint_details,
    move_details,
)
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.snapshot.at_risk import UNASKED
from slurm_hadar.controller.snapshot.eligibility import placed
from slurm_hadar.controller.snapshot.empty_nodes import UNFIT
from slurm_hadar.controller.snapshot.resource_request import may_have_copies
from slurm_hadar.domain import reasons, steering
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.placement import by_type
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.plan_file import JobPlan, remove_plan, write_plan
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.cluster import Cluster, Update

_REFUSED, _UNANSWERED = "refused:", "not answered:"
_REFUSED_HELD = "refused while it was held:"
_UNFIT = "taken; the job fitted nowhere in a partition that it had before"
"""Slurm took the update. The list before it counts as refused."""
UNDO, UNDONE = "undo", "its placement could not be carried out; its owner's request is restored"
"""A placement that is taken back, in the journal; see repair."""
_TAKEN_ALL_THE_SAME = ("partition configuration not available", "node configuration is not")
"""Of how Slurm says that a job fits nowhere in its partitions: an update has changed them then."""


@dataclass(frozen=True)
class Sent:
    """The result of a batch of actions: messages for the operator, and ids of jobs of which nothing
    was changed."""

    messages: tuple[str, ...] = ()
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ActionContext:
    """What is needed to act: the cluster, our file, the site's settings, the nodes as they were
    seen, and a clock in s since the epoch."""

    cluster: Cluster
    store: Store
    config: Config
    nodes: Mapping[str, Node] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    ages: bool = False
    """Whether jobs gain priority with age, and this controller may give it back to them."""
    taken_over: Callable[[], str] = str
    """Why another controller may be active now, so that nothing more is written; empty: none
    may."""
    requeue_delay_s: float = inf
    """How far ahead Slurm puts the begin time of a requeued job; inf while that is not known."""

    @property
    def in_the_job(self) -> bool:
        """Whether what is kept of a job is sent with each update of it."""
        return steering_store.in_the_job(self.config)

    def check(self) -> None:
        """Raises OSError where another controller may be active now."""
        why = self.taken_over()
        if why:
            raise OSError(why)

    def held(self, job: Job) -> dict[str, int]:
        """GPUs that a running job has, by type."""
        return by_type(placed(job, self.nodes) or job.gpus)

    def update(self, job: Job, fields: dict[str, str], ours: Steering) -> Update:
        """An update that also says, in the job, what we decided."""
        if not self.in_the_job:
            steering_store.keep(self.config, self.store, job.id, ours, self.check)
            return Update(job.id, fields)
        comment = steering.merge(job.admin_comment, ours)
        return Update(job.id, {**fields, "AdminComment": comment})

    def steering_of(self, job: Job) -> Steering:
        """What is kept of one job."""
        if self.in_the_job:
            text = job.admin_comment
        else:
            text = self.store.steerings([job.id]).get(job.id, "")
        return steering.decode(text) or Steering()

    def steerings_of(self, actions: Sequence[Action]) -> dict[str, Steering]:
        """What is kept of the jobs of these actions; empty where the jobs carry it themselves."""
        if self.in_the_job:
            return {}
        jobs = [action.job for action in actions]
        arrays = {str(job.array_job_id) for job in jobs if job.array_tasks}
        found = self.store.steerings({*arrays, *(job.id for job in jobs)})
        known = ((job, steering.decode(text)) for job, text in found.items())
        return {job: ours for job, ours in known if ours is not None}

    def keep(self, job: Job, ours: Steering) -> None:
        """Keep what was done to a job, without an update."""
        if not self.in_the_job:
            steering_store.keep(self.config, self.store, job.id, ours, self.check)

    def write_plan(self, job: Job, plan: JobPlan) -> str | None:
        """Tell the job what it will run with; ``save`` of the plan asks this attempt of it to
        checkpoint now.

        A complaint where the file cannot be written, as when another user made one of that name:
        the job then goes by what Slurm gives it.
        """
        # All users may read the file; it must say nothing of other jobs.
        plan = replace(plan, restarts=job.restarts, reason=reasons.without_others(plan.reason))
        try:
            write_plan(self.config.site.exchange_dir, plan, self.check)
        except (OSError, ValueError) as error:
            return f"job {job.id}: its plan file cannot be written: {error}"
        return None

    def remove_plan(self, job: Job) -> None:
        """The job goes by what Slurm gives it."""
        with contextlib.suppress(OSError):
            self.check()
            remove_plan(self.config.site.exchange_dir, job.id)


def send_hints(context: ActionContext, actions: Sequence[Action], now: float) -> Sent:
    """Change the partition lists and the Nice of jobs that wait, all in one batch.

    Those that move down in the queue come first: Slurm may start a job between two updates, and
    no other job shall have two ahead of it where one was.
    """
    if not actions:
        return Sent()
    actions = sorted(actions, key=_rises)
    before = context.steerings_of(actions)
    groups = _records(actions)
    # First, with what was kept before: should we die while these are kept, the next tick knows
    # that they were not sent.
    with context.store.transaction():
        entries = [[_begin(context, a, before, now) for a in group] for group in groups.values()]
    updates = []
    for name, group in groups.items():
        sent = [context.update(a.job, dict(a.fields), a.steering) for a in group]
        updates.append(Update(name, sent[0].fields))
        for job, ours in _of_array(group):
            context.keep(job, ours)
    errors = pending.apply(
        context.cluster, [group[0].job for group in groups.values()], updates, now
    )
    complaints, refused = [], set()
    with context.store.transaction():
        for group, opened, error in zip(groups.values(), entries, errors, strict=True):
            outcome = _outcome(group, error)
            for entry in opened:
                context.store.end(entry, outcome, now)
            if error is not None:
                refused |= {action.job.id for action in group}
                if pending.BEGUN not in str(error):
                    complaints.append(f"job {group[0].job.id}: {Kind.HINT.value} {outcome}")
                _keep_unchanged(context, group, before, error)
    return Sent(tuple(complaints), frozenset(refused))


def _begin(context: ActionContext, hint: Action, before: Mapping[str, Steering], now: float) -> int:
    details = hint_details(hint, before.get(hint.job.id, Steering()))
    return context.store.begin(hint.job.id, hint.kind.value, "sent", now, details)


def _outcome(group: Sequence[Action], error: SlurmError | None) -> str:
    if error is not None and pending.BEGUN in str(error):
        return "not needed: it had begun"
    if error is not None:
        refused = _REFUSED_HELD if group[0].job.held else _REFUSED
        return f"{_UNANSWERED if error.retry else refused} {error}"
    if any(a.job.reason in UNFIT and "Partition" in a.fields for a in group):
        return f"{_UNFIT}: {group[0].job.reason}"
    return "done"


def _keep_unchanged(
    context: ActionContext,
    group: Sequence[Action],
    before: Mapping[str, Steering],
    error: SlurmError,
) -> None:
    """No other author shall be assumed for what was not changed, and what Slurm may have taken, or
    may not have taken back, must be given back one day: fields as well as the begin time of an
    earlier version."""
    for job, ours in [*((a.job, a.steering) for a in group), *_of_array(group)]:
        unchanged = before.get(job.id, Steering())
        was = {**ours.was, **unchanged.was}
        maybe = replace(
            unchanged,
            was=was,
            wrote={**was, **ours.wrote},
            unsure={**was, **unchanged.wrote},
            foreign=ours.foreign,
            listed=ours.listed,
        )
        context.keep(job, maybe if _may_be_taken(error) else unchanged)


def _rises(action: Action) -> bool:
    return int(action.fields.get("Nice", action.job.nice)) < action.job.nice


def _may_be_taken(error: SlurmError) -> bool:
    """Whether Slurm may have carried out an update that it answered with an error."""
    return error.retry or any(words in str(error).lower() for words in _TAKEN_ALL_THE_SAME)


def _of_array(group: Sequence[Action]) -> list[tuple[Job, Steering]]:
    """What is kept of the whole array, for tasks that are changed with these and not looked at."""
    if len(group) == 1:
        return []
    first = group[0]
    return [(replace(first.job, id=str(first.job.array_job_id)), first.steering)]


def _records(actions: Sequence[Action]) -> dict[str, list[Action]]:
    """The hints by what Slurm is to change: waiting tasks of an array that it keeps in one
    record, and that get the same, stay in one."""
    found: dict[str, list[Action]] = {}
    for action in actions:
        job = action.job
        name = f"{job.array_job_id}_[{job.array_tasks}]" if job.array_tasks else job.id
        if name in found and dict(found[name][0].fields) != dict(action.fields):
            name = job.id
        found.setdefault(name, []).append(action)
    return found


def refusals(store: Store, held: Collection[str] = ()) -> dict[str, Refusals]:
    """Job -> the refusals of its hints for the reason of the last one: those since the last hint
    that Slurm took, or all after which Slurm took the list and the job fitted nowhere in it, where
    these are more.

    ``held``: the jobs that are held now. What was refused of a held job says nothing of it once
    it is released, nor the other way round.
    """
    kind = Kind.HINT.value
    while_held = store.counts_after(kind, _REFUSED_HELD, "done", alike=True)
    else_ = store.counts_after(kind, _REFUSED, "done", alike=True)
    counts = {job: n for job, n in while_held.items() if job in held}
    counts |= {job: n for job, n in else_.items() if job not in held}
    last = {job: at_s for job, at_s in store.last_times(kind).items() if job in counts}
    # Each of these came after a list that Slurm had taken and that did not fit.
    for of_kind, outcome in ((kind, _UNFIT), (UNDO, UNDONE)):
        times = store.last_times(of_kind, outcome)
        for job, number in store.counts_after(of_kind, outcome, "").items():
            counts[job] = max(counts.get(job, 0), number)
            last[job] = max(last.get(job, 0.0), times[job])
    return {job: Refusals(number, last[job]) for job, number in counts.items()}


def ask_to_save(
    context: ActionContext,
    action: Action,
    in_step: bool | None,
    now: float,
    expected: Mapping[str, object] = MappingProxyType({}),
) -> Sent:
    """Begin a move or a stop: ask the job to save. ``in_step``: see Progress; None where unknown.
    ``expected``: what is expected of it, for the journal.

    A job whose training is not a step polls the plan file; a signal would only hit its shell. One
    that cannot be asked is stopped by the next step of the move.
    """
    declared = action.job.declaration or Declaration()
    asks = declared.asks
    nonce = secrets.token_hex(8)
    of_move = move_details(action, context.steering_of(action.job), context.store)
    details = {**action_details(action), **expected, "save": nonce, **of_move}
    entry = context.store.begin(action.job.id, Kind.MOVE.value, "asked", now, details)
    if declared.habit in UNASKED:
        return Sent()
    # Copies and shares are said when it has been requeued: now they would be of no use to it.
    complaint = context.write_plan(
        action.job,
        JobPlan(action.job.id, gpus=action.steering.gpus, reason=action.reason, save=nonce),
    )
    if complaint:
        context.store.end(entry, complaint, now)
        return Sent((complaint,), frozenset({action.job.id}))
    if in_step is False and declared.habit != "signal" and asks.target == "steps":
        return Sent()
    try:
        context.cluster.signal(action.job.id, asks.name, asks.target)
    except SlurmError as error:
        outcome = f"the signal was refused: {error}"
        complaints = write_unmoved_plan(context, action.job)
        context.store.end(entry, outcome, now)
        complaint = f"job {action.job.id}: {action.kind.value} given up, {outcome}"
        return Sent((complaint, *complaints), frozenset({action.job.id}))
    return Sent()


def write_unmoved_plan(context: ActionContext, job: Job) -> tuple[str, ...]:
    """Tell a running job that it goes on with what it has, and need not save. Complaints: see
    write_plan; the plan of the move is then removed, as it names GPUs that the job does not get."""
    copies = len(job.gpus) if may_have_copies(job) else 1
    plan = JobPlan(job.id, gpus=context.held(job), reason="stays", copies=copies)
    complaint = context.write_plan(job, plan)
    if complaint is None:
        return ()
    context.remove_plan(job)
    return (complaint,)
