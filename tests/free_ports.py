"""A port on loopback that stays free for as long as a test does not listen on it."""

import random
import socket
from contextlib import closing

LOWEST, HIGHEST = 5_000, 10_000
"""Below the ports of a sandbox's daemons and of a job's processes, and below those that Linux
gives to outgoing connections: a test beside this one took such a port for one of its own."""


def free_port() -> int:
    """One on which nothing listens.

    Raises:
        RuntimeError: where all are taken.
    """
    for port in random.SystemRandom().sample(range(LOWEST, HIGHEST), 100):
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port between {LOWEST} and {HIGHEST} on 127.0.0.1")
