"""Managed jobs that wait exchange their priorities, where the policy wants another order.

Jobs that the policy would start now go first, each part in the order of their promised ends
(:class:`slurm_hadar.scheduling.twin.ExpectedEnds`). Which jobs may exchange their places is in
:mod:`slurm_hadar.scheduling.exchange_rule`. A job that starts from another's place has used it up:
the other one has its place from then on. One that leaves the line without having started has not:
all have their own again (:mod:`.lent_places`).

It is done by Nice. A Nice that is not what the controller wrote is its author's, and stays.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_hadar.controller.actuation.pending import lent_places
from slurm_hadar.controller.actuation.pending.age_slack import Gaps, age_slack
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.lent_places import (
    Lent,
    Memory,
    barred,
    barred_texts,
    lost_for_good,
    owners_nice,
)
from slurm_hadar.controller.actuation.pending.waiting_line import (
    WaitingJob,
    exchange_group,
    may_exchange,
    plain_priority,
    requested,
    waiting_line,
)
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand, waits
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import PRIORITIES, BoolArray, FloatArray, IntArray
from slurm_hadar.scheduling import twin
from slurm_hadar.scheduling.exchange_rule import NO_EXCHANGE, ExchangeLevel, WaitingJobs, exchanged
from slurm_hadar.scheduling.twin import ExpectedEnds

_TRIES = 20
"""Orders of one tick that may turn out to be none that Slurm would carry out."""
_LONGEST_LINE = 500
"""Jobs at the head of the queue that may exchange places: as many as Slurm's backfill tests by
default (bf_max_job_test)."""


@dataclass(frozen=True)
class NewPlaces:
    """``nices``: job -> its new Nice, if that is not its owner's; ``memory``: kept until the next
    tick; ``messages``: for the log; ``too_near``: jobs that get no earlier place only because
    of the times at which Slurm counts ages."""

    nices: Mapping[str, str] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    messages: tuple[str, ...] = ()
    too_near: frozenset[str] = frozenset()


def exchange(snapshot: Snapshot, plan: Plan, given: HintInput, memory: Memory) -> NewPlaces:
    """The Nice of every waiting job of ours that has another place in the queue than its own.

    ``given``: as for the hints of this tick. Nothing where the site's ``queue.exchange`` is
    ``none``.
    """
    observation, config, refused = given.observation, given.config, given.refused_now
    if ExchangeLevel(config.queue.exchange) is ExchangeLevel.NONE:
        return NewPlaces()
    here = may_exchange(snapshot, observation, refused)
    lost = lost_for_good(memory, observation, here, refused)
    off = barred(memory, observation)
    left = lent_places.left(memory, observation, here)
    # Until Slurm shows that all of them have their own again nothing new begins with them.
    ends = lent_places.with_partners(memory, left)
    here = {
        id_: target for id_, target in here.items() if target.job.uid not in off and id_ not in ends
    }
    line = waiting_line(here, observation, lost)
    head, rest = line[:_LONGEST_LINE], line[_LONGEST_LINE:]
    promises = _promises(head, snapshot, observation, memory.promised)
    ids = [one.job.id for one in head]
    wish = promises.ranks(ids, [id_ in plan.placements for id_ in ids])
    slack = age_slack(observation)
    gaps = Gaps(head, [exchange_group(one, observation, config) for one in head], slack)
    ordered, too_near = _order(gaps, wish, _standing(head, memory, lost, observation))
    order = [*ordered, *rest]
    nices = {id_: owners_nice(observation.jobs[id_], observation) + n for id_, n in lost.items()}
    moved = {
        at: (before, after)
        for at, (before, after) in enumerate(zip(line, order, strict=True))
        if after.job.id in here and (before is not after or before.place != before.plain)
    }
    ours = {
        after.job.id: owners_nice(after.job, observation)
        + _less(at, before, after, gaps, memory.lent.get(after.job.id))
        for at, (before, after) in moved.items()
    }
    nices |= _least_changed(ours, nices, gaps, line, order)
    lent = _lent(moved.values(), nices, observation)
    others = {
        id_: n for id_, n in nices.items() if n != owners_nice(observation.jobs[id_], observation)
    }
    out = [
        id_ for id_ in memory.ours if id_ in observation.jobs and not observation.jobs[id_].managed
    ]
    kept = Memory(
        {**{id_: memory.lent[id_] for id_ in ends}, **lent},
        _without_open(lost, memory, ends),
        tuple(dict.fromkeys((*others, *out, *left))),
        promises.ends,
        off,
        tuple(sorted(left.difference(refused))),
    )
    messages = tuple(barred_texts(memory, observation))
    return NewPlaces({id_: str(n) for id_, n in others.items()}, kept, messages, too_near)


def _lent(
    moved: Iterable[tuple[WaitingJob, WaitingJob]],
    nices: Mapping[str, int],
    observation: Observation,
) -> dict[str, Lent]:
    """The job of each pair has the place of the one before it."""
    found = {}
    for before, after in moved:
        nice = nices[after.job.id]
        less = nice - owners_nice(after.job, observation)
        found[after.job.id] = Lent(before.job.id, nice, less, after.plain - after.place)
    return found


def _less(at: int, before: WaitingJob, after: WaitingJob, gaps: Gaps, known: Lent | None) -> int:
    """By how much ``after`` is to have a lesser priority than its own in the place ``at``, which is
    that of ``before``. ``known``: what it had there in the last tick."""
    given = before.place if before is after else gaps.priority(at)
    exact = given is not None and gaps.slack.are_counted_with_all(before.job, after.job)
    if known is not None and known.place_of == before.job.id and not exact:
        return known.less
    return after.plain - (before.place if given is None else given)


def notes(places: NewPlaces, observation: Observation) -> dict[str, str]:
    """A note for each waiting job that does not have its intended place."""
    text = (
        "; it is to have an earlier place in the queue, but gets none now: Slurm counts the ages "
        "of jobs at different moments, and a job with nearly the same priority could be overtaken"
    )
    return {**dict.fromkeys(places.too_near, text), **lent_places.notes(places.memory, observation)}


def in_own_places(
    snapshot: Snapshot, observation: Observation, memory: Memory, refused: Collection[str] = ()
) -> Snapshot:
    """The snapshot with the order that the jobs would have without any exchange, as the policy
    shall see it: by what it sees after an exchange it would want the next one otherwise."""
    lost = lost_for_good(memory, observation, may_exchange(snapshot, observation, refused), refused)
    view = snapshot.view
    own = np.array(
        [_own_place(snapshot.schedulable[id_].job, observation, lost) for id_ in view.jobs.ids],
        dtype=float,
    )
    return replace(snapshot, view=replace(view, jobs=replace(view.jobs, priority=own)))


def _own_place(job: Job, observation: Observation, lost: Mapping[str, int]) -> float:
    """As in ``domain.view.JobArrays.priority``."""
    tier, _ = pending_demand.rank(job, observation)
    plain = plain_priority(job, observation) if job.state is JobState.PENDING else job.priority
    return tier * PRIORITIES + plain - lost.get(job.id, 0)


def _without_open(lost: Mapping[str, int], memory: Memory, ends: Collection[str]) -> dict[str, int]:
    """``lost`` without what the jobs of ``ends`` lose only while Slurm refuses an update of one."""
    open_ = {id_: memory.lent[id_].lost for id_ in ends}
    return {id_: n for id_, n in {**lost, **open_}.items() if n}


def _standing(
    line: Sequence[WaitingJob], memory: Memory, lost: Mapping[str, int], observation: Observation
) -> IntArray:
    """(W,) the job that has each place since the last tick, as an index into the line."""
    at = {one.job.id: number for number, one in enumerate(line)}
    has = {
        id_: row.place_of
        for id_, row in memory.lent.items()
        if id_ in at and lost.get(id_, 0) == row.lost and observation.jobs[id_].nice == row.nice
    }
    found = np.arange(len(line))
    for id_ in has:
        ring = [id_]
        while (owner := has.get(ring[-1])) is not None and owner not in ring:
            ring.append(owner)
        if owner == id_:
            for one in ring:
                found[at[has[one]]] = at[one]
    return found


def _order(
    gaps: Gaps, wish: FloatArray, standing: IntArray
) -> tuple[list[WaitingJob], frozenset[str]]:
    """The line with exchanges, by the least ``wish`` first, and the jobs that have a later place
    there only because there is no gap; ``standing``: those of the last tick.

    Those that Slurm would not carry out, as it takes the job with the lesser number first of two
    with one priority, are left out, and so are new ones without a gap.
    """
    line, labels = gaps.line, gaps.labels
    if not any(number > 1 and label for label, number in Counter(labels).items()):
        return list(line), frozenset()
    numbers = {label: at for at, label in enumerate(dict.fromkeys(labels)) if label is not None}
    group = np.array([numbers.get(label, NO_EXCHANGE) for label in labels])
    asks = np.array([requested(one.job) for one in line])
    own = np.arange(len(line))
    # What stands, as far as the rule still allows it.
    kept = exchanged(WaitingJobs(group, asks, np.argsort(standing).astype(float)))
    stays = np.zeros(len(line), dtype=bool)
    wanted = exchanged(WaitingJobs(group, asks, wish))

    def too_near(given: IntArray) -> frozenset[str]:
        return _later(line, wanted, given) if gaps.slack.needed else frozenset()

    for _ in range(_TRIES):
        jobs = np.where(stays, kept, exchanged(WaitingJobs(group, asks, wish)))
        order = [line[at] for at in jobs]
        new = jobs != kept
        wrong = np.zeros(len(line), dtype=bool)
        for at in np.flatnonzero(new | (jobs != own)).tolist():
            allowed = gaps.may_get if new[at] else gaps.may_keep
            wrong[at] = not allowed(at, order[at].job)
        if not gaps.slack.needed:
            wrong |= _unlike_slurm(line, order, gaps.slack.observation)
        if not wrong.any():
            return order, too_near(jobs)
        # A job that has its own place keeps that. Else its whole group stays as it is, or goes back
        # where just that is wrong.
        stays |= np.isin(group, group[wrong & new & (kept != own)])
        back = np.isin(group, group[wrong & ~new])
        kept[back] = own[back]
        group[back | (wrong & new & (kept == own))] = NO_EXCHANGE
    return list(line), too_near(own)


def _later(line: Sequence[WaitingJob], wanted: IntArray, given: IntArray) -> frozenset[str]:
    """The jobs with a later place in the order ``given`` than in the one ``wanted``."""
    later = np.flatnonzero(np.argsort(wanted) < np.argsort(given))
    return frozenset(line[at].job.id for at in later.tolist())


def _unlike_slurm(
    line: Sequence[WaitingJob], order: Sequence[WaitingJob], observation: Observation
) -> BoolArray:
    """(W,) whether Slurm would have another job in a place, as priorities are shown."""
    held = {after.job.id: before.place for before, after in zip(line, order, strict=True)}
    done = sorted(
        order, key=lambda one: pending_demand.queue_key(one.job, observation, held[one.job.id])
    )
    wrong = {held[a.job.id] for a, b in zip(order, done, strict=True) if a is not b}
    return np.array([one.place in wrong for one in line])


def _promises(
    line: Sequence[WaitingJob],
    snapshot: Snapshot,
    observation: Observation,
    known: Mapping[str, float],
) -> ExpectedEnds[str]:
    """Of those that may exchange their places."""
    ours = {one.job.id for one in line if one.target is not None}
    found = ExpectedEnds({id_: end for id_, end in known.items() if id_ in ours})
    if not found.known(ours):
        for one, left in zip(line, _ends(line, snapshot, observation).tolist(), strict=True):
            if one.job.id in ours and left < np.inf:
                found.add([one.job.id], [observation.now + left])
    return found


def _ends(line: Sequence[WaitingJob], snapshot: Snapshot, observation: Observation) -> FloatArray:
    """(W,) s from now until each job would end without any exchange."""
    pools = waits.released(observation)
    counts, times = [], []
    for one in line:
        known = snapshot.schedulable.get(one.job.id)
        if known is not None and (run := waits.run_times(known, snapshot)):
            counts.append(known.request.count)
        else:
            count, run = waits.ordinary(one.job, pools)
            counts.append(count)
        times.append([run.get(kind, np.inf) for kind in pools])
    return twin.ends(
        list(pools.values()), np.array(counts), np.array(times).reshape(len(line), len(pools))
    )


def _least_changed(
    ours: Mapping[str, int],
    lost: Mapping[str, int],
    gaps: Gaps,
    line: Sequence[WaitingJob],
    order: Sequence[WaitingJob],
) -> dict[str, int]:
    """``ours``, the Nice of each job with another's place, so that as few as possible change:
    jobs that stand where they shall keep theirs, although priorities have drifted meanwhile.

    ``lost``: the Nice of the other jobs that do not have their owner's.
    """
    observation = gaps.slack.observation
    shown = sorted(
        line, key=lambda one: pending_demand.queue_key(one.job, observation, one.job.priority)
    )
    still = {
        after.job.id
        for at, (now, after) in enumerate(zip(shown, order, strict=True))
        if now is after and (after.job.id not in ours or gaps.has_slack(at, after.job))
    }
    kept = {id_: observation.jobs[id_].nice if id_ in still else nice for id_, nice in ours.items()}

    def place(one: WaitingJob) -> tuple[int, int, int]:
        job = one.job
        usual = owners_nice(job, observation) if job.restarts == 0 else job.nice
        nice = kept.get(job.id, lost.get(job.id, usual))
        return pending_demand.queue_key(job, observation, job.priority + job.nice - nice)

    return kept if sorted(line, key=place) == list(order) else dict(ours)
