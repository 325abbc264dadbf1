"""Hare's rounds over nodes: who gets how many of a round's tasks, and how fast that is.

A round of a job is K equal tasks of one global batch. On seats with rates r_i (samples/s of the
whole job alone there) that get n_i tasks each, one after another, the round lasts max n_i / (K r_i)
of a batch, so the job runs at min_i r_i K / n_i: shares n_i / K, as copies are charged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.dealing import deal
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.ends import ends
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadare.forks import Spare, gpus_of, shares_of
from slurm_hadar.policies.hadare.mains import Seat, Seats, rate_of

_TIE = 1e-9
_SLACK = 1e-6
_MOST_NAMED = 6
_NO_SHARES: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DealtTasks:
    """Seats of a job, the tasks of a round on each, and the rate in samples/s. One seat or a gang
    over several nodes (``gang``) has no tasks to deal."""

    seats: Seats
    tasks: tuple[int, ...]
    rate: float
    gang: bool = False
    shares: tuple[float, ...] = ()
    """The seats' parts of a round."""


def over(view: View, job: int, seats: Sequence[Seat], exchange: float) -> DealtTasks | None:
    """The job's round dealt over exactly these seats; None where none of them can run it.

    ``exchange``: part of the rate that is lost where there is more than one.
    """
    rates = [rate_of(view, job, seat) for seat in seats]
    whole = int(view.jobs.tasks[job])
    if whole == 1 and len(seats) > 1 and min(rates) > 0:
        # Copies that are averaged (HadarE), from before this policy: any parts will do.
        shares = shares_of(view, job, tuple(seats))
        return DealtTasks(tuple(seats), (), (1.0 - exchange) * sum(rates), shares=shares)
    tasks = deal(rates, whole)
    if not sum(tasks):
        return None
    slowest = min(rate / count for rate, count in zip(rates, tasks, strict=True) if count)
    kept = 1.0 - exchange if len(seats) > 1 else 1.0
    shares = tuple(count / whole for count in tasks)
    return DealtTasks(tuple(seats), tasks, kept * slowest * whole, shares=shares)


def best(
    view: View, spare: Spare, job: int, exchange: float, communication: float
) -> DealtTasks | None:
    """The fastest way to run the job on what is spare: one node, a gang over several nodes of one
    type, or its tasks dealt over nodes of any types; of equally fast ones the one with fewer GPUs.

    ``communication``: part by which a gang over several nodes is slower. None: nothing suits.
    """
    jobs = view.jobs
    tasks, most = int(jobs.tasks[job]), int(jobs.copies[job])
    dealt = tasks > 1 and most > 1
    found = spare.seats(job, (), min(most, tasks) if dealt else 1)
    choice: DealtTasks | None = None
    taken: list[Seat] = []
    gpus = 0
    for _, seat in found:
        if taken and gpus + seat[2] > tasks:
            continue
        taken.append(seat)
        gpus += seat[2]
        other = over(view, job, sorted(taken), exchange)
        # A seat without a task would idle.
        if other is not None and all(other.tasks) and _faster(other, choice):
            choice = other
    spread = _gang(view, spare, job, communication) if jobs.max_nodes[job] > 1 else None
    return spread if spread is not None and _faster(spread, choice) else choice


def _faster(one: DealtTasks, other: DealtTasks | None) -> bool:
    return other is None or one.rate > other.rate * (1.0 + _TIE)


def _gang(view: View, spare: Spare, job: int, communication: float) -> DealtTasks | None:
    """The fastest gang over several nodes of one type, on the fewest of them."""
    jobs = view.jobs
    cells = np.argwhere(jobs.rate[job] > 0)
    rates = jobs.rate[job][cells[:, 0], cells[:, 1]]
    for at in np.argsort(-rates, kind="stable").tolist():
        kind, count = int(cells[at, 0]), view.counts[int(cells[at, 1])]
        room = _room(view, spare, job, kind)
        nodes = np.lexsort((np.arange(len(room)), -room))[: int(jobs.max_nodes[job])]
        ends = np.cumsum(room[nodes])
        if count < 2 or not len(ends) or ends[-1] < count:
            continue
        number = int(np.searchsorted(ends, count)) + 1
        sizes = room[nodes[:number]].tolist()
        sizes[-1] -= int(ends[number - 1]) - count
        seats = tuple(
            sorted((node, kind, size) for node, size in zip(nodes.tolist(), sizes, strict=False))
        )
        slower = 1.0 + communication if number > 1 else 1.0
        return DealtTasks(seats, (1,), float(rates[at]) / slower, gang=True)
    return None


def _room(view: View, spare: Spare, job: int, kind: int) -> IntArray:
    """(N,) GPUs of the type that the job could have on each node."""
    jobs = view.jobs
    room: IntArray = np.maximum(spare.gpus[:, kind], 0)
    for free, each in ((spare.cpus, jobs.cpus_per_gpu[job]), (spare.mem, jobs.mem_per_gpu_mb[job])):
        if each > 0:
            room = np.minimum(room, np.maximum((free + _SLACK) // each, 0).astype(np.int64))
    found: IntArray = np.where(jobs.groups[job, view.nodes.group], room, 0)
    return found


def pays(
    view: View, job: int, present: DealtTasks, choice: DealtTasks, settings: HadarOptions
) -> bool:
    """Whether a running job should leave what it has for this."""
    if set(choice.seats) == set(present.seats) or choice.rate <= present.rate * (1 + 1e-9):
        return False
    if present.rate <= 0.0:
        return True
    left, cost = float(view.jobs.left[job]), max(0.0, float(view.jobs.restart_s[job]))
    if not np.isfinite(left):
        return True
    saved = left / present.rate - left / choice.rate
    return saved >= max(settings.gain_over_cost * cost, settings.least_gain * left / present.rate)


def placement(view: View, job: int, one: DealtTasks, stays: bool, why: str) -> Placement:
    """What the plan says of it; ``why`` the job comes now."""
    if one.gang or len(one.seats) == 1:
        gpus: dict[str, int] = {}
        nodes: dict[str, dict[str, int]] = {}
        for node, kind, count in one.seats:
            name, on = view.types[kind], nodes.setdefault(view.nodes.names[node], {})
            gpus[name] = gpus.get(name, 0) + count
            on[name] = on.get(name, 0) + count
        names = " + ".join(f"{n} x {name}" for name, n in gpus.items())
        how = f"{names} on {next(iter(nodes)) if len(nodes) == 1 else f'{len(nodes)} nodes'}"
        copies, shares = 1, _NO_SHARES
    else:
        gpus, nodes = gpus_of(view, one.seats)
        what = [str(n) for n in one.tasks] or [f"{100 * part:.0f}%" for part in one.shares]
        parts = [
            f"{some} on {count} x {view.types[kind]} of {view.nodes.names[node]}"
            for some, (node, kind, count) in zip(what, one.seats, strict=True)
        ]
        how = f"tasks of a round dealt {', '.join(parts[:_MOST_NAMED])}"
        how += f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
        copies, shares = len(one.seats), one.shares
    reason = f"{'stays: ' if stays else ''}{how}; {why}"
    left = float(view.jobs.left[job])
    if one.rate > 0 and np.isfinite(left):
        reason += f", {ends(view, job, left / one.rate)}"
    return Placement(
        gpus=gpus,
        nodes=nodes,
        copies=copies,
        shares=shares,
        tier="network" if len(nodes) > 1 else "",
        reason=reason,
    )
