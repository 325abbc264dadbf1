"""``hadar check`` on ``controller.options``: what the policy does not know, or does not take."""

from collections.abc import Iterator
from difflib import get_close_matches

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.policies import Policy


def option_findings(config: Config, policy: Policy) -> Iterator[Finding]:
    """Each option by the schema of the policy, and of those that it has decide for it; nothing
    where one of them declares no options."""
    name, given = config.controller.policy, config.controller.options
    try:
        known = policies.options_read(policy, given)
    except UsageError as error:
        yield Finding("problem", f"controller.options: {error}", "correct it in the configuration")
        return
    if known is None:
        return
    for option in given:
        if option in known:
            continue
        near = get_close_matches(option, sorted(known), n=1)
        cure = (
            f"did you mean {near[0]}?" if near else f"it knows {', '.join(sorted(known)) or 'none'}"
        )
        yield Finding("warning", f"controller.options: policy {name} has no option {option}", cure)
