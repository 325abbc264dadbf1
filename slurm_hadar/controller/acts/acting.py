"""Carrying actions out: written down first, sent in one batch, with Slurm's answer beside it.

Whether it holds is seen at a later tick (:mod:`slurm_hadar.controller.acts.trail`).
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from slurm_hadar.config import Config
from slurm_hadar.controller.acts.actions import Action, Kind
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.picture.request import may_have_copies
from slurm_hadar.controller.picture.targets import by_type, placed
from slurm_hadar.controller.seen import kept
from slurm_hadar.domain import steering
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.steering import Steering
from slurm_hadar.runtime.plan_file import JobPlan, put_back_plan, read_plan, write_plan
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.cluster import Cluster, Update

_OTHER = re.compile(r"\bjob \d+(?:[_+]\d+)?\b")
_MOST_NAMED = 50
"""Jobs whose leases were renewed that the journal names."""


@dataclass(frozen=True)
class Sent:
    """What became of a batch of actions: complaints for the operator, and ids of jobs of which
    nothing was changed."""

    said: tuple[str, ...] = ()
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
    taken_over: Callable[[], str] = str
    """Why another controller may act now, so that nothing more is written; empty: none may."""

    def check(self) -> None:
        """Raises OSError where another controller may act now."""
        why = self.taken_over()
        if why:
            raise OSError(why)

    def held(self, job: Job) -> dict[str, int]:
        """GPUs that a running job has, by type."""
        return by_type(placed(job, self.nodes) or job.gpus)

    def update(self, job: Job, fields: dict[str, str], ours: Steering) -> Update:
        """An update that also says, in the job, what we decided."""
        if not kept.in_the_job(self.config):
            kept.keep(self.config, self.store, job.id, ours, self.check)
            return Update(job.id, fields)
        comment = steering.merge(job.admin_comment, ours)
        return Update(job.id, {**fields, "AdminComment": comment})

    def write_plan(
        self,
        job: Job,
        gpus: Mapping[str, int],
        reason: str,
        save: str = "",
        copies: int = 1,
        shares: tuple[float, ...] = (),
        batch: int | None = None,
    ) -> str | None:
        """Tell the job what it will run with; ``save`` asks it to checkpoint now.

        A complaint where the file cannot be written, as when somebody else made one of that name:
        the job then goes by what Slurm gives it.
        """
        try:
            write_plan(
                self.config.site.exchange_dir,
                job.id,
                gpus=gpus,
                batch=batch,
                copies=copies,
                shares=shares,
                save=save,
                restarts=job.restarts,
                # Everybody may read the file, and other jobs are nobody's business.
                reason=_OTHER.sub("another job", reason),
                check=self.check,
            )
        except (OSError, ValueError) as error:
            return f"job {job.id}: its plan file cannot be written: {error}"
        return None

    def plan_of(self, job: Job) -> JobPlan | None:
        """What the job was told to run with, None: nothing."""
        return read_plan(self.config.site.exchange_dir, job.id, {os.getuid()})

    def put_back(self, job: Job, plan: JobPlan | None) -> None:
        """Tell the job again what it was told before; None: it goes by what Slurm gives it."""
        with contextlib.suppress(OSError, ValueError):
            put_back_plan(self.config.site.exchange_dir, job.id, plan, self.check)


def change_waiting(context: ActionContext, actions: Sequence[Action], now: float) -> Sent:
    """Start, let wait or let go pending jobs, all in one batch."""
    if not actions:
        return Sent()
    updates = [context.update(a.job, dict(a.fields), a.steering) for a in actions]
    renewed = [a.job.id for a in actions if _only_renews(a)]
    with context.store.transaction():
        entries = {
            a.job.id: context.store.begin(a.job.id, a.kind.value, "sent", now, _details(a))
            for a in actions
            if not _only_renews(a)
        }
        if renewed:
            leases = {"number": len(renewed), "jobs": renewed[:_MOST_NAMED]}
            entries[""] = context.store.begin("", "lease", "sent", now, leases)
    complaints, refused = [], set()
    before: dict[str, JobPlan | None] = {}
    for action in actions:
        if action.placement is not None:
            before[action.job.id] = context.plan_of(action.job)
            copies, shares = action.placement.copies, action.placement.shares
            complaint = context.write_plan(
                action.job,
                action.steering.gpus,
                action.reason,
                copies=copies,
                shares=shares,
                batch=action.placement.batch,
            )
            complaints += [complaint] if complaint else []
    errors = pending.apply(context.cluster, [a.job for a in actions], updates, now)
    late = 0
    with context.store.transaction():
        for action, error in zip(actions, errors, strict=True):
            outcome = "done" if error is None else f"refused: {error}"
            if action.job.id in entries:
                context.store.end(entries[action.job.id], outcome, now)
            else:
                late += error is not None
            if error is not None:
                refused.add(action.job.id)
                if action.job.id in before and not error.retry:
                    # Slurm starts it, or has begun it, as it was.
                    context.put_back(action.job, before[action.job.id])
                complaints.append(f"job {action.job.id}: {action.kind.value} {outcome}")
        if renewed:
            outcome = f"refused for {late} of {len(renewed)}" if late else "done"
            context.store.end(entries[""], outcome, now)
    return Sent(tuple(complaints), frozenset(refused))


def _only_renews(action: Action) -> bool:
    return action.kind is Kind.WAIT and set(action.fields) == {"StartTime"}


def ask_to_save(
    context: ActionContext,
    action: Action,
    in_step: bool | None,
    now: float,
    hopes: Mapping[str, object] = MappingProxyType({}),
) -> Sent:
    """Begin a move or a stop: ask the job to save. ``in_step``: see Progress; None where unknown.
    ``hopes``: what is expected of it, for the journal.

    A job whose training is not a step polls the plan file; a signal would only hit its shell.
    """
    nonce = secrets.token_hex(8)
    details = {**_details(action), **hopes, "save": nonce, "restarts": action.job.restarts}
    entry = context.store.begin(action.job.id, Kind.MOVE.value, "asked", now, details)
    # Copies and shares are said when it has been requeued: now they would be of no use to it.
    complaint = context.write_plan(action.job, action.steering.gpus, action.reason, save=nonce)
    if complaint:
        context.store.end(entry, complaint, now)
        return Sent((complaint,), frozenset({action.job.id}))
    if in_step is False:
        return Sent()
    name = action.job.declaration.signal if action.job.declaration else "USR2"
    try:
        context.cluster.signal(action.job.id, name, "steps")
    except SlurmError as error:
        outcome = f"the signal was refused: {error}"
        write_unmoved_plan(context, action.job)
        context.store.end(entry, outcome, now)
        complaint = f"job {action.job.id}: {action.kind.value} given up, {outcome}"
        return Sent((complaint,), frozenset({action.job.id}))
    return Sent()


def write_unmoved_plan(context: ActionContext, job: Job) -> str | None:
    """Tell a running job that it goes on with what it has, and need not save; see write_plan."""
    copies = len(job.gpus) if may_have_copies(job) else 1
    return context.write_plan(job, context.held(job), "stays", copies=copies)


def _details(action: Action) -> dict[str, object]:
    ours = action.steering
    return {
        "fields": dict(action.fields),
        "gpus": dict(ours.gpus),
        "nodes": {node: dict(gpus) for node, gpus in ours.nodes.items()},
        "moves": ours.moves,
        "leased": ours.leased,
        "was": dict(ours.was),
        "from": {node: dict(gpus) for node, gpus in action.job.gpus.items()},
        "reason": action.reason,
        "copies": action.placement.copies if action.placement else 1,
        "shares": list(action.placement.shares) if action.placement else [],
        "batch": action.placement.batch if action.placement else None,
    }


def steering_of(details: object, now: float) -> Steering:
    """The steering that a journal entry was about to write."""
    found = details if isinstance(details, dict) else {}
    return Steering(
        gpus=found.get("gpus", {}),
        nodes=found.get("nodes", {}),
        leased=bool(found.get("leased", False)),
        time=now,
        moves=int(found.get("moves", 0)),
        was=found.get("was", {}),
        batch=batch_of_entry(found) or 0,
    )


def copies_of(details: Mapping[str, object]) -> tuple[int, tuple[float, ...]]:
    """Copies and their shares that a journal entry meant."""
    copies, shares = details.get("copies", 1), details.get("shares", [])
    if not isinstance(copies, int) or not isinstance(shares, list):
        return 1, ()
    return copies, tuple(float(share) for share in shares)


def batch_of_entry(details: Mapping[str, object]) -> int | None:
    """The global batch that a journal entry meant, None: as the job has it."""
    batch = details.get("batch")
    return batch if isinstance(batch, int) else None
