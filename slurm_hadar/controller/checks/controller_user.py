"""As whom ``hadar check`` judges folders and programs: the user that runs the controller."""

import os
import pwd
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar import users
from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import me
from slurm_hadar.controller.lock import controllers_uid


@dataclass(frozen=True, slots=True)
class ControllerUser:
    """``known``: the configuration or the state folder names the user, or the caller is it; root
    may look on behalf of a user that neither names yet. ``is_controllers``: the rights of ``uid``
    are the controller's, not only those of a caller who may not take its place. ``switches``: the
    caller is ``uid`` or may take its rights, as root in a container often may not."""

    uid: int
    known: bool = True
    is_controllers: bool = True
    switches: bool = True

    @property
    def name(self) -> str:
        """For a message. Raises HadarError where the caller has no name on this machine."""
        return me() if self.uid == os.getuid() else users.name_of(self.uid)

    @property
    def for_cure(self) -> str:
        """What a cure writes after chown or -o."""
        return self.name if self.known else "USER"

    @property
    def cure_first(self) -> str:
        """How a cure begins where that is not known."""
        return "" if self.known else "name the controller's user in site.controller_user; as USER: "

    def can(self, path: Path, mode: int) -> bool:
        """Whether the user reaches ``path`` through all folders above and has the rights
        ``mode`` (os.R_OK, os.W_OK, os.X_OK) there; True where that is unknown."""
        if self.uid == os.getuid():
            return os.access(path, mode)
        if not self.switches:
            return True
        with _rights_of(self.uid):
            return os.access(path, mode, effective_ids=True)


def controller_user(config: Config) -> ControllerUser:
    """The controller's user where root asks, the caller otherwise."""
    own, controllers = os.getuid(), controllers_uid(config)
    if own != 0:
        return ControllerUser(own, is_controllers=own == controllers)
    # A folder of root's says nothing: root may have made it for another user.
    known = bool(config.site.controller_user) or controllers != 0
    known = known or config.site.rights == "sandbox"
    return ControllerUser(controllers, known, switches=_can_switch(controllers))


def rights_of_user(uid: int) -> ControllerUser:
    """Another user's rights, as far as the caller may take them to look."""
    return ControllerUser(uid, is_controllers=False, switches=_can_switch(uid))


def _can_switch(uid: int) -> bool:
    if uid == os.getuid():
        return True
    with suppress(OSError), _rights_of(uid):
        return True
    return False


@contextmanager
def _rights_of(uid: int) -> Iterator[None]:
    """Have a user's effective rights for a while, as root. The kernel judges, so that access
    lists and a network file system count. Raises OSError where it may not; a container or a user
    namespace may know neither the user nor the groups."""
    own_groups, own_gid = os.getgroups(), os.getegid()
    gid, groups = uid, [uid]
    with suppress(KeyError):
        found = pwd.getpwuid(uid)
        gid, groups = found.pw_gid, os.getgrouplist(found.pw_name, found.pw_gid)
    # What it could not take back it does not give up.
    os.setgroups(own_groups)
    os.setegid(own_gid)
    with ExitStack() as restoring:
        os.setgroups(groups)
        restoring.callback(os.setgroups, own_groups)
        os.setegid(gid)
        restoring.callback(os.setegid, own_gid)
        os.seteuid(uid)
        restoring.callback(os.seteuid, 0)
        yield
