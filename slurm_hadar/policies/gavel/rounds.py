"""Gavel's round mechanism: the jobs that run in a round, so that all get their shares over time.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads",
OSDI 2020; verified in its code (simulation, without packing of two jobs on a GPU):

- Shares are computed again only after an arrival or a finish, and at least 1,920 s after the last
  time (at once while the last time is 0).
- The priority of a job on a type is share / (time received there / time received there by all),
  with an initial credit of half a round per type; what was not received becomes the deficit.
- Per type, in the view's order, jobs are chosen by (priority, deficit, share) while GPUs are left,
  those without a share last; one type per job and round. Jobs may move in every round.

Ours: jobs that may not be moved keep what they hold; the last seconds of a finished job follow from
its rate; a job with several counts runs on the least. Gavel's code reserves GPUs for jobs that
arrive after the last computation of shares but starts them only after the next one; here they start
on what is left, unless the option ``as_gavel`` is true.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, State, View
from slurm_hadar.policies.gavel.node_selection import select_nodes
from slurm_hadar.policies.options import Amount, Flag, PolicyOptions
from slurm_hadar.policies.record import Decide, Policy, Trait

_NOTHING, _ENDLESS = 1e-3, 1e15
"""Samples assumed for no remaining work, and for work without an end."""
Memory = dict[str, list[float]]
"""A policy's own numbers per job, kept between two computations of shares."""


class GavelOptions(PolicyOptions):
    """The round mechanism's."""

    reset_s: Amount = 1920.0
    """Least seconds between two computations of shares."""
    as_gavel: Flag = False
    """Whether jobs that came after the last computation of shares wait for the next one."""


@dataclass(frozen=True)
class SharesProblem:
    """The input of a computation of shares: J jobs, R types, one number of GPUs per job."""

    ids: tuple[str, ...]
    rate: FloatArray
    """(J, R) samples/s; 0 if the job cannot run there."""
    gpus: IntArray
    """(J,) GPUs."""
    capacity: IntArray
    """(R,) GPUs."""
    weight: FloatArray
    left: FloatArray
    """(J,) remaining samples."""
    waited_s: FloatArray
    """(J,) seconds since the arrival."""


Allocate = Callable[[SharesProblem, Memory], tuple[FloatArray, Memory]]
"""(J, R) shares of time, and what to remember."""


@dataclass
class _Ledger:
    """The state of the mechanism, in the order of the view's jobs. Times in s."""

    share: FloatArray
    time: FloatArray
    deficit: FloatArray
    total_time: FloatArray
    """(R,) seconds that all jobs together received on each type."""
    reset_s: float
    stale: bool
    new: BoolArray
    """(J,) arrived after the last computation of shares."""


def policy(name: str, decide: Decide, title: str) -> Policy:
    """The record of a policy that schedules by rounds of shares."""
    return Policy(
        name=name,
        decide=decide,
        options=GavelOptions,
        uses=frozenset({Trait.MOVES, Trait.ORDER}),
        preempts=True,
        title=title,
        paper="Gavel, OSDI 2020",
    )


def decide_by(view: View, state: State, allocate: Allocate) -> tuple[Plan, State]:
    """One round with the shares that ``allocate`` computes. Raises UsageError for an invalid
    option."""
    options = GavelOptions.read(view.options)
    problem = _problem(view)
    ledger = _recall(view, problem, state)
    memory = {key: list(value) for key, value in _dict(state.get("memory")).items()}
    credit = view.round_s / 2
    if ledger.stale and (not ledger.reset_s or view.now - ledger.reset_s >= options.reset_s):
        due = ledger.share * (view.now - ledger.reset_s)
        ledger.deficit += due - (ledger.time - credit)
        ledger.time[:] = credit
        ledger.total_time = ledger.time.sum(axis=0)
        ledger.reset_s, ledger.stale = view.now, False
        ledger.new[:] = False
        ledger.share, memory = allocate(problem, memory)
    chosen, priority = _choose(view, problem, ledger)
    if options.as_gavel:
        chosen = {job: kind for job, kind in chosen.items() if not ledger.new[job]}
    plan, running = _place(view, problem, ledger, chosen, priority)
    return plan, _remember(view, problem, ledger, memory, running)


def _problem(view: View) -> SharesProblem:
    jobs = view.jobs
    if len(view.counts) == 1:
        gpus = np.full(len(jobs.ids), view.counts[0], dtype=np.int64)
        rate = jobs.rate[:, :, 0]
    else:
        able = np.zeros((len(jobs.ids), len(view.counts)), dtype=bool)
        for kind in range(len(view.types)):
            able |= jobs.rate[:, kind] > 0
        column = able.argmax(axis=1)
        rate = jobs.rate[np.arange(len(column)), :, column]
        gpus = np.asarray(view.counts, dtype=np.int64)[column]
    return SharesProblem(
        ids=jobs.ids,
        rate=rate,
        gpus=gpus,
        capacity=view.nodes.gpus.sum(axis=0),
        weight=jobs.weight,
        left=np.clip(jobs.left, _NOTHING, _ENDLESS),
        waited_s=view.now - jobs.arrival_s,
    )


def _recall(view: View, problem: SharesProblem, state: State) -> _Ledger:
    """The state in the order of the present jobs, with the time since the last round added."""
    jobs, kinds = len(view.jobs.ids), len(view.types)
    credit = view.round_s / 2
    ledger = _Ledger(
        np.zeros((jobs, kinds)), np.full((jobs, kinds), credit), np.zeros((jobs, kinds)),
        np.zeros(kinds), 0.0, True, np.ones(jobs, dtype=bool),
    )  # fmt: skip
    ids = _list(state.get("ids"))
    if state.get("types") != list(view.types) or not ids:
        return ledger
    ledger.total_time = np.array(state["given"], dtype=np.float64)
    ledger.reset_s = float(state["reset_s"])  # type: ignore[arg-type]
    numbers = np.fromiter(_list(state["jobs"]), np.float64).reshape(len(ids), 3 * kinds + 2)
    same = ids == list(view.jobs.ids)
    capacity = problem.capacity.tolist()
    ledger.stale = bool(state["stale"]) or not same or state["capacity"] != capacity
    here: IntArray | slice = slice(None)
    past = numbers
    if not same:
        row_of = {id_: row for row, id_ in enumerate(ids)}
        found = [row_of.get(id_, -1) for id_ in view.jobs.ids]
        past = numbers[[row for row in found if row >= 0]]
        here = np.array([row for row, old in enumerate(found) if old >= 0], dtype=np.int64)
    ledger.share[here] = past[:, :kinds]
    ledger.time[here] = past[:, kinds : 2 * kinds]
    ledger.deficit[here] = past[:, 2 * kinds : 3 * kinds]
    ledger.new[here] = past[:, -2] > 0
    attained = np.zeros(jobs)
    attained[here] = past[:, -1]
    _add_received_time(view, ledger, attained)
    if not same:
        _add_time_of_ended_jobs(view, ledger, state)
    return ledger


def _add_received_time(view: View, ledger: _Ledger, attained: FloatArray) -> None:
    """Add the time that present jobs received, as measured."""
    held = view.jobs.held
    if len(held):
        gpus = np.bincount(held[:, 0], weights=held[:, 3], minlength=len(attained))
        rows, first = np.unique(held[:, 0], return_index=True)
        kind = held[first, 2]
        seconds = np.maximum(view.jobs.attained[rows] - attained[rows], 0.0) / gpus[rows]
        # Rounded, so that equal jobs stay equal.
        seconds = np.round(seconds, 6)
        ledger.time[rows, kind] += seconds
        np.add.at(ledger.total_time, kind, seconds)


def _add_time_of_ended_jobs(view: View, ledger: _Ledger, state: State) -> None:
    """Add the time that ended jobs received, as predicted."""
    present = set(view.jobs.ids)
    elapsed = view.now - float(state["now"])  # type: ignore[arg-type]
    for id_, (kind_, expected) in _dict(state.get("running")).items():
        if id_ not in present:
            ledger.total_time[int(kind_)] += min(float(expected), elapsed)


def _choose(
    view: View, problem: SharesProblem, ledger: _Ledger
) -> tuple[dict[int, int], FloatArray]:
    """Type of each job that runs, and the priorities (J, R)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = ledger.time / ledger.total_time
        priority = np.where(fraction > 0, ledger.share / fraction, ledger.share * 1e9)
        priority = np.where(ledger.total_time > 0, priority, ledger.share * 1e9)
    able = problem.rate > 0
    priority = np.where(able & (ledger.share > 0), priority, 0.0)
    left = problem.capacity.tolist()
    chosen: dict[int, int] = {}
    immovable = view.jobs.running & ~view.jobs.movable
    for job, _, kind, count in view.jobs.held.tolist():
        if immovable[job]:
            chosen[job] = kind
            left[kind] -= count
    gpus = problem.gpus.tolist()
    least = min(gpus, default=1)
    for kind in _fastest_first(problem.rate):
        free = left[kind]
        order = np.lexsort((-ledger.share[:, kind], -ledger.deficit[:, kind], -priority[:, kind]))
        order = order[able[order, kind]]
        for job in order.tolist():
            if free < least:
                break
            if gpus[job] <= free and job not in chosen:
                chosen[job] = kind
                free -= gpus[job]
    return chosen, priority


def _fastest_first(rate: FloatArray) -> list[int]:
    """The types by the jobs' speed, as in Gavel's code. GPUs left over of one type go to any
    unplaced job, so with a slow type first a job would stay there beside idle faster GPUs."""
    best = rate.max(axis=1, initial=0.0, keepdims=True)
    speed = (rate / np.where(best > 0, best, 1.0)).sum(axis=0)
    return [int(kind) for kind in np.argsort(-speed, kind="stable")]


def _place(
    view: View,
    problem: SharesProblem,
    ledger: _Ledger,
    chosen: Mapping[int, int],
    priority: FloatArray,
) -> tuple[Plan, dict[int, int]]:
    """The plan, and those of the chosen jobs that run, as nodes are found for them."""
    nodes, unplaced = select_nodes(view, chosen, problem.gpus)
    ids, types, gpus = view.jobs.ids, view.types, problem.gpus.tolist()
    running = [job for job in chosen if job not in unplaced]
    kinds = [chosen[job] for job in running]
    shares = ledger.share[running, kinds].tolist() if running else []
    ranks = priority[running, kinds].tolist() if running else []
    immovable = view.jobs.running & ~view.jobs.movable
    held = {job: n for job, _, _, n in view.jobs.held[immovable[view.jobs.held[:, 0]]].tolist()}
    placements: dict[str, Placement] = {}
    for job, kind, share, rank in zip(running, kinds, shares, ranks, strict=True):
        count = held.get(job, gpus[job])
        if job in nodes:
            count = sum(n for on in nodes[job].values() for n in on.values())
        if share > 0:
            reason = f"{share:.0%} of its time is due on {types[kind]}; priority {rank:.3g} there"
        else:
            reason = f"no time is due on {types[kind]}, but GPUs are left over"
        placements[ids[job]] = Placement(
            gpus={types[kind]: count}, nodes=nodes.get(job, {}), reason=reason
        )
    behind = "others are further behind their share in this round"
    waiting = dict.fromkeys(ids, behind)
    for id_ in placements:
        del waiting[id_]
    for job, reason in unplaced.items():
        waiting[ids[job]] = reason
    return Plan(placements, waiting), {job: chosen[job] for job in running}


def _remember(
    view: View, problem: SharesProblem, ledger: _Ledger, memory: Memory, running: Mapping[int, int]
) -> State:
    jobs, kinds = list(running), list(running.values())
    seconds = problem.left[jobs] / np.maximum(problem.rate[jobs, kinds], 1e-12)
    ids = view.jobs.ids
    kept = (ledger.share, ledger.time, ledger.deficit, ledger.new, view.jobs.attained)
    return {
        "ids": list(ids),
        "types": list(view.types),
        "capacity": problem.capacity.tolist(),
        "now": view.now,
        "reset_s": ledger.reset_s,
        "stale": ledger.stale,
        "given": ledger.total_time.tolist(),
        "jobs": np.column_stack(kept).ravel().tolist(),
        "running": {
            ids[job]: [kind, left]
            for job, kind, left in zip(jobs, kinds, seconds.tolist(), strict=True)
        },
        "memory": memory,
    }


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, list[float]]:
    return value if isinstance(value, dict) else {}
