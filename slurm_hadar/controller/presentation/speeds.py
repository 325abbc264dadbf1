"""A job's speed on each GPU type, where that is known from, and why a type is not used."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.access import declared_list
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import billing
from slurm_hadar.controller.snapshot.eligibility import (
    SchedulableJob,
    batch_of,
    gpus_of,
    profile_key,
)
from slurm_hadar.controller.snapshot.resource_request import accepts, excludes
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.waits import times_slower
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.reports import formats
from slurm_hadar.reports.text import RateRow


@dataclass(frozen=True)
class _Round:
    observation: Observation
    shown: Snapshot
    config: Config
    omitted: Mapping[str, str]
    """GPU type -> why the job's list of partitions omits it."""


def rate_rows(
    id_: str, observation: Observation, shown: Snapshot, rates: Rates, config: Config
) -> list[RateRow]:
    """A row for each type and number of GPUs that a job accepts; none of one that takes no part in
    the round of ``shown``."""
    target = shown.schedulable.get(id_)
    if target is None:
        return []
    job, view = target.job, shown.view
    model, batch = profile_key(job), batch_of(job)
    # One in the middle of a move holds in the round what it moves to.
    here = gpus_of(job, observation.nodes) if job.state is JobState.RUNNING else {}
    speeds, _ = rates.rates_for([(job.uid, model, batch)], view.types, view.counts)
    # Of an unknown model only the ratios mean something.
    absolute = rates.anchored(model)
    where = _Round(observation, shown, config, omitted_types(id_, observation, shown, config))
    able = [c for c, count in enumerate(view.counts) if count in target.request.counts]
    fastest = float(speeds[0][:, able].max(initial=0.0)) or 1.0
    found = []
    for r, kind in enumerate(view.types):
        for c, count in enumerate(view.counts):
            if count not in target.request.counts:
                continue
            origin = rates.origin((job.uid, model, batch), (kind, count), job.id)
            source = origin.text
            placed = here == {kind: count}
            if placed and (why := _why_excluded(target, kind, config)):
                source += f"; still used, although {why}"
            elif not placed and (why := _why_not_used(target, (r, c), speeds[0], where)):
                source += f"; not used: {why}"
            speed = float(speeds[0, r, c]) if absolute else None
            found.append(
                RateRow(
                    kind,
                    count,
                    speed,
                    source,
                    placed,
                    relative=float(speeds[0, r, c]) / fastest,
                    origin=origin.kind,
                    corrected_by=origin.corrected_by,
                )
            )
    return found


def _why_excluded(target: SchedulableJob, kind: str, config: Config) -> str:
    """Why the job's owner does not accept a type; empty where it is accepted."""
    if target.request.types and kind not in target.request.types:
        return "its owner excludes this type"
    if not accepts(target.job, target.request, kind, config):
        least = (target.job.declaration or Declaration()).gpu_mem / 1024
        return f"it has less memory than gpu_mem={least:g}G"
    return ""


def _why_not_used(
    target: SchedulableJob, cell: tuple[int, int], speeds: FloatArray, where: _Round
) -> str:
    """Why the round left a type and number out for a job; empty where it may be used.

    ``cell``: its place in the axes (R, C) of ``speeds``, samples/s.
    """
    view, declared = where.shown.view, target.job.declaration or Declaration()
    row, kind = view.jobs.rows[target.job.id], view.types[cell[0]]
    if why := _why_excluded(target, kind, where.config):
        return why
    open_ = view.jobs.groups[row][view.nodes.group]
    most = max(
        (
            where.observation.nodes[name].gpus.get(kind, 0)
            for name, is_open in zip(view.nodes.names, open_, strict=True)
            if is_open
        ),
        default=0,
    )
    if not most:
        closed = _owners_list(target, kind, where)
        closed = (
            closed
            or "its partitions, its constraint or a reservation leave it no node of this type"
        )
        return where.omitted.get(kind, closed)
    if target.request.most_nodes == 1 and view.counts[cell[1]] > most:
        return f"no node that it may have has more than {formats.counted(most, 'GPU')} of this type"
    used = view.jobs.rate[row]
    if used[cell] > 0:
        return ""
    if speeds[cell] <= 0:
        return "it cannot run so"
    alone = np.where(used > 0, speeds, 0.0)
    alone[cell] = speeds[cell]
    affordable = billing.affordable(
        alone[None], [target], where.observation, view.types, view.counts
    )[0]
    if not affordable[cell]:
        return "it would be billed more than its request could be (TRESBillingWeights)"
    requeues = ", its requeues counted" if declared.max_requeues else ""
    return f"the rest of its work does not fit in its time limit there{requeues}"


def _owners_list(target: SchedulableJob, kind: str, where: _Round) -> str:
    """That partitions which the job's owner set have no node of a type, and what sets others; empty
    where it is not that."""
    job, names, config = target.job, target.request.partitions, where.config
    if "Partition" not in where.observation.steered(job.id).foreign or kind in _types(
        {*names}, where.observation
    ):
        return ""
    said = f"its owner chose the partition{'s'[: len(names) > 1]} {','.join(names)} (scontrol)"
    declared = job.declaration or Declaration()
    every = declared_list(declared, config)
    # hbatch's own list is ordered again.
    opens = declared.listed if kind in _types({*declared.listed}, where.observation) else every
    if kind not in _types({*opens}, where.observation):
        return said
    when = "" if job.state is JobState.PENDING else "once it waits again, "
    return f"{said}; {when}scontrol update JobId={job.id} Partition={','.join(opens)} opens others"


_RETURNED = (
    "its list of partitions omits it, as by a table it is far slower there; by measured speeds it "
    "is not, so an active controller adds it"
)


def omitted_types(
    id_: str, observation: Observation, shown: Snapshot, config: Config
) -> Mapping[str, str]:
    """GPU type -> why the job may not have it, and how its owner accepts it: of the types that the
    list of partitions of a job with ``types=any`` omits for their speed."""
    target = shown.schedulable.get(id_)
    if target is None or target.job.declaration is None:
        return {}
    if "Partition" in observation.steered(id_).foreign:
        # It is its owner's list.
        return {}
    groups, listed = config.partitions.groups, set(target.request.partitions)
    members = {name for one in target.job.declaration.partitions for name in groups.get(one, ())}
    if not listed < members:
        return {}
    own = target.request.constraint
    mine = _types(listed, observation)
    others = {k for k in _types(members - listed, observation) if not excludes(own, {k}, config)}
    every = ",".join(sorted(mine | others))
    back = dict.fromkeys(shown.returned.get(id_, ()), _RETURNED)
    return back | {
        kind: f"its list of partitions omits it, as it is {times:.0f} times slower there; "
        f"a submit with types={every} accepts it"
        for kind, times in times_slower(target, shown, mine).items()
        if kind in others - mine and isfinite(times)
    }


def _types(partitions: set[str], observation: Observation) -> set[str]:
    return {kind for name in partitions for kind in observation.gpu_types.get(name, ())}
