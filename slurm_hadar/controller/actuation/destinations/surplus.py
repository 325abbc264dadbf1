"""Running jobs that were given more than they asked for give it back to jobs that wait for it.

A job that grew over its submitted count, or has copies on further nodes, holds GPUs that plain
Slurm would have free. Where a job outside our management waits and could start on them, the job
goes back to what it asked for, on a part of its nodes, however short its last move was ago.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.destinations.own_nodes import can_reserve
from slurm_hadar.controller.actuation.destinations.vacated_nodes import without
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import movability, pending_demand
from slurm_hadar.controller.snapshot.eligibility import Place, SchedulableJob
from slurm_hadar.controller.snapshot.resource_request import typed_nodes
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement, Plan, by_type
from slurm_hadar.reports import formats

_REASON = "gives {} of its GPUs back, which are more than it asked for: job {} waits for them"
_MOST_PARTS = 50
"""Sets of nodes that are tried of one job."""


def given_back(
    snapshot: Snapshot, plan: Plan, observation: Observation, config: Config
) -> dict[str, Placement]:
    """Job -> its place without the surplus, of those that are to give it back now.

    ``observation``: without trainings on idle nodes, which give way by themselves. A job that the
    plan itself takes to no more than it asked for is none of them, nor one that may not be moved
    but for the time since its last move. O(jobs that hold too much x jobs that wait).
    """
    asked = {id_: _asked(one, observation) for id_, one in snapshot.schedulable.items()}
    grown = [
        target
        for id_, target in snapshot.schedulable.items()
        if _surplus(target, asked[id_]) > 0
        and not _plan_returns(plan.placements.get(id_), asked[id_])
        and not movability.why_never(target, observation, config)
        and not _is_nearly_done(target, snapshot)
    ]
    if not grown:
        return {}
    waiting = pending_demand.possible_starts(observation, ())
    free = pending_demand.free_now(observation)
    # What these start on is there already.
    waiting = [
        job for job in waiting if pending_demand.pending_demand(job, observation, free) is None
    ]
    scene = _Scene(free, observation, config)
    found: dict[str, Placement] = {}
    for target in sorted(grown, key=lambda one: -_surplus(one, asked[one.job.id])):
        # Slurm starts it on no node that a reservation takes before its time limit is over.
        closed = observation.reserved_nodes(target.job.time_limit_s)
        for kept in _parts(target, asked[target.job.id], snapshot, closed):
            takers = scene.takers(target, kept, waiting)
            helped = next((job for job in takers if not job.managed), None)
            if helped is None:
                continue
            found[target.job.id] = _placement(target, kept, helped)
            waiting = [job for job in waiting if job not in takers]
            break
    return found


def _asked(target: SchedulableJob, observation: Observation) -> int:
    """GPUs with which Slurm would start the job as it was submitted."""
    if target.request.copies[1] == 1:
        return target.request.count
    nodes = typed_nodes(target.job, observation.steered(target.job.id))
    return target.request.count * max(1, nodes)


def _surplus(target: SchedulableJob, asked: int) -> int:
    if target.starting or target.job.state is not JobState.RUNNING or target.request.whole:
        return 0
    return sum(by_type(target.held).values()) - asked


def _plan_returns(placement: Placement | None, asked: int) -> bool:
    return placement is not None and placement.gpu_count <= asked


def _is_nearly_done(target: SchedulableJob, snapshot: Snapshot) -> bool:
    """Whether it ends in less time than a restart takes, at the fastest."""
    jobs = snapshot.view.jobs
    row = jobs.rows[target.job.id]
    fastest = float(jobs.rate[row].max())
    return float(jobs.left[row]) < float(jobs.restart_s[row]) * fastest


def _parts(
    target: SchedulableJob, asked: int, snapshot: Snapshot, closed: set[str]
) -> Iterator[Place]:
    """The parts of its nodes that are as much as it asked for, the fastest first; none of the
    ``closed`` nodes."""
    held = {name: gpus for name, gpus in target.held.items() if name not in closed}
    if target.request.copies[1] > 1:
        id_ = target.job.id
        names = sorted(held, key=lambda one: -snapshot.rate(id_, held[one]))
        for some in islice(combinations(names, asked // target.request.count), _MOST_PARTS):
            yield {name: held[name] for name in some}
        return
    if len(by_type(target.held)) > 1:
        return
    left, kept = asked, dict[str, Mapping[str, int]]()
    for name, gpus in sorted(held.items(), key=lambda one: -sum(one[1].values())):
        ((kind, count),) = gpus.items()
        if left > 0:
            kept[name] = {kind: min(left, count)}
            left -= count
    if left <= 0:
        yield kept


@dataclass(frozen=True)
class _Scene:
    """``free``: GPUs that no job has, and none of those that wait takes by itself."""

    free: pending_demand.Free
    observation: Observation
    config: Config

    def takers(self, target: SchedulableJob, kept: Place, waiting: Sequence[Job]) -> list[Job]:
        """The jobs that would start on what ``target`` gives back, in Slurm's order; none where
        they could take the part that it keeps as well, while it is requeued."""
        after = without([target.job], self.observation)
        if not self._starts_again(target, kept, waiting, after):
            return []
        rest = _with(self.free, target.held, kept)
        closed = set[str]()
        found = []
        for job in waiting:
            # Slurm starts no later job in a partition in which one ahead does not fit.
            if closed.isdisjoint(job.partitions):
                if pending_demand.pending_demand(job, after, rest) is not None:
                    found.append(job)
                    continue
                closed |= {*job.partitions}
        return found

    def _starts_again(
        self, target: SchedulableJob, kept: Place, waiting: Sequence[Job], after: Observation
    ) -> bool:
        """Whether it does so at once, wherever Slurm starts those of ``waiting`` that may start on
        what is free once it has left. ``after``: without it."""
        if can_reserve(target.job, kept, self.observation, self.config):
            return True
        everything = _with(self.free, target.held)
        copies = target.request.copies[1] > 1
        listed = job_updates.listed_types(target.job, target.request, self.observation, self.config)
        # By its list a copy may start on any of its nodes.
        types = {*listed.values()} if copies else set[str]()
        for name, part in kept.items():
            ((kind, count),) = part.items()
            names = {
                other
                for other, gpus in target.held.items()
                if other == name or (copies and {*gpus} <= types | {kind})
            }
            places = sum(max(everything[one].values()) // count for one in names)
            for job in waiting:
                there = names & {*pending_demand.possible_nodes(job, after, everything)}
                if there:
                    need = sum(job.request.gpus.values()) * max(1, job.node_count)
                    places -= -(-need // count) if need else len(there)
            if places < (len(kept) if copies else 1):
                return False
        return True


def _with(free: pending_demand.Free, held: Place, but: Place | None = None) -> pending_demand.Free:
    """``free`` and what is held but for a part of it."""
    found = {name: dict(gpus) for name, gpus in free.items()}
    pending_demand.give(held, found)
    for name, gpus in (but or {}).items():
        pending_demand.set_aside(gpus, [name], found)
    return found


def _placement(target: SchedulableJob, kept: Place, helped: Job) -> Placement:
    gpus = by_type(kept)
    less = sum(by_type(target.held).values()) - sum(gpus.values())
    copies = len(kept) if target.request.copies[1] > 1 else 1
    return Placement(gpus=gpus, nodes=kept, copies=copies, reason=_REASON.format(less, helped.id))


def what_was_given_back(reason: str) -> str:
    """The reason of such a move as a sentence about the past; empty of any other move."""
    found = re.fullmatch(_REASON.format(r"(\d+)", r"(\S+)"), reason)
    if found is None:
        return ""
    gpus = formats.counted(int(found[1]), "GPU")
    return f"it had grown beyond its request and gave {gpus} back, which job {found[2]} waited for"


def without_surplus(plan: Plan, returned: Mapping[str, Placement]) -> Plan:
    """The plan with these places."""
    waiting = {id_: why for id_, why in plan.waiting.items() if id_ not in returned}
    return replace(plan, placements={**plan.placements, **returned}, waiting=waiting)
