"""The GPU types that the list of partitions of a job with ``types=any`` omits for their speed."""

from collections.abc import Mapping
from math import isfinite

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.controller.snapshot.waits import times_slower

_RETURNED = (
    "its list of partitions omits it, as by a table it is far slower there; by measured speeds it "
    "is not, so an active controller adds it"
)


def omitted_types(id_: str, seen: Observed, shown: Snapshot, config: Config) -> Mapping[str, str]:
    """GPU type -> why the job may not have it, and how its owner accepts it."""
    target = shown.schedulable.get(id_)
    if target is None or target.job.declaration is None:
        return {}
    groups, listed = config.partitions.groups, set(target.request.partitions)
    members = {name for one in target.job.declaration.partitions for name in groups.get(one, ())}
    if not listed < members:
        return {}
    mine, others = _types(listed, seen), _types(members - listed, seen)
    every = ",".join(sorted(mine | others))
    back = dict.fromkeys(shown.returned.get(id_, ()), _RETURNED)
    return back | {
        kind: f"its list of partitions omits it, as it is {times:.0f} times slower there; "
        f"a submit with types={every} accepts it"
        for kind, times in times_slower(target, shown, mine).items()
        if kind in others - mine and isfinite(times)
    }


def _types(partitions: set[str], seen: Observed) -> set[str]:
    return {kind for name in partitions for kind in seen.gpu_types.get(name, ())}
