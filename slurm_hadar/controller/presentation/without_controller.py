"""What Slurm and a job's own files say to its owner where no controller answers."""

import os
from collections.abc import Iterator

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.lock import controllers_uid
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import excluded_types, job_explanation, job_report
from slurm_hadar.controller.presentation.overview import Sight, Viewer, controller_state, overview
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import UnknownJobError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.reports.status import SLURM, Overview
from slurm_hadar.reports.text import Explanation
from slurm_hadar.slurm.cluster import Cluster

NO_ANSWER = "no controller answers questions on this host"
CHANGED_SINCE = "the controller's last tick saw no such job, or none that it manages"


def status(config: Config, cluster: Cluster, now: float) -> Overview:
    """The cluster as Slurm shows it to the caller, with the reasons in their own jobs' plan files.

    Raises SlurmError.
    """
    uid = os.getuid()
    # What the caller may not see Slurm did not show.
    return overview(sight(config, cluster, now), Viewer(uid, everything=uid == 0))


def sight(config: Config, cluster: Cluster, now: float) -> Sight:
    """What :func:`status` shows, before it is. Raises SlurmError."""
    uid = os.getuid()
    observation = job_report.observe_as_owner(config, cluster, now)
    beat = read_heartbeat(config.site.exchange_dir, controllers_uid(config))
    decided = dict(_decisions(config, (j for j in observation.jobs.values() if j.uid == uid)))
    return Sight(observation, config, controller_state(beat, now), SLURM, decided)


def explain(
    config: Config, cluster: Cluster, id_: str, now: float, why: str = NO_ANSWER
) -> Explanation:
    """One of the caller's own jobs; ``why`` Slurm was asked and no controller. Raises UsageError
    for another one."""
    uid = os.getuid()
    observation = job_report.observe_as_owner(config, cluster, now)
    id_ = job_explanation.named(observation, id_)
    job = observation.jobs.get(id_)
    if job is None or job.uid != uid:
        job_explanation.no_array(_of(observation, uid), id_)
        raise UnknownJobError(
            f"Slurm shows no job {id_} of yours; squeue --me shows those that wait and run, and "
            "only its owner and the operator see what was decided on a job"
        )
    job_explanation.ensure_managed(job)
    decision = excluded_types.corrected(
        dict(_decisions(config, [job])).get(job.id), job, observation, config
    )
    beat = read_heartbeat(config.site.exchange_dir, controllers_uid(config))
    old = "" if controller_state(beat, now).alive else "OLD: no controller is alive. "
    return Explanation(
        row=job_explanation.row_of(job, observation, None),
        declaration=list((job.declaration or Declaration()).assignments().items()),
        decided_s=decision.time_s if decision else 0.0,
        decision=decision.placement if decision else "",
        reason=old + job_explanation.reason_now(job, decision) if decision else "",
        notes=[
            *job_explanation.why_it_waits(job, observation, config),
            *job_explanation.changed(job, observation, config),
            *job_explanation.undo(job, observation, config),
            f"Source: Slurm and the job's own files; {why}",
        ],
        as_of_s=now,
    )


def _of(observation: Observation, uid: int) -> Observation:
    jobs = {id_: job for id_, job in observation.jobs.items() if job.uid == uid}
    return Observation(observation.now, jobs, observation.nodes, observation.partitions)


def _decisions(config: Config, jobs: Iterator[Job] | list[Job]) -> Iterator[tuple[str, Decision]]:
    uid = controllers_uid(config)
    for job in jobs:
        if job.managed and job.state is not JobState.FINISHED:
            plan = read_plan(config.site.exchange_dir, job.id, (uid,))
            if plan is not None and plan.reason:
                where = job_updates.placement_text(plan.gpus) if plan.gpus else ""
                yield job.id, Decision(job.id, plan.time, where, plan.reason)
