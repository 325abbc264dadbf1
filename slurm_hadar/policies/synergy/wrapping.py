"""Another policy's GPUs with Synergy's CPUs and memory: option ``wrap``."""

from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.policies.synergy.completing import completed, eased
from slurm_hadar.policies.synergy.settings import SynergyOptions


def wrapped(
    view: View, state: State, settings: SynergyOptions, proportional: bool = False
) -> tuple[Plan, State]:
    """The other policy sees the speeds of the fair shares; its state is kept beside ours."""
    from slurm_hadar.policies import get

    before = state.get(settings.wrap)
    inner = before if isinstance(before, dict) else {}
    plan, after = get(settings.wrap)(eased(view), inner)
    return completed(view, plan, settings, proportional), {settings.wrap: after}
