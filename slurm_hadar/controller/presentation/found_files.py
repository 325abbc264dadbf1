"""Files of the exchange folder that cannot be believed: what they are, and commands that are safe
whatever an owner put there."""

import shlex
import stat
from collections.abc import Sequence
from pathlib import Path

from slurm_hadar import users
from slurm_hadar.reports import formats

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
}


def described(path: Path) -> str:
    """``progress.7.0.json is a named pipe of ann, 0 bytes``."""
    try:
        found = path.lstat()
    except OSError as error:
        return f"{formats.plain(path.name)}: {error.strerror}"
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
    size = formats.counted(found.st_size, "byte")
    owner = users.name_of(found.st_uid, f"UID {found.st_uid}")
    return f"{formats.plain(path.name)} is {kind} of {owner}, {size}"


def looks(paths: Sequence[Path]) -> tuple[str, ...]:
    """Commands that show them. None waits at a pipe; no content acts on the terminal."""
    names = {path: shlex.quote(str(path)) for path in paths}
    show = f"ls -ld {' '.join(names.values())}"
    regular = [name for path, name in names.items() if _regular(path)]
    return (show, *(f"head -c 1000 {name} | cat -v" for name in regular))


def _regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def removal(path: Path) -> str:
    """Who can remove it, and how: in a folder with the sticky bit its owner and the folder's."""
    remove = "rm"
    who = ["root"]
    try:
        found, folder = path.lstat(), path.parent.stat()
        if stat.S_ISDIR(found.st_mode):
            remove = "rm -r"
        who = [
            users.name_of(uid, f"UID {uid}")
            for uid in dict.fromkeys((found.st_uid, folder.st_uid, 0))
        ]
    except OSError:
        # It went away meanwhile.
        pass
    by = who[0] if len(who) == 1 else f"{', '.join(who[:-1])} or {who[-1]}"
    return f"as {by}: {remove} {shlex.quote(str(path))}"
