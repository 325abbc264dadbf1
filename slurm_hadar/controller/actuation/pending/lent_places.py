"""Who has whose place in the queue, from tick to tick.

A job that starts from another's place has used it up, and those that gave up theirs for it keep
what they got until they run, by their Nice
(:class:`slurm_hadar.scheduling.exchange_rule.QueuePlaces`). One that leaves the line in another way
(held, by a dependency or a limit, cancelled, opted out) has not: in the same tick all jobs of the
exchange get their owners' Nice again, also one that is held. Else two jobs would stand ahead of
others where one was, once it is released. While Slurm refuses the update of such a job the exchange
stands as it is.

A Nice that another than the controller sets stays, also of a job that has another's place. No user
shall gain by it: the owner's jobs exchange no places for a day, and those that still wait in a
better place than their own go back. So for one that leaves the place of another user's job without
having started, by its owner's doing: the other job waits in the worse place until the next tick.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.view import State
from slurm_hadar.reports import formats
from slurm_hadar.scheduling.exchange_rule import QueuePlaces

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
    places, s since the epoch; ``left``: jobs that left the line with another's place in the last
    tick, and were to get their owner's Nice."""

    lent: Mapping[str, Lent] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    ours: tuple[str, ...] = ()
    promised: Mapping[str, float] = field(default_factory=dict)
    barred: Mapping[int, float] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def remembered(state: State) -> Memory:
    """What was kept; what is damaged in it is left out."""
    lent, lost = _dict(state.get("lent")), _dict(state.get("lost"))
    return Memory(
        {
            id_: Lent(*row)
            for id_, row in lent.items()
            if isinstance(row, list) and [type(one) for one in row] == [str, int, int, int]
        },
        {id_: n for id_, n in lost.items() if isinstance(n, int)},
        _ids(state.get("ours")),
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
        _ids(state.get("left")),
    )


def after_another(memory: Memory) -> Memory:
    """What holds of it where another controller has acted since: that one exchanged places in its
    own way, and no owner is to answer for a Nice that it wrote."""
    return Memory(lost=memory.lost, promised=memory.promised, barred=memory.barred)


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
        "left": list(memory.left),
    }


def _dict(found: object) -> Mapping[str, object]:
    return found if isinstance(found, dict) else {}


def _ids(found: object) -> tuple[str, ...]:
    return tuple(id_ for id_ in found if isinstance(id_, str)) if isinstance(found, list) else ()


def lost_for_good(
    memory: Memory, observation: Observation, here: Collection[str], refused: Collection[str] = ()
) -> dict[str, int]:
    """Job that waits -> priority that its own place has less than it had (more: below 0).

    ``here``: the jobs that may exchange their places in this tick, those of users that are barred
    too; ``refused``: jobs that Slurm refused an update.
    """
    off = barred(memory, observation)
    return {
        id_: n
        for id_, n in _lost(memory, observation, here, refused).items()
        if _keeps_its_nice(observation.jobs.get(id_), observation)
        and (n > 0 or observation.jobs[id_].uid not in off)
    }


def _lost(
    memory: Memory, observation: Observation, here: Collection[str], refused: Collection[str] = ()
) -> dict[str, int]:
    """As of :func:`lost_for_good`, also of jobs that wait no more, or opted out."""
    lent = memory.lent
    number = {id_: at for at, id_ in enumerate(lent)}
    held = {id_: number.get(one.place_of, -1) for id_, one in lent.items()}
    places = QueuePlaces(dict(number), held)
    for id_, one in lent.items():
        if id_ in here:
            continue
        # One with a worse place than its own takes none from others by that.
        is_better = one.less < one.lost
        has_it_still = is_better and id_ in refused and _waits_with(observation.jobs.get(id_), one)
        if has_it_still or _used(id_, one, memory, observation):
            places.use(id_)
    kept = {
        id_: one.lost if places.own[id_] == number[id_] else one.less for id_, one in lent.items()
    }
    return {id_: n for id_, n in {**memory.lost, **kept}.items() if n}


def left(memory: Memory, observation: Observation, here: Collection[str]) -> frozenset[str]:
    """Jobs that wait, have left the line and still have the Nice of another's place, from which
    none has started."""
    used = {
        id_
        for id_, one in memory.lent.items()
        if id_ not in here and _used(id_, one, memory, observation)
    }
    return frozenset(
        id_
        for id_, one in memory.lent.items()
        if id_ not in here
        and one.place_of != id_
        and _waits_with(observation.jobs.get(id_), one)
        and not used & with_partners(memory, (id_,))
    )


def with_partners(memory: Memory, ids: Collection[str]) -> frozenset[str]:
    """These jobs and all that have each other's place with them."""
    found = set[str]()
    for id_ in ids:
        one = memory.lent.get(id_)
        while one is not None and id_ not in found:
            found.add(id_)
            id_, one = one.place_of, memory.lent.get(one.place_of)
    return frozenset(found)


def _keeps_its_nice(job: Job | None, observation: Observation) -> bool:
    """Whether a job waits with the Nice that it has of us, and not with its author's."""
    return job is not None and _waits(job) and "Nice" not in observation.steered(job.id).foreign


def barred(memory: Memory, observation: Observation) -> dict[int, float]:
    """User id -> until when the user's jobs exchange no places, s since the epoch."""
    until = {
        uid: min(end, observation.now + _BARRED_S)
        for uid, end in memory.barred.items()
        if end > observation.now
    }  # fmt: skip
    return until | {job.uid: observation.now + _BARRED_S for job in _gone_back(memory, observation)}


def barred_texts(memory: Memory, observation: Observation) -> list[str]:
    """A sentence on each job for which its owner's jobs are barred from this tick on."""
    until = formats.moment(observation.now + _BARRED_S)
    return [
        f"job {job.id}: {_why(job, memory, observation)}; no job of {job.user} exchanges its place "
        f"until {until}"
        for job in _gone_back(memory, observation)
    ]


def notes(memory: Memory, observation: Observation) -> dict[str, str]:
    """What is said of each waiting job that is barred."""
    return {
        job.id: f"; it exchanges no place in the queue until {formats.moment(until)}, as one of "
        f"{job.user}'s jobs left an exchange by itself"
        for job in observation.jobs.values()
        if job.managed and job.state is JobState.PENDING
        and (until := memory.barred.get(job.uid)) is not None
    }  # fmt: skip


def _why(job: Job, memory: Memory, observation: Observation) -> str:
    if _left_anothers(job.id, memory, observation):
        return "it left the place of another user's job"
    if job.managed:
        return f"Nice {job.nice} is not what the exchange of places gave it, and stays"
    return "it opted out after another job started from its place"


def _gone_back(memory: Memory, observation: Observation) -> list[Job]:
    """Jobs with a Nice of an exchange that have another by now, those with a worse place than their
    own that have opted out and so get their own again, and those that left the better place of
    another user's job."""
    waiting = {id_ for id_, job in observation.jobs.items() if job.state is JobState.PENDING}
    lost = _lost(memory, observation, waiting)
    found = [
        observation.jobs[id_] for id_ in memory.lent if _left_anothers(id_, memory, observation)
    ]
    for id_ in memory.ours:
        job, changed = observation.jobs.get(id_), id_ in observation.nice_changed
        if job is None or job in found or not (changed or id_ in waiting):
            continue
        if changed if job.managed else lost.get(id_, 0) > 0:
            found.append(job)
    return found


def _left_anothers(id_: str, memory: Memory, observation: Observation) -> bool:
    """Whether a job has left a better place than its own, which belongs to another user's job,
    without having started, by its owner's doing since the last tick."""
    one, job = memory.lent.get(id_), observation.jobs.get(id_)
    if one is None or job is None or one.less >= one.lost or id_ in memory.left or job.restarts:
        return False
    uids = {
        observation.jobs[other].uid
        for other in with_partners(memory, (id_,))
        if other in observation.jobs
    }
    if uids == {job.uid}:
        return False
    if job.state is not JobState.PENDING:
        return job.state is JobState.FINISHED and not job.nodes
    held = job.held and job.reason != "JobHeldAdmin"
    later = bool(job.dependency) or job.eligible_s > observation.now
    return held or later or not job.managed


def _used(id_: str, one: Lent, memory: Memory, observation: Observation) -> bool:
    """Whether a job that is not in the line any more has started from the place it was given."""
    job = observation.jobs.get(id_)
    if job is None:
        # It is over. One that had a better place than its own may have started there, unless the
        # last tick saw it out of the line.
        return one.less < one.lost and id_ not in memory.left
    if not job.restarts and (
        job.state is JobState.PENDING or (job.state is JobState.FINISHED and not job.nodes)
    ):
        return False
    if id_ in observation.nice_changed:
        # Another user has changed its Nice, maybe before it started.
        return one.less < one.lost
    # It may have started while another Nice stood for its age (age_after_list_update).
    return job.nice == one.nice or str(job.nice) == observation.steered(id_).wrote.get("Nice")


def _waits_with(job: Job | None, one: Lent) -> bool:
    """Whether a job that has not started yet waits with the Nice that it was given."""
    if job is None or job.state is not JobState.PENDING or job.restarts:
        return False
    return job.nice == one.nice and not _at_the_floor(job)


def _waits(job: Job) -> bool:
    waits = job.managed and job.state is JobState.PENDING
    return waits and job.restarts == 0 and not _at_the_floor(job)


def _at_the_floor(job: Job) -> bool:
    """Whether Slurm shows the least priority there is, so that its true one is not known."""
    return not job.held and job.priority <= 1


def owners_nice(job: Job, observation: Observation) -> int:
    """The Nice that the owner, or an admin, set."""
    steered = observation.steered(job.id)
    was, wrote = steered.was.get("Nice"), steered.wrote.get("Nice")
    return int(was) if was is not None and wrote in (None, str(job.nice)) else job.nice
