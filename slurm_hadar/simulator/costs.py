"""What a simulation charges beside the training itself. All off at 0."""

from dataclasses import dataclass, fields

from slurm_hadar.domain.errors import UsageError


@dataclass(frozen=True, slots=True)
class Costs:
    """Stand-ins of our own for what a real cluster costs; the same for all jobs."""

    restart_s: float = 0.0
    """Seconds without training, GPUs held, each time a job that had run before starts again:
    elsewhere, with another count, or after a pause. A first start is free."""
    checkpoint_s: float = 0.0
    """Seconds to save before a job is stopped; added to the restart that follows."""
    node_loss: float = 0.0
    """Part of the rate that is lost when a job's GPUs lie on more than one node, 0-1."""
    rack_loss: float = 0.0
    """Part that is lost besides when they lie in more than one rack, 0-1."""
    cpu_exponent: float = 0.0
    """Rate goes with (CPUs per GPU given / asked for) to this power."""
    mem_exponent: float = 0.0
    """Rate goes with (memory per GPU given / asked for) to this power."""
    copies_loss: float = 0.0
    """Part of the rate that the copies of a forked job lose to averaging, 0-1."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = 1.0 if field.name.endswith("_loss") else 1e9
            if not 0.0 <= value <= most or (value == 1.0 and most == 1.0):
                raise UsageError(f"cost {field.name} is {value}; it must be at least 0 and below "
                                 f"{most:g}")  # fmt: skip

    @property
    def pause_s(self) -> float:
        """Seconds from one placement to the next."""
        return self.restart_s + self.checkpoint_s
