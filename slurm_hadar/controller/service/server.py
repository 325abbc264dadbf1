"""A socket that answers one request a connection, in a thread of its own.

Who asks is what the kernel says (SO_PEERCRED), so nothing in a request is believed. Whatever
clients do, a tick goes on: requests and times are bounded, a user has :data:`MOST_PER_USER`
connections at a time (a further one takes the place of the first that has said nothing), and the
thread has a processor one part in five of the time at most. An answer that is :class:`Unchanged` is
held back until there are news (:meth:`Server.wake`), or for :data:`HOLD_S`.
"""

import contextlib
import os
import select
import selectors
import socket
import stat
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from slurm_hadar.domain.errors import HadarError

MOST_PER_USER = 4
_MOST = 64
"""Connections at a time; a further one is closed at once."""
_REQUEST_BYTES = 1024
HOLD_S = 5.0
_MOST_HELD = 16
"""Answers that are held back at a time, one for each user; a further one is sent at once."""
_REQUEST_S, _REPLY_S = 2.0, 10.0
"""Longest time for a client to send its line, and to take the answer."""
_ACCEPTED_AT_ONCE = 16
_LEAST_REST_S, _MOST_REST_S, _REST_PER_WORK = 0.002, 10.0, 4.0
_WAIT_S, _JOIN_S = 0.5, 5.0
_BETWEEN_SENDS_S = 0.0001
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Unchanged:
    """An answer that the client knows already."""

    reply: bytes


Answer = Callable[[int, bytes], bytes | Unchanged]
"""What to say to the user of that UID who sent that request; UID -1 where it is unknown."""


@dataclass
class _Client:
    """``held``: the request whose answer is held back, and the answer for the end of that time."""

    connection: socket.socket
    uid: int
    until: float
    heard: bytes = b""
    left: memoryview | None = None
    held: tuple[bytes, bytes] | None = None


class Server(ABC):
    """Serves while it is entered; see :class:`UserServer` and :class:`LoopbackServer`."""

    request_end = b"\n"
    request_bytes = 1024
    most_per_user = MOST_PER_USER

    def __init__(self, answer: Answer, end: Callable[[], None]) -> None:
        """``answer`` is called in the server's own thread, and so is ``end`` when that ends."""
        self._answer, self._end = answer, end
        self._clients: dict[int, _Client] = {}
        self._per_user: Counter[int] = Counter()
        self._stop = threading.Event()
        self._listener: socket.socket | None = None
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="answers", daemon=True)

    def __enter__(self) -> Self:
        """Raises HadarError where the socket cannot be made."""
        self._listener = self._listen()
        self._listener.setblocking(False)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)
        self._remove()
        if self._listener is not None:
            self._listener.close()

    def wake(self) -> None:
        """There are news: answers that are held back may be others now. From any thread; costs a
        system call."""
        if not self._stop.is_set():
            os.eventfd_write(self._news, 1)

    @abstractmethod
    def _listen(self) -> socket.socket:
        """The listening socket. Raises HadarError where it cannot be made."""

    def _remove(self) -> None:  # noqa: B027  # most sockets leave nothing that others can see
        """Remove what others can see of the socket."""

    def _uid(self, _connection: socket.socket) -> int:
        return -1

    def _serve(self) -> None:
        assert self._listener is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._news, selectors.EVENT_READ)
            while not self._stop.is_set():
                ready = selector.select(_WAIT_S)
                began, cpu_s = time.monotonic(), time.thread_time()
                # Who has been let in is heard before another takes their place.
                for key, _ in sorted(ready, key=lambda one: one[0].fileobj is self._listener):
                    if key.fileobj is self._listener:
                        self._accept(selector, began)
                    elif key.data is None:
                        os.eventfd_read(self._news)
                        self._answer_held(selector)
                    else:
                        self._handle(selector, key.data)
                for client in list(self._clients.values()):
                    if client.until < began:
                        self._end_wait(selector, client)
                if ready:
                    # Where others have the processor meanwhile, that takes nothing from a tick.
                    worked = _REST_PER_WORK * (time.thread_time() - cpu_s)
                    rest = max(worked, time.monotonic() - began)
                    self._rest(selector, max(_LEAST_REST_S, min(rest, _MOST_REST_S)))
            for client in list(self._clients.values()):
                self._close(selector, client)
            os.close(self._news)
        self._end()

    def _rest(self, selector: selectors.BaseSelector, rest_s: float) -> None:
        """Takes no request for so long; ready answers are still sent, which takes little."""
        end = time.monotonic() + rest_s
        while not self._stop.is_set() and (left := end - time.monotonic()) > 0:
            waiting = [one for one in self._clients.values() if one.left is not None]
            if not waiting:
                self._stop.wait(left)
                return
            ready = select.poll()
            for client in waiting:
                ready.register(client.connection, select.POLLOUT)
            able = {number for number, _ in ready.poll(1000 * min(left, _WAIT_S))}
            for client in waiting:
                if client.connection.fileno() in able:
                    self._handle(selector, client)
            # The kernel takes a fifth of a megabyte at a time, so this is short.
            self._stop.wait(min(_BETWEEN_SENDS_S, left))

    def _accept(self, selector: selectors.BaseSelector, now: float) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except OSError:
                # None left, or no descriptor is free.
                return
            try:
                uid = self._uid(connection)
                if self._per_user[uid] >= self.most_per_user:
                    self._make_room(selector, uid)
                if len(self._clients) >= _MOST or self._per_user[uid] >= self.most_per_user:
                    connection.close()
                    continue
                connection.setblocking(False)
                client = _Client(connection, uid, now + _REQUEST_S)
                selector.register(connection, selectors.EVENT_READ, client)
            except OSError:
                connection.close()
                continue
            self._clients[id(client)] = client
            self._per_user[uid] += 1

    def _make_room(self, selector: selectors.BaseSelector, uid: int) -> None:
        """Close the connection that this user opened first of those that have said nothing."""
        for client in self._clients.values():
            silent = not client.heard and client.left is None
            if client.uid == uid and silent:
                self._close(selector, client)
                return

    def _handle(self, selector: selectors.BaseSelector, client: _Client) -> None:
        try:
            if client.left is None:
                self._hear(selector, client)
            else:
                sent = client.connection.send(client.left)
                client.left = client.left[sent:]
                if not client.left:
                    self._close(selector, client)
        except (BlockingIOError, InterruptedError):
            return
        except Exception:
            # Its end of the line is gone, or a fault of ours: the others are served all the same.
            self._close(selector, client)

    def _hear(self, selector: selectors.BaseSelector, client: _Client) -> None:
        part = client.connection.recv(self.request_bytes + 1)
        client.heard += part
        request, end, _ = client.heard.partition(self.request_end)
        if client.held is not None:
            # It has gone, or says more than it may.
            self._close(selector, client)
        elif end and len(request) <= self.request_bytes:
            self._reply(selector, client, request)
        elif not part or len(client.heard) > self.request_bytes:
            self._close(selector, client)

    def _reply(self, selector: selectors.BaseSelector, client: _Client, request: bytes) -> None:
        said = self._answer(client.uid, request)
        if isinstance(said, Unchanged):
            if client.held is not None or self._may_hold(client):
                # Where it was held before, it is no longer than was promised.
                client.until = client.until if client.held else time.monotonic() + HOLD_S
                client.held = (request, said.reply)
                return
            said = said.reply
        self._send(selector, client, said)

    def _may_hold(self, client: _Client) -> bool:
        held = [one.uid for one in self._clients.values() if one.held is not None]
        return len(held) < _MOST_HELD and client.uid not in held

    def _send(self, selector: selectors.BaseSelector, client: _Client, said: bytes) -> None:
        client.held, client.left = None, memoryview(said)
        client.until = time.monotonic() + _REPLY_S
        selector.modify(client.connection, selectors.EVENT_WRITE, client)

    def _answer_held(self, selector: selectors.BaseSelector) -> None:
        for client in list(self._clients.values()):
            if client.held is not None:
                try:
                    self._reply(selector, client, client.held[0])
                except Exception:
                    self._close(selector, client)

    def _end_wait(self, selector: selectors.BaseSelector, client: _Client) -> None:
        """Its time is over."""
        if client.held is None:
            self._close(selector, client)
        else:
            self._send(selector, client, client.held[1])

    def _close(self, selector: selectors.BaseSelector, client: _Client) -> None:
        if self._clients.pop(id(client), None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(client.connection)
        client.connection.close()
        self._per_user[client.uid] -= 1
        if not self._per_user[client.uid]:
            del self._per_user[client.uid]


class UserServer(Server):
    """On a unix socket, which is made anew and is removed at the end: users ask a line of JSON."""

    def __init__(self, path: Path, answer: Answer, end: Callable[[], None]) -> None:
        super().__init__(answer, end)
        self._path = path
        self._inode: tuple[int, int] | None = None

    def _listen(self) -> socket.socket:
        listener = listen_to_users(self._path, "users' questions are not answered", "status.socket")
        found = self._path.lstat()
        self._inode = (found.st_dev, found.st_ino)
        return listener

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            found = self._path.lstat()
            if (found.st_dev, found.st_ino) == self._inode:
                self._path.unlink()

    def _uid(self, connection: socket.socket) -> int:
        return peer_uid(connection)


class LoopbackServer(Server):
    """On a TCP port of this host alone: programs ask by HTTP, for an unknown user."""

    request_end = b"\r\n\r\n"
    request_bytes = 8192
    most_per_user = 16

    def __init__(self, port: int, answer: Answer) -> None:
        super().__init__(answer, lambda: None)
        self._port = port

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self._port))
            listener.listen(_MOST)
        except OSError as error:
            listener.close()
            raise HadarError(
                f"metrics are not served: port {self._port} cannot be had ({error.strerror}); set "
                "metrics.port to another one"
            ) from None
        return listener


def listen_to_users(path: Path, failure: str, setting: str) -> socket.socket:
    """A unix socket that every user may connect to, made anew. Raises HadarError: ``failure`` is
    what does not work then, ``setting`` the key that names the path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _make_way(path, failure, setting)
        with short_name(path) as name:
            listener.bind(name)
        # All users may ask; what each gets depends on who asks.
        path.chmod(0o666)
        listener.listen(_MOST)
    except OSError as error:
        listener.close()
        raise HadarError(
            f"{failure}: socket {path} cannot be made ({error.strerror}); make its folder for this "
            f"user, or set {setting}"
        ) from None
    except HadarError:
        listener.close()
        raise
    return listener


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a unix socket, as the kernel says. Raises OSError."""
    size = _CREDENTIALS.size
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(_CREDENTIALS.unpack(found)[1])


def _make_way(path: Path, failure: str, setting: str) -> None:
    """Remove the socket of a process that died. Raises OSError and HadarError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise HadarError(
            f"{failure}: {path} is no socket of this user; remove it, or set {setting}"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_REQUEST_S)
        try:
            with short_name(path) as name:
                probe.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise HadarError(f"{failure}: another process answers at {path}; set {setting}")


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for the socket that is short enough for the kernel (108 bytes), however long its
    folder's is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
