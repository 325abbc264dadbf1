"""Asks the controller of this host, where one serves; see :mod:`.server`."""

import json
import socket
import time
from pathlib import Path
from typing import Any

from slurm_hadar.controller.service.server import HOLD_S, peer_uid, short_name
from slurm_hadar.domain.errors import HadarError, UnknownJobError, UsageError

_TIMEOUT_S = 15.0
_MOST_BYTES, _SHORT_BYTES = 64 * 2**20, 2**16


def ask(path: Path, controller_uid: int, question: dict[str, object]) -> Any | None:
    """The controller's answer to one question; None where no controller serves here.

    ``controller_uid``: whose answers are believed. Raises UsageError and HadarError with the
    controller's message where it refuses.
    """
    heard = ask_for_text(path, controller_uid, question)
    return None if heard is None else result_of(heard)


def ask_for_text(path: Path, controller_uid: int, question: dict[str, object]) -> bytes | None:
    """As :func:`ask`, but the answer as it came: JSON with ``version``, and ``result`` or
    ``error``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            with short_name(path) as name:
                connection.connect(name)
            if peer_uid(connection) != controller_uid:
                return None
            connection.sendall(json.dumps(question).encode() + b"\n")
            return _all(connection)
        except (OSError, ValueError):
            return None


def refuses(path: Path) -> bool:
    """Whether a socket is there on which no process of this machine listens, as after a kill."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            with short_name(path) as name:
                connection.connect(name)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


async def wait_for_text(
    path: Path, controller_uid: int, question: dict[str, object]
) -> bytes | None:
    """As :func:`ask_for_text`, of a short answer. Where the question names the result that is
    ``known``, the controller answers once it has another one, or after :data:`.server.HOLD_S`; an
    older controller answers at once."""
    import asyncio  # the other questions do without, and without TLS, which comes with it

    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(HOLD_S + _TIMEOUT_S):
                with short_name(path) as name:
                    await loop.sock_connect(connection, name)
                if peer_uid(connection) != controller_uid:
                    return None
                await loop.sock_sendall(connection, json.dumps(question).encode() + b"\n")
                heard = b""
                while part := await loop.sock_recv(connection, _SHORT_BYTES):
                    heard += part
                    if len(heard) > _SHORT_BYTES:
                        return None
                return heard
        except (OSError, TimeoutError):
            return None


def result_of(heard: bytes) -> Any | None:
    """What an answer says; None where it is of another version, or no answer. Raises UsageError and
    HadarError as :func:`ask` does."""
    try:
        answer = json.loads(heard)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or answer.get("version") != 1:
        return None
    if "error" in answer:
        kind = UsageError if answer.get("usage") else HadarError
        kind = UnknownJobError if answer.get("unknown_job") else kind
        raise kind(str(answer["error"]))
    return answer.get("result")


def _all(connection: socket.socket) -> bytes:
    parts, size, end = [], 0, time.monotonic() + _TIMEOUT_S
    while part := connection.recv(2**16):
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES or time.monotonic() > end:
            raise ValueError("an answer without an end")
    return b"".join(parts)
