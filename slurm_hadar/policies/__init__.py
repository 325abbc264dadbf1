"""Policies: ``decide(view, state) -> (plan, state)``, pure and deterministic, one file each."""

from collections.abc import Callable
from importlib import import_module

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View

Decide = Callable[[View, State], tuple[Plan, State]]

_MODULES = {
    "fifo": "slurm_hadar.policies.queues.fifo",
    "gavel_ftf": "slurm_hadar.policies.gavel.ftf",
    "gavel_las": "slurm_hadar.policies.gavel.las",
    "gavel_makespan": "slurm_hadar.policies.gavel.makespan",
    "gavel_throughput": "slurm_hadar.policies.gavel.throughput",
    "gpu_proportional": "slurm_hadar.policies.synergy.proportional",
    "hadar": "slurm_hadar.policies.hadar.policy",
    "hadare": "slurm_hadar.policies.hadare.policy",
    "hare": "slurm_hadar.policies.hare.policy",
    "ones": "slurm_hadar.policies.ones",
    "network": "slurm_hadar.policies.network.policy",
    "network_consolidate": "slurm_hadar.policies.network.consolidate",
    "network_never_wait": "slurm_hadar.policies.network.never_wait",
    "srtf": "slurm_hadar.policies.queues.srtf",
    "synergy_opt": "slurm_hadar.policies.synergy.opt",
    "synergy_tune": "slurm_hadar.policies.synergy.tune",
    "timetable": "slurm_hadar.policies.timetable.policy",
    "tiresias": "slurm_hadar.policies.queues.tiresias",
}


def names() -> tuple[str, ...]:
    """The policies that there are."""
    return tuple(sorted(_MODULES))


def get(name: str) -> Decide:
    """A policy by its name. Raises :class:`UsageError` for a name that there is not."""
    if name not in _MODULES:
        raise UsageError(f"there is no policy {name!r}; known: {', '.join(names())}")
    decide: Decide = import_module(_MODULES[name]).decide
    return decide
