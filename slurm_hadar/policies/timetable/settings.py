"""The settings of the timetable policy, read from ``View.options``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from slurm_hadar.domain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys other than these are other policies' and are ignored. Times are parts of the horizon,
    so that one setting serves minutes and weeks."""

    stretch: float = 1.03
    """The horizon: this many times the least time in which all present work could be done."""
    keep: float = 1.015
    """The horizon stands until it is closer than this many times that least time."""
    duty: float = 0.9
    """Most part of any time that a job is planned to run, unless it needs more to be ready."""
    caution: float = 0.1
    """How much less than that, where a job's speeds are estimates."""
    critical: float = 0.97
    """Jobs planned to run this part of all the time until the horizon go first."""
    follow: float = 0.15
    """How much more a place is worth when the timetable has it all the time than when it has it
    not. The prices alone leave ties; much more than that, and gangs that the fluid plan splits
    over the hours of a bucket keep others from finishing."""
    solve_every: float = 1 / 64
    """A new timetable after this part of the horizon, and when jobs arrive."""
    choose_every: float = 1 / 256
    """Places are chosen anew after this part of the horizon, and when jobs come or go."""
    waste: float = 1.5
    """The horizon counts on no number of GPUs that spends more than this many times the GPU time of
    the job's best."""
    settle: float = 0.1
    """Part of a job's own remaining time over which a restart may pay for itself, at the least."""
    buckets: int = 12
    ratio: float = 1.8
    """Buckets of time, each this many times as long as the one before."""
    exact: int = 30_000
    """Up to so many (job, option, bucket) triples each job stands alone in the programme; above,
    like jobs are put into one class."""
    coarse: int = 8_000
    """About so many triples with classes."""
    newcomers: float = 0.01
    """A new timetable when this part of the jobs is new; the others are fitted into the old one."""
    gain_over_cost: float = 2.0
    """A move must gain this many times what it costs."""
    min_stay_s: float = 0.0
    """No move of a job that came to its place less than this ago, s."""

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "Settings":
        """Raises :class:`UsageError` naming the option at fault."""
        values: dict[str, float | int] = {}
        for field in fields(cls):
            if field.name not in options:
                continue
            value = options[field.name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"policy option {field.name}: {value!r} is not a number")
            low, high = _RANGES.get(field.name, (0.0, 1e9))
            if not low <= value <= high:
                raise UsageError(
                    f"policy option {field.name}: {value:g} is not between {low:g} and {high:g}"
                )
            values[field.name] = int(value) if isinstance(field.default, int) else float(value)
        return cls(**values)  # type: ignore[arg-type]


_RANGES = {
    "stretch": (1.0, 10.0),
    "keep": (1.0, 10.0),
    "duty": (0.1, 1.0),
    "caution": (0.0, 0.95),
    "critical": (0.0, 2.0),
    "buckets": (2, 60),
    "ratio": (1.01, 10.0),
    "exact": (0, 1e7),
    "coarse": (500, 1e7),
    "newcomers": (0.0, 1.0),
    "waste": (1.0, 1e9),
}
