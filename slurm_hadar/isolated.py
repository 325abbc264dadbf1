"""``python -m slurm_hadar.isolated [PYTHON]``: has hbatch and hadar start Python with ``-I``.

A user's PYTHONPATH, PYTHONHOME and PYTHONVERBOSE, and modules in the current folder, must not come
into them; the job keeps all of them. pip writes no option behind ``#!``, so this is done after it,
by ``install.sh`` and for the Debian package.
"""

import contextlib
import os
import re
import sys
import sysconfig
from pathlib import Path

PROGRAMS = ("hbatch", "hadar")
_LONGEST = 127
"""Bytes of a ``#!`` line that every Linux kernel reads."""
_DIRECT = re.compile(r"#![^\n]*python[0-9.]*(?: -I)?\n")
_BY_SHELL = re.compile(
    r"#!/bin/sh\n'''exec' (\"?[^\n\"]*python[0-9.]*\"?)(?: -I)? \"\$0\" \"\$@\"\n' '''\n"
)
"""What pip writes where the path to Python is long or has blanks."""


def isolated(text: str, python: str) -> str:
    """A program's text as it starts ``python`` with ``-I``; as it was where it is none of pip's."""
    line = f"#!{python} -I\n"
    head = _DIRECT.match(text) or _BY_SHELL.match(text)
    if head is None:
        return text
    if len(line.encode()) > _LONGEST or " " in python:
        line = f"#!/bin/sh\n'''exec' \"{python}\" -I \"$0\" \"$@\"\n' '''\n"
    return line + text[head.end() :]


def main() -> int:
    """Change the programs beside this Python, aside and renamed, where they are not right yet."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    for name in PROGRAMS:
        path = Path(sysconfig.get_path("scripts"), name)
        before = path.read_text()
        after = isolated(before, python)
        if after == before:
            continue
        aside = path.with_name(f".{name}.{os.getpid()}")
        try:
            aside.write_text(after)
            aside.chmod(path.stat().st_mode & 0o7777)
            aside.replace(path)
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
