"""Another user makes files, folders and pipes where the controller and jobs are about to write."""

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

STRANGER = 65533
"""A UID without an account."""
MOST = 300
"""Names that one soak takes."""


class Squatters:
    """Works in the exchange folder of a sandbox; needs root, as it gives away what it makes."""

    def __init__(self, folder: Path, random_: random.Random, newest: Callable[[], int]) -> None:
        """``newest``: the highest number of a job that was seen."""
        self.folder, self._random, self._newest = folder, random_, newest
        self.taken: set[Path] = set()

    def lay(self) -> None:
        """A few names of jobs that come next, each as something else."""
        for _ in range(3):
            if len(self.taken) >= MOST:
                return
            job = self._newest() + self._random.randrange(1, 12)
            path = self.folder / self._random.choice(
                (f"plan.{job}.json", f"steer.{job}.json", f"progress.{job}.squat.json",
                 f"progress.{job}.{self._random.randrange(3)}.json", f"gpu.{job}.squat.json")
            )  # fmt: skip
            # The name may exist already, or the folder may not answer.
            with contextlib.suppress(OSError):
                self._one(path)
                os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
                self.taken.add(path)

    def _one(self, path: Path) -> None:
        match self._random.choice(("file", "pipe", "folder", "link", "large")):
            case "file":
                with path.open("x") as file:
                    file.write('{"version": 1, "job": "1", "rate": 1e9, "save": "x"}')
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
                (path / "full").touch()
            case "link":
                path.symlink_to("/dev/zero")
            case _:
                with path.open("xb") as file:
                    file.truncate(1 << 40)

    def remove(self) -> None:
        """Take away all that is the stranger's, also what was moved aside: a folder with something
        in it is nothing that another user than root could remove."""
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                if path.lstat().st_uid != STRANGER:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
