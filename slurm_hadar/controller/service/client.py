"""Asks the controller of this host, where one serves; see :mod:`.server`."""

import json
import socket
import struct
import time
from pathlib import Path
from typing import Any

from slurm_hadar.controller.service.server import short_name
from slurm_hadar.domain.errors import HadarError, UsageError

_TIMEOUT_S = 15.0
_MOST_BYTES = 64 * 2**20
_CREDENTIALS = struct.Struct("3i")


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
            size = _CREDENTIALS.size
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            if _CREDENTIALS.unpack(peer)[1] != controller_uid:
                return None
            connection.sendall(json.dumps(question).encode() + b"\n")
            return _all(connection)
        except (OSError, ValueError):
            return None


def result_of(heard: bytes) -> Any | None:
    """What an answer says; None where it is of another release, or no answer. Raises UsageError and
    HadarError as :func:`ask` does."""
    try:
        answer = json.loads(heard)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or answer.get("version") != 1:
        return None
    if "error" in answer:
        kind = UsageError if answer.get("usage") else HadarError
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
