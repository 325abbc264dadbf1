"""A small process beside a sandbox, which takes it down when the process that started it is gone
without having done so: a killed test, a killed demo.

Slurm's daemons go into the background, so a signal on their parent's death would not reach them.
"""

# The rest is loaded once it is needed, which it hardly ever is: a sandbox's start would pay for it.
import os
import sys
import time
from pathlib import Path

_EVERY_S = 0.5
_LATE_S = 2.0
"""A daemon that was just being started is there by then."""


def main(parent: int, record: Path, born: int) -> None:
    """Wait for the end of ``parent``, then take the sandbox down.

    A later one in the same folder (the record is newer) is left alone. One whose folder is gone
    with its process, such as a temporary one, is taken down all the same.
    """
    while os.getppid() == parent:
        time.sleep(_EVERY_S)
    _take_down(record, born)


def _take_down(record: Path, born: int) -> None:
    import contextlib

    from slurm_hadar.domain.errors import HadarError
    from slurm_hadar.sandbox import processes
    from slurm_hadar.sandbox.cluster import Sandbox
    from slurm_hadar.sandbox.ending import end_without_record

    for _ in range(2):
        with contextlib.suppress(HadarError, OSError):
            if not record.exists():
                end_without_record(record.parent)
                return
            if record.stat().st_mtime_ns != born:
                return
            box = Sandbox.attach(record.parent)
            box.down()
            time.sleep(_LATE_S)
            if not processes.ours(box.places):
                return


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
