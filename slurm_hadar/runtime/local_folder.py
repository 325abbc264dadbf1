"""Files on a node's own disk: kept in the checkpoint, and put back where the next attempt runs."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from slurm_hadar.domain.errors import UsageError

_GIB = 1 << 30


class LocalFolder:
    """The regular files below ``path``, as a part of a checkpoint.

    For small files that the training writes to scratch of the node, which a requeue leaves behind::

        session = Session("run.pt", model=model, scratch=LocalFolder(os.environ["TMPDIR"]))

    or ``Training(..., also={"scratch": LocalFolder(...)})``. Each save reads and writes all of
    them, at most ``most_bytes`` (1 GiB). The first process saves those of its node; each process
    puts them back. Files that are there and not in the checkpoint stay. Links are left out.
    """

    def __init__(self, path: str | Path, most_bytes: int = _GIB) -> None:
        self._path, self._most = Path(path).absolute(), most_bytes

    def state_dict(self) -> dict[str, Any]:
        """Content, (bytes,) uint8, and rights of each file by its name below the folder. Raises
        UsageError for more than ``most_bytes``."""
        files: dict[str, torch.Tensor] = {}
        rights: dict[str, int] = {}
        left = self._most
        for name, path in self._names():
            try:
                with path.open("rb") as stream:
                    rights[name] = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
                    content = bytearray(stream.read(left + 1))
            except OSError:
                # It went away meanwhile.
                continue
            left -= len(content)
            if left < 0:
                raise UsageError(
                    f"{self._path} holds more than {self._most / _GIB:.3g} GiB, which is too much "
                    "for a checkpoint: name a folder with less in it, or give most_bytes"
                )
            files[name] = torch.frombuffer(content, dtype=torch.uint8) if content else _nothing()
        return {"files": files, "rights": rights}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Write each file, whole. Raises UsageError for a name outside of the folder, OSError where
        the disk takes none."""
        self._path.mkdir(parents=True, exist_ok=True)
        for name, content in kept["files"].items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise UsageError(f"the checkpoint has a file {name!r}, outside of {self._path}")
            to = self._path / name
            to.parent.mkdir(parents=True, exist_ok=True)
            # Several processes of a node write the same.
            aside = to.with_name(f"{os.urandom(8).hex()}.new")
            try:
                aside.write_bytes(content.numpy().tobytes())
                aside.chmod(kept["rights"][name])
                aside.replace(to)
            finally:
                with contextlib.suppress(OSError):
                    aside.unlink()

    def _names(self) -> Iterator[tuple[str, Path]]:
        for folder, _, names in os.walk(self._path):
            for name in names:
                path = Path(folder) / name
                with contextlib.suppress(OSError):
                    if stat.S_ISREG(path.lstat().st_mode):
                        yield path.relative_to(self._path).as_posix(), path


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)
