"""The options of the Synergy policies, read from ``View.options``."""

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from slurm_hadar.policies.options import Amount, Flag, PolicyOptions

Order = Literal["fifo", "srtf", "las", "tiresias"]
ORDERS: tuple[str, ...] = get_args(Order)
_OWN = ("synergy_tune", "synergy_opt", "gpu_proportional")


def _another(name: str) -> str:
    if name in _OWN:
        raise ValueError("it cannot be wrapped in itself")
    return name


class SynergyOptions(PolicyOptions):
    """Keys other than these are other policies' and are ignored."""

    order: Order = "fifo"
    """Who comes first: ``fifo``; ``srtf``, shortest remaining time; ``las``, least attained
    service; ``tiresias``, the same in queues."""
    wrap: Annotated[str, Field(strict=True), AfterValidator(_another)] = ""
    """Another policy, whose GPUs stand and are given their CPUs and memory; ``order`` is then not
    looked at."""
    preempt: Flag = True
    """Whether a running job may be stopped for one that comes first."""
    gain_over_cost: Amount = 2.0
    """A running job changes its CPUs, memory or place only where that saves so many times the
    restart that it costs."""
    leftover: Flag = True
    """Whether CPUs and memory beyond the fair shares go where they gain most: on each node they are
    dealt anew, to jobs on several nodes as well, and jobs change places. Not in the paper, where a
    job has its best case or its fair share."""

    def also(self) -> tuple[str, ...]:
        """The policy that is wrapped."""
        return (self.wrap,) if self.wrap else ()
