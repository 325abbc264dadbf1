"""Changes of files: shown, carried out with a backup, or left."""

import contextlib
import difflib
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import HadarError

_BACKUP = ".before-hadar-"


@dataclass(frozen=True, slots=True)
class Change:
    """A file's bytes before and after; None: it is not there. ``mode`` is for a new file.

    ``ours``: in our own folder, where no text of others can get lost.
    """

    path: Path
    before: bytes | None
    after: bytes | None
    mode: int = 0o644
    ours: bool = False

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return self.before != self.after

    def shown(self) -> str:
        """The exact lines, as a unified diff; of our own files the names only."""
        if self.after is None or (self.before is None and self.ours):
            size = len(self.after or b"")
            return (
                f"remove {self.path}"
                if self.after is None
                else f"new    {self.path} ({size} bytes)"
            )
        if self.ours:
            return f"change {self.path}"
        before, after = (
            (data or b"").decode(errors="surrogateescape").splitlines()
            for data in (self.before, self.after)
        )
        lines = difflib.unified_diff(before, after, str(self.path), str(self.path), "", "", 1, "")
        verb = "new   " if self.before is None else "change"
        return f"{verb} {self.path}\n" + "\n".join(f"    {line}" for line in [*lines][2:])


def read(path: Path) -> bytes | None:
    """A file's bytes, None where there is none. Raises HadarError where it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HadarError(f"{path} cannot be read: {error.strerror}") from None


def apply(changes: Iterable[Change]) -> list[Path]:
    """Carry changes out in their order; a copy of each file of others stays beside it.

    Returns the copies. Each file is written aside and renamed, with the owner and mode of the one
    before. Raises HadarError where that fails; what was done until then stays, and doing it again
    goes on from there.
    """
    kept: list[Path] = []
    stamp = time.strftime("%Y%m%d-%H%M%S")
    todo = list(changes)
    fragments = any(change.ours and change.needed for change in todo)
    for change in todo:
        if not change.needed:
            if fragments and change.after is not None and change.path.suffix == ".lua":
                # Slurm loads a script again, and ours with it, when its time in whole seconds is
                # after that of the last load, which may be this very second, and after the time
                # that the file had then.
                with contextlib.suppress(OSError):
                    later = max(time.time(), change.path.stat().st_mtime) + 2
                    os.utime(change.path, (later, later))
            continue
        try:
            if change.before is not None and not change.ours:
                copy = change.path.with_name(f"{change.path.name}{_BACKUP}{stamp}")
                shutil.copy2(change.path, copy)
                kept.append(copy)
            if change.after is None:
                change.path.unlink(missing_ok=True)
                if change.ours:
                    with contextlib.suppress(OSError):
                        change.path.parent.rmdir()
            else:
                _write(change.path, change.after, change.mode)
        except OSError as error:
            raise HadarError(
                f"{change.path} cannot be written: {error.strerror}; run it as the owner of "
                f"{change.path.parent}"
            ) from None
    return kept


def _write(path: Path, data: bytes, mode: int) -> None:
    if not path.parent.exists():
        # Users read it too, whatever the umask of who types this.
        path.parent.mkdir()
        path.parent.chmod(0o755)
    # A link (to a folder under version control, say) stays one.
    path = path.resolve()
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        if path.exists():
            shutil.copymode(path, aside)
            status = path.stat()
            os.chown(aside, status.st_uid, status.st_gid)
        else:
            aside.chmod(mode)
        aside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
