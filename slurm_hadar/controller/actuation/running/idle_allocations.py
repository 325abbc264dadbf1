"""GPUs that a job holds and leaves idle, offered to jobs that wait: where the site wants that.

First a message goes to the job's owner (:mod:`slurm_hadar.controller.alerts`). Where that changes
nothing the job is stopped as a policy stops one: it saves, is requeued, and waits for its turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.destinations import preemption
from slurm_hadar.controller.actuation.restored_request import restored
from slurm_hadar.controller.journal.notified_owners import first_notified
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.profiling import gpu_use
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.reports import formats

ALERT = "held_idle"
DETAIL = "held_idle"
"""Under this name the journal entry of such a stop has since when the owner knew, s."""


@dataclass(frozen=True)
class IdleRecord:
    """``notified``: (user, job) -> since when the owner knows; ``requested``: job -> when the last
    request to make way was sent. Times in s since the epoch."""

    notified: Mapping[tuple[str, str], float] = field(default_factory=dict)
    requested: Mapping[str, float] = field(default_factory=dict)

    def notified_s(self, job: Job) -> float | None:
        """Since when the owner of a running job knows, in this attempt."""
        found = self.notified.get((job.user, job.id))
        return found if found is not None and found >= job.start_s else None


NONE = IdleRecord()


def read_idle_record(store: Store, config: Config, now: float) -> IdleRecord:
    """What the state folder and the journal say; nothing where the site does not want it."""
    if not config.alerts.preempt_held_idle_s:
        return NONE
    entries = store.entries_with(Kind.MOVE.value, DETAIL)
    return IdleRecord(
        first_notified(config.site.state_dir, ALERT, now),
        {entry.job: entry.opened_s for entry in entries},
    )


def preemptions(
    shown: Snapshot, observation: Observation, config: Config, known: IdleRecord, left: int
) -> list[Action]:
    """The jobs that are asked to make way now, ``left`` of them at most: those for whose GPUs a job
    waits, the longest known first."""
    if not known.notified:
        return []
    found = [
        (known.notified[target.job.user, id_], target.job)
        for id_, target in shown.schedulable.items()
        if not target.starting
        and id_ not in shown.staying
        and _due_s(target.job, observation, config, known) <= observation.now
    ]
    jobs = [job for _, job in sorted(found, key=lambda one: (one[0], one[1].id))]
    stopped = preemption.sufficient_preemptions(jobs, left, observation)
    return [_action(job, observation, config, known) for job in stopped]


def details(action: Action, known: IdleRecord) -> dict[str, object]:
    """For the journal."""
    if action.kind is not Kind.STOP_IDLE:
        return {}
    return {DETAIL: known.notified[action.job.user, action.job.id]}


def notes(
    shown: Snapshot,
    observation: Observation,
    config: Config,
    known: IdleRecord,
    requests: Sequence[Action],
) -> dict[str, str]:
    """A sentence for the decision on each job that this is about. ``requests``: what this tick
    sends."""
    if not config.alerts.preempt_held_idle_s:
        return {}
    requested_now = {action.job.id for action in requests if action.kind is Kind.STOP_IDLE}
    found = {}
    for id_, target in shown.schedulable.items():
        said = _note(target.job, shown.staying.get(id_, ""), observation, config, known)
        if id_ in requested_now:
            said = f"it makes way now: {_why(target.job, known)}"
        if said:
            found[id_] = f"; {said}"
    return found


def _note(
    job: Job, staying: str, observation: Observation, config: Config, known: IdleRecord
) -> str:
    requested_s = known.requested.get(job.id, 0.0)
    if job.state is not JobState.RUNNING:
        if not requested_s or requested_s <= observation.now - config.alerts.preempt_again_s:
            return ""
        return f"it was asked at {formats.moment(requested_s)} to make way, as its GPUs were idle"
    notified_s = known.notified_s(job)
    if notified_s is None or not gpu_use.in_vain(observation, job.id):
        return ""
    due_s = _due_s(job, observation, config, known)
    said = f"its owner has known since {formats.moment(notified_s)} that its GPUs are idle"
    if staying:
        return f"{said}; it makes way for no job: {staying}"
    if due_s > observation.now:
        return f"{said}; from {formats.moment(due_s)} on it makes way for jobs that wait"
    return f"{said}; it makes way as soon as a job waits for what it holds"


def _due_s(job: Job, observation: Observation, config: Config, known: IdleRecord) -> float:
    """From when on it makes way, s since the epoch; inf where it does not."""
    settings, notified_s = config.alerts, known.notified_s(job)
    if not settings.preempt_held_idle_s or notified_s is None or job.state is not JobState.RUNNING:
        return float("inf")
    if not gpu_use.in_vain(observation, job.id):
        return float("inf")
    again_s = known.requested.get(job.id, -float("inf")) + settings.preempt_again_s
    return max(notified_s + settings.preempt_held_idle_s, again_s)


def _why(job: Job, known: IdleRecord) -> str:
    notified_s = known.notified[job.user, job.id]
    return f"its GPUs are idle, which its owner has known since {formats.moment(notified_s)}"


def _action(job: Job, observation: Observation, config: Config, known: IdleRecord) -> Action:
    steered = observation.steered(job.id)
    ours = Steering(time=observation.now, moves=steered.moves + 1, foreign=steered.foreign)
    ours = replace(ours, listed=steered.listed)
    fields = restored(job, steered, config)
    return Action(Kind.STOP_IDLE, job, fields, ours, _why(job, known))
