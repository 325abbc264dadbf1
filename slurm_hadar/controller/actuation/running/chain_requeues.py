"""Requeues before a time limit: which running jobs are asked to save now.

They are carried through like any stop of a move (:mod:`.moves`), and then wait for their turn in
Slurm's own order: what they leave goes to the next job.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.actuation.restored_request import restored
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.controller.snapshot.chaining import ChainRecord
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering

REASON = "its time limit ends soon: it goes on from its checkpoint in its next attempt"


def due(
    observation: Observation,
    config: Config,
    records: Mapping[str, ChainRecord],
    moving: Collection[str],
    interval_s: float,
) -> tuple[Action, ...]:
    """An action for each job that is asked to save now. ``moving``: jobs in the middle of a move,
    whose requeue begins their time anew; ``interval_s``: time between two ticks."""
    return tuple(
        _action(job, observation, config)
        for job in observation.jobs.values()
        if job.managed
        and job.id not in moving
        and not _still_starting(job, observation)
        and chaining.due(
            job, config, records.get(job.id, chaining.NONE), interval_s, observation.now
        )
        == 0
    )


def with_due(means: PlanDiff, found: tuple[Action, ...]) -> PlanDiff:
    """With these actions, but of jobs that move or stop anyway: a requeue is one."""
    requeued = {action.job.id for action in means.of(Kind.MOVE, Kind.STOP, Kind.STOP_IDLE)}
    return replace(
        means, actions=(*means.actions, *(one for one in found if one.job.id not in requeued))
    )


def details(
    action: Action, observation: Observation, records: Mapping[str, ChainRecord]
) -> dict[str, object]:
    """For the journal: what the next tick needs to know of the request."""
    if action.kind is not Kind.CHAIN:
        return {}
    record = records.get(action.job.id, chaining.NONE)
    again = record.asked_again(action.job, observation.progress.get(action.job.id))
    return {chaining.DETAIL: asdict(again)}


def notes(
    jobs: Mapping[str, Job], config: Config, records: Mapping[str, ChainRecord]
) -> dict[str, str]:
    """A sentence for the decision on each job whose owner asked for requeues."""
    found = {
        id_: chaining.note(job, config, records.get(id_, chaining.NONE))
        for id_, job in jobs.items()
        if job.declaration is not None and job.declaration.max_requeues
    }
    return {id_: f"; {text}" for id_, text in found.items() if text}


def _still_starting(job: Job, observation: Observation) -> bool:
    """Whether a signal would end it, since its training does not listen yet."""
    progress = observation.progress.get(job.id)
    by_runtime = job.declaration is not None and job.declaration.habit == "yes"
    current = progress is None or progress.restarts == job.restarts
    return by_runtime and (not current or (progress is not None and progress.finished))


def _action(job: Job, observation: Observation, config: Config) -> Action:
    steered = observation.steered(job.id)
    ours = Steering(time=observation.now, moves=steered.moves, foreign=steered.foreign)
    ours = replace(ours, listed=steered.listed)
    return Action(Kind.CHAIN, job, restored(job, steered, config), ours, REASON)
