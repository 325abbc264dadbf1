"""``plan.<job>.json``: what the controller decided for a job, and its wish that the job saves."""

import contextlib
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar.exchange import files

_JOB = re.compile(r"\d{1,10}(_\d{1,10})?")


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One plan file. ``time``: when it was written, s since the epoch; ``gpus`` by type over the
    job, ``batch`` global in samples (None: as it is).

    A non-empty ``save`` asks the job whose restart count is ``restarts`` to save once.
    """

    job: str
    time: float = 0.0
    gpus: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None
    copies: int = 1
    shares: tuple[float, ...] = ()
    cpus_per_gpu: float | None = None
    save: str = ""
    restarts: int = 0
    reason: str = ""


def save_wish(plan: JobPlan | None, restarts: int, answered: Collection[str]) -> str:
    """The plan's wish that the attempt with this restart count saves; empty where there is none,
    or it is among ``answered``."""
    if plan is None or plan.restarts != restarts or plan.save in answered:
        return ""
    return plan.save


def plan_path(folder: Path, job_id: str) -> Path:
    """Where the plan of a job lies. Raises ValueError for what is no job id."""
    if not _JOB.fullmatch(job_id):
        raise ValueError(f"{job_id!r} is no job id")
    return folder / f"plan.{job_id}.json"


def write_plan(folder: Path, plan: JobPlan, check: files.Check | None = None) -> None:
    """Write a job's plan, with the time that it is now. Raises OSError, and ValueError for what is
    no job id or too large.

    ``check``: see :func:`files.write_json`.
    """
    files.write_json(
        plan_path(folder, plan.job),
        {
            "job": plan.job,
            "time": time.time(),
            "gpus": dict(plan.gpus),
            "batch": plan.batch,
            "copies": plan.copies,
            "shares": list(plan.shares),
            "cpus_per_gpu": plan.cpus_per_gpu,
            "save": plan.save,
            "restarts": plan.restarts,
            "reason": plan.reason[:1000],
        },
        check,
    )


def remove_plan(folder: Path, job_id: str) -> None:
    """Remove a job's plan; nothing happens when there is none. Raises OSError otherwise."""
    with contextlib.suppress(FileNotFoundError):
        plan_path(folder, job_id).unlink()


def read_plan(folder: Path, job_id: str, uids: Collection[int]) -> JobPlan | None:
    """The plan of a job, when one of ``uids`` owns the file and every field is of its kind."""
    source = files.read_owned(plan_path(folder, job_id), uids)
    if source is None:
        return None
    try:
        gpus = files.section(source, "gpus") or {}
        shares = source.get("shares", [])
        if not isinstance(shares, list) or len(gpus) > 100 or len(shares) > 1000:
            return None
        plan = JobPlan(
            job=files.text(source, "job", 30),
            time=files.number(source, "time", 1e11),
            gpus={name: files.whole(gpus, name, 10**6) for name in gpus},
            batch=None if source.get("batch") is None else files.whole(source, "batch", 10**12),
            copies=files.whole(source, "copies", 10**6),
            shares=tuple(files.number({"share": share}, "share", 1.0) for share in shares),
            cpus_per_gpu=None
            if source.get("cpus_per_gpu") is None
            else files.number(source, "cpus_per_gpu", 1e6),
            save=files.text(source, "save", 64),
            restarts=files.whole(source, "restarts", 10**6),
            reason=files.text(source, "reason", 1000),
        )
    except files.Malformed:
        return None
    return plan if plan.job == job_id else None
