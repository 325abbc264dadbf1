"""Checkpoints that survive a kill at any moment, and a bad disk.

The newest is ``PATH``, the one before ``PATH.previous``. Written aside, synchronised, renamed, so
that ``PATH`` is whole at every moment. Loaded without running code from the file.
"""

import contextlib
import os
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_hadar.domain.errors import HadarError

Content = dict[str, Any]
FORMAT = 1


def previous(path: Path) -> Path:
    """Where the checkpoint before the newest lies."""
    return path.with_name(path.name + ".previous")


def save(path: Path, content: Content) -> None:
    """Write ``content`` as the newest checkpoint; the one that was there becomes the previous.

    Raises OSError (a full disk, no right to write); the older checkpoints are whole then.
    """
    import torch

    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as stream:
            torch.save({"hadar": FORMAT, **content}, stream)
        publish(aside, path)
    except RuntimeError as error:
        # torch reports a failing write as RuntimeError.
        raise OSError(str(error).splitlines()[0]) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def publish(aside: Path, path: Path) -> None:
    """Make the whole file ``aside`` the newest checkpoint, on the disk too. Raises OSError."""
    sync(aside)
    if path.exists():
        _keep(path)
    aside.replace(path)
    sync(path.parent)


def _keep(path: Path) -> None:
    """Make ``path`` the previous one too, so that there is no moment without a newest."""
    link = path.with_name(f".{path.name}.{os.getpid()}.link")
    try:
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        os.link(path, link)
        link.replace(previous(path))
    except OSError:
        # A file system without hard links: for a moment there is only the previous one.
        path.replace(previous(path))


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


def load(path: Path, say: Callable[[str], None], *, trusted: bool = False) -> Content | None:
    """The newest checkpoint that is whole; None when there is none at all.

    A broken newest one is said in one line and the previous one is taken. ``trusted`` allows
    objects other than tensors and plain values. Raises HadarError when there are files but none
    can be read: to begin anew by ourselves would throw work away.
    """
    faults = []
    for candidate in (path, previous(path)):
        try:
            content = read(candidate, trusted=trusted)
        except FileNotFoundError:
            continue
        except HadarError as error:
            faults.append(str(error))
            continue
        if faults:
            say(f"{faults[0]}; going on from {candidate}")
        return content
    if faults:
        raise HadarError(
            f"{faults[0]}; no older checkpoint is left. To begin from the start remove {path} "
            f"and {previous(path)}"
        )
    return None


def read(path: Path, *, trusted: bool = False, lazy: bool = False) -> Content:
    """The contents of one file, tensors on the CPU; ``lazy`` leaves them on disk until used.

    Raises FileNotFoundError, and HadarError for a file that is cut short, damaged or not ours.
    """
    import torch

    try:
        if not lazy:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            if damaged is not None:
                raise HadarError(f"checkpoint {path} is damaged")
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
        raise HadarError(f"checkpoint {path} is damaged") from None
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        raise HadarError(f"checkpoint {path} is damaged or cut short") from None
    if not isinstance(content, dict) or content.get("hadar") != FORMAT:
        raise HadarError(f"{path} is not a checkpoint of slurm-hadar")
    return content


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
