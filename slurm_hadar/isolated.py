"""``python -m slurm_hadar.isolated [PYTHON]``: has hbatch and hadar start Python with ``-I``.

A user's PYTHONPATH, PYTHONHOME and PYTHONVERBOSE, and modules in the current folder, must not come
into them; the job keeps all of them. hbatch also starts without ``site`` (``-S``), which would cost
each submit some milliseconds, and finds its package by a path of its own. Its collector of garbage
is off before the first import: it would look through what is imported, for nothing. pip writes no
option behind ``#!``, so this is done after it, by ``install.sh`` and for the Debian package.
"""

import contextlib
import os
import re
import sys
import sysconfig
from pathlib import Path

PROGRAMS = {"hbatch": "-IS", "hadar": "-I"}
"""With the options of their Python."""
_LONGEST = 127
"""Bytes of a ``#!`` line that every Linux kernel reads."""
_DIRECT = re.compile(r"#![^\n]*python[0-9.]*(?: -IS?)?\n")
_BY_SHELL = re.compile(
    r"#!/bin/(?:ba)?sh(?: -p)?\n"
    r"'''exec' (\"?[^\n\"]*python[0-9.]*\"?)(?: -IS?)? \"\$0\" \"\$@\"\n' '''\n"
)
"""What pip writes where the path to Python is long or has blanks."""
_SHELL = "/bin/bash -p" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
"""For such a path: dash, Debian's sh, drops variables whose names it could not set, as those of the
functions that a bash exports (``module``), and so would the job. ``-p``: without BASH_ENV."""
_NO_COLLECTOR = "import gc\ngc.disable()\n"
_OWN_LINES = re.compile(rf"(?<=\n)(?:{re.escape(_NO_COLLECTOR)}|sys\.path\.append\(.*\)\n)")


def isolated(text: str, python: str, options: str = "-I", library: str = "") -> str:
    """A program's text as it starts ``python`` with these options; as it was where it is none of
    pip's. ``library``: the folder of the package, for a Python without ``site``."""
    line = f"#!{python} {options}\n"
    head = _DIRECT.match(text) or _BY_SHELL.match(text)
    if head is None:
        return text
    if len(line.encode()) > _LONGEST or " " in python:
        line = f"#!{_SHELL}\n'''exec' \"{python}\" {options} \"$0\" \"$@\"\n' '''\n"
    body = _OWN_LINES.sub("", "\n" + text[head.end() :])
    if "S" in options:
        body = body.replace("\nimport ", f"\n{_NO_COLLECTOR}import ", 1)
        body = body.replace("\nfrom ", f"\nsys.path.append({library!r})\nfrom ", 1)
    return line + body[1:]


def _library(python: str) -> str:
    """Where the package lies for ``python``, which may be moved there only later."""
    folder = Path(__file__).resolve().parents[1]
    here = Path(sys.prefix).resolve()
    if folder.is_relative_to(here):
        folder = Path(python).parents[1] / folder.relative_to(here)
    return str(folder)


def main() -> int:
    """Change the programs beside this Python, aside and renamed, where they are not right yet."""
    python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    for name, options in PROGRAMS.items():
        path = Path(sysconfig.get_path("scripts"), name)
        before = path.read_text()
        after = isolated(before, python, options, _library(python))
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
