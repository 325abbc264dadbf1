"""How much later jobs end than in another run of the same jobs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.optin.records import RunRecord

LATE_S, LATE_PART = 5.0, 0.05
"""A job is late that ends later by more than this, and by more than this part of its time from
arrival to end in the other run."""
KEYS = ("p50", "p95", "worst", "late")
"""The figures of a distribution."""
TRIFLE_S = 1.0
"""Figures that differ by less are the same: Slurm looks at its queue once a second."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Distribution of the delays of some jobs, s; ``late``: the share of late ones, 0 to 1."""

    number: int
    p50: float
    p95: float
    worst: float
    late: float

    def worse_than(self, floor: "Delays") -> list[str]:
        """The figures that are worse than those of ``floor`` by more than :data:`TRIFLE_S`, and
        the share of late jobs by more than one of them."""
        seconds = [
            key
            for key in ("p50", "p95", "worst")
            if getattr(self, key) > getattr(floor, key) + TRIFLE_S
        ]
        return [*seconds, *(["late"] if self.late > floor.late + 1 / self.number else [])]


@dataclass(frozen=True, slots=True)
class Delay:
    """Of one job, s. ``time_s``: from its arrival to its end in the other run."""

    by_s: float
    time_s: float

    @property
    def late(self) -> bool:
        """Whether that is more than a trifle."""
        return self.by_s > max(LATE_S, LATE_PART * self.time_s)


def between(run: RunRecord, other: RunRecord, names: Collection[str]) -> list[Delay]:
    """By how much each of these jobs ends later than in the other run; jobs that did not complete
    in both are left out."""
    there = other.by_name()
    return [
        Delay(job.end_s - there[job.name].end_s, there[job.name].time_s)
        for job in run.jobs
        if job.name in names and job.name in there
        if job.completed and there[job.name].completed
    ]


def distribution(delays: Sequence[Delay]) -> Delays | None:
    """None where there are none."""
    if not delays:
        return None
    by = sorted(one.by_s for one in delays)
    return Delays(
        number=len(by),
        p50=quantile(by, 0.5),
        p95=quantile(by, 0.95),
        worst=by[-1],
        late=sum(one.late for one in delays) / len(delays),
    )


def worst_of(found: Sequence[Delays | None]) -> Delays | None:
    """Each run is later than another in some jobs: the largest of each figure; None without any."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    largest = {key: max(getattr(one, key) for one in known) for key in KEYS}
    return Delays(number=known[0].number, **largest)


def quantile(ordered: Sequence[float], part: float) -> float:
    """Of sorted values, linear between them."""
    at = part * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def mean_time(
    runs: Iterable[RunRecord], kind: str, names: Collection[tuple[int, str]] | None = None
) -> float:
    """Mean time from arrival to end of the jobs of that kind, s; nan without any. ``names``: only
    these, by seed and name."""
    found = [
        job.time_s
        for run in runs
        for job in run.jobs
        if job.kind == kind and job.completed and (names is None or (run.seed, job.name) in names)
    ]
    return mean(found) if found else float("nan")
