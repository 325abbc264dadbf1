"""The one line in a site's job_submit.lua and cli_filter.lua, and whether the result is Lua."""

import ctypes
import ctypes.util
import re
from pathlib import Path

MARK = "-- slurm-hadar"
_NEW = "-- Written by 'hadar plugins install'; a site's own rules may be added above the last line."
_EMPTY = {
    "job_submit": """\
function slurm_job_submit(job_desc, part_list, submit_uid)
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
""",
    "cli_filter": """\
function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
""",
}
_LIBRARIES = ("lua5.1", "lua5.4", "lua5.3", "lua5.2", "lua", "luajit-5.1")


def line(fragment: Path) -> str:
    """The line that loads a fragment; neither a missing nor a broken one can stop the script."""
    return (
        f'do local ok, why = pcall(dofile, "{fragment}") '
        'if not ok then pcall(slurm.log_error, "slurm-hadar: %s", tostring(why)) end end '
        f"{MARK}"
    )


def empty(kind: str) -> str:
    """A script for a site that has none; ``kind`` is job_submit or cli_filter."""
    return f"{_NEW}\n{_EMPTY[kind]}"


def with_line(text: str, fragment: Path) -> str:
    """``text`` with our line at the end of the script.

    In Lua nothing may follow the ``return`` that many scripts end with, so it goes before that.
    """
    lines = without_line(text).split("\n")
    if lines[-1] == "":
        lines.pop()
    at = len(lines)
    for number in range(len(lines) - 1, -1, -1):
        code = lines[number].split("--", 1)[0].rstrip()
        if code:
            at = number if re.match(r"return\b", code) else number + 1
            break
    lines.insert(at, line(fragment))
    return "\n".join([*lines, ""])


def without_line(text: str) -> str:
    """``text`` without our line."""
    return "\n".join(one for one in text.split("\n") if not one.endswith(MARK))


def is_ours(text: str, kind: str) -> bool:
    """Whether a script is :func:`empty`, with or without our line: it has no rules of the site."""
    return without_line(text) == empty(kind)


def mistake(text: str) -> str | None:
    """What Lua finds wrong with a script, ``""`` for nothing; None where no Lua can be asked.

    The script is read, not run.
    """
    for name in _LIBRARIES:
        found = ctypes.util.find_library(name)
        if not found:
            continue
        try:
            return _read_by(ctypes.CDLL(found), text)
        except (OSError, AttributeError):
            continue
    return None


def _read_by(library: ctypes.CDLL, text: str) -> str:
    new, close = library.luaL_newstate, library.lua_close
    load, message = library.luaL_loadstring, library.lua_tolstring
    new.restype, close.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    load.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    message.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    message.restype = ctypes.c_char_p
    state = new()
    if not state:
        raise OSError("no memory for Lua")
    try:
        if not load(state, text.encode(errors="surrogateescape")):
            return ""
        return (message(state, -1, None) or b"an unknown mistake").decode(errors="replace")
    finally:
        close(state)
