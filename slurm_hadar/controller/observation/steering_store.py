"""What we did to each job, where the job itself cannot carry it.

Slurm takes an AdminComment from root, SlurmUser and Administrators only (22.05 to 26.05), so an
operator's controller cannot write there, nor can an owner's: only a sandbox's does. Theirs keep it
in the state file, and a copy in the exchange folder, ``steer.<job>.json``, for a controller on
another machine, for one that lost its file, and for the job's owner. It is believed by its owner,
as all files there.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import FILE, Store
from slurm_hadar.controller.observation.access import submitted_lists
from slurm_hadar.domain import steering
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange import files
from slurm_hadar.slurm.hosts import expand
from slurm_hadar.slurm.tres import parse_gpus

_CLOCKS_S = 86400.0
"""A clock that is wrong by less than this makes no other job of one."""
_COMPARED = ("Features", "Nice", "Partition", "ReqNodeList", "TresPerJob", "TresPerNode")
"""Fields that Slurm shows as they were written. Not those of nodes, tasks, CPUs and memory, which
it shows in forms of its own and late, and which go together: one that is given up alone makes the
rest a request that it cannot carry out. MailType:
:mod:`slurm_hadar.controller.actuation.running.mail_type`.
"""
_NOTHING = Steering()
_SAME_TIME_S = 1.5
"""Slurm's clock and ours tell whole seconds."""
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


def submitted_partitions(config: Config) -> dict[str, str]:
    """Job -> the partitions that its owner asked for, of all jobs for which this user's state file
    holds others. Empty where there is no such file. Raises HadarError where it cannot be read."""
    if not (config.site.state_dir / FILE).exists():
        return {}
    store = Store.open(config.site.state_dir)
    try:
        with store.readable_errors():
            kept = store.steerings(None)
    finally:
        store.close()
    known = {job: ours for job, text in kept.items() if (ours := steering.decode(text)) is not None}
    return {job: ours.was["Partition"] for job, ours in known.items() if "Partition" in ours.was}


def without_foreign(
    ours: Mapping[str, Steering],
    jobs: Mapping[str, Job],
    config: Config,
    busy: Collection[str],
    now: float,
) -> dict[str, Steering]:
    """With the fields given up that another user has changed since we did, or since hbatch wrote
    them.

    ``busy``: jobs with an action under way, of which Slurm may not show yet what was sent.
    """
    found = dict(ours)
    for id_, job in jobs.items():
        if id_ in busy or (id_ not in ours and job.state is not JobState.PENDING):
            continue
        known = ours.get(id_, _NOTHING)
        changed = changed_by_others(job, known, config, now)
        if changed:
            found[id_] = given_up(known, changed, job)
            if "Partition" in changed and _opened_by_owner(job):
                found[id_] = _anew(found[id_], known)
        elif _has_later_list(job, known):
            found[id_] = replace(known, listed=job.partitions)
    return found


def cut_lists(
    ours: Mapping[str, Steering],
    jobs: Mapping[str, Job],
    closed: Collection[str],
    since_s: float = 0.0,
) -> dict[str, Steering]:
    """Of jobs whose lists Slurm cut at their submit or at our update, what is to be kept, so that
    the lists do not look as if their owners had changed them. ``closed``: partitions that are not
    up. ``since_s``: what is missing after an older update of ours its owner took out."""
    found: dict[str, Steering] = {}
    if not closed:
        return found
    for id_, job in jobs.items():
        if job.state is not JobState.PENDING:
            continue
        known = ours.get(id_, _NOTHING)
        written = _ours(known, "Partition") if known.time >= since_s else ()
        if any(_is_rest(job, text.split(","), closed) for text in written):
            wrote = {**known.wrote, "Partition": ",".join(job.partitions)}
            found[id_] = replace(known, wrote=wrote)
        elif _was_cut(job, known, closed):
            found[id_] = _cut(job, known)
    return found


def _was_cut(job: Job, known: Steering, closed: Collection[str]) -> bool:
    """Whether Slurm cut the list of a submit."""
    declared = job.declaration
    if declared is None or not declared.partitions or job.restarts or _ours(known, "Partition"):
        return False
    return _is_rest(job, declared.listed, closed)


def _is_rest(job: Job, names: Sequence[str], closed: Collection[str]) -> bool:
    """Whether Slurm took this list without partitions that accept no jobs (DRAIN and INACTIVE),
    which it does silently: neither the job's owner nor we changed the list."""
    left_out = {*names} - {*job.partitions}
    rest = tuple(name for name in names if name not in left_out)
    return bool(left_out) and left_out <= {*closed} and job.partitions == rest


def _cut(job: Job, known: Steering) -> Steering:
    declared = job.declaration or Declaration()
    return replace(
        known,
        was={**known.was, "Partition": ",".join(declared.partitions)},
        wrote={**known.wrote, "Partition": ",".join(job.partitions)},
    )


def _has_later_list(job: Job, known: Steering) -> bool:
    """Whether a waiting job has another list of its owner's than the one that is kept. Slurm puts
    the one first in which it ran."""
    if job.state is not JobState.PENDING or "Partition" not in known.foreign:
        return False
    reordered = job.restarts > 0 and set(job.partitions) == {*known.listed}
    return job.partitions != known.listed and not (reordered or _ours(known, "Partition"))


def _opened_by_owner(job: Job) -> bool:
    """Whether a waiting job has the list that ``hadar set`` wrote last, or hbatch: a request like
    that of a submit, of which the order is still to be chosen."""
    listed = job.declaration.listed if job.declaration else ()
    return job.state is JobState.PENDING and bool(listed) and job.partitions == listed


def _anew(given: Steering, known: Steering) -> Steering:
    """With the partitions as of a job that was not steered yet."""
    foreign = tuple(key for key in given.foreign if key != "Partition" or key in known.foreign)
    listed = given.listed if "Partition" in foreign else ()
    return replace(given, foreign=foreign, until=0.0, ends=0.0, listed=listed)


def given_up(known: Steering, fields: Collection[str], job: Job) -> Steering:
    """With these fields left as another user changed them."""
    if not fields:
        return known

    def rest(values: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in values.items() if key not in fields}

    more = (key for key in fields if key not in known.foreign)
    # Of a job that runs Slurm shows the one only in which it does.
    listed = job.partitions if job.state is JobState.PENDING else ()
    return replace(
        known,
        was=rest(known.was),
        wrote=rest(known.wrote),
        unsure=rest(known.unsure),
        foreign=(*known.foreign, *more),
        listed=listed if "Partition" in fields else known.listed,
    )


def changed_by_others(job: Job, known: Steering, config: Config, now: float) -> tuple[str, ...]:
    """The fields of a job that are not as we left them."""
    if job.state is JobState.PENDING:
        found = tuple(key for key in _COMPARED if _changed(job, known, key, config, now))
        return (*found, "Partition") if _another_list(job, known, config) else found
    if job.state is not JobState.RUNNING:
        return ()
    # A job that runs takes another Nice, also one that began before a tick saw it wait.
    found = ("Nice",) if _changed(job, known, "Nice", config, now) else ()
    # Slurm refuses changes of the others: a user requeued it since, changed and released it, and
    # no tick has seen it wait.
    if not (job.restarts > 0 and job.submit_s > known.time + _SAME_TIME_S):
        return found
    found += ("Features",) if _changed(job, known, "Features", config, now) else ()
    # Slurm shows the one only in which it runs.
    names = _ours(known, "Partition")
    there = {name for text in names for name in text.split(",")}
    return (*found, "Partition") if names and not set(job.partitions) & there else found


def _another_list(job: Job, known: Steering, config: Config) -> bool:
    """Whether a job of which we wrote no list waits in other partitions than it was submitted with,
    as far as that is recorded, or in another order than hbatch recorded. Slurm puts the one first
    in which a job ran."""
    if _ours(known, "Partition") or "Partition" in known.foreign or job.declaration is None:
        return False
    if job.partitions == job.declaration.listed:
        return False
    if job.declaration.listed and not job.restarts:
        return True
    lists = submitted_lists(job.declaration, config)
    return bool(lists) and all(set(job.partitions) != set(one) for one in lists)


def _changed(job: Job, known: Steering, key: str, config: Config, now: float) -> bool:
    names, was = _ours(known, key), known.was.get(key)
    if not names:
        return False
    match key:
        case "Features":
            same, before = job.features in names, job.features == was
        case "Nice":
            same, before = str(job.nice) in names, str(job.nice) == was
        case "Partition":
            value = ",".join(job.partitions)
            # Slurm puts the one first in which it ran.
            anyhow = any(set(job.partitions) == set(name.split(",")) for name in names)
            same, before = value in names or bool(job.restarts and anyhow), value == was
            # A list past its deadline may have been widened by another program that saw it first.
            same = same or (before and 0 < known.until <= now)
        case "ReqNodeList":
            nodes = set(job.required_nodes)
            same, before = (
                any(nodes == {*expand(name)} for name in names),
                nodes == {*expand(was or "")},
            )
        case _:
            request = job.request
            gpus = dict(request.per_job if key == "TresPerJob" else request.per_node)
            same = any(gpus == parse_gpus(name) for name in names)
            before = gpus == parse_gpus(was or "")
    # Where the job itself carries our text, that may speak of an update that was refused.
    return not same and not (in_the_job(config) and before)


def nice_changed(
    ours: Mapping[str, Steering], jobs: Mapping[str, Job], config: Config, busy: Collection[str]
) -> frozenset[str]:
    """The jobs, ended ones too, of which another user has changed the Nice that we gave them.
    ``busy``: as of :func:`without_foreign`."""
    return frozenset(
        id_
        for id_, known in ours.items()
        if id_ in jobs and id_ not in busy and _changed(jobs[id_], known, "Nice", config, 0.0)
    )


def has_our_nice(job: Job, known: Steering) -> bool:
    """Whether its Nice is one that we may have written there, and its owner's is kept."""
    names = _ours(known, "Nice")
    return "Nice" in known.was and (not names or str(job.nice) in names)


def _ours(known: Steering, key: str) -> list[str]:
    """The values that we may have left in a field; empty where we do not know of any."""
    return [values[key] for values in (known.wrote, known.unsure) if key in values]


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
    own state, and each request is one user's own."""
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
