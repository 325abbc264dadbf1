"""Who has whose place in the queue, from tick to tick.

A job that leaves the line with another's place has used it up, and those that gave up theirs for
it keep what they got until they run, by their Nice
(:class:`slurm_hadar.scheduling.exchange.QueuePlaces`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.view import State
from slurm_hadar.scheduling.exchange import QueuePlaces

NAME = "exchange"
"""Under this name the store keeps it."""


@dataclass(frozen=True)
class Lent:
    """The place of a job in one tick, as priorities: ``plain``, that it would have without any
    exchange; ``own``, less what it lost for good; ``held``, that it was given; and its ``nice``."""

    plain: int
    own: int
    held: int
    nice: int


@dataclass(frozen=True)
class Memory:
    """What is kept. ``lent``: of the last tick; ``lost``: job -> priority that its own place has
    less than it had, of all that wait; ``ours``: jobs with a Nice of ours; ``promised``: job -> its
    promised end, s since the epoch."""

    lent: Mapping[str, Lent] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    ours: tuple[str, ...] = ()
    promised: Mapping[str, float] = field(default_factory=dict)


def remembered(state: State) -> Memory:
    """What was kept; what is damaged in it is left out."""
    lent, lost = _dict(state.get("lent")), _dict(state.get("lost"))
    ours = state.get("ours")
    return Memory(
        {
            id_: Lent(*row)
            for id_, row in lent.items()
            if isinstance(row, list) and len(row) == 4 and all(isinstance(n, int) for n in row)
        },
        {id_: n for id_, n in lost.items() if isinstance(n, int)},
        tuple(id_ for id_ in ours if isinstance(id_, str)) if isinstance(ours, list) else (),
        {
            id_: float(end)
            for id_, end in _dict(state.get("promised")).items()
            if isinstance(end, int | float)
        },
    )


def as_state(memory: Memory) -> State:
    """As :func:`remembered` reads it."""
    return {
        "lent": {id_: [one.plain, one.own, one.held, one.nice] for id_, one in memory.lent.items()},
        "lost": dict(memory.lost),
        "ours": list(memory.ours),
        "promised": dict(memory.promised),
    }


def _dict(found: object) -> Mapping[str, object]:
    return found if isinstance(found, dict) else {}


def lost_for_good(memory: Memory, seen: Observed, here: Collection[str]) -> dict[str, int]:
    """Job that waits -> priority that its own place has less than it had (more: below 0).

    ``here``: the jobs that may exchange their places in this tick.
    """
    lent = memory.lent
    places = QueuePlaces(
        {id_: one.own for id_, one in lent.items()}, {id_: one.held for id_, one in lent.items()}
    )
    for id_, one in lent.items():
        if id_ not in here and _used(seen.jobs.get(id_), one):
            places.use(id_)
    found = {**memory.lost, **{id_: one.plain - places.own[id_] for id_, one in lent.items()}}
    return {id_: n for id_, n in found.items() if n and _waits(seen.jobs.get(id_))}


def _used(job: Job | None, one: Lent) -> bool:
    """Whether a job that is not in the line any more has gone with the place that it was given."""
    if job is None:
        # It is over. One that had a better place than its own may have started there.
        return one.held > one.own
    if job.state is JobState.FINISHED and not job.nodes:
        return False
    if job.state is JobState.PENDING and (not job.managed or _at_the_floor(job)):
        # It gets its owner's Nice back in this tick.
        return False
    return job.nice == one.nice


def _waits(job: Job | None) -> bool:
    waits = job is not None and job.managed and job.state is JobState.PENDING
    return waits and job is not None and job.restarts == 0 and not _at_the_floor(job)


def _at_the_floor(job: Job) -> bool:
    """Whether Slurm shows the least priority there is, so that its true one is not known."""
    return not job.held and job.priority <= 1


def owners_nice(job: Job, seen: Observed) -> int:
    """The Nice that the owner, or an admin, set."""
    steered = seen.steered(job.id)
    was, wrote = steered.was.get("Nice"), steered.wrote.get("Nice")
    return int(was) if was is not None and wrote in (None, str(job.nice)) else job.nice


def given_back(memory: Memory, seen: Observed) -> list[Action]:
    """The owner's Nice, of jobs that wait and have opted out by themselves since."""
    found = []
    for id_ in memory.ours:
        job = seen.jobs.get(id_)
        if job is None or job.managed or job.state is not JobState.PENDING or job.restarts:
            continue
        steered, own = seen.steered(id_), owners_nice(job, seen)
        if own != job.nice and not job.held:
            was = {key: value for key, value in steered.was.items() if key != "Nice"}
            wrote = {key: value for key, value in steered.wrote.items() if key != "Nice"}
            ours = replace(steered, was=was, wrote=wrote, time=seen.now)
            why = "it opted out: its owner's Nice is restored"
            found.append(Action(Kind.HINT, job, {"Nice": str(own)}, ours, why))
    return found
