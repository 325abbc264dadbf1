"""How much work each job is, and how much of it is done: what its owner declared, set against what
it received."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.controller.snapshot.assumed_work import (
    AssumedWork,
    WorkSoFar,
    assumed_work,
    likeness,
    sentence,
)
from slurm_hadar.controller.snapshot.eligibility import gpus_of, profile_key
from slurm_hadar.controller.snapshot.sources import JobRates, Sources
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import BoolArray, FloatArray
from slurm_hadar.profiles.rates import Rates

END_UNKNOWN = "end unknown"
WORK_UNKNOWN = "Its work is"
"""How policies, which know of no declaration, begin what they say of such a job."""

_OVERRUN = 1.5
"""Work received over work declared, above which the declaration counts no more."""
_UNKNOWN_WORK_S = 4 * 3600.0
"""Assumed run time of a job that declares no amount of work and has no shorter time limit, where
earlier jobs tell nothing."""
_REST = 0.1
"""Of the work that a job without reports is expected to have done, the least that it has left: the
longer it runs past its expected end, the less that end was known."""
_KEEPS_WORK = ("yes", "signal", "watch")
"""Habits of saving with which a restart goes on where the job was."""
WORTH_SAYING = 1.1
"""Below this factor no message says that a declaration counts for more: it makes no difference."""

ESTIMATED = "; it reports no progress, so its end is an estimate by its expected speed"


@dataclass(frozen=True, slots=True)
class JobWork:
    """All (J,), in samples where nothing else is said.

    ``declared``: by the owner, 0 where there is no declaration or the model's speed is unknown;
    ``done``: as the job reports; ``received``: done so far, as the job reports or as its GPU time
    makes it at the slowest speed that a table or its owner's own runs know, whichever is more;
    ``attained``: its GPU-seconds; ``total``, ``left``: what a policy counts with; ``least_left``:
    by the declaration as it stands; ``estimated``: whether ``left`` is what its expected speed
    leaves of a declaration, as the job reports no progress;
    ``unknown``: whether no declaration counts; ``assumed``: what earlier jobs tell of those that
    declare nothing; ``factor``: what a declaration, or that, was multiplied by, as its owner's
    earlier jobs were more.
    """

    declared: FloatArray
    done: FloatArray
    received: FloatArray
    attained: FloatArray
    total: FloatArray
    left: FloatArray
    least_left: FloatArray
    unknown: BoolArray
    estimated: BoolArray
    factor: FloatArray
    assumed: AssumedWork


def work_of(
    sources: Sources,
    jobs: Sequence[Job],
    rate: FloatArray,
    own: FloatArray,
    speeds: JobRates,
) -> JobWork:
    """The work of these jobs, whose ``speeds`` these are. ``rate``: (J, R, C) samples/s, 0 where
    the owner excludes a type or count; ``own``: the same of a table or of the owner's own runs
    alone, 0 where these know none.
    """
    observation, past, counts = sources.observation, sources.past, speeds.counts
    reports = [observation.progress.get(job.id) for job in jobs]
    done = np.array([report.samples if report else 0 for report in reports], float)
    attained = np.array([past.attained.get(job.id, 0.0) for job in jobs], float)
    slowest = _least_per_gpu(np.where(rate > 0, own, 0.0), counts)
    received = np.maximum(done, attained * slowest)
    declared = _declared(jobs, sources.rates)

    def so_far(row: int) -> WorkSoFar:
        timed = sources.rates.anchored(profile_key(jobs[row]))
        per_gpu = _usual_per_gpu(rate[row], counts)
        return WorkSoFar(float(received[row]), float(attained[row]), per_gpu, timed)

    earlier = [None if _declares(job) else past.earlier.get(likeness(job)) for job in jobs]
    assumed = assumed_work(earlier, so_far)
    # One that goes on after its declared work is done is of unknown length, like one that declares
    # nothing: as long again as it ran, or else a false declaration would always be about to end.
    over = (declared > 0) & (received > _OVERRUN * declared)
    again = np.where(over, 2 * received, np.where(assumed.outlasted, done + assumed.left, 0.0))
    guessed = np.maximum(_guessed(jobs, rate), again)
    expects = (assumed.jobs > 0) & ~assumed.outlasted
    stated = np.where(over, 0.0, np.where(expects, done + assumed.left, declared))
    # An owner whose declarations were too small is believed less, but a declaration never makes a
    # job longer than none would. So with what is assumed of one whose earlier jobs were small.
    understated = [past.understated.get(job.uid, 1.0) for job in jobs]
    outgrown = [past.outgrown.get(job.uid, 1.0) for job in jobs]
    factor = np.where(expects, np.maximum(understated, outgrown), understated)
    raised = np.maximum(stated, np.minimum(stated * factor, guessed))
    total = np.where(stated > 0, raised, guessed)
    unknown = over | (declared == 0)
    expected = _expected_done(sources, jobs, rate, speeds)
    estimated = ~unknown & (expected > 0)
    rest = np.maximum(total - expected, _REST * expected)
    return JobWork(
        declared=declared,
        done=done,
        received=received,
        attained=attained,
        total=total,
        left=np.maximum(np.where(estimated, rest, total - done), 1.0),
        least_left=np.maximum(np.where(unknown, guessed, declared) - done, 1.0),
        unknown=unknown,
        estimated=estimated,
        factor=np.where(stated > 0, raised / np.maximum(stated, 1.0), 1.0),
        assumed=assumed,
    )


def explained(plan: Plan, ids: Sequence[str], work: JobWork) -> Plan:
    """The plan, with a sentence to each job whose declaration does not count as it stands, or whose
    work is assumed from earlier jobs: for the state file, which the controller's user alone may
    read."""
    said = {
        ids[int(row)]: f"; its declared work counts {work.factor[row]:.1f} times, as its owner's "
        "jobs took longer than they declared"
        for row in np.flatnonzero((work.factor >= WORTH_SAYING) & (work.declared > 0))
    }
    for row in np.flatnonzero(work.assumed.jobs):
        said[ids[int(row)]] = sentence(work.assumed, int(row), float(work.factor[row]))
    for row in np.flatnonzero(work.unknown & (work.declared > 0)):
        said[ids[int(row)]] = "; it has done more than its declared work, which counts no more"
    for row in np.flatnonzero(work.estimated):
        said[ids[int(row)]] = said.get(ids[int(row)], "") + ESTIMATED
    return with_sentences(plan, said)


def with_unknown_speeds(
    plan: Plan, ids: Sequence[str], work: JobWork, declaring: Collection[str]
) -> Plan:
    """The plan, where jobs of which only the speed is unknown are not called jobs of unknown work.
    ``declaring``: the jobs that declare their work."""
    rows = np.flatnonzero(work.unknown & (work.declared <= 0))
    untimed = {ids[int(row)] for row in rows} & {*declaring}

    def said(reason: str) -> str:
        reason = reason.replace(WORK_UNKNOWN, "Its speed is")
        return reason.replace(END_UNKNOWN, f"{END_UNKNOWN} until its speed is measured", 1)

    placements = {
        id_: replace(placement, reason=said(placement.reason)) if id_ in untimed else placement
        for id_, placement in plan.placements.items()
    }
    waiting = {id_: said(why) if id_ in untimed else why for id_, why in plan.waiting.items()}
    return replace(plan, placements=placements, waiting=waiting)


def with_sentences(plan: Plan, said: Mapping[str, str]) -> Plan:
    """The plan, with a sentence after the reason of each of these jobs, by id."""
    if not said:
        return plan
    return replace(
        plan,
        placements={
            id_: replace(placement, reason=placement.reason + said.get(id_, ""))
            for id_, placement in plan.placements.items()
        },
        waiting={id_: reason + said.get(id_, "") for id_, reason in plan.waiting.items()},
    )


def _declared(jobs: Sequence[Job], rates: Rates) -> FloatArray:
    """(J,) samples that the owner declared; 0 where there is no declaration, or where no time
    follows from it because the model's speed is not known yet."""
    return np.array(
        [
            job.declaration.total_samples
            if job.declaration and rates.anchored(profile_key(job))
            else 0
            for job in jobs
        ],
        np.float64,
    )


def _expected_done(
    sources: Sources, jobs: Sequence[Job], rate: FloatArray, speeds: JobRates
) -> FloatArray:
    """(J,) samples that a running job without a report trained by its expected speed: where it runs
    since its last start, and before that at the slowest that it may have. 0 of all others."""
    observation, attained = sources.observation, sources.past.attained
    found = np.zeros(len(jobs))
    slowest = _least_per_gpu(rate, speeds.counts)
    for row, job in enumerate(jobs):
        if job.state is not JobState.RUNNING or job.id in observation.progress or job.start_s <= 0:
            continue
        held = gpus_of(job, observation.nodes)
        kind, count = next(iter(held.items()), ("", 0))
        if len(held) != 1 or kind not in speeds.kinds or count not in speeds.counts:
            continue
        had = attained.get(job.id, 0.0)
        ran_s = min(max(observation.now - job.start_s, 0.0), had / count)
        here = rate[row, speeds.kinds.index(kind), speeds.counts.index(count)]
        found[row] = here * ran_s
        if job.declaration and job.declaration.habit in _KEEPS_WORK:
            found[row] += (had - count * ran_s) * slowest[row]
    return found


def _declares(job: Job) -> bool:
    """Whether its owner says how much work it is."""
    return job.declaration is None or job.declaration.total_samples > 0


def _usual_per_gpu(rate: FloatArray, counts: Sequence[int]) -> float:
    """Samples/s of one GPU, the median over what a job may run on, ``rate`` (R, C); 1 where that is
    nothing."""
    each = (rate / np.array(counts, float))[rate > 0]
    return float(np.median(each)) if each.size else 1.0


def _least_per_gpu(rate: FloatArray, counts: Sequence[int]) -> FloatArray:
    """(J,) samples/s of one GPU where the job is slowest; 0 where no speed is known."""
    each = np.where(rate > 0, rate, np.inf) / np.array(counts, float)
    found = each.min(axis=(1, 2), initial=np.inf)
    return np.where(np.isfinite(found), found, 0.0)


def _guessed(jobs: Sequence[Job], rate: FloatArray) -> FloatArray:
    """(J,) samples of a job of unknown length: what half its time limit would train."""
    totals = np.ones(len(jobs))
    for row, job in enumerate(jobs):
        possible = rate[row][rate[row] > 0]
        typical = float(np.median(possible)) if possible.size else 1.0
        totals[row] = typical * min(job.time_limit_s / 2, _UNKNOWN_WORK_S)
    return totals
