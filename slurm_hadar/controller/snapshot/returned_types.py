"""GPU types that hbatch left out of the list of partitions of a waiting job with ``types=any`` by a
table, and on which the job is not far slower by what its owner measured since or before.

hbatch knows the tables only. So these types are given back by the controller, which knows more.
"""

from collections.abc import Mapping

import numpy as np

from slurm_hadar.config import group_types
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.resource_request import accepts, believed_partitions
from slurm_hadar.controller.snapshot.sources import JobRates, Sources
from slurm_hadar.domain.declaration import ANY, SLOWEST
from slurm_hadar.domain.job import JobState


def returned_types(
    sources: Sources, targets: Mapping[str, SchedulableJob], speeds: JobRates
) -> dict[str, frozenset[str]]:
    """Job -> these types, of those that have some. ``speeds``: of ``targets``, in their order."""
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
