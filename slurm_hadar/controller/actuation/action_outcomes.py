"""What became of each action: whether Slurm shows it, and what a move cost and gained.

Slurm's answer to an update means that it took it, not that it holds. So an entry of the journal is
closed by what a later tick sees anyway; nothing is asked for it.
"""

from collections.abc import Mapping

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.entry_details import copies_of, steering_of
from slurm_hadar.controller.actuation.move_steps import MOVED, NOT_SAVED
from slurm_hadar.controller.journal.entry import (
    NOT_CARRIED_OUT,
    NOT_MEANT,
    NOT_STARTED,
    Entry,
    is_in_vain,
)
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.controller.snapshot.eligibility import placed, profile_key
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import by_type
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.table import model_key
from slurm_hadar.reports import formats
from slurm_hadar.slurm.hosts import expand, fold

LATE, ENDED = "requeued itself late", "ended"
"""How the text begins on a job that acted on its signal only after the move was given up."""
_LOST_SIGHT_S = 3600.0
_SAME_TIME_S = 1.5
"""A job carries the time of its steering in whole seconds."""
_TOOK = ("done", "moved", "stopped", "released", "its placement could not")
"""How the outcomes of what Slurm accepted begin."""


def reconcile(store: Store, observation: Observation, commit_s: float) -> list[str]:
    """Close what is seen to hold, and measure the moves that have shown their effect. Returns the
    jobs that requeued themselves late, after the move that asked them was given up.

    ``commit_s``: how long a requested start may take.
    """
    shown, late = {}, []
    for entry in store.not_shown_yet():
        gave_up = _was_signalled(entry) and (entry.outcome or "").startswith(NOT_SAVED)
        # What a job does after a later move is not of this one's signal.
        superseded = gave_up and store.last_move(entry.job) != entry.id
        words = "" if superseded else _seen(entry, observation, commit_s)
        if words is not None:
            shown[entry.id] = words
            late += [entry.job] if words.startswith(LATE) else []
    effects = {
        entry.id: (entry, effect)
        for entry in store.unmeasured_moves()
        if (effect := _effect(entry, observation)) is not None
    }
    if shown or effects:
        store.close_seen(shown, {id_: effect for id_, (_, effect) in effects.items()})
    for entry, effect in effects.values():
        seconds = number(effect, "without_training_s")
        # After a stop the job also waited in the queue.
        if seconds is not None and steering_of(entry.details, 0.0).gpus:
            job = observation.jobs[entry.job]
            store.restarts.record(job.uid, model_key(profile_key(job)), seconds, observation.now)
    return late


def expected_effect(
    snapshot: Snapshot, action: Action, progress: Progress | None
) -> dict[str, object]:
    """What a move is expected to cost and gain, for its entry in the journal: samples/s and s, and
    the samples that the job had lost before.

    What is not known is left out, as the speed of an unmeasured model.
    """
    found: dict[str, object] = {}
    job, jobs = action.job, snapshot.view.jobs
    if progress is not None and progress.restarts == job.restarts:
        found["lost_before"] = progress.lost
        if progress.rate > 0:
            found["rate_before"] = progress.rate
    if job.id not in jobs.ids:
        return found
    row = jobs.rows[job.id]
    found["cost_expected_s"] = float(jobs.restart_s[row])
    if not jobs.known[row].any():
        return found
    for key, gpus in (
        ("rate_expected", action.steering.gpus),
        ("rate_expected_here", by_type(snapshot.schedulable[job.id].held)),
    ):
        kinds = list(gpus)
        if len(kinds) == 1 and kinds[0] in snapshot.view.types:
            kind = snapshot.view.types.index(kinds[0])
            if gpus[kinds[0]] in snapshot.view.counts:
                count = snapshot.view.counts.index(gpus[kinds[0]])
                speed = float(jobs.rate[row, kind, count])
                if speed > 0:
                    found[key] = speed
    return found


def outcome_text(entry: Entry) -> str:
    """What came of an action, by its last look: a move after which Slurm started the job elsewhere,
    or not at all, was not carried out. Empty while it is under way."""
    in_vain = entry.outcome == MOVED and is_in_vain(entry.shown or "")
    return NOT_CARRIED_OUT if in_vain else entry.outcome or ""


def effect_text(entry: Entry) -> str:
    """``8 s without training, 512 -> 980 samples/s (expected 1,010)``; empty where unknown.

    Of a stop also ``waited 310 s for its next start``.
    """
    effect = entry.effect or {}
    without, before, after = (
        number(effect, key) for key in ("without_training_s", "rate_before", "rate_after")
    )
    expected, paid = number(effect, "rate_expected"), number(effect, "paid_back_after_s")
    if outcome_text(entry) == NOT_CARRIED_OUT:
        # What was expected was expected of another place.
        expected = paid = None
    waited, lost, lost_s = (number(effect, key) for key in ("waited_s", "lost_samples", "lost_s"))
    ended = effect.get("ended_waiting") is True
    until = "until it ended, without another start" if ended else "for its next start"
    parts = [f"waited {waited:.0f} s {until}"] if waited is not None else []
    if lost:
        seconds = f" ({lost_s:.0f} s)" if lost_s is not None else ""
        parts.append(f"{lost:,.0f} samples of work lost{seconds}")
    parts += [f"{without:.0f} s without training"] if without is not None else []
    if after is not None:
        speed = f"{after:,.4g} samples/s"
        parts.append(f"{before:,.4g} -> {speed}" if before is not None else speed)
        if expected is not None:
            parts[-1] += f" (expected {expected:,.4g})"
    if paid is not None:
        parts.append(f"paid back after {paid:.0f} s")
    return ", ".join(parts)


def number(values: Mapping[str, object], key: str) -> float | None:
    """A figure of an entry's details or effect; None where there is none."""
    value = values.get(key)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and isinstance(value, int | float) else None


def where(job: Job, observation: Observation) -> str:
    """Where a job runs: ``1 x k80 on k1``; ``k1`` of one of which Slurm shows no GPU."""
    text = job_updates.placement_text(by_type(placed(job, observation.nodes)), list(job.nodes))
    return text.removeprefix(" on ")


def _seen(entry: Entry, observation: Observation, commit_s: float) -> str | None:
    """What Slurm shows of an action; None where it is too early to say."""
    job = observation.jobs.get(entry.job)
    if _was_signalled(entry) and (entry.outcome or "").startswith(NOT_SAVED):
        if job is None:
            return "" if observation.now - entry.changed_s > _LOST_SIGHT_S else None
        return after_its_signal(entry, job)
    if not (entry.outcome or "").startswith(_TOOK):
        return ""
    if job is None:
        lost = observation.now - entry.changed_s > _LOST_SIGHT_S
        return "Slurm does not show the job any more" if lost else None
    if job.state is JobState.FINISHED:
        return f"the job has ended ({job.slurm_state})"
    if entry.kind == Kind.HINT.value:
        waits, sent = job.state is JobState.PENDING, entry.details.get("fields")
        other = waits and isinstance(sent, dict) and job_updates.differing(job, sent)
        return "Slurm shows other fields than sent" if other else "Slurm shows it"
    if entry.kind != Kind.MOVE.value:
        return "held still" if job.held and job.state is JobState.PENDING else "not held any more"
    return _seen_placed(entry, job, observation, commit_s)


def _was_signalled(entry: Entry) -> bool:
    return entry.details.get("habit") == "signal"


def after_its_signal(entry: Entry, job: Job) -> str | None:
    """What a job with ``checkpoint=signal`` did after the signal of a move: requeued itself, or
    ended; None: it is still in the attempt that was asked, empty: of that nothing is known."""
    before = entry.details.get("restarts")
    if job.restarts == before:
        if job.state is not JobState.FINISHED:
            return None
        after_s = max(0.0, job.end_s - entry.opened_s)
        return f"{ENDED} ({job.slurm_state}) {after_s:.0f} s after its signal"
    if not isinstance(before, int) or job.restarts != before + 1 or job.submit_s < entry.opened_s:
        return ""
    return f"{LATE}, {job.submit_s - entry.opened_s:.0f} s after its signal"


def _seen_placed(entry: Entry, job: Job, observation: Observation, commit_s: float) -> str | None:
    meant, steered = steering_of(entry.details, 0.0), observation.steered(job.id)
    if job.state is JobState.RUNNING and job.restarts == _restarts_after(entry, job):
        if not meant.gpus:
            return f"Slurm started it again: {where(job, observation)}"
        as_meant = by_type(placed(job, observation.nodes)) == dict(meant.gpus)
        runs = f"runs on {where(job, observation)}"
        return runs if as_meant else f"{runs}, {NOT_MEANT}{_other_request(entry, job)}"
    if job.state is not JobState.PENDING:
        return "Slurm started it anew since" if job.state is JobState.RUNNING else None
    if abs(steered.time - entry.changed_s) > _SAME_TIME_S:
        return "it was decided anew before it started"
    if not meant.gpus:
        return "waits in the queue"
    if observation.now - entry.changed_s <= commit_s:
        return None
    other = _other_request(entry, job)
    return f"Slurm {NOT_STARTED}{other}" if other else f"Slurm shows it as sent, but {NOT_STARTED}"


def _other_request(entry: Entry, job: Job) -> str:
    """What its owner, or an admin, changed of its request while it was moved, and the move did not
    see; empty where nothing is known of that."""
    if entry.outcome != MOVED:
        return ""
    changed = _changed_fields(entry, job)
    if changed:
        verb = "was" if len(changed) == 1 else "were"
        return f": {' and '.join(changed)} {verb} set meanwhile"
    return _other_count(entry, job)


def _changed_fields(entry: Entry, job: Job) -> list[str]:
    """The partitions and nodes of its request where they are others than the move left; of a job
    that runs Slurm shows the one partition only in which it does."""
    sent: dict[str, object] = {}
    for key in ("stood", "wrote"):
        values = entry.details.get(key)
        sent |= values if isinstance(values, dict) else {}
    found, names, nodes = [], sent.get("Partition"), sent.get("ReqNodeList")
    if isinstance(names, str) and not {*job.partitions} <= {*names.split(",")}:
        found.append(f"Partition={','.join(job.partitions)}")
    if isinstance(nodes, str) and {*job.required_nodes} != {*expand(nodes)}:
        found.append(f"ReqNodeList={fold(job.required_nodes)}")
    return found


def _other_count(entry: Entry, job: Job) -> str:
    """That its owner asked for another number of GPUs while it was moved; empty where the request
    is for as many as the move sent it to, or does not say."""
    asked, meant = job.request, sum(steering_of(entry.details, 0.0).gpus.values())
    if copies_of(entry.details)[0] > 1 or asked.per_task:
        return ""
    number = sum(asked.gpus.values()) * (len(job.nodes) if asked.per_node else 1)
    # A job that waits has no nodes.
    if number in (0, meant) or number != job.gpu_count:
        return ""
    return f": its owner asked for {formats.counted(number, 'GPU')} meanwhile"


def _restarts_after(entry: Entry, job: Job) -> int:
    before = entry.details.get("restarts")
    if entry.kind == Kind.MOVE.value and isinstance(before, int):
        return before + 1
    return job.restarts


def _effect(entry: Entry, observation: Observation) -> dict[str, object] | None:
    """Cost and gain of a move or a stop; {} where there is nothing to measure, None: not yet."""
    job, before = observation.jobs.get(entry.job), entry.details.get("restarts")
    if not isinstance(before, int):
        return {}
    if job is None:
        return {} if observation.now - entry.changed_s > _LOST_SIGHT_S else None
    if job.restarts != before + 1:
        return {}
    stopped = not steering_of(entry.details, 0.0).gpus
    progress = observation.progress.get(job.id)
    if progress is not None and progress.restarts != job.restarts:
        progress = None
    if job.state is JobState.FINISHED:
        return {**_wait(entry, job), **_lost(entry, progress)} if stopped else {}
    if job.state is not JobState.RUNNING or progress is None or progress.rate <= 0:
        return None
    found: dict[str, object] = {"on": where(job, observation), "rate_after": progress.rate}
    for key in ("rate_before", "rate_expected", "cost_expected_s"):
        value = number(entry.details, key)
        if value is not None:
            found[key] = value
    found |= {**(_wait(entry, job) if stopped else {}), **_lost(entry, progress)}
    without, rate_before = progress.restart_s, number(entry.details, "rate_before")
    if without is None:
        # The job did not measure it: from the requeue to its start at least.
        requeued = _requeued_s(entry)
        without = None if requeued is None else max(0.0, progress.started - requeued)
    if without is not None:
        found["without_training_s"] = without
        arrived = not stopped and not is_in_vain(entry.shown or "")
        if arrived and rate_before is not None and progress.rate > rate_before:
            undone = without * rate_before + (number(found, "lost_samples") or 0.0)
            found["paid_back_after_s"] = undone / (progress.rate - rate_before)
    return found


def _wait(entry: Entry, job: Job) -> dict[str, object]:
    """How long a stopped job waited until it ran again, or ended."""
    requeued = _requeued_s(entry)
    if requeued is None or job.start_s < requeued - _SAME_TIME_S:
        return {}
    waited: dict[str, object] = {"waited_s": max(0.0, job.start_s - requeued)}
    # Slurm's start of a job that was cancelled while it waited is its end.
    if job.state is JobState.FINISHED and job.end_s <= job.start_s:
        waited["ended_waiting"] = True
    return waited


def _lost(entry: Entry, progress: Progress | None) -> dict[str, object]:
    """The work since its last checkpoint that a job had to do again."""
    before, rate = (number(entry.details, key) for key in ("lost_before", "rate_before"))
    if progress is None or before is None:
        return {}
    lost = max(0, progress.lost - int(before))
    return {"lost_samples": lost, **({"lost_s": lost / rate} if rate else {})}


def _requeued_s(entry: Entry) -> float | None:
    return entry.reached_s(REQUEUED)
