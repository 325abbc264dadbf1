"""Carrying moves through: asked to save -> acknowledged -> requeued -> sent on its way.

Each step is taken from what Slurm and the job show now, so that it does not matter which controller
began it, nor whether it died in between. No job is ever held: after a requeue Slurm itself starts
it when its begin time has passed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from slurm_hadar.controller.acts.acting import (
    Hands,
    batch_of_entry,
    copies_of,
    stays,
    steering_of,
)
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.seen.returned_nodes import REQUEUED, ended_by
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.runtime.progress import Progress, read_all_progress
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.times import at_once, begin_time, set_back, startable_s

_NOT_PENDING = "no longer pending"
"""Slurm's words for a job that has started since it was read."""
_LOST_SIGHT_S = 3600.0
_POLL_S = 0.5


@dataclass(frozen=True)
class Step:
    """What a step did: sentences for the operator, and the jobs that were sent on their way with
    the places where they go (job -> node -> type -> GPUs)."""

    said: tuple[str, ...]
    sent: Mapping[str, Mapping[str, Mapping[str, int]]]


def advance(
    hands: Hands, jobs: Mapping[str, Job], progress: Mapping[str, Progress], now: float
) -> Step:
    """Take every open move one step further, from what is seen now."""
    entries = [entry for entry in hands.store.open_entries() if entry.kind == "move"]
    requeue: list[Entry] = []
    send_on: list[tuple[Entry, Job]] = []
    said: list[str] = []
    for entry in entries:
        job = jobs.get(entry.job)
        outcome = None
        if job is None:
            if now - entry.changed_s > _LOST_SIGHT_S:
                outcome = "lost sight of the job: Slurm does not show it any more"
        elif job.state is JobState.FINISHED:
            outcome = f"the job ended meanwhile ({job.slurm_state})"
        elif not job.managed:
            outcome = "it is not ours any more"
        elif job.restarts == entry.details.get("restarts"):
            outcome = _before_requeue(hands, entry, job, progress.get(job.id), requeue, now)
        elif job.state is JobState.PENDING:
            job = _requeued(hands, entry, job)
            if now >= startable_s(job) or set_back(job, now):
                send_on.append((entry, job))
        elif job.state is JobState.RUNNING:
            outcome = _started(hands, entry, job)
        if outcome is not None:
            hands.store.end(entry.id, outcome, now)
            said.append(f"job {entry.job}: {outcome}")
    said += _requeue(hands, requeue, now)
    said += _send_on(hands, send_on, now)
    return Step(tuple(said), destinations(entry for entry, _ in send_on))


def settle(
    hands: Hands,
    known: Mapping[str, Job],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    why_not: Callable[[], str] = str,
) -> list[str]:
    """Follow the open moves for a bounded time. Slurm is asked about these jobs only.

    ``known``: the jobs as this tick has seen them; ``why_not``: why nothing may be changed any
    more, empty where it may.
    """
    said: list[str] = []
    end = clock() + hands.config.moving.settle_s
    folder, traffic = hands.config.site.exchange_dir, hands.cluster.traffic
    # The clock may be set back meanwhile, so the looks are counted too.
    looks = 1 + ceil(hands.config.moving.settle_s / _POLL_S)
    while True:
        entries = [entry for entry in hands.store.open_entries() if entry.kind == "move"]
        if not entries:
            return said
        names = [entry.job for entry in entries]
        owners = {name: known[name].uid for name in names if name in known}
        progress = read_all_progress(folder, owners)
        ripe = any(_ripe(entry, progress.get(entry.job), clock()) for entry in entries)
        # The other half of a minute's requests is for the next tick and for what is sent.
        stopped = why_not()
        if stopped:
            return [*said, f"moves under way wait: {stopped}"]
        if ripe and traffic.half_left():
            try:
                jobs = {job.id: _later(job, known) for job in hands.cluster.read_jobs(names)}
            except SlurmError as error:
                return [*said, f"moves under way go on at the next tick: {error}"]
            said += advance(hands, jobs, progress, clock()).said
        looks -= 1
        if clock() >= end or looks == 0:
            return said
        sleep(_POLL_S)


def _later(job: Job, known: Mapping[str, Job]) -> Job:
    """The job as it is shown now, with what only the tick's whole picture tells of it."""
    if job.id not in known or known[job.id].restarts != job.restarts:
        return job
    return replace(job, not_before_s=known[job.id].not_before_s)


def destinations(entries: Iterable[Entry]) -> dict[str, Mapping[str, Mapping[str, int]]]:
    """Where jobs in the middle of a move are going: job -> node -> type -> GPUs."""
    found = {}
    for entry in entries:
        if entry.kind == "move":
            found[entry.job] = steering_of(entry.details, entry.changed_s).nodes
    return found


def _requeued(hands: Hands, entry: Entry, job: Job) -> Job:
    """The job, which may have to wait where somebody else requeued it before we came to it: a node
    may have done it by going down."""
    if ended_by(entry, job):
        return job
    until = job.submit_s + hands.config.moving.after_return_s
    return replace(job, not_before_s=max(job.not_before_s, until))


def _ripe(entry: Entry, progress: Progress | None, now: float) -> bool:
    """Whether asking Slurm about a move may get it further."""
    if entry.phase != "asked":
        return True
    return _acknowledged(entry, progress) or (progress is not None and progress.finished)


def _acknowledged(entry: Entry, progress: Progress | None) -> bool:
    if progress is None or progress.ack is None:
        return False
    if progress.restarts != entry.details.get("restarts"):
        return False
    nonce = entry.details.get("save")
    return progress.ack.save == nonce or (
        not progress.ack.save and progress.ack.time >= entry.opened_s
    )


def _before_requeue(
    hands: Hands,
    entry: Entry,
    job: Job,
    progress: Progress | None,
    requeue: list[Entry],
    now: float,
) -> str | None:
    if job.state is not JobState.RUNNING:
        return None
    # A clock that was set back by an hour must not make it wait for one.
    waited = abs(now - entry.opened_s)
    if waited > hands.config.moving.ack_wait_s:
        # The job has gone on training since; an old answer is no reason to stop it now.
        stays(hands, job)
        return f"the job did not save within {waited:.0f} s and stays where it is"
    if _acknowledged(entry, progress):
        requeue.append(entry)
    return None


def _requeue(hands: Hands, entries: Sequence[Entry], now: float) -> list[str]:
    said: list[str] = []
    if not entries:
        return said
    # ``now`` is when the jobs were read, which may be some time ago.
    sent_s = hands.clock()
    errors = hands.cluster.requeue([entry.job for entry in entries])
    for entry, error in zip(entries, errors, strict=True):
        if error is None:
            hands.store.advance(entry.id, REQUEUED, sent_s)
        elif not error.retry:
            outcome = f"the requeue was refused: {error}"
            hands.store.end(entry.id, outcome, now)
            said.append(f"job {entry.job}: {outcome}")
    return said


def _send_on(hands: Hands, moved: Sequence[tuple[Entry, Job]], now: float) -> list[str]:
    """The requeued jobs are pending: say where they go, and that they may start at once."""
    said: list[str] = []
    waiting = [(entry, job) for entry, job in moved if not job.held]
    for entry, job in moved:
        if job.held:
            outcome = "it was held while it moved; its owner or an admin decides"
            hands.store.end(entry.id, outcome, now)
            said.append(f"job {job.id}: {outcome}")
    if not waiting:
        return said
    updates = []
    for entry, job in waiting:
        ours = steering_of(entry.details, now)
        fields = entry.details.get("fields")
        reason, (copies, shares) = str(entry.details.get("reason", "")), copies_of(entry.details)
        batch = batch_of_entry(entry.details)
        complaint = hands.write_plan(job, ours.gpus, reason, "", copies, shares, batch)
        said += [complaint] if complaint else []
        changes = dict(fields) if isinstance(fields, dict) else {}
        lease = hands.config.lease.length_s
        begin = begin_time(now + lease) if ours.leased else at_once(job, now)
        changes["StartTime"] = begin
        updates.append(hands.update(job, changes, ours))
    answers = pending.apply(hands.cluster, [job for _, job in waiting], updates, now)
    for (entry, job), error in zip(waiting, answers, strict=True):
        if error is None:
            outcome, where = _done(steering_of(entry.details, now))
            hands.store.end(entry.id, outcome, now)
            said.append(f"job {job.id}: {outcome}, {where}")
        # Where it began meanwhile, the next look tells as what.
        elif not error.retry and _NOT_PENDING not in str(error):
            hands.put_back(job, None)
            outcome = f"the placement was refused, Slurm starts it as it was: {error}"
            hands.store.end(entry.id, outcome, now)
            said.append(f"job {job.id}: {outcome}")
    return said


def _started(hands: Hands, entry: Entry, job: Job) -> str:
    if hands.held(job) == dict(steering_of(entry.details, 0.0).gpus):
        return "moved"
    # Its plan may speak of GPUs already that it did not get.
    stays(hands, job)
    return "it started by itself before it was placed"


def _done(ours: Steering) -> tuple[str, str]:
    if not ours.gpus:
        return "stopped", "waits for its turn"
    where = " + ".join(f"{count} x {kind}" for kind, count in sorted(ours.gpus.items()))
    return "moved", f"to {where}"
