"""Managed jobs that wait exchange their priorities, where the policy wants another order.

Jobs that the policy would start now go first, each part in the order of their promised ends
(:class:`slurm_hadar.scheduling.twin.Promises`). Which jobs may exchange their places is in
:mod:`slurm_hadar.scheduling.exchange`. A job that starts from another's place has used it up: the
other one has its place from then on.

It is done by Nice. A Nice that is not what the controller wrote is its author's, and stays.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller.picture import claims, waits
from slurm_hadar.controller.picture.targets import Target
from slurm_hadar.controller.picture.viewing import Picture
from slurm_hadar.controller.seen.access import allowed_partitions
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import FloatArray, State
from slurm_hadar.scheduling import twin
from slurm_hadar.scheduling.exchange import NO_EXCHANGE, ExchangeLevel, Line, Places, exchanged
from slurm_hadar.scheduling.twin import Promises

NAME = "exchange"
"""Under this name the store keeps who has whose place."""
_TRIES = 20
"""Orders of one tick that may turn out to be none that Slurm would carry out."""
_LONGEST_LINE = 500
"""Jobs at the head of the queue that may exchange places: as many as Slurm's backfill tests by
default (bf_max_job_test)."""


@dataclass(frozen=True)
class NewPlaces:
    """``nices``: job -> the Nice that it shall have, of all that have another than their owner's;
    ``state``: to be kept until the next tick."""

    nices: Mapping[str, str] = field(default_factory=dict)
    state: State = field(default_factory=dict)


@dataclass(frozen=True)
class Kept:
    """``state``: of the last tick's exchange; ``refused``: jobs that Slurm refused a hint, which
    get none for some time."""

    state: State = field(default_factory=dict)
    refused: Collection[str] = ()


@dataclass(frozen=True)
class _Waiting:
    """A job in the queue."""

    job: Job
    own: int
    """The priority that it has without any exchange."""
    place: int
    """The priority of the place that is its own: that of another job which started from its."""
    target: Target | None = None
    """Of a job that may take part."""


def exchange(
    picture: Picture,
    plan: Plan,
    seen: Observed,
    config: Config,
    kept: Kept,
) -> NewPlaces:
    """The Nice of every waiting job of ours that has another place in the queue than its own.

    Nothing where the site's ``queue.exchange`` is ``none``.
    """
    if ExchangeLevel(config.queue.exchange) is ExchangeLevel.NONE:
        return NewPlaces()
    lost = _inherited(kept.state, seen)
    line = _line(picture, seen, lost, kept.refused)
    head, rest = line[:_LONGEST_LINE], line[_LONGEST_LINE:]
    promises = _promises(head, picture, seen, kept.state)
    order = [*_order(head, promises, plan, seen, config), *rest]
    places = {after.job.id: before.place for before, after in zip(line, order, strict=True)}
    # Small differences, as of fair shares that change, are left as they are.
    as_it_is = [one.job.id for one in order] == _as_shown(line, seen)
    nices, rows = {}, {}
    for one in line:
        job, held = one.job, places[one.job.id]
        owners = _owners_nice(job, seen)
        if one.target is None or one.own == one.place == held:
            continue
        nice = job.nice if as_it_is else owners + one.own - held
        rows[job.id] = [one.own, one.place, held, nice]
        if nice != owners:
            nices[job.id] = str(nice)
    return NewPlaces(nices, {"jobs": rows, "promised": promises.ends})


def _inherited(state: State, seen: Observed) -> dict[str, int]:
    """Job -> priority that its place has less than it had by itself, since another one started from
    its place."""
    known = _known(state)
    places = Places(
        {id_: own for id_, (_, own, _, _) in known.items()},
        {id_: held for id_, (_, _, held, _) in known.items()},
    )
    for id_, (_, _, _, nice) in known.items():
        job = seen.jobs.get(id_)
        if job is None or ((job.restarts or job.nodes) and job.nice == nice):
            places.use(id_)
    return {id_: plain - places.own[id_] for id_, (plain, _, _, _) in known.items()}


def _known(state: State) -> dict[str, tuple[int, int, int, int]]:
    found = {}
    jobs = state.get("jobs")
    for id_, row in jobs.items() if isinstance(jobs, dict) else ():
        if isinstance(row, list) and len(row) == 4 and all(isinstance(n, int) for n in row):
            found[id_] = (row[0], row[1], row[2], row[3])
    return found


def _line(
    picture: Picture, seen: Observed, lost: Mapping[str, int], refused: Collection[str]
) -> list[_Waiting]:
    """All jobs that Slurm may start, in the order in which it would without any exchange."""
    found = []
    for job in seen.jobs.values():
        if job.state is not JobState.PENDING or job.held or job.priority <= 0:
            continue
        if job.eligible_s > seen.now:
            continue
        target = picture.targets.get(job.id)
        if target is None or job.id in refused or not _takes_part(target, seen):
            found.append(_Waiting(job, job.priority, job.priority))
            continue
        own = job.priority + job.nice - _owners_nice(job, seen)
        found.append(_Waiting(job, own, own - lost.get(job.id, 0), target))
    return sorted(found, key=lambda one: _before(one.job, one.place, seen))


def _before(job: Job, priority: int, seen: Observed) -> tuple[int, int, int]:
    """Slurm's order, lesser first: tier, priority, number."""
    return -claims.rank(job, seen)[0], -priority, job.array_job_id or job.raw_id


def _owners_nice(job: Job, seen: Observed) -> int:
    steered = seen.steered(job.id)
    was, wrote = steered.was.get("Nice"), steered.wrote.get("Nice")
    ours = was is not None and wrote == str(job.nice)
    return int(was) if ours and was is not None else job.nice


def _takes_part(target: Target, seen: Observed) -> bool:
    """Whether the job's priority is one number that its Nice changes, and the controller's to
    change. One that was requeued has a Nice for its lost age, and an array is many jobs."""
    job = target.job
    partitions = [seen.partitions[name] for name in job.partitions if name in seen.partitions]
    return (
        not target.starting
        and job.restarts == 0
        and not job.array_job_id
        and not job.external
        and claims.in_turn(job)
        and "Nice" not in seen.steered(job.id).foreign
        and len({(one.priority_tier, one.priority_factor) for one in partitions}) == 1
    )


def _order(
    line: Sequence[_Waiting], promises: Promises[str], plan: Plan, seen: Observed, config: Config
) -> list[_Waiting]:
    """The line with exchanges. Those that Slurm would not carry out, as it takes the job with the
    lesser number first of two with one priority, are left out."""
    labels = [_group(one, seen, config) for one in line]
    if not any(number > 1 and label for label, number in Counter(labels).items()):
        return list(line)
    ids = [one.job.id for one in line]
    wish = promises.wish(ids, [id_ in plan.placements for id_ in ids])
    numbers = {label: at for at, label in enumerate(set(labels) - {None})}
    group = np.array([NO_EXCHANGE if label is None else numbers[label] for label in labels])
    asks = np.array([_asks(one.job) for one in line])
    for _ in range(_TRIES):
        order = [line[at] for at in exchanged(Line(group, asks, wish))]
        held = {after.job.id: before.place for before, after in zip(line, order, strict=True)}
        done = sorted(order, key=lambda one: _before(one.job, held[one.job.id], seen))
        wrong = {held[a.job.id] for a, b in zip(order, done, strict=True) if a is not b}
        if not wrong:
            return order
        group[[at for at, one in enumerate(line) if one.place in wrong]] = NO_EXCHANGE
    return list(line)


def _group(one: _Waiting, seen: Observed, config: Config) -> tuple[object, ...] | None:
    """Jobs of one group ask for the same places, and may exchange theirs; None: with nobody."""
    if one.target is None:
        return None
    job, want = one.job, one.target.wanted
    groups = config.partitions.groups if want.of_one_type else {}
    open_to_it = allowed_partitions(job, want.partitions, seen.partitions, groups)
    if len({(part.priority_tier, part.priority_factor) for part in open_to_it}) != 1:
        return None
    same = (
        claims.rank(job, seen)[0],
        frozenset(part.name for part in open_to_it),
        want.constraint,
        want.types,
        job.required_nodes,
        job.excluded_nodes,
    )
    return (*ExchangeLevel(config.queue.exchange).group(job.uid, job.account, job.qos), *same)


def _asks(job: Job) -> list[float]:
    """What a job asks for: nodes, GPUs, CPUs, MB, s."""
    memory = job.mem_per_node_mb * job.node_count or job.mem_per_cpu_mb * job.cpus
    gpus = waits.gpus_asked(job)
    return [job.node_count, gpus, job.cpus, memory, job.tasks, job.exclusive, job.time_limit_s]


def _promises(
    line: Sequence[_Waiting], picture: Picture, seen: Observed, state: State
) -> Promises[str]:
    """Of those that may exchange their places."""
    known = state.get("promised")
    ours = {one.job.id for one in line if one.target is not None}
    found: Promises[str] = Promises()
    for id_, end in known.items() if isinstance(known, dict) else ():
        if id_ in ours and isinstance(end, int | float):
            found.ends[id_] = float(end)
    if not found.known(ours):
        for one, left in zip(line, _ends(line, picture, seen).tolist(), strict=True):
            if one.job.id in ours and left < np.inf:
                found.add([one.job.id], [seen.now + left])
    return found


def _ends(line: Sequence[_Waiting], picture: Picture, seen: Observed) -> FloatArray:
    """(W,) s from now until each job would end without any exchange."""
    pools = waits.released(seen, picture)
    counts, times = [], []
    for one in line:
        known = picture.targets.get(one.job.id)
        if known is not None and (run := waits.run_times(known, picture)):
            counts.append(known.wanted.count)
        else:
            count, run = waits.ordinary(one.job, pools)
            counts.append(count)
        times.append([run.get(kind, np.inf) for kind in pools])
    return twin.ends(
        list(pools.values()), np.array(counts), np.array(times).reshape(len(line), len(pools))
    )


def _as_shown(line: Sequence[_Waiting], seen: Observed) -> list[str]:
    """The ids in the order of the priorities that Slurm shows now."""
    found = sorted(line, key=lambda one: _before(one.job, one.job.priority, seen))
    return [one.job.id for one in found]
