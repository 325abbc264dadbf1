"""A waiting job gets another list of partitions and keeps its place in Slurm's queue.

Where Slurm enforces limits, an update of its partitions takes the age from a job's priority, until
Slurm has found its time again and another update counts it (:mod:`slurm_hadar.slurm.waiting_age`).
So the list is sent with a Nice that is lower by the age: the priority stays as it is. Slurm finds
the time again within seconds, and the owner's Nice is set again. Should we die in between, the next
tick sets it. Slurm's count of all ages would give such a job its age twice, so nothing is sent that
is not over well before the next one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, Sent, send_hints
from slurm_hadar.controller.actuation.pending.list_updates import can_keep_age, would_pass
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.waiting_age import AgePriority
from slurm_hadar.slurm.waiting_priorities import CountedPriority

_LOOK_S = 1.0
_LOOKS = 15
_SAFE_S = 10.0 + _LOOKS * _LOOK_S
"""From the first update to the last one, with some seconds for Slurm's answers."""

Counted = Mapping[int, Sequence[CountedPriority]]


def need(actions: Sequence[Action], observation: Observation) -> list[Action]:
    """Those of the hints that may take an age: one that can be kept, or that is worth more than a
    preference."""
    return [
        action
        for action in actions
        if action.steering.age_lost
        and "Nice" not in action.fields
        and observation.keeps_ages
        and (can_keep_age(action.job, observation) or _is_preference(action))
    ]


def _is_preference(action: Action) -> bool:
    """Whether it only says where the job would rather start."""
    return "Partition" in action.steering.was and not action.steering.until


def send(
    context: ActionContext,
    actions: Sequence[Action],
    observation: Observation,
    sleep: Callable[[float], None],
) -> Sent:
    """Send these hints so that no job loses its place; takes some seconds. One query of ages, and
    one of the jobs each second. Nothing is sent where Slurm does not tell the ages, nor to a job
    with an age where it counts them too soon: the next tick decides anew."""
    if not actions:
        return Sent()
    ids = frozenset(action.job.id for action in actions)
    try:
        counted = context.cluster.read_priorities()
    except SlurmError as error:
        return Sent((f"the lists of {len(ids)} jobs stay: their ages are not known: {error}",), ids)
    ages = {
        action.job.id: max(one.age for one in counted[action.job.raw_id])
        for action in actions
        if action.job.raw_id in counted
    }
    next_s = next_count_s(observation.jobs.values(), counted, observation.age, context.clock())
    # Of a job that has just come Slurm has counted no age, which the update could take.
    fresh = [_without_loss(action) for action in actions if ages.get(action.job.id) == 0]
    aged = [
        _with_age(action, ages[action.job.id])
        for action in actions
        if next_s >= _SAFE_S
        and ages.get(action.job.id)
        and can_keep_age(action.job, observation)
        and not (_is_preference(action) and would_pass(action.job, observation))
    ]
    done = send_hints(context, [*fresh, *aged], context.clock())
    left = {action.job.id: action for action in aged if action.job.id not in done.refused}
    messages = [*done.messages]
    for look in range(_LOOKS):
        if not left:
            break
        sleep(_LOOK_S)
        try:
            shown = {job.id: job for job in context.cluster.read_jobs(sorted(left))}
        except SlurmError:
            continue
        # Of a job that has begun the next tick restores the Nice; another one is its author's.
        ended = {id_ for id_ in left if not _is_ours(shown.get(id_), left[id_])}
        # Of a job that is held Slurm finds none; its release counts it anew.
        found = {
            id_
            for id_ in left.keys() - ended
            if shown[id_].accrue_s or shown[id_].held or look == _LOOKS - 1
        }
        back = [_own_again(left[id_], shown[id_]) for id_ in sorted(found)]
        messages += send_hints(context, back, context.clock()).messages
        left = {id_: one for id_, one in left.items() if id_ not in ended | found}
    return Sent((*messages,), done.refused | (ids - {action.job.id for action in [*fresh, *aged]}))


def next_count_s(jobs: Iterable[Job], counted: Counted, age: AgePriority, now: float) -> float:
    """Seconds until Slurm counts all ages again, at the earliest; 0 where that is not known."""
    since = [
        now - job.accrue_s - one.age_part * age.most_s
        for job in jobs
        if job.state is JobState.PENDING and job.accrue_s
        for one in counted.get(job.raw_id, ())[:1]
        if 0 < one.age_part < 1
    ]
    return max(0.0, age.period_s - max(since)) if since else 0.0


def _with_age(action: Action, points: int) -> Action:
    nice = str(action.job.nice - points)
    ours = action.steering
    return replace(
        action,
        fields={**action.fields, "Nice": nice},
        steering=replace(
            ours,
            was={"Nice": str(action.job.nice), **ours.was},
            wrote={**ours.wrote, "Nice": nice},
        ),
    )


def _without_loss(action: Action) -> Action:
    return replace(action, steering=replace(action.steering, age_lost=False))


def _is_ours(job: Job | None, action: Action) -> bool:
    """Whether the job still waits with the Nice that we sent: also one that its owner has held, or
    opted out, meanwhile."""
    return (
        job is not None and job.state is JobState.PENDING and str(job.nice) == action.fields["Nice"]
    )


def _own_again(action: Action, job: Job) -> Action:
    """``job``: as it is now."""
    before, ours = action.job.nice, replace(action.steering, age_lost=not job.accrue_s)
    if ours.was["Nice"] == str(before):
        ours = _without_nice(ours)
    else:
        # That of an exchange.
        ours = replace(ours, wrote={**ours.wrote, "Nice": str(before)})
    why = "Slurm has found the age again that the other list had taken"
    why = "it is held, and Slurm counts its age anew at its release" if job.held else why
    return Action(Kind.HINT, job, {"Nice": str(before)}, ours, why)


def _without_nice(ours: Steering) -> Steering:
    return replace(
        ours,
        was={key: value for key, value in ours.was.items() if key != "Nice"},
        wrote={key: value for key, value in ours.wrote.items() if key != "Nice"},
    )
