"""The job's side of the exchange folder: read the plan, tell the progress.

Nothing here ever stops a training: a folder that cannot be used is said once and then left alone.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from slurm_hadar.exchange import files, progress
from slurm_hadar.exchange.folder import listing
from slurm_hadar.exchange.plan_file import JobPlan, plan_path, read_plan
from slurm_hadar.exchange.progress import Progress

_POLL_S = 1.0
_PROGRESS_S = 5.0


def job_id(environment: Mapping[str, str]) -> str:
    """``"123"`` or ``"84_2"``; empty outside Slurm."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    found = f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
    return found if found.replace("_", "", 1).isdecimal() else ""


def restarts(environment: Mapping[str, str]) -> int:
    """How often Slurm requeued this job."""
    text = environment.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdecimal() else 0


def in_step(environment: Mapping[str, str]) -> bool:
    """Whether this is a task of srun; else signals must go to the batch script."""
    text = environment.get("SLURM_STEP_ID", "")
    return text.isdecimal() and int(text) < 0xFFFFFF00


def node_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs of this node that the job or step has, by the ids that Slurm set."""
    for key in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        found = [part.strip() for part in environment.get(key, "").split(",") if part.strip()]
        if found and found != ["NoDevFiles"]:
            return found
    return []


def seconds(environment: Mapping[str, str], key: str, default: float) -> float:
    """A time from the environment, ``default`` where it is not set or no number."""
    with contextlib.suppress(ValueError):
        value = float(environment.get(key, ""))
        if 0 <= value < 1e6:
            return value
    return default


class Exchange:
    """The files of one attempt of one job."""

    def __init__(
        self, folder: Path, job: str, controller_uid: int | None, say: Callable[[str], None]
    ) -> None:
        self.folder, self.job = folder, job
        self.restarts = restarts(os.environ)
        own = {os.getuid()}
        self._uids = own if controller_uid is None else own | {controller_uid}
        self._say = say
        # No other user can have put anything there.
        self._random = folder / f"progress.{job}.{os.urandom(8).hex()}.json"
        listed = listing(folder)
        self._earlier = progress.own_files(folder, job, os.getuid(), listed)
        self._every_s = seconds(os.environ, "HADAR_PROGRESS_S", _PROGRESS_S)
        self._reported_s = -1e9
        self._looked = -1e9
        self._stamp: tuple[int, int, int] | None = None
        self._plan: JobPlan | None = None
        self._failed = False
        self.before = progress.read_listed(listed, {job: os.getuid()})[0].get(job)
        """What an earlier attempt of this job said last."""

    @classmethod
    def from_env(cls, say: Callable[[str], None]) -> "Exchange | None":
        """The exchange of the job that this process belongs to; None outside of one."""
        folder, job = os.environ.get("HADAR_EXCHANGE"), job_id(os.environ)
        if not folder or not job:
            return None
        if not _is_folder(Path(folder)):
            say(f"HADAR_EXCHANGE={folder} is no folder here; going on without the controller")
            return None
        uid = os.environ.get("HADAR_CONTROLLER_UID", "")
        return cls(Path(folder), job, int(uid) if uid.isdecimal() else None, say)

    def plan(self, *, now: bool = False) -> JobPlan | None:
        """The plan as it stands, looked at once a second at most, or ``now``."""
        clock = time.monotonic()
        if now or clock - self._looked >= _POLL_S:
            self._looked = clock
            try:
                status = plan_path(self.folder, self.job).lstat()
                stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            except OSError:
                stamp = None
            if stamp != self._stamp:
                self._stamp = stamp
                self._plan = read_plan(self.folder, self.job, self._uids) if stamp else None
        return self._plan

    def due(self) -> bool:
        """Whether it is time to tell the progress again."""
        return time.monotonic() - self._reported_s >= self._every_s

    def tell(self, state: Progress) -> None:
        """Write the progress file; earlier ones of this job and user go away."""
        self._reported_s = time.monotonic()
        try:
            path = self._written(asdict(state))
        except (OSError, ValueError) as error:
            if not self._failed:
                self._say(f"the progress file cannot be written ({error}); training goes on")
            self._failed = True
            return
        for earlier in self._earlier:
            if earlier != path:
                with contextlib.suppress(OSError):
                    earlier.unlink()
        self._earlier = [path]

    def _written(self, content: Mapping[str, object]) -> Path:
        """Where it lies now: the first place that no other user holds."""
        for path in progress.places(self.folder, self.job):
            # In a sticky folder nothing takes the place of what another user put there.
            with contextlib.suppress(PermissionError, IsADirectoryError):
                files.write_json(path, content)
                return path
        files.write_json(self._random, content)
        return self._random


def _is_folder(path: Path) -> bool:
    # A network file system whose server is gone is an error.
    with contextlib.suppress(OSError):
        return path.is_dir()
    return False


def host() -> str:
    """The node's name in Slurm, or the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
