"""How a placement is said to Slurm, and how it is taken back.

The GPU type is steered by Features and Partition with an untyped request, which works on every
release; the type of a request itself cannot be changed on 22.05.
"""

from collections.abc import Mapping, Sequence

from slurm_hadar.config import Config
from slurm_hadar.controller.picture import cpus
from slurm_hadar.controller.picture.constraints import with_feature
from slurm_hadar.controller.picture.request import Wanted, cpus_per_copy
from slurm_hadar.controller.seen import racks
from slurm_hadar.controller.seen.access import allowed_partitions
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.job import UNTYPED, Job
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.hosts import fold

Fields = dict[str, str]
"""Slurm's field names -> values, as ``scontrol update`` takes them."""


def fields(
    job: Job,
    want: Wanted,
    placement: Placement,
    seen: Observed,
    config: Config,
    pin: bool = False,
) -> Fields:
    """What must be changed in a pending job so that Slurm runs it as placed; empty: nothing.

    ``pin``: on these very nodes, and not on others of their types. Copies always are.
    """
    was = seen.steered(job.id).was
    # What an earlier placement changed and this one does not speak of goes back.
    wish = dict(was) | _wish(job, want, placement, seen, config)
    new = set()
    if want.copies[1] > 1 or pin:
        wish |= _copies(job, want, placement, pin)
        # Of a range such as 1-3 Slurm shows one end only, so it is said once in any case.
        new = {"NumNodes"} - set(was)
    return {key: value for key, value in wish.items() if key in new or value != current(job, key)}


def in_full(placement: Placement, fields: Fields, was: Mapping[str, str]) -> Fields:
    """``fields`` of a job on nodes that are named, with what Slurm is told although it seems to
    know it. ``was``: as of :func:`originals`.

    It shows a waiting job's number of nodes as it was when its scheduler last looked at the job:
    one that was sent to three nodes a moment ago would wait for a third, pinned to two.
    """
    told = dict(fields)
    if "ReqNodeList" in told and "NumNodes" in was:
        number = len(placement.nodes) or placement.copies
        told["NumNodes"] = f"{number}-{number}"
    return told


def back(job: Job, steered: Steering) -> Fields:
    """What must be changed so that the job's request is its owner's again."""
    was = steered.was
    found = {key: value for key, value in was.items() if value != current(job, key)}
    if "ReqNodeList" in found and "NumNodes" in was:
        # See in_full.
        found["NumNodes"] = was["NumNodes"]
    return found


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
        case "CPUsPerTask" | "MinCPUsNode":
            # Slurm makes the one of the other at submission; only one of them is shown everywhere.
            return str(job.cpus_per_task)
        case "MinMemoryNode":
            return str(job.mem_per_node_mb)
        case "MinMemoryCPU":
            return str(job.mem_per_cpu_mb)
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
    number = placement.gpu_count // placement.copies
    if want.form == "node" and want.nodes == 1 and not typed:
        wish["TresPerNode"] = f"gpu:{number}"
    if want.form == "job" and not typed:
        wish["TresPerJob"] = f"gpu:{number}"
    if want.form == "job" and want.most_nodes > 1 and placement.nodes:
        wish |= _spread(job, placement)
    if racks.pinned(placement, seen.racks):
        wish["ReqNodeList"] = fold(tuple(placement.nodes))
    return wish | cpus.wish(job, want, placement)


def _spread(job: Job, placement: Placement) -> Fields:
    """Slurm needs nodes, tasks and CPUs together, or a requeued job ends in BadConstraints."""
    nodes = len(placement.nodes)
    mixed = len(placement.gpus) > 1
    return {
        "NumNodes": f"{nodes}-{nodes}",
        "NumTasks": str(max(nodes, job.tasks)),
        "NumCPUs": f"{max(nodes, job.cpus)}-{max(nodes, job.cpus)}",
        "ReqNodeList": fold(tuple(placement.nodes)) if mixed else "",
    }


def _copies(job: Job, want: Wanted, placement: Placement, pin: bool) -> Fields:
    """One task with its GPUs on each of these nodes; TresPerNode stays as it is."""
    if placement.copies == 1 and not pin:
        where = {"ReqNodeList": ""}
    else:
        where = {"ReqNodeList": fold(tuple(placement.nodes)), "Features": want.constraint}
    if want.copies[1] == 1:
        return where
    number = placement.copies
    all_cpus = number * cpus_per_copy(job)
    return {
        "NumNodes": f"{number}-{number}",
        "NumTasks": str(number),
        "NumCPUs": f"{all_cpus}-{all_cpus}",
        **where,
    }


def _partition(job: Job, want: Wanted, placement: Placement, seen: Observed, config: Config) -> str:
    """The partitions to be in: the owner's own where they have the place, else one of the site's.

    Empty where none is known to have it.
    """
    open_to_it = allowed_partitions(job, want.partitions, seen.partitions, config.partitions.steer)
    names = [p.name for p in open_to_it]
    fitting = [name for name in names if _covers(seen, name, placement)]
    fitting = fitting or [name for name in names if _has(seen, name, set(placement.gpus))]
    if any(name in want.partitions for name in fitting):
        return ",".join(want.partitions)
    return (fitting or [""])[0]


def _covers(seen: Observed, partition: str, placement: Placement) -> bool:
    return bool(placement.nodes) and set(placement.nodes) <= set(seen.partitions[partition].nodes)


def _has(seen: Observed, partition: str, kinds: set[str]) -> bool:
    found: set[str] = set()
    for name in seen.partitions[partition].nodes:
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
