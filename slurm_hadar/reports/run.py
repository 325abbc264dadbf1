"""The record of one run of a workload, and its figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles


@dataclass(frozen=True, slots=True)
class ClusterGpu:
    """One GPU of the cluster."""

    node: str
    type: str
    index: int


@dataclass(frozen=True, slots=True)
class TimelineSegment:
    """One attempt of a job on one node, with the GPUs that it held there.

    A job on two nodes has two segments of the same ``attempt``. Times in s since the run began.
    """

    job: str
    name: str
    node: str
    gpu_indices: tuple[int, ...]
    start_s: float
    end_s: float
    attempt: int
    type: str


@dataclass(frozen=True, slots=True)
class JobTimes:
    """One job from its owner's view. Times in s since the run began; ``end_s`` None: not ended."""

    job: str
    name: str
    submit_s: float
    end_s: float | None
    completed: bool


@dataclass(frozen=True, slots=True)
class Run:
    """A workload carried out once.

    ``samples``: (time in s, samples/s of all jobs together) from that time on. ``samples_lost``:
    trained and thrown away by kills; None where it was not counted.
    """

    name: str
    description: str
    gpus: tuple[ClusterGpu, ...]
    jobs: tuple[JobTimes, ...]
    segments: tuple[TimelineSegment, ...]
    samples: tuple[tuple[float, float], ...] = ()
    samples_lost: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run. None where no job gives one.

    ``makespan_s``: first submit to last end, None unless every job completed. ``avg_jct_s``: mean
    time from submit to end of the completed jobs, ``jct_quartiles_s`` their quartiles and
    ``longest_jct_s`` the most. ``median_wait_s``: submit to first start, of the
    jobs that started. ``utilization``: GPU-seconds held / (GPUs x time until the last end).
    ``moves``: attempts on other GPUs than the attempt before; ``restarts``: on the same ones.
    """

    jobs: int
    completed: int
    makespan_s: float | None
    avg_jct_s: float | None
    jct_quartiles_s: tuple[float, float, float] | None
    longest_jct_s: float | None
    median_wait_s: float | None
    utilization: float | None
    moves: int
    restarts: int
    samples_lost: int | None


@dataclass(frozen=True, slots=True)
class AttemptTimeline:
    """All segments of one attempt of a job, and whether it ran elsewhere than the one before."""

    number: int
    segments: tuple[TimelineSegment, ...]
    moved: bool
    restarted: bool

    @property
    def start_s(self) -> float:
        """Its earliest start, s since the run began."""
        return min(segment.start_s for segment in self.segments)

    @property
    def end_s(self) -> float:
        """Its latest end, s since the run began."""
        return max(segment.end_s for segment in self.segments)


def attempts(segments: Sequence[TimelineSegment]) -> dict[str, list[AttemptTimeline]]:
    """Job -> its attempts in order. A move changes nodes, types or numbers of GPUs."""
    grouped: dict[str, dict[int, list[TimelineSegment]]] = {}
    for segment in segments:
        grouped.setdefault(segment.job, {}).setdefault(segment.attempt, []).append(segment)
    found: dict[str, list[AttemptTimeline]] = {}
    for job, by_number in grouped.items():
        before: dict[tuple[str, str], int] | None = None
        for number in sorted(by_number):
            parts = by_number[number]
            place: dict[tuple[str, str], int] = {}
            for part in parts:
                key = part.node, part.type
                place[key] = place.get(key, 0) + len(part.gpu_indices)
            again = before is not None
            moved = again and place != before
            found.setdefault(job, []).append(
                AttemptTimeline(number, tuple(parts), moved, again and not moved)
            )
            before = place
    return found


def last_end_s(run: Run) -> float:
    """When the last GPU was given back or the last job ended, s since the run began."""
    ends = [segment.end_s for segment in run.segments]
    ends += [job.end_s for job in run.jobs if job.end_s is not None]
    return max(ends, default=0.0)


def summarise(run: Run) -> Summary:
    """The figures of a run."""
    tries = attempts(run.segments)
    done = [job for job in run.jobs if job.completed and job.end_s is not None]
    ends = [job.end_s for job in done if job.end_s is not None]
    jcts = [job.end_s - job.submit_s for job in done if job.end_s is not None]
    waits = [tries[job.job][0].start_s - job.submit_s for job in run.jobs if job.job in tries]
    all_done = bool(run.jobs) and len(done) == len(run.jobs)
    held = sum(len(s.gpu_indices) * max(0.0, s.end_s - s.start_s) for s in run.segments)
    capacity = len(run.gpus) * last_end_s(run)
    every = [attempt for job in tries.values() for attempt in job]
    return Summary(
        jobs=len(run.jobs),
        completed=len(done),
        makespan_s=max(ends) - min(job.submit_s for job in run.jobs) if all_done else None,
        avg_jct_s=fmean(jcts) if jcts else None,
        jct_quartiles_s=_quartiles(jcts) if jcts else None,
        longest_jct_s=max(jcts, default=None),
        median_wait_s=median(waits) if waits else None,
        utilization=held / capacity if capacity > 0 else None,
        moves=sum(attempt.moved for attempt in every),
        restarts=sum(attempt.restarted for attempt in every),
        samples_lost=run.samples_lost,
    )


def _quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    if len(times) == 1:
        return times[0], times[0], times[0]
    first, middle, third = quantiles(times, n=4, method="inclusive")
    return first, middle, third
