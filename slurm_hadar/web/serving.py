"""The process: a socket, uvicorn on it, and the caller's UID beside each request."""

import asyncio
import gc
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_hadar.config import Config, uid_of
from slurm_hadar.controller.lock import controllers_uid
from slurm_hadar.controller.service.server import listen_to_users
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.web.app import application
from slurm_hadar.web.controller_answers import ControllerAnswers
from slurm_hadar.web.feed import PageFeed
from slurm_hadar.web.identity import Callers, caller_of
from slurm_hadar.web.without_controller import QueueOfSlurm

_FAILURE = "the page is not served"
_MOST_CONNECTIONS, _MOST_PER_USER = 512, 64


class _KnownCaller(H11Protocol):
    """Keeps the caller's UID where requests find it: ``request.state.peer``. One user cannot take
    all connections; the proxy, which speaks for many, may."""

    open: ClassVar[Counter[int | None]] = Counter()
    proxy_uid: ClassVar[int | None] = None
    peer: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        found = transport.get_extra_info("socket")
        self.peer = caller_of(found) if found else None
        self.app_state = {**self.app_state, "peer": self.peer}
        self.open[self.peer] += 1
        if self.open[self.peer] > _MOST_PER_USER and self.peer != self.proxy_uid:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.open[self.peer] -= 1


class _Server(uvicorn.Server):
    """Ends the streams first, which would keep it waiting."""

    def __init__(self, config: uvicorn.Config, feed: PageFeed) -> None:
        super().__init__(config)
        self._feed = feed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._feed.close()
        await super().shutdown(sockets)


def serve(site: Config, path: Path | None, port: int | None, ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM, on a unix socket or a port of the loopback address, 0: any
    free one; ``ready`` is given the address. Raises UsageError for a port outside a sandbox,
    HadarError where the socket cannot be made."""
    with ExitStack() as stack:
        if port is None:
            path = path or site.web_socket
            listener = stack.enter_context(listen_to_users(path, _FAILURE, "web.socket"))
            stack.callback(path.unlink, missing_ok=True)
            where = f"unix socket {path}"
        else:
            listener = stack.enter_context(_on_loopback(site, port))
            where = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        server = _server(site, listener)
        # uvicorn ends in order, then sends itself the signal once more.
        signal.signal(signal.SIGTERM, _end)
        ready(where)
        server.run(sockets=[listener])


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _on_loopback(site: Config, port: int) -> socket.socket:
    if site.site.rights != "sandbox":
        raise UsageError(
            "--port is for a sandbox; on a site the page is served on a unix socket, behind a proxy"
        )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise HadarError(f"{_FAILURE}: port {port} is not available ({error.strerror})") from None
    return listener


def _server(site: Config, listener: socket.socket) -> uvicorn.Server:
    callers = Callers(os.getuid(), controllers_uid(site), _proxy_uid(site))
    _KnownCaller.proxy_uid = callers.proxy_uid
    # What is loaded by now stays: a collection that looks through it stops all pages for 50 ms.
    gc.collect()
    gc.freeze()
    feed = PageFeed(
        ControllerAnswers(site, callers.own_uid, callers.controllers_uid),
        QueueOfSlurm(site, callers.controllers_uid),
    )
    settings = uvicorn.Config(
        application(feed, callers, site, listener.family == socket.AF_INET),
        http=_KnownCaller,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=16_384,
        timeout_graceful_shutdown=3,
    )
    return _Server(settings, feed)


def _proxy_uid(site: Config) -> int | None:
    if not site.web.proxy_user:
        return None
    return uid_of("web.proxy_user", site.web.proxy_user)
