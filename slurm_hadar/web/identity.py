"""Who asks: what the kernel says of the connection, or what the site's own proxy says.

On a unix socket that is SO_PEERCRED. On the loopback address, which only a sandbox may use, it is
the owner of the other end in /proc/net/tcp. Where neither is known nothing is answered.
"""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar import users
from slurm_hadar.controller.service.server import peer_uid

_TABLE = Path("/proc/net/tcp")
_ADDRESS, _PEER, _STATE, _UID = 1, 2, 3, 7
"""Columns of that table."""
_ESTABLISHED = "01"
"""One that is closed at the other end has lost its owner, and shows UID 0."""


class RefusedCaller(Exception):
    """Who asks is not known, or may not ask here; the message says which."""


@dataclass(frozen=True, slots=True)
class Callers:
    """Whose word counts. ``own_uid``: the user of this process; ``controllers_uid``: the
    controller's; ``proxy_uid``: of the site's proxy, None: it has none."""

    own_uid: int
    controllers_uid: int
    proxy_uid: int | None = None

    def uid(self, peer: int | None, headers: Sequence[str]) -> int:
        """The user who asks. ``headers``: each X-Remote-User of the request, believed only from
        the proxy. Raises RefusedCaller."""
        if peer is None or peer < 0:
            raise RefusedCaller("the system does not say who asks")
        found = self._proxied(headers) if peer == self.proxy_uid else peer
        if found != self.own_uid and self.own_uid not in (0, self.controllers_uid):
            raise RefusedCaller("this page serves only the user who started it")
        return found

    def sees_everything(self, uid: int) -> bool:
        """Whether this user sees all jobs: root, and the controller's user."""
        return uid in (0, self.controllers_uid)

    def _proxied(self, headers: Sequence[str]) -> int:
        if len(headers) != 1 or not headers[0]:
            raise RefusedCaller("the proxy names no user, or more than one, in X-Remote-User")
        uid = users.number_of(headers[0])
        if uid is None:
            raise RefusedCaller("the proxy names a user whom this host does not know")
        return uid


def caller_of(connection: socket.socket) -> int | None:
    """The UID at the other end of an accepted connection; None: not known."""
    try:
        if connection.family == socket.AF_UNIX:
            return peer_uid(connection)
        if connection.family == socket.AF_INET:
            return _loopback_uid(connection.getpeername(), connection.getsockname())
    except (OSError, ValueError, IndexError):
        return None
    return None


def _loopback_uid(theirs: tuple[str, int], ours: tuple[str, int]) -> int | None:
    if not ipaddress.ip_address(theirs[0]).is_loopback:
        return None
    wanted = (_hexadecimal(theirs), _hexadecimal(ours), _ESTABLISHED)
    with _TABLE.open() as table:
        for line in table:
            words = line.split()
            if (words[_ADDRESS], words[_PEER], words[_STATE]) == wanted:
                return int(words[_UID])
    return None


def _hexadecimal(address: tuple[str, int]) -> str:
    """``0100007F:1F90``: as the table has it, the address in the host's byte order."""
    number = int.from_bytes(socket.inet_aton(address[0]), "little")
    return f"{number:08X}:{address[1]:04X}"
