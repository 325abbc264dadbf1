"""The work that a stop would cost a job that cannot be asked to save.

Such a job is moved only while that is at most what its owner declared (``lose``).
"""

from math import inf

from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job
from slurm_hadar.exchange.progress import Progress

UNASKED = ("restart", "watch")
"""Habits of jobs that are stopped without being asked."""
_CLOCKS_S = 5.0
"""Clocks of a cluster differ by less."""
FRESH_S = 60.0
"""An older report of a watcher does not say that no checkpoint is being written now."""


def work_at_risk_s(job: Job, progress: Progress | None, now: float) -> float:
    """Seconds of work that a stop at ``now`` costs; inf where that is unknown.

    ``restart``: all since its start. ``watch``: all since its newest whole checkpoint, as its
    watcher reports it. 0 for all others: they are asked to save first.
    """
    habit = (job.declaration or Declaration()).habit
    if habit not in UNASKED:
        return 0.0
    since = job.start_s
    if habit == "watch":
        current = progress is not None and progress.restarts == job.restarts
        if not current or progress is None or progress.checkpoint is None:
            return inf
        if abs(now - progress.time) > FRESH_S:
            return inf
        since = max(since, progress.checkpoint.time)
    passed = now - since
    # A clock that was set back tells nothing.
    return max(0.0, passed) if since > 0 and passed >= -_CLOCKS_S else inf


def why_unknown(job: Job, progress: Progress | None, now: float) -> str:
    """Why :func:`work_at_risk_s` is inf."""
    if (job.declaration or Declaration()).habit != "watch":
        return "since when it runs is not known"
    if progress is None or progress.restarts != job.restarts:
        return "its watcher has not reported since it started"
    if progress.checkpoint is None and progress.whole_s is not None:
        ago_s = max(0.0, now - progress.whole_s)
        return (
            f"its checkpoint has changed since its watcher saw it whole, {ago_s:.0f} s ago, and is "
            "whole again when nothing has changed for 3 s"
        )
    if progress.checkpoint is None:
        return (
            "its watcher sees no whole checkpoint now: there is none yet, or one is being written "
            "(whole is what has not changed for 3 s; a job that saves more often than that has to "
            "save less often)"
        )
    return f"its watcher has not reported for more than {FRESH_S:.0f} s"


def may_stop_for_s(job: Job, progress: Progress | None, now: float) -> float:
    """How much longer a job may be stopped within what its owner declared, s; below 0: not any
    more; inf for one that is asked to save."""
    declared = job.declaration or Declaration()
    if declared.habit not in UNASKED:
        return inf
    return declared.most_lost_s - work_at_risk_s(job, progress, now)
