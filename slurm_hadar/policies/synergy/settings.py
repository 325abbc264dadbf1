"""The settings of the Synergy policies, read from ``View.options``."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from slurm_hadar.domain.errors import UsageError

ORDERS = ("fifo", "srtf", "las", "tiresias")


@dataclass(frozen=True, slots=True)
class Settings:
    """Keys other than these are other policies' and are ignored."""

    order: str = "fifo"
    """Who comes first: ``fifo``; ``srtf``, shortest remaining time; ``las``, least attained
    service; ``tiresias``, the same in queues."""
    wrap: str = ""
    """Another policy, whose GPUs stand and are given their CPUs and memory; ``order`` is then not
    looked at."""
    preempt: bool = True
    """Whether a running job may be stopped for one that comes first."""
    gain_over_cost: float = 2.0
    """A running job changes its CPUs, memory or place only where that saves so many times the
    restart that it costs."""
    leftover: bool = True
    """Whether CPUs and memory beyond the fair shares go where they gain most: on each node they are
    dealt anew, to jobs on several nodes as well, and jobs change places. Not in the paper, where a
    job has its best case or its fair share."""

    @classmethod
    def read(cls, options: Mapping[str, object]) -> "Settings":
        """Raises :class:`UsageError` naming the option at fault."""
        values: dict[str, object] = {}
        for field in fields(cls):
            if field.name in options:
                values[field.name] = _value(field.name, options[field.name], field.default)
        found = cls(**values)  # type: ignore[arg-type]
        if found.order not in ORDERS:
            raise UsageError(f"policy option order: {found.order!r} is none of {', '.join(ORDERS)}")
        return found


def _value(name: str, value: object, default: object) -> object:
    where = f"policy option {name}"
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {value!r} is neither true nor false")
        return value
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise UsageError(f"{where}: {value!r} is not a number of 0 or more")
        return float(value)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {value!r} is no name")
    return value
