"""The batches that managed jobs may train with, and whether a running job has another one.

A job that declares a range, such as ``batch=64:512``, may train with its least batch and with
twice, four times ... as much, up to the most. What a larger one costs is the noise scale that the
job's own runtime measures; until it has, the job keeps the least.
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.controller.snapshot.eligibility import SchedulableJob, profile_key
from slurm_hadar.controller.snapshot.sources import JobRates, Sources
from slurm_hadar.domain.declaration_values import doublings
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.traits import BatchTrait
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.exchange.progress import Progress


def allowed(job: Job) -> tuple[int, ...]:
    """Global batches of a job, rising; empty where it keeps the one it has.

    Another batch takes a checkpoint, so a job that cannot save has no choice.
    """
    declared = job.declaration
    if declared is None or declared.batch is None or declared.habit != "yes" or declared.pin:
        return ()
    low, high = declared.batch
    if low == high or declared.fork[1] > 1:
        return ()
    return doublings(low, high)


def trait(
    targets: Sequence[SchedulableJob], sources: Sources, speeds: JobRates, rate: FloatArray
) -> BatchTrait | None:
    """The trait of a view; None where no job has a choice. ``rate`` (J, R, C) with the declared
    batch: where that is 0 another one is of no use either."""
    observation, kinds, counts = sources.observation, speeds.kinds, speeds.counts
    choices = [allowed(target.job) for target in targets]
    most = max((len(sizes) for sizes in choices), default=0)
    if not most:
        return None
    number = len(targets)
    sizes = np.zeros((number, most), dtype=np.int64)
    good = np.zeros((number, len(kinds), len(counts), most))
    noise, base = np.zeros(number), np.zeros(number)
    present = np.zeros(number, dtype=np.int64)
    asked: list[tuple[int, int]] = []
    for row, (target, own) in enumerate(zip(targets, choices, strict=True)):
        if not own:
            continue
        sizes[row, : len(own)], base[row] = own, own[0]
        asked += [(row, column) for column in range(1, len(own))]
        said = observation.progress.get(target.job.id)
        noise[row] = (said.noise_scale or 0.0) if said else 0.0
        present[row] = _present(target.job, said)
    if asked:
        jobs = [targets[row].job for row, _ in asked]
        keys = [
            (job.uid, profile_key(job), int(sizes[row, column]))
            for job, (row, column) in zip(jobs, asked, strict=True)
        ]
        found, _ = sources.rates.rates_for(keys, kinds, counts)
        rows, columns = np.array(asked).T
        good[rows, :, :, columns] = found
    good[:, :, :, 0] = rate
    good *= (rate > 0)[..., None] & (sizes > 0)[:, None, None, :]
    return BatchTrait(sizes=sizes, rate=good, noise=noise, base=base, present=present)


def differs(job: Job, placement: Placement, said: Progress | None, given: int) -> bool:
    """Whether a running job shall train with another batch than it does. Not where its runtime
    tells no noise scale: then it has no choice itself. Nor where this is the batch that it was
    ``given``: a script that takes another all the same would be moved again and again."""
    if placement.batch in (None, given) or placement.batch not in allowed(job):
        return False
    if said is None or said.noise_scale is None:
        return False
    return _present(job, said) not in (0, placement.batch)


def _present(job: Job, said: Progress | None) -> int:
    """The batch of a running job, 0 where it does not run or has not said yet."""
    here = job.state is JobState.RUNNING and said is not None and said.restarts == job.restarts
    return said.batch if here and said is not None else 0
