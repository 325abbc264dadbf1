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
from slurm_hadar.controller.picture.arrays import accepts
from slurm_hadar.controller.picture.empty_nodes import UNFIT, EmptyNodes
from slurm_hadar.controller.picture.targets import Target, lease_of_before
from slurm_hadar.controller.picture.viewing import Picture
from slurm_hadar.controller.picture.waits import expected_waits, run_times
from slurm_hadar.controller.seen.access import allowed_partitions, kinds_of
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.declaration import ANY, SLOWEST
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.steering import Steering
from slurm_hadar.reports import formats
from slurm_hadar.slurm.times import at_once

_DEEP = "its list comes back when it is near the head of the queue"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 86_400.0


@dataclass(frozen=True)
class Hint:
    """What a waiting job shall have: its ``partitions`` in this order, empty as they are; a
    ``nice`` other than its owner's, where it has another job's place in the queue; and for what a
    shorter list makes it ``wait``."""

    partitions: tuple[str, ...] = ()
    nice: str = ""
    wait: "Wait | None" = None


@dataclass(frozen=True)
class Wait:
    """A list that is shorter than it may be: up to when (``until_s``) it waits for its first
    partition, and when it is expected to end there. Both s since the epoch."""

    until_s: float
    ends_s: float


@dataclass(frozen=True)
class _Preference:
    """A job's partitions in the order in which it prefers their types, empty where an order says
    nothing; those of them in which it surely fits now; and whether it never fits in one of them."""

    names: tuple[str, ...] = ()
    fit: frozenset[str] = frozenset()
    is_unfit: bool = False


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
    unfit: dict[str, tuple[str, ...]] = {}
    may_wait = any(_longest_wait(target.job, config) for target in waiting)
    empty = EmptyNodes(seen)
    waits = expected_waits(seen, picture, empty) if may_wait and not seen.in_order else {}
    for targets in records.values():
        placed = next((one for one in targets if one.job.id in plan.placements), targets[0])
        preference = _preferred(placed, picture, plan, seen, config, empty)
        names = _worth_waiting(placed, preference, waits, picture, seen, config)
        wait = None
        if len(names) < len(preference.names):
            until_s = placed.job.eligible_s + _longest_wait(placed.job, config)
            wait = Wait(until_s, _end(placed, names[0], waits, picture, seen))
        if names and left >= len(names):
            left -= len(names)
            for target in targets:
                wanted[target.job.id] = Hint(names, nices.get(target.job.id, ""), wait)
        elif preference.is_unfit:
            typed = queue_head.typed_partitions(placed.job, seen, config)
            if set(typed) != set(placed.job.partitions):
                unfit |= {target.job.id: typed for target in targets}
        else:
            deep.append(targets)
    deep_ones = queue_head.too_deep(deep, queue_head.MOST_RECORDS - left, seen, config)
    back = [
        *_taken_back(unfit, "it fits in no node of a partition", wanted, picture, seen, config),
        *_taken_back(deep_ones, _DEEP, wanted, picture, seen, config),
    ]
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
    typed: Mapping[str, tuple[str, ...]],
    why: str,
    wanted: Mapping[str, Hint],
    picture: Picture,
    seen: Observed,
    config: Config,
) -> list[Action]:
    """These jobs with the partitions that their owner typed, and with the features of the types
    that the owner declared, where the list alone said them."""
    found = []
    for id_, names in typed.items():
        job, steered = seen.jobs[id_], seen.steered(id_)
        fields = _with_nice(laying.back(job, steered), job, wanted.get(id_, Hint()).nice)
        fields["Partition"] = ",".join(names)
        target = picture.targets[id_]
        kinds = [kind for kind in config.gpu_types if accepts(target, kind, config)]
        no_features = not (job.features or target.wanted.constraint or "Features" in fields)
        if no_features and len(kinds) < len(config.gpu_types):
            fields["Features"] = "|".join(config.gpu_types[kind].feature for kind in kinds)
        ours = _remembered(job, fields, replace(steered, was={**steered.was, **fields}), seen.now)
        found.append(Action(Kind.HINT, job, fields, ours, why))
    return found


def _refused(job: Job, seen: Observed, refused: Mapping[str, Refusals]) -> bool:
    return job.id in refused and not refused[job.id].over(seen.now)


def unfit(job: Job, seen: Observed) -> bool:
    """Whether Slurm says that a job fits nowhere in a partition of a list that is ours."""
    return job.reason.split(",")[0] in UNFIT and "Partition" in laying.back(
        job, seen.steered(job.id)
    )


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
        if _refused(job, seen, refused) and not unfit(job, seen):
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
            if steered.wrote.get("Features") == job.features:
                fields.pop("Features", None)
    leased = lease_of_before(job, steered, seen.now)
    if leased or preempted:
        fields["StartTime"] = at_once(job, seen.now)
    if not fields:
        return None
    ours = _remembered(job, fields, steered, seen.now)
    if hint.wait is not None:
        ours = replace(ours, until=hint.wait.until_s, ends=hint.wait.ends_s)
    if leased:
        why = "it has a begin time of an earlier release of hbatch or the plugins"
    elif preempted:
        why = "it was preempted, and may start again"
    elif "Partition" in fields and hint.wait is not None:
        why = f"{waits_for(ours)}: it ends sooner so than where it could begin before"
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


def waits_for(steered: Steering) -> str:
    """What a job with a list that is shorter than it may be waits for, and up to when."""
    first = steered.wrote.get("Partition", "").partition(",")[0]
    return f"waits for {first} until {formats.moment(steered.until)} at most"


def _is_unfit(target: Target, names: Iterable[str], empty: EmptyNodes) -> bool:
    """Whether a job fits in no node of a partition, whatever is done to the nodes: where its list
    is changed to one with such a partition Slurm 22.05 holds some jobs (BadConstraints), so it is
    left as its owner wrote it."""
    names = frozenset(names)
    return empty.is_clear(target) and not names <= empty.fits(target, names, some_day=True)


def _is_wider(job: Job, steered: Steering) -> bool:
    return not steered.until and set(steered.wrote.get("Partition", "").split(",")) == set(
        job.partitions
    )


def _worth_waiting(
    target: Target,
    preference: _Preference,
    waits: Mapping[str, Mapping[str, float]],
    picture: Picture,
    seen: Observed,
    config: Config,
) -> tuple[str, ...]:
    """The names that it prefers without the types on which the job would end later, even if it
    began there now, than on the one that it waits for: rule 4 of the prototype (theta 0).

    All of them where its work is not known, where the wait is longer than it may be, where the job
    may not fit there, and where a job that is not managed wants the same type.
    """
    names = preference.names
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
    ends = {
        name: wait.get(kind, inf) + times.get(kind, inf)
        for name, kind in types.items()
        if name in preference.fit
    }
    best = min(ends, key=lambda name: ends[name], default="")
    if not best or ends[best] == inf or wait[types[best]] > left_s:
        return names
    if _wanted_by_others(types[best], job, seen):
        return names
    kept = tuple(name for name in names if times.get(types[name], inf) <= ends[best])
    return tuple(sorted(kept, key=lambda name: name != best)) if len(kept) < len(names) else names


def _end(
    target: Target,
    name: str,
    waits: Mapping[str, Mapping[str, float]],
    picture: Picture,
    seen: Observed,
) -> float:
    """When a job is expected to end that waits for the partition ``name``, s since the epoch."""
    kind = laying.types_of([seen.partitions[name]], seen)[name]
    return seen.now + waits[target.job.id][kind] + run_times(target, picture)[kind]


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
    target: Target,
    picture: Picture,
    plan: Plan,
    seen: Observed,
    config: Config,
    empty: EmptyNodes,
) -> _Preference:
    """The job's partitions in the order in which it prefers their types; empty where an order says
    nothing."""
    job, want, view = target.job, target.wanted, picture.view
    groups = config.partitions.groups if want.of_one_type else {}
    open_to_it = allowed_partitions(job, want.partitions, seen.partitions, groups)
    types = laying.types_of(open_to_it, seen)
    if len(types) < 2 or want.count not in view.counts or job.id not in view.jobs.ids:
        return _Preference()
    row, count = view.jobs.ids.index(job.id), view.counts.index(want.count)
    rates = {
        name: float(view.jobs.rate[row, view.types.index(kind), count])
        for name, kind in types.items()
        if kind in view.types
    }
    fit = empty.fits(target, rates)
    possible = {name: rate for name, rate in rates.items() if rate > 0}
    if possible and not fit & possible.keys():
        # What is left out by estimates only, such as a time limit that would be too short.
        possible = {name: rates[name] for name in rates if accepts(target, types[name], config)}
    if job.declaration is not None and job.declaration.types == (ANY,):
        own = {n: float(picture.own[row, view.types.index(types[n]), count]) for n in possible}
        # What is slow beside a type on which it may not fit is not slow for this job.
        best = max((own[n] for n in possible if n in fit and isfinite(own[n])), default=0.0)
        # A guess keeps no job from a free GPU.
        kept = picture.shared if job.declaration.may_move and job.requeue else frozenset()
        possible = {
            n: rate
            for n, rate in possible.items()
            if types[n] in kept or not own[n] * SLOWEST < best
        }
    if empty.is_clear(target) and not possible.keys() <= empty.fits(
        target, possible, some_day=True
    ):
        # Slurm holds some jobs whose list is changed to one with such a partition.
        return _Preference((), fit, is_unfit=True)
    placement = plan.placements.get(job.id)
    placed = set(placement.gpus) if placement is not None else set()

    def order(name: str) -> tuple[bool, bool, float]:
        return name not in fit, types[name] not in placed, -possible[name]

    return _Preference(tuple(sorted(possible, key=order)), fit)
