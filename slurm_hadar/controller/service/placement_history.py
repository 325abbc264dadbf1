"""Where the jobs of the last day were, as the ticks of this process saw it.

The journal has the moves only, and Slurm forgets a job some minutes after its end.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.controller.presentation.overview import Viewer
from slurm_hadar.controller.snapshot.eligibility import by_type, placed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.reports.cluster import JobMove, JobTimeline, Stay

DAY_S = 86_400.0
_MOST = 20_000
"""Stays of jobs that are kept; the oldest are dropped first."""


@dataclass(slots=True)
class _Stay:
    job: Job
    """As it was last seen there."""
    gpus: dict[str, int]
    begin_s: float
    seen_s: float
    over: bool = False


@dataclass
class PlacementHistory:
    """Records each tick; answers from another thread."""

    since_s: float = 0.0
    _stays: dict[tuple[str, float, tuple[str, ...]], _Stay] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, seen: Observed) -> None:
        """A tick is over."""
        with self._lock:
            self.since_s = self.since_s or seen.now
            here = set()
            for job in seen.jobs.values():
                if job.state is not JobState.RUNNING or not job.gpus:
                    continue
                key = (job.id, job.start_s, job.nodes)
                here.add(key)
                stay = self._stays.get(key)
                if stay is None:
                    gpus = dict(by_type(placed(job, seen.nodes)))
                    self._stays[key] = _Stay(job, gpus, job.start_s, seen.now)
                else:
                    stay.job, stay.seen_s, stay.over = job, seen.now, False
            self._close(seen, here)

    def _close(self, seen: Observed, here: set[tuple[str, float, tuple[str, ...]]]) -> None:
        for key, stay in list(self._stays.items()):
            if stay.over and stay.seen_s < seen.now - DAY_S:
                del self._stays[key]
            elif key not in here and not stay.over:
                job = seen.jobs.get(stay.job.id)
                stay.over = True
                # Of a job that moved only the tick knows that it has left.
                ended = job is not None and job.start_s == stay.begin_s
                if job is not None and ended and stay.begin_s < job.end_s <= seen.now:
                    stay.seen_s = job.end_s
        while len(self._stays) > _MOST:
            del self._stays[next(iter(self._stays))]

    def timeline(self, now: float, moves: Iterable[Entry], viewer: Viewer) -> JobTimeline:
        """What this user may see of it. ``moves``: the journal's of this day."""
        begin = now - DAY_S
        with self._lock:
            stays = [one for one in self._stays.values() if viewer.sees(one.job)]
            owners = {one.job.id: one.job for one in stays}
            segments = [_segment(one, begin, now) for one in stays if one.seen_s > begin]
        shown = [
            JobMove(entry.job, job_explanation.move_row(entry))
            for entry in moves
            if viewer.everything
            or (entry.job in owners and viewer.sees_decisions(owners[entry.job]))
        ]
        return JobTimeline(begin, now, max(begin, self.since_s), segments, shown)


def _segment(stay: _Stay, begin: float, now: float) -> Stay:
    job = stay.job
    return Stay(
        job=job.id,
        user=job.user,
        name=job.name,
        gpus=stay.gpus,
        nodes=",".join(job.nodes),
        begin_s=max(begin, stay.begin_s),
        end_s=stay.seen_s if stay.over else now,
        open=not stay.over,
    )
