"""How a placement is said to Slurm, and how it is taken back.

The GPU type is steered by Features and Partition with an untyped request, which works on every
release; the type of a request itself cannot be changed on 22.05.
"""

from collections.abc import Mapping, Sequence

from slurm_hadar.config import Config
from slurm_hadar.controller.access import allowed_partitions
from slurm_hadar.controller.constraints import with_feature
from slurm_hadar.controller.observed import Observed
from slurm_hadar.controller.request import Wanted
from slurm_hadar.domain.job import UNTYPED, Job
from slurm_hadar.domain.placement import Placement
from slurm_hadar.slurm.hosts import fold

Fields = dict[str, str]
"""Slurm's field names -> values, as ``scontrol update`` takes them."""


def fields(job: Job, want: Wanted, placement: Placement, seen: Observed, config: Config) -> Fields:
    """What must be changed in a pending job so that Slurm runs it as placed; empty: nothing."""
    wish = _wish(job, want, placement, seen, config)
    return {key: value for key, value in wish.items() if value != current(job, key)}


def current(job: Job, key: str) -> str:
    """A field of the job as it stands, in the words of :func:`fields`."""
    match key:
        case "Features":
            return job.features
        case "Partition":
            return ",".join(job.partitions)
        case "TresPerNode":
            return _gpus(job.request.per_node)
        case "TresPerJob":
            return _gpus(job.request.per_job)
        case "NumNodes":
            return f"{job.node_count}-{job.node_count}"
        case "NumTasks":
            return str(job.tasks)
        case "NumCPUs":
            return f"{job.cpus}-{job.cpus}"
        case "ReqNodeList":
            return fold(job.required_nodes)
        case _:
            return ""


def originals(job: Job, changes: Mapping[str, str], was: Mapping[str, str]) -> Fields:
    """``was`` with the present value of every field that is about to change for the first time."""
    return {key: current(job, key) for key in changes if key != "StartTime"} | dict(was)


def _wish(job: Job, want: Wanted, placement: Placement, seen: Observed, config: Config) -> Fields:
    kinds = sorted(placement.gpus)
    typed = job.request.typed
    wish: Fields = {}
    if len(kinds) == 1 and not typed:
        feature = config.gpu_types[kinds[0]].feature if kinds[0] in config.gpu_types else kinds[0]
        wish["Features"] = with_feature(want.constraint, feature)
    elif len(kinds) > 1:
        wish["Features"] = want.constraint
    partition = _partition(job, want, placement, seen, config)
    if partition:
        wish["Partition"] = partition
    number = placement.gpu_count
    if want.form == "node" and want.nodes == 1 and not typed:
        wish["TresPerNode"] = f"gpu:{number}"
    if want.form == "job" and want.most_nodes > 1 and placement.nodes:
        wish |= _spread(job, placement, number)
    return wish


def _spread(job: Job, placement: Placement, number: int) -> Fields:
    """Slurm needs nodes, tasks and CPUs together, or a requeued job ends in BadConstraints."""
    nodes = len(placement.nodes)
    mixed = len(placement.gpus) > 1
    return {
        "TresPerJob": f"gpu:{number}",
        "NumNodes": f"{nodes}-{nodes}",
        "NumTasks": str(max(nodes, job.tasks)),
        "NumCPUs": f"{max(nodes, job.cpus)}-{max(nodes, job.cpus)}",
        "ReqNodeList": fold(tuple(placement.nodes)) if mixed else "",
    }


def _partition(job: Job, want: Wanted, placement: Placement, seen: Observed, config: Config) -> str:
    """A partition to change to; empty when one that the job is in already has the type."""
    kinds = set(placement.gpus)
    if any(_has(seen, name, kinds) for name in job.partitions):
        return ""
    open_to_it = allowed_partitions(job, want.partitions, seen.partitions, config.partitions.steer)
    fitting = [p.name for p in open_to_it if _has(seen, p.name, kinds)]
    own = [name for name in fitting if name in want.partitions]
    return (own or fitting or [""])[0]


def _has(seen: Observed, partition: str, kinds: set[str]) -> bool:
    found: set[str] = set()
    for name in seen.partitions[partition].nodes if partition in seen.partitions else ():
        node = seen.nodes.get(name)
        if node is not None:
            found |= set(node.gpus)
    return kinds <= found


def _gpus(gpus: Mapping[str, int]) -> str:
    return ",".join(
        f"gpu:{count}" if kind == UNTYPED else f"gpu:{kind}:{count}" for kind, count in gpus.items()
    )


def words(gpus: Mapping[str, int], nodes: Sequence[str] = ()) -> str:
    """A placement for people: ``2 x v100 on v1``."""
    what = " + ".join(f"{count} x {kind}" for kind, count in sorted(gpus.items()))
    return f"{what} on {fold(tuple(nodes))}" if nodes else what
