"""Whose jobs the accounting shows to a user, asked for when the user asks for a report."""

import time
from collections.abc import Callable

from slurm_hadar import users
from slurm_hadar.config import Slurm
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import accounting
from slurm_hadar.slurm.accounting import AccountingRights
from slurm_hadar.slurm.commands import Commands

_TIMEOUT_S = 5.0
"""Other users wait meanwhile."""
_AGAIN_S, _AGAIN_AFTER_FAILURE_S = 600.0, 60.0
_MOST = 1024


class RightsCache:
    """Asks sacctmgr once in ten minutes for each user. Where that does not answer, as without an
    accounting database, a user sees their own jobs alone."""

    def __init__(self, site: Slurm, clock: Callable[[], float] = time.monotonic) -> None:
        self._commands = Commands(site.bin_dir, site.conf, _TIMEOUT_S)
        self._clock = clock
        self._known: dict[int, tuple[float, AccountingRights]] = {}
        self._silent_until = 0.0

    def of(self, uid: int) -> AccountingRights:
        """A user's."""
        now = self._clock()
        until, found = self._known.get(uid, (0.0, AccountingRights()))
        if now < until:
            return found
        if now < self._silent_until:
            return AccountingRights()
        name, found = users.name_of(uid, ""), AccountingRights()
        try:
            if name:
                found = accounting.read_rights(self._commands, name)
        except SlurmError:
            self._silent_until = now + _AGAIN_AFTER_FAILURE_S
            return AccountingRights()
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[uid] = (now + _AGAIN_S, found)
        return found
