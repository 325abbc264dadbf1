"""The settings of Hadar, read from ``View.options``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, cast

from slurm_hadar.domain.errors import UsageError

Utility = Literal["throughput", "lifetime", "makespan", "fairness"]
UTILITIES: tuple[str, ...] = ("throughput", "lifetime", "makespan", "fairness")


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys other than these are other policies' and are ignored."""

    utility: Utility = "throughput"
    gain_over_cost: float = 2.0
    """A move must save at least this many times its restart."""
    least_gain: float = 0.1
    """... and this part of the time left, as rates are never exact. Not asked of moves that cost
    nothing."""
    min_stay_s: float = 600.0
    """No move of a job that came to its place less than this ago."""
    preempt: bool = True
    """Whether a running job may be stopped for one that gains more, without a place of its own."""
    communication: float = 0.05
    """Part by which a job is slower when its GPUs are on several nodes."""
    beam: int = 4
    """States kept by the take-or-skip programme; 1: greedy."""
    effort: int = 4000
    """Most jobs times states: the beam is narrowed on long queues, down to greedy."""
    branch: int = 2
    """Ways to take a job that the programme tries."""
    patience: float = 0.5
    """While prices hold, a job takes no place worth less than this part of its best one."""
    critical: float = 0.8
    """Jobs that need this part of the horizon even on their best GPUs go first, and so do gangs of
    a size that need it together."""

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "Settings":
        """Raises :class:`UsageError` naming the option at fault."""
        values: dict[str, object] = {}
        for field in fields(cls):
            if field.name in options:
                values[field.name] = _value(field.name, options[field.name], field.default)
        return cls(**values)  # type: ignore[arg-type]


def _value(name: str, value: object, default: object) -> object:
    where = f"policy option {name}"
    if name == "utility":
        if value not in UTILITIES:
            raise UsageError(f"{where}: {value!r} is none of {', '.join(UTILITIES)}")
        return cast(Utility, value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {value!r} is neither true nor false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise UsageError(f"{where}: {value!r} is not a number of 0 or more")
    return int(value) if isinstance(default, int) else float(value)
