"""What we did to each job, where the job itself cannot carry it.

Slurm takes an AdminComment from root, SlurmUser and Administrators only (22.05 to 26.05), so an
operator's controller cannot write there, nor can an owner's: only a sandbox's does. Theirs keep it
in the state file, and a copy in the exchange folder, ``steer.<job>.json``, for a controller on
another machine, for one that lost its file, and for the job's owner. It is believed by its owner,
as all files there.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain import steering
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.runtime import files

_CLOCKS_S = 86400.0
"""A clock that is wrong by less than this makes no other job of one."""
_COMPARED = ("Features", "Nice", "Partition")
"""Fields that Slurm shows as they were written; others it shows in forms of its own."""
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
    if not _JOB.fullmatch(job):
        return
    nothing = not (ours.was or ours.gpus or ours.foreign)
    if nothing and not _path(config.site.exchange_dir, job).exists():
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
    # Tasks behind those that are looked at were changed with the record of their array.
    arrays = {str(job.array_job_id) for id_, job in jobs.items() if id_ not in found}
    of_arrays = store.steerings(arrays - {"0"})
    for id_, shown in jobs.items():
        ours = steering.decode(of_arrays.get(str(shown.array_job_id), ""))
        if id_ not in found and ours is not None:
            found[id_] = ours
    return {id_: ours for id_, ours in found.items() if not _of_an_older(jobs[id_], ours)}


def without_foreign(
    ours: Mapping[str, Steering], jobs: Mapping[str, Job], config: Config, busy: Collection[str]
) -> dict[str, Steering]:
    """With the fields given up that somebody else has changed since we did.

    ``busy``: jobs with an action under way, of which Slurm may not show yet what was sent.
    """
    found = dict(ours)
    for id_, known in ours.items():
        job = jobs.get(id_)
        if job is None or job.state is not JobState.PENDING or id_ in busy:
            continue
        changed = tuple(key for key in _COMPARED if _changed(job, known, key, config))
        if changed:
            found[id_] = replace(
                known,
                was={key: value for key, value in known.was.items() if key not in changed},
                wrote={key: value for key, value in known.wrote.items() if key not in changed},
                foreign=(*known.foreign, *changed),
            )
    return found


def _changed(job: Job, known: Steering, key: str, config: Config) -> bool:
    if key not in known.wrote:
        return False
    shown = {
        "Features": job.features,
        "Nice": str(job.nice),
        "Partition": ",".join(job.partitions),
    }
    value = shown[key]
    same = value == known.wrote[key]
    if key == "Partition" and job.restarts:
        # Slurm puts the one first in which it ran.
        same = set(job.partitions) == set(known.wrote[key].split(","))
    # Where the job itself carries our words, they may speak of an update that was refused.
    return not same and not (in_the_job(config) and value == known.was.get(key))


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
