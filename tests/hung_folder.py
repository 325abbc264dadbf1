"""A folder on a file system that never answers: a FUSE mount whose server takes each request and is
silent. A process that waits for it in the kernel cannot be ended, not even by SIGKILL."""

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from missing import missing, needs_root

_DETACH = 2


@contextlib.contextmanager
def hung(folder: Path) -> Iterator[Path]:
    """Mount it over ``folder`` while the block runs; skips where that is not possible."""
    needs_root("it mounts a file system")
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        missing(f"/dev/fuse cannot be opened: {error.strerror}")
    libc = ctypes.CDLL(None, use_errno=True)
    words = f"fd={device},rootmode=41777,user_id=0,group_id=0,allow_other".encode()
    folder.mkdir(exist_ok=True)
    if libc.mount(b"hung", str(folder).encode(), b"fuse", 0, words):
        os.close(device)
        missing(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
    threading.Thread(target=_serve, args=(device,), daemon=True).start()
    try:
        yield folder
    finally:
        # Ends the connection, and whoever waits gets an error.
        for control in Path("/sys/fs/fuse/connections").glob(f"{_number(folder)}/abort"):
            control.write_text("1")
        libc.umount2(str(folder).encode(), _DETACH)


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
