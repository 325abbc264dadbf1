"""Who has whose place in the queue, from tick to tick.

A job that leaves the line with another's place has used it up, and those that gave up theirs for
it keep what they got until they run, by their Nice
(:class:`slurm_hadar.scheduling.exchange.QueuePlaces`).

A Nice that another than the controller sets stays, also of a job that has another's place. No user
shall gain by it: the owner's jobs exchange no places for a day, and those that still wait in a
better place than their own go back.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.view import State
from slurm_hadar.reports import formats
from slurm_hadar.scheduling.exchange import QueuePlaces

NAME = "exchange"
"""Under this name the store keeps it."""
_BARRED_S = 86400.0
"""How long the jobs of a user exchange no places after one has gone back to its own by itself."""


@dataclass(frozen=True)
class Lent:
    """The place of a job in one tick. ``place_of``: the job that it belongs to, itself where it has
    its own; ``nice``: that it was given; ``less``: points of priority that it has less by that than
    without any exchange, and ``lost``: those that its own place has less for good."""

    place_of: str
    nice: int
    less: int
    lost: int


@dataclass(frozen=True)
class Memory:
    """What is kept. ``lent``: of the last tick; ``lost``: job -> priority that its own place has
    less than it had, of all that wait; ``ours``: jobs with a Nice of ours; ``promised``: job -> its
    promised end, s since the epoch; ``barred``: user id -> until when the user's jobs exchange no
    places, s since the epoch."""

    lent: Mapping[str, Lent] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    ours: tuple[str, ...] = ()
    promised: Mapping[str, float] = field(default_factory=dict)
    barred: Mapping[int, float] = field(default_factory=dict)


def remembered(state: State) -> Memory:
    """What was kept; what is damaged in it is left out."""
    lent, lost = _dict(state.get("lent")), _dict(state.get("lost"))
    ours = state.get("ours")
    return Memory(
        {
            id_: Lent(*row)
            for id_, row in lent.items()
            if isinstance(row, list) and [type(one) for one in row] == [str, int, int, int]
        },
        {id_: n for id_, n in lost.items() if isinstance(n, int)},
        tuple(id_ for id_ in ours if isinstance(id_, str)) if isinstance(ours, list) else (),
        {
            id_: float(end)
            for id_, end in _dict(state.get("promised")).items()
            if isinstance(end, int | float)
        },
        {
            int(uid): float(until)
            for uid, until in _dict(state.get("barred")).items()
            if uid.isdecimal() and isinstance(until, int | float)
        },
    )


def as_state(memory: Memory) -> State:
    """As :func:`remembered` reads it."""
    return {
        "lent": {
            id_: [one.place_of, one.nice, one.less, one.lost] for id_, one in memory.lent.items()
        },
        "lost": dict(memory.lost),
        "ours": list(memory.ours),
        "promised": dict(memory.promised),
        "barred": {str(uid): until for uid, until in memory.barred.items()},
    }


def _dict(found: object) -> Mapping[str, object]:
    return found if isinstance(found, dict) else {}


def lost_for_good(memory: Memory, seen: Observed, here: Collection[str]) -> dict[str, int]:
    """Job that waits -> priority that its own place has less than it had (more: below 0).

    ``here``: the jobs that may exchange their places in this tick, those of users that are barred
    too.
    """
    off = barred(memory, seen)
    return {
        id_: n
        for id_, n in _lost(memory, seen, here).items()
        if _keeps_its_nice(seen.jobs.get(id_), seen) and (n > 0 or seen.jobs[id_].uid not in off)
    }


def _lost(memory: Memory, seen: Observed, here: Collection[str]) -> dict[str, int]:
    """As of :func:`lost_for_good`, also of jobs that wait no more, or opted out."""
    lent = memory.lent
    number = {id_: at for at, id_ in enumerate(lent)}
    held = {id_: number.get(one.place_of, -1) for id_, one in lent.items()}
    places = QueuePlaces(dict(number), held)
    for id_, one in lent.items():
        if id_ not in here and _used(seen.jobs.get(id_), one, id_ in seen.nice_changed):
            places.use(id_)
    kept = {
        id_: one.lost if places.own[id_] == number[id_] else one.less for id_, one in lent.items()
    }
    return {id_: n for id_, n in {**memory.lost, **kept}.items() if n}


def _keeps_its_nice(job: Job | None, seen: Observed) -> bool:
    """Whether a job waits with the Nice that it has of us, and not with its author's."""
    return job is not None and _waits(job) and "Nice" not in seen.steered(job.id).foreign


def barred(memory: Memory, seen: Observed) -> dict[int, float]:
    """User id -> until when the user's jobs exchange no places, s since the epoch."""
    until = {
        uid: min(end, seen.now + _BARRED_S)
        for uid, end in memory.barred.items()
        if end > seen.now
    }  # fmt: skip
    return until | {job.uid: seen.now + _BARRED_S for job in _gone_back(memory, seen)}


def barred_texts(memory: Memory, seen: Observed) -> list[str]:
    """A sentence on each job for which its owner's jobs are barred from this tick on."""
    until = formats.moment(seen.now + _BARRED_S)
    return [
        f"job {job.id}: {_why(job)}; no job of {job.user} exchanges its place until {until}"
        for job in _gone_back(memory, seen)
    ]


def notes(memory: Memory, seen: Observed) -> dict[str, str]:
    """What is said of each waiting job that is barred."""
    return {
        job.id: f"; it exchanges no place in the queue until {formats.moment(until)}, as one of "
        f"{job.user}'s jobs left an exchange by itself"
        for job in seen.jobs.values()
        if job.managed and job.state is JobState.PENDING
        and (until := memory.barred.get(job.uid)) is not None
    }  # fmt: skip


def _why(job: Job) -> str:
    if job.managed:
        return f"Nice {job.nice} is not what the exchange of places gave it, and stays"
    return "it opted out after another job started from its place"


def _gone_back(memory: Memory, seen: Observed) -> list[Job]:
    """Jobs with a Nice of an exchange that have another by now, and those with a worse place than
    their own that have opted out and so get their own again."""
    waiting = {id_ for id_, job in seen.jobs.items() if job.state is JobState.PENDING}
    lost, found = _lost(memory, seen, waiting), []
    for id_ in memory.ours:
        job, changed = seen.jobs.get(id_), id_ in seen.nice_changed
        if job is None or not (changed or id_ in waiting):
            continue
        if changed if job.managed else lost.get(id_, 0) > 0:
            found.append(job)
    return found


def _used(job: Job | None, one: Lent, changed: bool) -> bool:
    """Whether a job that is not in the line any more has gone with the place that it was given.

    ``changed``: another user has changed its Nice, no one knows whether before it started.
    """
    if job is None:
        # It is over. One that had a better place than its own may have started there.
        return one.less < one.lost
    if job.state is JobState.FINISHED and not job.nodes:
        return False
    if job.state is JobState.PENDING and (not job.managed or _at_the_floor(job)):
        # It gets its owner's Nice back in this tick.
        return False
    if changed and job.state is not JobState.PENDING:
        return one.less < one.lost
    return job.nice == one.nice


def _waits(job: Job) -> bool:
    waits = job.managed and job.state is JobState.PENDING
    return waits and job.restarts == 0 and not _at_the_floor(job)


def _at_the_floor(job: Job) -> bool:
    """Whether Slurm shows the least priority there is, so that its true one is not known."""
    return not job.held and job.priority <= 1


def owners_nice(job: Job, seen: Observed) -> int:
    """The Nice that the owner, or an admin, set."""
    steered = seen.steered(job.id)
    was, wrote = steered.was.get("Nice"), steered.wrote.get("Nice")
    return int(was) if was is not None and wrote in (None, str(job.nice)) else job.nice
