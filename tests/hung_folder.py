"""Folders on file systems that fail: a FUSE mount whose server takes each request and is silent, or
is gone. A process that waits for the first in the kernel cannot be ended, not even by SIGKILL."""

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing import needs_root

_DETACH = 2


@contextlib.contextmanager
def hung(folder: Path) -> Iterator[Path]:
    """A file system that never answers over ``folder``, while the block runs."""
    device = _mount(folder)
    threading.Thread(target=_serve, args=(device,), daemon=True).start()
    try:
        yield folder
    finally:
        # Ends the connection, and whoever waits gets an error.
        for control in Path("/sys/fs/fuse/connections").glob(f"{_number(folder)}/abort"):
            control.write_text("1")
        _unmount(folder)
        _remove_marks(folder)


@contextlib.contextmanager
def gone(folder: Path) -> Iterator[Path]:
    """A file system whose server is gone over ``folder``, while the block runs: each look at it is
    an error (ENOTCONN)."""
    os.close(_mount(folder))
    try:
        yield folder
    finally:
        _unmount(folder)


def _mount(folder: Path) -> int:
    """The server's end. Skips where nothing can be mounted: a right that containers often lack."""
    needs_root("it mounts a file system")
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(
            f"no hung mount can be made: containers often lack /dev/fuse ({error.strerror})"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    words = f"fd={device},rootmode=41777,user_id=0,group_id=0,allow_other".encode()
    folder.mkdir(exist_ok=True)
    if libc.mount(b"hung", str(folder).encode(), b"fuse", 0, words):
        os.close(device)
        why = os.strerror(ctypes.get_errno())
        pytest.skip(f"no hung mount can be made: containers often lack the right to mount ({why})")
    return device


def _unmount(folder: Path) -> None:
    ctypes.CDLL(None).umount2(str(folder).encode(), _DETACH)


def _remove_marks(folder: Path) -> None:
    """What a program left that got no answer (slurm_hadar/folder_probe.py)."""
    name = "unanswered." + str(folder).encode().hex()[-200:]
    for mark in Path("/tmp").glob(f"slurm-hadar-*/{name}"):
        mark.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            mark.parent.rmdir()


def _number(folder: Path) -> str:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if f" {folder} " in line:
            return line.split()[2].partition(":")[2]
    return "none"


def _serve(device: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            request = os.read(device, 1 << 20)
            _, code, unique = struct.unpack("=IIQ", request[:16])
            if code == 26:
                # FUSE_INIT is answered; nothing after it is.
                answer = struct.pack("=4I2H2I2H8I", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, *[0] * 8)
                os.write(device, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)
    os.close(device)
