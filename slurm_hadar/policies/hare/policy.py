"""Hare: least attained service on unequal GPUs, with rounds whose tasks may run one after another.

Chen et al., HPDC 2022 and IEEE TCC 12(4) 2024 (recalled). A round of a job consists of K equal
tasks of one global batch (``JobArrays.tasks``) that need not run at the same time: a fast GPU may
run several, so a job can use fewer GPUs than tasks, of any types. Order: attained service, which is
the sum over types of GPU time x (speed there / speed on the job's best type), in Tiresias's queues,
in order of arrival within a queue. That sum is the work done over the rate of one GPU of the best
type. Each job in turn takes the GPUs on which its rounds end first. Jobs are preempted at a
decision.

Ours: jobs that are still among the first keep their placements, and a running job moves only if
that pays (``gain_over_cost``, ``least_gain``). A job without tasks or copies is an ordinary gang.
"""

from collections.abc import Mapping

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, State, View
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadare.forks import SpareCapacity
from slurm_hadar.policies.hadare.main_copies import Seats, rate_of, running
from slurm_hadar.policies.hare.deal import DealtTasks, best, over, pays, placement
from slurm_hadar.policies.options import Amount, Flag, Part
from slurm_hadar.policies.queues.tiresias import QueueOptions
from slurm_hadar.policies.record import Policy, Trait


class HareOptions(HadarOptions, QueueOptions):
    """Hadar's options count as well; a job may move at once here."""

    min_stay_s: Amount = 0.0
    """No move of a job that came to its place less than this ago, s."""
    exchange: Part = 0.02
    """Part of the speed that dealt rounds lose to gradients on their way. Assumed; what the runtime
    measures takes its place in the rates."""
    weighted: Flag = False
    """Whether service counts per weight."""


def decide(view: View, state: State) -> tuple[Plan, State]:
    """One round. Raises :class:`UsageError` for an invalid option."""
    rules = HareOptions.read(view.options)
    jobs = view.jobs
    if not jobs.ids:
        return Plan(notes=("no managed job waits or runs",)), {"forked": {}}
    before = state.get("forked")
    now = running(view, before if isinstance(before, dict) else {}, rules.min_stay_s)
    copies = {job: (main, *now.others[job]) for job, main in now.main_copies.items()}
    held: dict[int, Seats] = {**now.seats, **copies}
    queue = queues(view, rules.limits, weighted=rules.weighted)
    order = np.lexsort((np.arange(len(jobs.ids)), jobs.arrival_s, queue))
    bound = jobs.running & ~now.free_to_change
    first = _first(view, order, held, bound)
    spare = SpareCapacity(view)
    keeps = [job for job in held if first[job] or bound[job]]
    for job in keeps:
        for seat in held[job]:
            spare.take(job, seat)
    dealt: dict[int, DealtTasks] = {}
    for job in keeps:
        dealt[job] = _present(view, job, held[job], job in copies, rules)
    turn = np.concatenate([order[first[order]], order[~first[order]]]).tolist()
    for job in turn:
        if job in dealt and (bound[job] or not first[job]):
            continue
        _place(view, spare, job, dealt, rules)
    return _plan(view, order.tolist(), queue, dealt, held), {
        "forked": {
            jobs.ids[job]: len(dealing.seats)
            for job, dealing in dealt.items()
            if len(dealing.seats) > 1 and not dealing.gang
        }
    }


def queues(view: View, limits: tuple[float, ...], *, weighted: bool = False) -> IntArray:
    """(J,) queue of each job by its attained service; 0 is the first."""
    jobs = view.jobs
    # GPU time x speed / reference speed, summed over types, is the work done over that speed.
    gpus = np.asarray(view.counts, dtype=np.float64)
    reference = (jobs.rate / gpus).max(axis=(1, 2), initial=0.0)
    done = np.where(np.isfinite(jobs.left), np.maximum(jobs.total - jobs.left, 0.0), 0.0)
    service: FloatArray = np.zeros(len(done))
    np.divide(done, reference, out=service, where=reference > 0)
    if weighted:
        service /= np.where(jobs.weight > 0, jobs.weight, 1.0)
    return np.searchsorted(np.asarray(limits), service, side="right").astype(np.int64)


def _first(view: View, order: IntArray, held: Mapping[int, Seats], bound: BoolArray) -> BoolArray:
    """(J,) jobs for which the GPUs suffice in this order, at most one per task; counted per type,
    nodes ignored."""
    jobs = view.jobs
    left = view.nodes.gpus.sum(axis=0).tolist()
    chosen = bound.copy()
    for job in np.flatnonzero(bound).tolist():
        for _, kind, count in held.get(job, ()):
            left[kind] -= count
    rate = jobs.rate.max(axis=2, initial=0.0)
    faster = np.argsort(-rate, axis=1, kind="stable").tolist()
    able = (rate > 0).tolist()
    # (J, R) the least count on each type: the job does not run on fewer GPUs of the type.
    least = np.where(jobs.rate > 0, np.asarray(view.counts), np.iinfo(np.int64).max).min(
        axis=2, initial=np.iinfo(np.int64).max
    )
    tasks = np.where(jobs.copies > 1, jobs.tasks, 1).tolist()
    for job, fewest in zip(order.tolist(), least[order].tolist(), strict=True):
        if chosen[job]:
            continue
        if job in held:
            seats = held[job]
            if all(left[kind] >= count for _, kind, count in seats):
                chosen[job] = True
                for _, kind, count in seats:
                    left[kind] -= count
            continue
        kinds = [kind for kind in faster[job] if able[job][kind] and left[kind] >= fewest[kind]]
        need = max(tasks[job], min((fewest[kind] for kind in kinds), default=0))
        for kind in kinds:
            taken = min(need, left[kind]) if need > fewest[kind] else fewest[kind]
            left[kind] -= taken
            need -= taken
            chosen[job] = True
            if need <= 0:
                break
    return chosen


def _present(view: View, job: int, seats: Seats, forked: bool, rules: HareOptions) -> DealtTasks:
    """What a job that stays has."""
    if forked:
        dealt = over(view, job, seats, rules.exchange)
        equal = (1.0 / len(seats),) * len(seats)
        return dealt or DealtTasks(seats, (), 0.0, shares=equal)
    count = sum(n for _, _, n in seats)
    rates = [rate_of(view, job, (node, kind, count)) for node, kind, _ in seats]
    slower = 1.0 + rules.communication if len({node for node, _, _ in seats}) > 1 else 1.0
    return DealtTasks(seats, (1,), min(rates, default=0.0) / slower, gang=True)


def _place(
    view: View,
    spare: SpareCapacity,
    job: int,
    dealt: dict[int, DealtTasks],
    rules: HareOptions,
) -> None:
    """Give the job its best placement; a running job moves only if that pays."""
    present = dealt.get(job)
    if present is not None:
        for seat in present.seats:
            spare.take(job, seat, -1)
    choice = best(view, spare, job, rules.exchange, rules.communication)
    if present is not None and not (choice is not None and pays(view, job, present, choice, rules)):
        choice = present
    if choice is not None:
        dealt[job] = choice
        for seat in choice.seats:
            spare.take(job, seat)


def _plan(
    view: View,
    order: list[int],
    queue: IntArray,
    dealt: Mapping[int, DealtTasks],
    held: Mapping[int, Seats],
) -> Plan:
    placements: dict[str, Placement] = {}
    waiting: dict[str, str] = {}
    for place, job in enumerate(order):
        id_ = view.jobs.ids[job]
        dealing = dealt.get(job)
        if dealing is not None:
            stays = set(dealing.seats) == set(held.get(job, ()))
            why = f"queue {int(queue[job]) + 1} by attained service"
            placements[id_] = placement(view, job, dealing, stays, why)
        elif not view.jobs.rate[job].any():
            waiting[id_] = "no GPU type and count that it can run with"
        else:
            waiting[id_] = (
                f"queue {int(queue[job]) + 1}, {place + 1} of {len(order)} by attained service; "
                "no place for it is left"
            )
    node_counts = [
        len(dealing.seats)
        for dealing in dealt.values()
        if len(dealing.seats) > 1 and not dealing.gang
    ]
    note = f"{len(node_counts)} jobs have their rounds' tasks dealt over {sum(node_counts)} nodes"
    return Plan(placements, waiting, (note,))


POLICY = Policy(
    name="hare",
    decide=decide,
    options=HareOptions,
    uses=frozenset({Trait.MOVES, Trait.ORDER, Trait.COPIES, Trait.ROUNDS}),
    preempts=True,
    title="tasks of one round dealt unevenly over GPUs",
    paper="Hare, HPDC 2022",
)
