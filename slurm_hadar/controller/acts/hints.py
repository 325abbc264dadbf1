"""Steering jobs that wait, by nothing but the order of their partition list, and by their Nice
where they exchange places in the queue.

A waiting managed job is an ordinary eligible job. With a partition per GPU type the order of its
list says what it prefers when several types are free; when all are busy it takes the first that is
freed, so the order never makes it wait. No other field of a waiting job is changed, except that
what a move or an earlier release left there is taken back.

Measured on 22.05.8 and 24.11.5: a list costs other jobs nothing, while Features that are narrowed
make those behind wait for backfill, 2 to 23 s.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from types import MappingProxyType

from slurm_hadar.config import Config
from slurm_hadar.controller.acts import laying, queue_head
from slurm_hadar.controller.acts.actions import Action, Kind
from slurm_hadar.controller.picture import claims
from slurm_hadar.controller.picture.targets import Target, lease_of_before
from slurm_hadar.controller.picture.viewing import Picture
from slurm_hadar.controller.picture.waits import expected_waits, run_times
from slurm_hadar.controller.seen.access import allowed_partitions, kinds_of
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.declaration import ANY, SLOWEST
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.times import at_once

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 86_400.0


@dataclass(frozen=True)
class Hint:
    """What a waiting job shall have: its ``partitions`` in this order, empty as they are; and a
    ``nice`` other than its owner's, where it has another job's place in the queue."""

    partitions: tuple[str, ...] = ()
    nice: str = ""


@dataclass(frozen=True)
class Refusals:
    """How often in a row Slurm refused a hint of a job, and when last (s since the epoch)."""

    number: int
    last_s: float

    def over(self, now: float) -> bool:
        """Whether it may be tried again: a minute after the first, and twice as long each time."""
        pause = min(_FIRST_PAUSE_S * 2.0 ** min(self.number - 1, 20), _LONGEST_PAUSE_S)
        return not 0 <= now - self.last_s < pause


def hints(
    picture: Picture,
    plan: Plan,
    seen: Observed,
    config: Config,
    refused: Mapping[str, Refusals],
    nices: Mapping[str, str] = MappingProxyType({}),
) -> list[Action]:
    """What is sent to the jobs that wait: nothing where nothing changes.

    ``refused``: job -> its refusals; ``nices``: of jobs with another job's place in the queue.
    """
    waiting = [
        target
        for target in picture.targets.values()
        if target.job.state is JobState.PENDING and not target.starting
    ]
    waiting.sort(key=lambda one: (claims.rank(one.job, seen), -one.job.submit_s), reverse=True)
    wanted = {id_: Hint(nice=nice) for id_, nice in nices.items()}
    # Tasks of an array that Slurm keeps in one record are one job to it, and stay one.
    records: dict[str, list[Target]] = {}
    for target in waiting:
        job = target.job
        records.setdefault(str(job.raw_id) if job.array_tasks else job.id, []).append(target)
    left, deep = queue_head.MOST_RECORDS, list[list[Target]]()
    may_wait = any(_longest_wait(target.job, config) for target in waiting)
    waits = expected_waits(seen, picture) if may_wait and not seen.in_order else {}
    for targets in records.values():
        placed = next((one for one in targets if one.job.id in plan.placements), targets[0])
        names = _preferred(placed, picture, plan, seen, config)
        names = _worth_waiting(placed, names, waits, picture, seen, config)
        if names and left >= len(names):
            left -= len(names)
            for target in targets:
                wanted[target.job.id] = Hint(names, nices.get(target.job.id, ""))
        else:
            deep.append(targets)
    back = _taken_back(
        queue_head.too_deep(deep, queue_head.MOST_RECORDS - left, seen, config), wanted, seen
    )
    gone = {action.job.id for action in back}
    ids = [one.job.id for one in waiting if one.job.id not in gone]
    ids += picture.left_out
    found = _sent(ids, wanted, picture.left_out, seen, refused)
    started = [
        target.job
        for target in picture.targets.values()
        if target.job.state is JobState.RUNNING and not target.starting
    ]
    again = (_after_a_move(job, seen) for job in started if not _refused(job, seen, refused))
    found += [action for action in back if not _refused(action.job, seen, refused)]
    return [*found, *(action for action in again if action is not None)]


def _taken_back(
    typed: Mapping[str, tuple[str, ...]], wanted: Mapping[str, Hint], seen: Observed
) -> list[Action]:
    found = []
    for id_, names in typed.items():
        job, steered = seen.jobs[id_], seen.steered(id_)
        fields = _with_nice(laying.back(job, steered), job, wanted.get(id_, Hint()).nice)
        fields["Partition"] = ",".join(names)
        ours = _remembered(job, fields, replace(steered, was={**steered.was, **fields}), seen.now)
        why = "its list comes back when it is near the head of the queue"
        found.append(Action(Kind.HINT, job, fields, ours, why))
    return found


def _refused(job: Job, seen: Observed, refused: Mapping[str, Refusals]) -> bool:
    return job.id in refused and not refused[job.id].over(seen.now)


def _after_a_move(job: Job, seen: Observed) -> Action | None:
    """The owner's Nice and MailType, of a job that runs again: it has its place now."""
    steered = seen.steered(job.id)
    fields = {
        key: value
        for key, value in steered.was.items()
        if key in laying.UNTIL_IT_RUNS
        and steered.wrote.get(key) == laying.present(job, steered, key)
    }
    if not fields:
        return None
    ours = replace(
        steered,
        time=seen.now,
        was={key: value for key, value in steered.was.items() if key not in fields},
        wrote={key: value for key, value in steered.wrote.items() if key not in fields},
    )
    why = f"it runs: {' and '.join(sorted(fields))} as its owner set it"
    return Action(Kind.HINT, job, fields, ours, why)


def restored(
    ids: Iterable[str],
    left_out: Mapping[str, str],
    seen: Observed,
    refused: Mapping[str, Refusals],
    preempted: Collection[str] = (),
) -> list[Action]:
    """What makes the requests of these jobs their owners' again, where they wait.

    ``left_out``: those that are left to Slurm, with the reason; ``preempted``: those that may start
    before the begin time that Slurm gave them when it requeued them.
    """
    return _sent(ids, {}, left_out, seen, refused, preempted)


def _sent(
    ids: Iterable[str],
    wanted: Mapping[str, Hint],
    left_out: Mapping[str, str],
    seen: Observed,
    refused: Mapping[str, Refusals],
    preempted: Collection[str] = (),
) -> list[Action]:
    found = []
    for id_ in ids:
        job = seen.jobs[id_]
        if job.state is not JobState.PENDING or job.held:
            continue
        if _refused(job, seen, refused):
            continue
        action = _hint(job, wanted.get(id_, Hint()), left_out.get(id_, ""), seen, id_ in preempted)
        found += [action] if action is not None else []
    return found


def _hint(job: Job, hint: Hint, left_out: str, seen: Observed, preempted: bool) -> Action | None:
    steered, names = seen.steered(job.id), hint.partitions
    fields = _with_nice(laying.back(job, steered), job, hint.nice)
    if "Partition" not in steered.foreign:
        if names:
            fields.pop("Partition", None)
            if ",".join(names) != laying.current(job, "Partition"):
                fields["Partition"] = ",".join(names)
        elif not left_out and _is_wider(job, steered):
            # A list that has sunk back in the queue is left as it is.
            fields.pop("Partition", None)
    leased = lease_of_before(job, steered, seen.now)
    if leased or preempted:
        fields["StartTime"] = at_once(job, seen.now)
    if not fields:
        return None
    ours = _remembered(job, fields, steered, seen.now)
    if leased:
        why = "it has a begin time of an earlier release of hbatch or the plugins"
    elif preempted:
        why = "it was preempted, and may start again"
    elif "Partition" in fields and names:
        why = "in this order it prefers them"
    elif hint.nice and "Nice" in fields:
        why = "it has the place of another managed job in the queue, which the policy lets wait"
    else:
        why = "its request is its owner's again" + (f": {left_out}" if left_out else "")
    return Action(Kind.HINT, job, fields, ours, why)


def _with_nice(fields: dict[str, str], job: Job, nice: str) -> dict[str, str]:
    if not nice:
        return fields
    rest = {key: value for key, value in fields.items() if key != "Nice"}
    return rest if nice == str(job.nice) else {**rest, "Nice": nice}


def _remembered(job: Job, fields: Mapping[str, str], steered: Steering, now: float) -> Steering:
    """What is known of the job once these are sent: its owner's value of each that differs."""
    was = {
        key: value
        for key, value in laying.originals(job, fields, steered.was).items()
        if fields.get(key, laying.present(job, steered, key)) != value
    }
    wrote = {key: fields.get(key, laying.present(job, steered, key)) for key in was}
    return Steering(time=now, moves=steered.moves, was=was, wrote=wrote, foreign=steered.foreign)


def _is_wider(job: Job, steered: Steering) -> bool:
    return set(steered.wrote.get("Partition", "").split(",")) == set(job.partitions)


def _worth_waiting(
    target: Target,
    names: tuple[str, ...],
    waits: Mapping[str, Mapping[str, float]],
    picture: Picture,
    seen: Observed,
    config: Config,
) -> tuple[str, ...]:
    """``names`` without the types on which the job would end later, even if it began there now,
    than on the one that it waits for: rule 4 of the prototype (theta 0).

    All of them where its work is not known, where the wait is longer than it may be, and where a
    job that is not managed wants the same type.
    """
    job, view = target.job, picture.view
    left_s = job.eligible_s + _longest_wait(job, config) - seen.now
    declared = job.declaration is not None and job.declaration.total_samples > 0
    if len(names) < 2 or job.id not in waits or not declared or left_s <= 0:
        return names
    row, count = view.jobs.ids.index(job.id), view.counts.index(target.wanted.count)
    types = laying.types_of([seen.partitions[name] for name in names], seen)
    if not all(view.jobs.known[row, view.types.index(kind), count] for kind in types.values()):
        return names
    times, wait = run_times(target, picture), waits[job.id]
    ends = {name: wait.get(kind, inf) + times[kind] for name, kind in types.items()}
    best = min(ends, key=lambda name: ends[name])
    if wait.get(types[best], inf) > left_s or _wanted_by_others(types[best], job, seen):
        return names
    kept = tuple(name for name in names if times[types[name]] <= ends[best])
    return tuple(sorted(kept, key=lambda name: name != best)) if len(kept) < len(names) else names


def _longest_wait(job: Job, config: Config) -> float:
    """Seconds from its submission in which it may wait for a type: its owner's word, else the
    site's."""
    own = job.declaration.wait if job.declaration is not None else None
    return config.queue.max_wait_s if own is None else own


def _wanted_by_others(kind: str, job: Job, seen: Observed) -> bool:
    """Whether a job that is not managed waits behind this one for GPUs of a type."""
    place = claims.rank(job, seen)
    return any(
        other.state is JobState.PENDING
        and not other.managed
        and claims.rank(other, seen) <= place
        and (not other.request.typed or kind in _kinds(other))
        and any(
            kind in kinds_of(seen.partitions[p], seen.nodes)
            for p in other.partitions
            if p in seen.partitions
        )
        for other in seen.jobs.values()
    )


def _kinds(job: Job) -> set[str]:
    request = job.request
    return {kind for part in (request.per_node, request.per_job, request.per_task) for kind in part}


def _preferred(
    target: Target, picture: Picture, plan: Plan, seen: Observed, config: Config
) -> tuple[str, ...]:
    """The job's partitions in the order in which it prefers their types; empty where an order says
    nothing."""
    job, want, view = target.job, target.wanted, picture.view
    groups = config.partitions.groups if want.of_one_type else {}
    open_to_it = allowed_partitions(job, want.partitions, seen.partitions, groups)
    types = laying.types_of(open_to_it, seen)
    if len(types) < 2 or want.count not in view.counts or job.id not in view.jobs.ids:
        return ()
    row, count = view.jobs.ids.index(job.id), view.counts.index(want.count)
    rates = {
        name: float(view.jobs.rate[row, view.types.index(kind), count])
        for name, kind in types.items()
        if kind in view.types
    }
    possible = {name: rate for name, rate in rates.items() if rate > 0}
    if job.declaration is not None and job.declaration.types == (ANY,):
        own = {n: float(picture.own[row, view.types.index(types[n]), count]) for n in possible}
        best = max((rate for rate in own.values() if isfinite(rate)), default=0.0)
        # A guess keeps no job from a free GPU.
        kept = picture.shared if job.declaration.may_move and job.requeue else frozenset()
        possible = {
            n: rate
            for n, rate in possible.items()
            if types[n] in kept or not own[n] * SLOWEST < best
        }
    placement = plan.placements.get(job.id)
    placed = set(placement.gpus) if placement is not None else set()
    return tuple(sorted(possible, key=lambda name: (types[name] not in placed, -possible[name])))
