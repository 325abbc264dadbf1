"""Runs a program in this process and writes down how it ended.

``python noted.py FILE PROGRAM [ARGUMENT...]``: a line with process ID, exit code and time is
appended to FILE. A process that was killed leaves none.
"""

import os
import runpy
import sys
import time
from pathlib import Path


def main() -> None:
    """Run the program."""
    file, program = sys.argv[1:3]
    sys.argv = sys.argv[2:]
    # Where Python looks for modules as if it had been started with the program.
    sys.path[0] = str(Path(program).parent)
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        _note(file, _code(sys.exc_info()[1]))


def _code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 1


def _note(file: str, code: int) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, f"{os.getpid()} {code} {time.time():.6f}\n".encode())
    os.close(handle)


if __name__ == "__main__":
    main()
