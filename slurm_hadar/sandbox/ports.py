"""Free ports on loopback."""

import random
import socket

from slurm_hadar.domain.errors import HadarError

_LOWEST, _HIGHEST = 20_000, 32_000
"""Below the range from which Linux takes the ports of outgoing connections, and above the one
where the processes of a job meet by our templates (``job_templates/_meet.j2``)."""
_TRIES = 2000


class Ports:
    """``count`` free ports, kept from other sandboxes until :meth:`close`.

    A socket that is bound with SO_REUSEADDR but does not listen does not disturb a daemon that
    binds the same way and listens; another process that looks for a free port, binding without it,
    finds the port taken.
    """

    def __init__(self, count: int) -> None:
        """Raise HadarError when no ports are free."""
        self.numbers: list[int] = []
        self._held: list[socket.socket] = []
        chooser = random.SystemRandom()
        for _ in range(_TRIES + count):
            if len(self.numbers) == count:
                return
            port = chooser.randrange(_LOWEST, _HIGHEST)
            if _free(port) and (held := _hold(port)):
                self.numbers.append(port)
                self._held.append(held)
        self.close()
        raise HadarError(
            f"no {count} free ports between {_LOWEST} and {_HIGHEST} on 127.0.0.1 for a sandbox"
        )

    def close(self) -> None:
        """Let the ports go; the daemons listen on them by now."""
        for held in self._held:
            held.close()

    def __enter__(self) -> "Ports":
        """Hold the ports within the block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let them go."""
        self.close()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _hold(port: int) -> socket.socket | None:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        return None
    return held
