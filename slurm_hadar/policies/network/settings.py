"""The settings of the network policy, read from ``View.options``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from slurm_hadar.domain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys other than these are other policies' and are ignored."""

    first_wait_s: float = 3600.0
    """Longest wait for a better tier while no offer of that tier and size was accepted yet."""
    least_wait_s: float = 0.0
    most_wait_s: float = 172800.0
    """Bounds of the tuned waits."""
    spread: float = 2.0
    """k of mean + k x standard deviation."""
    window: int = 20
    """Accepted offers of a tier and size that are remembered."""
    gain_over_cost: float = 2.0
    """A move must save at least this many times its restart."""
    min_stay_s: float = 600.0
    """No move of a job that came to its place less than this ago."""
    preempt: bool = True
    """Whether a job that runs over several racks may be stopped for one that finds a near place on
    its GPUs."""
    hurt: float = 0.8
    """... where the network leaves it less than this part of its speed at its nearest tier."""
    critical: float = 0.5
    """Jobs that need this part of the time that all the work takes go first; above 1: nobody."""
    rack_loss: float = 0.05
    """Part of the speed that a job is taken to lose on several nodes of a rack where nothing is
    known of it."""
    network_loss: float = 0.10
    """The same over several racks."""

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "Settings":
        """Raises :class:`UsageError` naming the option at fault."""
        values: dict[str, object] = {}
        for field in fields(cls):
            if field.name in options:
                values[field.name] = _value(field.name, options[field.name], field.default)
        return cls(**values)  # type: ignore[arg-type]


def _value(name: str, value: object, default: object) -> float | int:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"policy option {name}: {value!r} is neither true nor false")
        return value
    most = 1.0 if name.endswith("_loss") else 1e9
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < most:
        raise UsageError(
            f"policy option {name}: {value!r} is not a number of 0 or more, below {most:g}"
        )
    return int(value) if isinstance(default, int) else float(value)
