"""What hbatch says of a site that has only a part of its jobs managed (``[rollout]``).

Imported where the site has limits only.
"""

from __future__ import annotations

import os

from slurm_hadar import users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_hadar.cli.additions import Settings
    from slurm_hadar.cli.wrapper_site import RolloutLimits

OUTSIDE = "outside the site's rollout: neither its account nor its user is in it"
NONE = "outside the site's rollout, which takes no job now"
MAYBE = "only if the site's rollout takes it, which hadar explain says"


def remark(rollout: RolloutLimits, held: Settings) -> tuple[bool, str]:
    """Whether a job is known to be outside, and a sentence; False and empty where it is inside.

    Slurm gives a job its number at the submit, and the default account where none is named, so
    both are unknown here.
    """
    if rollout.percent <= 0:
        return True, NONE
    if rollout.accounts or rollout.users:
        account = held.get("account")
        named = account in rollout.accounts or users.name_of(os.getuid(), "") in rollout.users
        if not named and (account or not rollout.accounts):
            return True, OUTSIDE
        if not named:
            return False, MAYBE
    return False, MAYBE if rollout.percent < 100 else ""
