"""Putting right what Slurm does to a job that is ours: nothing of ours may stay held."""

from collections.abc import Callable
from dataclasses import replace

from slurm_hadar.controller.acts import laying
from slurm_hadar.controller.acts.acting import Hands
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm.times import at_once

_MOST_RELEASES = 3
_RELEASE = "release"
_UNDO = "undo"


def release_failed_launches(hands: Hands, seen: Observed) -> list[str]:
    """Release managed jobs that Slurm holds because a launch failed on a node.

    A bounded number of times: a job that fails again and again has a fault of its own, and then an
    admin should look.
    """

    def release(job: Job) -> str:
        hands.cluster.release(job.id)
        return "released after a failed launch"

    said = []
    for job in seen.jobs.values():
        failed = _held(job) and "launch failed" in job.reason.lower().replace("_", " ")
        if failed and _times(hands, job, _RELEASE) < _MOST_RELEASES:
            said += _try(hands, seen, job, _RELEASE, release)
    return said


def undo_impossible_placements(hands: Hands, seen: Observed) -> list[str]:
    """Take back a placement that Slurm cannot carry out at all.

    It sets such a job's priority to 0 (BadConstraints), which is a hold in all but name. That is
    our own doing, so it is undone as often as it happens.
    """

    def undo(job: Job) -> str:
        steered = seen.steered(job.id)
        ours = replace(steered, gpus={}, nodes={}, leased=False, time=seen.now)
        fields = {**laying.back(job, steered), "StartTime": at_once(job, seen.now)}
        error = hands.cluster.apply([hands.update(job, fields, ours)])[0]
        if error is not None:
            raise error
        hands.cluster.release(job.id)
        return "its placement could not be carried out; it is as its owner wrote it again"

    said = []
    for job in seen.jobs.values():
        if _held(job) and job.reason == "BadConstraints" and laying.back(job, seen.steered(job.id)):
            said += _try(hands, seen, job, _UNDO, undo)
    return said


def close_interrupted(hands: Hands, seen: Observed) -> None:
    """Close what a controller that died left open in the journal; moves go on by themselves."""
    with hands.store.transaction():
        for entry in hands.store.open_entries():
            if entry.kind != "move":
                meant = entry.details.get("gpus")
                shown = entry.job in seen.jobs and dict(seen.steered(entry.job).gpus) == meant
                outcome = "carried out" if shown else "not seen to be carried out"
                hands.store.end(entry.id, f"{outcome}; the controller was interrupted", seen.now)


def _held(job: Job) -> bool:
    return job.managed and job.state is JobState.PENDING and job.held


def _times(hands: Hands, job: Job, kind: str) -> int:
    return sum(entry.kind == kind for entry in hands.store.history(job.id))


def _try(
    hands: Hands, seen: Observed, job: Job, kind: str, cure: Callable[[Job], str]
) -> list[str]:
    entry = hands.store.begin(job.id, kind, "sent", seen.now, {"reason": job.reason})
    try:
        outcome = cure(job)
    except SlurmError as error:
        outcome = f"refused: {error}"
    hands.store.end(entry, outcome, seen.now)
    return [f"job {job.id}: {outcome}"]
