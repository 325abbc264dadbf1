"""A folder whose file system never answers, as when its server is gone."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DETACH = 2


def possible() -> bool:
    """Whether this machine lets root mount what is needed."""
    return os.getuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK)


@contextmanager
def hung(folder: Path) -> Iterator[None]:
    """Within, each look into ``folder`` blocks; afterwards those that wait get an error, and the
    folder is as before. Raises OSError where it cannot be mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = os.fsencode(folder)
    # The kernel waits for the file system's process, and that is this one, which never reads.
    channel = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={channel},rootmode=40000,user_id=0,group_id=0,allow_other"
        if libc.mount(b"hung", path, b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), f"{folder} cannot be mounted over")
    except OSError:
        os.close(channel)
        raise
    try:
        yield
    finally:
        os.close(channel)
        if libc.umount2(path, _DETACH):
            raise OSError(ctypes.get_errno(), f"{folder} cannot be unmounted")
