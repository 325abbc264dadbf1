"""From what Slurm shows to what a policy sees."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import movability, pending_demand
from slurm_hadar.controller.snapshot.eligibility import (
    ControllerHistory,
    SchedulableJob,
    schedulable_jobs,
)
from slurm_hadar.controller.snapshot.groups import Groups
from slurm_hadar.controller.snapshot.no_gpu import why_no_gpu
from slurm_hadar.controller.snapshot.resource_request import accepts, believed_partitions
from slurm_hadar.controller.snapshot.scheduling_input import job_arrays, node_arrays
from slurm_hadar.controller.snapshot.sources import JobRates, Sources, job_rates
from slurm_hadar.controller.snapshot.whole_nodes import gpus_of
from slurm_hadar.controller.snapshot.work import JobWork
from slurm_hadar.domain.declaration import ANY, SLOWEST
from slurm_hadar.domain.job import UNTYPED, JobState
from slurm_hadar.domain.view import FloatArray, IntArray, View
from slurm_hadar.profiles.rates import Rates

_MOST_FAULTS = 20
"""Where more jobs bring up a fault it is not theirs."""
_HOPELESS = (
    "its work does not fit in the time limit, or its memory on the GPU, "
    "on any type and count that it accepts"
)


@dataclass(frozen=True)
class Snapshot:
    """The view, the jobs behind its rows, and the managed jobs left out of it, with the reason."""

    view: View
    schedulable: Mapping[str, SchedulableJob]
    excluded: Mapping[str, str]
    own: FloatArray
    """(J, R, C) rates of a table, or that the job's owner measured, nan elsewhere: by these alone a
    type may be too slow."""
    work: JobWork
    """Of the same jobs as the view."""
    shared: frozenset[str]
    """GPU types that unmanaged jobs accept beside others: jobs that may be moved keep these."""
    staying: dict[str, str] = field(default_factory=dict)
    """Why each running job may not be moved now, of those that may not."""
    returning: frozenset[str] = frozenset()
    """Jobs that give back what they have more than they asked for, since a job that is not managed
    waits for it."""
    faults: Sequence[str] = ()
    """Faults of ours that one job's own data brought up; that job alone is left out for it."""
    returned: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Waiting job -> GPU types that its list omits by a table and that it is to have by what was
    measured, see :mod:`slurm_hadar.controller.snapshot.view_builder`."""
    node_gpus: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(N,) GPUs of each node, in use or not; 0 where they are of several types."""
    why_no_gpu: Callable[[Collection[str]], str] = lambda _: ""
    """Why no GPU of some types is free, of which the view has none for any job."""

    def rate(self, id_: str, gpus: Mapping[str, int]) -> float:
        """Samples/s of a job on GPUs of one type; 0 where they are of several, or not known."""
        view = self.view
        ((kind, count), *more) = gpus.items() or (("", 0),)
        if more or kind not in view.types or count not in view.counts:
            return 0.0
        row = view.jobs.rows[id_]
        return float(view.jobs.rate[row, view.types.index(kind), view.counts.index(count)])


def take_snapshot(
    observation: Observation, config: Config, rates: Rates, past: ControllerHistory
) -> Snapshot:
    """Build the view of this round."""
    targets, excluded = schedulable_jobs(observation, config, past.moving)
    sources = Sources(observation, config, rates, past)
    shown = snapshot_without_faults(sources, targets, excluded)
    possible = shown.view.jobs.rate.any(axis=(1, 2))
    hopeless = {shown.view.jobs.ids[row] for row in np.flatnonzero(~possible)}
    if not hopeless:
        return shown
    targets = {id_: target for id_, target in shown.schedulable.items() if id_ not in hopeless}
    # Waiting for us would be in vain: Slurm shall have them as they are. Not one that is stopped or
    # moved at this moment, though: it would start where it was, and have to go once more.
    excluded = {
        **shown.excluded,
        **{id_: _HOPELESS for id_ in sorted(hopeless) if id_ not in past.moving},
    }
    again = snapshot_of(sources, targets, excluded)
    return replace(again, faults=shown.faults)


def snapshot_without_faults(
    sources: Sources, targets: Mapping[str, SchedulableJob], excluded: Mapping[str, str]
) -> Snapshot:
    """:func:`snapshot_of`, where the data of some few jobs bring up a fault of ours without these:
    their owners must not hold up all others with what they write."""

    def built(jobs: Mapping[str, SchedulableJob], left_out: Mapping[str, str]) -> Snapshot:
        return snapshot_of(sources, jobs, left_out)

    try:
        return built(targets, excluded)
    except Exception:
        faults = _faults(lambda jobs: built(jobs, {}), dict(targets))
        if not faults:
            raise
        rest = {id_: target for id_, target in targets.items() if id_ not in faults}
        messages = tuple(f"job {id_} is left alone: {why}" for id_, why in faults.items())
        return replace(built(rest, {**excluded, **faults}), faults=messages)


def _faults(
    make: Callable[[Mapping[str, SchedulableJob]], object], targets: Mapping[str, SchedulableJob]
) -> dict[str, str]:
    """The jobs of which no snapshot can be made even when they are alone, and why; found by halves.

    Empty where there are too many: then it is no job's own fault.
    """
    faults: dict[str, str] = {}
    open_ = [list(targets)]
    while open_ and len(faults) <= _MOST_FAULTS:
        ids = open_.pop()
        try:
            make({id_: targets[id_] for id_ in ids})
        except Exception as error:
            if len(ids) == 1:
                kind = type(error).__name__
                faults[ids[0]] = f"its data raises an internal error of slurm-hadar ({kind})"
            else:
                half = len(ids) // 2
                open_ += [ids[:half], ids[half:]]
    return faults if len(faults) <= _MOST_FAULTS and len(faults) < len(targets) else {}


def snapshot_of(
    sources: Sources, targets: Mapping[str, SchedulableJob], excluded: Mapping[str, str]
) -> Snapshot:
    """The view of these targets."""
    observation, config = sources.observation, sources.config
    jobs = list(targets.values())
    kinds = tuple(sorted({k for n in observation.nodes.values() for k in n.gpus if k != UNTYPED}))
    groups = Groups(observation, [target.job for target in jobs])
    nodes = node_arrays(observation, jobs, kinds, groups)
    counts = tuple(sorted({c for t in jobs for c in t.request.counts} | {1}))
    speeds = job_rates(sources.rates, [target.job for target in jobs], kinds, counts)
    arrays, work = job_arrays(sources, jobs, speeds, nodes, groups)
    view = View(
        now=observation.now,
        round_s=config.controller.round_s,
        seed=0,
        types=kinds,
        counts=counts,
        nodes=nodes,
        jobs=arrays,
        options={
            "gain_over_cost": config.guards.gain_over_cost,
            "min_stay_s": config.guards.min_between_moves_s,
            "preempt": config.guards.preempt,
            **config.controller.options,
        },
    )
    return Snapshot(
        view,
        targets,
        excluded,
        np.where(speeds.sure, speeds.own, np.nan),
        work,
        pending_demand.accepted_by_others(observation),
        {
            target.job.id: movability.why_not(target, observation, config, sources.past)
            for target, movable in zip(jobs, arrays.movable, strict=True)
            if not movable
        },
        returned=returned_types(sources, targets, speeds),
        node_gpus=np.array(
            [gpus_of(observation.nodes[name]) for name in nodes.names], dtype=np.int64
        ),
        why_no_gpu=partial(why_no_gpu, observation),
    )


def returned_types(
    sources: Sources, targets: Mapping[str, SchedulableJob], speeds: JobRates
) -> dict[str, frozenset[str]]:
    """Waiting job with ``types=any`` -> GPU types that hbatch left out of its list of partitions by
    a table, and on which the job is not far slower by what its owner measured since or before; of
    the jobs that have some. ``speeds``: of ``targets``, in their order.

    hbatch knows the tables only. So the controller, which knows more, gives these types back.
    """
    found, groups = {}, group_types(sources.config)
    for row, target in enumerate(targets.values()):
        omitted = _omitted(target, sources, groups)
        kinds = [kind for kind in speeds.kinds if omitted.get(kind)]
        listed = [kind for kind in speeds.kinds if kind in omitted and not omitted[kind]]
        if not kinds or not listed or target.request.count not in speeds.counts:
            continue
        places = {kind: speeds.kinds.index(kind) for kind in (*kinds, *listed)}
        count = speeds.counts.index(target.request.count)
        own = np.where(speeds.sure[row, :, count], speeds.own[row, :, count], 0.0)
        best = max(float(own[places[kind]]) for kind in listed)
        fast = {kind for kind in kinds if 0 < best <= float(own[places[kind]]) * SLOWEST}
        if fast:
            found[target.job.id] = frozenset(fast)
    return found


def _omitted(
    target: SchedulableJob, sources: Sources, groups: Mapping[str, Mapping[str, str]]
) -> dict[str, bool]:
    """GPU type -> whether the job's list lacks it, of the types of the group for which hbatch wrote
    the list; empty where the list is its owner's, or lacks none."""
    job, observation, config = target.job, sources.observation, sources.config
    steered, declaration = observation.steered(job.id), job.declaration
    if declaration is None or declaration.types != (ANY,) or job.state is not JobState.PENDING:
        return {}
    if "Partition" in steered.foreign or not target.request.of_one_type:
        return {}
    asked = believed_partitions(job, steered, config.partitions.groups)
    members = groups.get(",".join(asked), {})
    listed = set(target.request.partitions)
    if listed != {*declaration.listed} or not listed < members.keys():
        return {}
    there = {members[name] for name in listed}
    return {
        kind: kind not in there
        for kind in members.values()
        if accepts(job, target.request, kind, config)
    }
