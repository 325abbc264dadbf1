"""Checkpoints that survive a kill or a stall at any moment, and a bad disk.

The newest is ``PATH``, the one before ``PATH.previous``. Written in the folder of the attempt,
synchronised, renamed, so that ``PATH`` is whole at every moment and no attempt writes over a later
one (see :mod:`.attempts`). Loaded without running code from the file.
"""

import contextlib
import errno
import os
import pickle
import random
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.runtime.attempts import Attempt

Content = dict[str, Any]
FORMAT = 1
_PASSING = (errno.EACCES, errno.EPERM, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN)
"""What a file system answers although the file may be whole."""


def previous(path: Path) -> Path:
    """Where the checkpoint before the newest lies."""
    return path.with_name(path.name + ".previous")


class DamagedCheckpoint(HadarError):
    """A checkpoint file that is cut short, altered, or not a checkpoint at all."""


def save(attempt: Attempt, content: Content) -> None:
    """Write ``content`` as the newest checkpoint; the one that was there becomes the previous.

    Raises OSError (a full disk, no right to write); the older checkpoints are whole then. Raises
    Superseded where another attempt has taken over; nothing of its checkpoints is changed then.
    """
    import torch

    written = attempt.folder / f"{os.urandom(8).hex()}.{attempt.path.name}"
    try:
        with written.open("xb") as stream:
            torch.save({"hadar": FORMAT, **content}, stream)
        publish(attempt, written)
    except (OSError, RuntimeError) as error:
        attempt.check()
        if isinstance(error, OSError):
            raise
        # torch reports a failing write as RuntimeError.
        raise OSError(str(error).splitlines()[0]) from None
    finally:
        with contextlib.suppress(OSError):
            written.unlink()


def publish(attempt: Attempt, written: Path) -> None:
    """Make the file ``written`` in the attempt's folder the newest checkpoint, on the disk too.

    Raises OSError, and Superseded where another attempt has taken over. Each rename takes its file
    out of the attempt's folder, so the process may be stopped between any two of these lines: where
    another attempt has taken over meanwhile, the next rename finds nothing.
    """
    path, kept = attempt.path, attempt.folder / "previous"
    sync(written)
    with _still_current(attempt):
        if path.exists() and not attempt.newest_is_damaged:
            _copy(path, kept)
            kept.replace(previous(path))
        written.replace(path)
        attempt.newest_is_damaged = False
    sync(path.parent)


def publish_file(attempt: Attempt, written: Path, to: Path) -> None:
    """Put the file ``written`` in the attempt's folder in the place of ``to``.

    Raises OSError, and Superseded where another attempt has taken over.
    """
    sync(written)
    with _still_current(attempt):
        written.replace(to)
    sync(to.parent)


def publish_folder(attempt: Attempt, written: Path, to: Path) -> None:
    """Put the folder ``written`` in the attempt's folder in the place of ``to``.

    Raises OSError, and Superseded where another attempt has taken over.
    """
    for path in [*written.rglob("*"), written]:
        sync(path)
    with _still_current(attempt):
        if to.exists():
            to.rename(attempt.folder / f"{os.urandom(8).hex()}.replaced")
        written.rename(to)
    sync(to.parent)
    for old in attempt.folder.glob("*.replaced"):
        shutil.rmtree(old, ignore_errors=True)


def remove_folder(attempt: Attempt, old: Path) -> None:
    """Remove the published folder ``old``, by a rename into the attempt's folder first.

    Raises Superseded where another attempt has taken over: the rename of a stale attempt fails.
    What cannot be removed stays.
    """
    gone = attempt.folder / f"{os.urandom(8).hex()}.replaced"
    with contextlib.suppress(OSError), _still_current(attempt):
        old.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


@contextlib.contextmanager
def _still_current(attempt: Attempt) -> Iterator[None]:
    """For renames out of the attempt's folder. Raises Superseded where it is gone, before or
    between them."""
    attempt.check()
    try:
        yield
    except OSError:
        attempt.check()
        raise


def _copy(path: Path, to: Path) -> None:
    """Give the file a second name, so that there is no moment without a newest checkpoint."""
    to.unlink(missing_ok=True)
    try:
        os.link(path, to)
    except OSError:
        # A file system without hard links.
        shutil.copyfile(path, to)
        sync(to)


def sync(path: Path) -> None:
    """Have the disk take a file, or the names in a folder. Raises OSError for a file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        # Some file systems cannot synchronise a folder.
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


def load(
    path: Path,
    say: Callable[[str], None],
    *,
    trusted: bool = False,
    check: Callable[[Content], None] = lambda content: None,
) -> tuple[Content, Path] | None:
    """The newest checkpoint that is whole and its file; None when there is none at all.

    A damaged newest one is reported in one line and the previous one is taken. ``trusted`` allows
    objects other than tensors and plain values. ``check`` raises DamagedCheckpoint where something
    that belongs to the contents is not whole. Raises HadarError when there are files but none
    can be read, and for one that is whole but needs another release or ``trusted``: to go on from
    an older one would throw work away.
    """
    faults = []
    for candidate in (path, previous(path)):
        try:
            content = read(candidate, trusted=trusted)
            check(content)
        except FileNotFoundError:
            continue
        except DamagedCheckpoint as error:
            faults.append(str(error))
            continue
        if faults:
            say(f"{faults[0]}; going on from {candidate}")
        return content, candidate
    if faults:
        raise HadarError(
            f"{faults[0]}; no older checkpoint is left. To begin from the start remove {path} "
            f"and {previous(path)}"
        )
    return None


def is_whole(path: Path) -> bool:
    """Whether a file in torch's format is there to its end.

    Raises HadarError where it may be, and cannot be read now.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise_if_passing(error, path)
        return False


def raise_if_passing(error: Exception, path: Path) -> None:
    """Raises HadarError where ``error`` says nothing of what is in the file."""
    if isinstance(error, OSError) and error.errno in _PASSING:
        raise HadarError(f"checkpoint {path} cannot be read now: {error.strerror}") from None


def read(path: Path, *, trusted: bool = False, lazy: bool = False) -> Content:
    """The contents of one file, tensors on the CPU; ``lazy`` leaves them on disk until used.

    Raises FileNotFoundError; Damaged for a file that is cut short, altered or not ours; HadarError
    for one that a newer release wrote, that holds objects of other kinds or that may not be read.
    """
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            damaged = None if lazy else archive.testzip()
        if damaged is not None:
            raise DamagedCheckpoint(f"checkpoint {path} is damaged")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(
                path, map_location="cpu", weights_only=not trusted, mmap=lazy or None
            )
    except FileNotFoundError:
        raise
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise HadarError(
                f"checkpoint {path} holds objects other than tensors and plain values; "
                "pass trusted=True to Training if it is your own"
            ) from None
        raise DamagedCheckpoint(f"checkpoint {path} is damaged") from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise_if_passing(error, path)
        raise DamagedCheckpoint(f"checkpoint {path} is damaged or cut short") from None
    form = content.get("hadar") if isinstance(content, dict) else None
    check_format(form, f"checkpoint {path}")
    if form != FORMAT:
        raise DamagedCheckpoint(f"{path} is not a checkpoint of slurm-hadar")
    return dict(content)


def check_format(form: object, what: str) -> None:
    """Raises HadarError when ``what`` has a format that a newer release wrote."""
    if isinstance(form, int) and form > FORMAT:
        raise HadarError(
            f"{what} has format {form}, and this version of slurm-hadar reads formats up to "
            f"{FORMAT}; install the version that wrote it"
        )


def random_state() -> Content:
    """The state of the random generators of Python, NumPy and PyTorch, as plain values."""
    import numpy as np
    import torch

    name, keys, position, has_gauss, cached = np.random.get_state()
    state: Content = {
        "python": random.getstate(),
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        # This process's device only: to ask the others would open a context on each.
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random(state: Content) -> None:
    """Put the generators back, CUDA's where there was one and is one."""
    import numpy as np
    import torch

    version, values, gauss = state["python"]
    random.setstate((version, tuple(values), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
