"""Hare's rounds over nodes: the number of a round's tasks on each node, and the resulting rate.

A round of a job is K equal tasks of one global batch. On seats with rates r_i (samples/s of the
whole job alone there) with n_i tasks each, one after another, a round of one batch lasts max n_i /
(K r_i) batches, so the job runs at min_i r_i K / n_i. The shares are n_i / K, as for copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.dealing import deal
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import IntArray, View
from slurm_hadar.policies.allocation import gpus_and_nodes
from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.hadare.forks import SpareCapacity, shares_of
from slurm_hadar.policies.hadare.main_copies import Seat, Seats, rate_of
from slurm_hadar.policies.reason_text import end_text

_TIE = 1e-9
_SLACK = 1e-6
_MOST_NAMED = 6
_NO_SHARES: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DealtTasks:
    """The seats of a job, the tasks of a round on each, and the rate in samples/s. One seat, or a
    gang over several nodes (``gang``), has no tasks to deal."""

    seats: Seats
    tasks: tuple[int, ...]
    rate: float
    gang: bool = False
    shares: tuple[float, ...] = ()
    """The fraction of a round on each seat."""


def over(view: View, job: int, seats: Sequence[Seat], exchange: float) -> DealtTasks | None:
    """The job's round dealt over exactly these seats; None if none of them can run it.

    ``exchange``: fraction of the rate that is lost with more than one seat.
    """
    rates = [rate_of(view, job, seat) for seat in seats]
    whole = int(view.jobs.tasks[job])
    if whole == 1 and len(seats) > 1 and min(rates) > 0:
        # Averaged copies (HadarE) that another policy made: any shares are possible.
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
    view: View, spare: SpareCapacity, job: int, exchange: float, communication: float
) -> DealtTasks | None:
    """The fastest way to run the job on free nodes: one node, a gang over several nodes of one
    type, or its tasks dealt over nodes of any types; of equally fast ones that with the fewest
    GPUs.

    ``communication``: fraction by which a gang over several nodes is slower. None if nothing fits.
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


def _faster(dealing: DealtTasks, other: DealtTasks | None) -> bool:
    return other is None or dealing.rate > other.rate * (1.0 + _TIE)


def _gang(view: View, spare: SpareCapacity, job: int, communication: float) -> DealtTasks | None:
    """The fastest gang over several nodes of one type, on the fewest nodes."""
    jobs = view.jobs
    cells = np.argwhere(jobs.rate[job] > 0)
    rates = jobs.rate[job][cells[:, 0], cells[:, 1]]
    for at in np.argsort(-rates, kind="stable").tolist():
        kind, count = int(cells[at, 0]), view.counts[int(cells[at, 1])]
        free = _free_gpus(view, spare, job, kind)
        nodes = np.lexsort((np.arange(len(free)), -free))[: int(jobs.max_nodes[job])]
        ends = np.cumsum(free[nodes])
        if count < 2 or not len(ends) or ends[-1] < count:
            continue
        number = int(np.searchsorted(ends, count)) + 1
        sizes = free[nodes[:number]].tolist()
        sizes[-1] -= int(ends[number - 1]) - count
        seats = tuple(
            sorted((node, kind, size) for node, size in zip(nodes.tolist(), sizes, strict=False))
        )
        slower = 1.0 + communication if number > 1 else 1.0
        return DealtTasks(seats, (1,), float(rates[at]) / slower, gang=True)
    return None


def _free_gpus(view: View, spare: SpareCapacity, job: int, kind: int) -> IntArray:
    """(N,) GPUs of the type that the job could have on each node."""
    jobs = view.jobs
    usable: IntArray = np.maximum(spare.gpus[:, kind], 0)
    for free, each in ((spare.cpus, jobs.cpus_per_gpu[job]), (spare.mem, jobs.mem_per_gpu_mb[job])):
        if each > 0:
            usable = np.minimum(usable, np.maximum((free + _SLACK) // each, 0).astype(np.int64))
    found: IntArray = np.where(jobs.groups[job, view.nodes.group], usable, 0)
    return found


def pays(
    view: View, job: int, present: DealtTasks, choice: DealtTasks, settings: HadarOptions
) -> bool:
    """Whether a running job should leave its seats for these."""
    if set(choice.seats) == set(present.seats) or choice.rate <= present.rate * (1 + 1e-9):
        return False
    if present.rate <= 0.0:
        return True
    left, cost = float(view.jobs.left[job]), max(0.0, float(view.jobs.restart_s[job]))
    if not np.isfinite(left):
        return True
    saved = left / present.rate - left / choice.rate
    return saved >= max(settings.gain_over_cost * cost, settings.least_gain * left / present.rate)


def placement(view: View, job: int, dealing: DealtTasks, stays: bool, cause: str) -> Placement:
    """The placement with its reason; ``cause``: why the job gets it now."""
    gpus, nodes = gpus_and_nodes(view, dealing.seats)
    if dealing.gang or len(dealing.seats) == 1:
        names = " + ".join(f"{n} x {name}" for name, n in gpus.items())
        how = f"{names} on {next(iter(nodes)) if len(nodes) == 1 else f'{len(nodes)} nodes'}"
        copies, shares = 1, _NO_SHARES
    else:
        what = [str(n) for n in dealing.tasks] or [f"{100 * part:.0f}%" for part in dealing.shares]
        parts = [
            f"{some} on {count} x {view.types[kind]} of {view.nodes.names[node]}"
            for some, (node, kind, count) in zip(what, dealing.seats, strict=True)
        ]
        how = "tasks of a round dealt" if dealing.tasks else f"in {len(parts)} copies:"
        how += f" {', '.join(parts[:_MOST_NAMED])}"
        how += f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
        copies, shares = len(dealing.seats), dealing.shares
    stay = "stays " if how.startswith("in ") else "stays: "
    reason = f"{stay if stays else ''}{how}; {cause}"
    left = float(view.jobs.left[job])
    if dealing.rate > 0 and np.isfinite(left):
        reason += f", {end_text(view, job, left / dealing.rate)}"
    return Placement(
        gpus=gpus,
        nodes=nodes,
        copies=copies,
        shares=shares,
        tier="network" if len(nodes) > 1 else "",
        reason=reason,
    )
