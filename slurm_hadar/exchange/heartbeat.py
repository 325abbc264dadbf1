"""``heartbeat.json``: the controller lives. Light, since ``hbatch`` reads it at every submit."""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.exchange import files

NAME = "heartbeat.json"
STOPPED = "stopped"
"""The mode of a controller that ended in order."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Who controls, in which mode (observe, act, stopped), when last and how often.

    ``time`` in s since the epoch, ``interval_s`` in s. ``identity``: what tells this controller
    from all others; empty in files of earlier releases. ``process``: see :class:`Writer`.
    """

    host: str
    pid: int
    mode: str
    time: float
    interval_s: float
    identity: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class Writer:
    """Which controller writes. ``identity``: of its state folder. ``process``: what tells the
    process from all others of all machines, where it stays from tick to tick; empty of one that
    ends with its tick, whose end says nothing."""

    identity: str = ""
    process: str = ""


def write_heartbeat(
    folder: Path, mode: str, interval_s: float, takes_lists: bool = True, writer: Writer = Writer()
) -> None:
    """Say that this process controls. ``takes_lists``: whether new jobs may come with a list of
    partitions. Raises OSError."""
    files.write_json(
        folder / NAME,
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "mode": mode,
            "time": time.time(),
            "interval_s": interval_s,
            "room": takes_lists,
            "identity": writer.identity,
            "process": writer.process,
        },
    )


def read_heartbeat(folder: Path, uid: int) -> Heartbeat | None:
    """The heartbeat that user ``uid`` wrote; None when there is none to believe."""
    source = files.read_owned(folder / NAME, (uid,))
    if source is None:
        return None
    try:
        beat = Heartbeat(
            host=files.text(source, "host"),
            pid=files.whole(source, "pid"),
            mode=files.text(source, "mode", 20),
            time=files.number(source, "time", 1e11),
            interval_s=files.number(source, "interval_s", 1e9),
            identity=files.text(source, "identity", 64) if "identity" in source else "",
            process=files.text(source, "process", 200) if "process" in source else "",
        )
    except files.Malformed:
        return None
    return beat if beat.mode in ("observe", "act", STOPPED) else None
