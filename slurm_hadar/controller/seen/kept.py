"""What we did to each job, where the job itself cannot carry it.

Slurm takes an AdminComment from root, SlurmUser and Administrators only (22.05 to 26.05), so an
operator's controller cannot write there, nor can an owner's: only a sandbox's does. Theirs keep it
in the state file, and a copy in the exchange folder, ``steer.<job>.json``, for a controller on
another machine, for one that lost its file, and for the job's owner. It is believed by its owner,
as all files there.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain import steering
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.steering import Steering
from slurm_hadar.runtime import files

_CLOCKS_S = 86400.0
"""A clock that is wrong by less than this makes no other job of one."""
_JOB = re.compile(r"\d{1,10}(_\d{1,10})?")


def in_the_job(config: Config) -> bool:
    """Whether the jobs' AdminComments hold it."""
    return config.site.rights == "sandbox"


def keep(
    config: Config, store: Store, job: str, ours: Steering, check: files.Check | None = None
) -> None:
    """Keep what we are about to do to a job. ``check``: see :func:`files.write_json`."""
    text = steering.merge("", ours)
    store.keep_steering(job, text)
    if not (ours.was or ours.gpus) or not _JOB.fullmatch(job):
        # A lease alone is seen in the job.
        return
    with contextlib.suppress(OSError, ValueError):
        files.write_json(
            _path(config.site.exchange_dir, job), {"job": job, "steering": text}, check
        )


def recall(
    config: Config, store: Store, jobs: Mapping[str, Job], everything: bool
) -> dict[str, Steering]:
    """What was kept of these jobs.

    ``everything``: another controller may have been at work, and the later word holds; else only
    jobs that the state file does not know are looked for in the exchange folder.
    """
    found = {
        job: known
        for job, text in store.steerings(jobs).items()
        if (known := steering.decode(text)) is not None
    }
    for job in jobs:
        if everything or job not in found:
            other = shared(config, job)
            if other is not None and (job not in found or other.time > found[job].time):
                found[job] = other
    return {id_: ours for id_, ours in found.items() if not _of_an_older(jobs[id_], ours)}


def with_moves(ours: Mapping[str, Steering], carried_out: Mapping[str, int]) -> dict[str, Steering]:
    """With the moves that the journal knows of: one whose job started by itself is not written
    with the job."""
    found = dict(ours)
    for job, number in carried_out.items():
        known = found.get(job)
        if known is not None and known.moves < number:
            found[job] = replace(known, moves=number)
    return found


def _of_an_older(job: Job, ours: Steering) -> bool:
    """Whether it was kept of another job that had this number: Slurm counts anew where it lost its
    own state, and somebody's request is nobody else's."""
    return job.restarts == 0 and job.submit_s > ours.time + _CLOCKS_S


def of_jobs(config: Config, jobs: Iterable[Job]) -> dict[str, Steering]:
    """What a job's owner can know, without the state file."""
    found = {}
    for job in jobs:
        text = job.admin_comment
        ours = steering.decode(text) if in_the_job(config) else shared(config, job.id)
        if ours is not None and not _of_an_older(job, ours):
            found[job.id] = ours
    return found


def shared(config: Config, job: str) -> Steering | None:
    """What the exchange folder tells of a job; None where it tells nothing to believe."""
    if not _JOB.fullmatch(job):
        return None
    source = files.read_owned(_path(config.site.exchange_dir, job), (config.controller_uid,))
    text = source.get("steering") if source is not None and source.get("job") == job else None
    return steering.decode(text) if isinstance(text, str) else None


def _path(folder: Path, job: str) -> Path:
    return folder / f"steer.{job}.json"
