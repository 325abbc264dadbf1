"""The owner's Nice, of jobs that no other update gives it back to: those that are held, and those
that are not managed any more.

We write a Nice for a place in an exchange, for the age that an update takes
(:mod:`.age_after_list_update`) and for the age that a requeue takes. Its owner may hold the job
meanwhile, or remove its declaration.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.pending.hint_updates import is_refused
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.job import Job, JobState


def given_back(
    observation: Observation,
    refused: Mapping[str, Refusals],
    exchanged: Collection[str] = (),
    excluded: Collection[str] = (),
) -> list[Action]:
    """The updates that restore these.

    ``exchanged``: managed jobs that keep another's place in the queue, also while they are held;
    ``excluded``: managed jobs that are not steered.
    """
    found = []
    for id_, steered in observation.steering.items():
        job = observation.jobs.get(id_)
        if job is None or not is_left(job, observation) or is_refused(job, observation, refused):
            continue
        if job.state is JobState.PENDING and job_updates.is_nice_of_a_move(job, steered):
            continue
        if not job.managed:
            why = "it is not managed any more"
        elif job.held and job.state is JobState.PENDING and id_ not in exchanged:
            why = "it is held"
        elif job.state is JobState.RUNNING and id_ in excluded:
            why = "it runs"
        else:
            continue
        fields = {"Nice": steered.was["Nice"]}
        was, wrote, unsure = (
            {key: value for key, value in values.items() if key != "Nice"}
            for values in (steered.was, steered.wrote, steered.unsure)
        )
        ours = replace(steered, was=was, wrote=wrote, unsure=unsure, time=observation.now)
        found.append(Action(Kind.HINT, job, fields, ours, f"{why}: its owner's Nice is restored"))
    return found


def is_left(job: Job, observation: Observation) -> bool:
    """Whether a job that waits or runs has a Nice of ours, and may be given its owner's now."""
    steered = observation.steered(job.id)
    return (
        job.state in (JobState.PENDING, JobState.RUNNING)
        and steering_store.has_our_nice(job, steered)
        and steered.was["Nice"] != str(job.nice)
        and keeps_hold(job, observation.priority_returns)
    )


def keeps_hold(job: Job, ages: bool) -> bool:
    """Whether another Nice leaves a job held that is: under priority/basic it releases it.
    ``ages``: whether the site's priorities are those of priority/multifactor."""
    return ages or not job.held
