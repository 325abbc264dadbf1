"""How a placement is said to Slurm, and how it is taken back.

With a partition per GPU type the type is steered by the order of the partition list: a wish, which
never keeps a job from running elsewhere. Else it is steered by Features. The request stays untyped:
its type cannot be changed on 22.05.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_hadar.config import Config
from slurm_hadar.controller.observation import racks
from slurm_hadar.controller.observation.access import allowed_partitions, submitted_lists
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.observation.partition_access import open_to
from slurm_hadar.controller.snapshot import cpus
from slurm_hadar.controller.snapshot.constraints import with_feature
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.resource_request import (
    ResourceRequest,
    accepts,
    believed_partitions,
    cpus_per_copy,
)
from slurm_hadar.domain.job import UNTYPED, Job, JobState
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.hosts import fold

UNTIL_IT_RUNS = frozenset({"MailType", "Nice"})
"""Fields that a move changes for its own time, and an exchange of places in the queue: they are its
owner's again when the job runs."""
_NOT_SHOWN = frozenset({"MailType"})
"""Fields that the list of jobs does not show."""

Fields = dict[str, str]
"""Slurm's field names -> values, as ``scontrol update`` takes them."""


def fields(
    target: SchedulableJob,
    placement: Placement,
    observation: Observation,
    config: Config,
    pin: bool = False,
) -> Fields:
    """What must be changed in a requeued job so that Slurm runs it as placed; empty: nothing.

    ``pin``: on these very nodes, and not on others of their types. Copies always are.
    """
    job, request = target.job, target.request
    was = observation.steered(job.id).was
    # What an earlier placement changed and this one does not speak of goes back.
    desired = dict(was) | _desired_fields(target, placement, observation, config)
    new = set()
    if request.copies[1] > 1 or pin:
        desired |= _copies(job, request, placement, pin)
        # Of a range such as 1-3 Slurm shows one end only, so it is said once in any case.
        new = {"NumNodes"} - set(was)
    fixed = observation.steered(job.id).fixed
    return {
        key: value
        for key, value in desired.items()
        if key not in fixed
        and key not in UNTIL_IT_RUNS
        and (key in new or value != current(job, key))
    }


def owner_forbids(
    target: SchedulableJob, placement: Placement, observation: Observation, config: Config
) -> bool:
    """Whether the placement needs another constraint, or other partitions in another order, than
    the owner set since."""
    job = target.job
    fixed = observation.steered(job.id).fixed
    keys = [key for key in ("Features", "Partition") if key in fixed]
    if not keys:
        return False
    desired = _desired_fields(target, placement, observation, config)
    return any(desired.get(key, current(job, key)) != current(job, key) for key in keys)


def in_full(placement: Placement, fields: Fields, was: Mapping[str, str]) -> Fields:
    """``fields`` of a job on nodes that are named, with what Slurm needs although it seems to
    know it. ``was``: as of :func:`originals`.

    It shows a waiting job's number of nodes as it was when its scheduler last looked at the job:
    one that was sent to three nodes a moment ago would wait for a third, pinned to two.
    """
    sent = dict(fields)
    if "ReqNodeList" in sent and "NumNodes" in was:
        number = len(placement.nodes) or placement.copies
        sent["NumNodes"] = f"{number}-{number}"
    return sent


def asked_for(job: Job, steered: Steering, config: Config) -> Mapping[str, str]:
    """The owner's value of each field that was changed: by the controller, which remembers it, or
    by hbatch, whose list of partitions stands for one of the site's groups in the declaration.
    """
    groups, record = config.partitions.groups, job.declaration
    declared = believed_partitions(job, steered, groups)
    if record is not None and record.off and record.added and record.added == job.features:
        # An opt-out wrote them for types that the record does not say any more.
        was = {key: value for key, value in steered.was.items() if key != "Features"}
        steered = replace(steered, was=was)
    if not declared or "Partition" in steered.foreign:
        return steered.was
    kept = "Partition" in steered.was
    first = tuple(steered.was["Partition"].split(",")) if kept else job.partitions
    if job.state is JobState.PENDING and not (kept or _of_hbatch(job, config)):
        return steered.was
    reached = {one for name in declared for one in groups.get(name, ())}
    # Slurm shows the one in which a job runs, and puts it first when that is requeued.
    anyhow = kept or bool(job.nodes or job.restarts)
    same = set(first) <= {*declared} if anyhow else first == declared
    if same or not set(first) <= {*declared, *reached}:
        return steered.was
    return {**steered.was, "Partition": ",".join(declared)}


def _of_hbatch(job: Job, config: Config) -> bool:
    """Whether a waiting job's list may be hbatch's: another one is the owner's, written since."""
    lists = submitted_lists(job.declaration, config) if job.declaration else ()
    return any({*job.partitions} == {*one} for one in lists)


def undo_fields(job: Job, steered: Steering) -> Fields:
    """What must be changed so that the job's request is its owner's again."""
    was = steered.was
    original = {
        key: value
        for key, value in was.items()
        if (key not in UNTIL_IT_RUNS or (key == "Nice" and not is_nice_of_a_move(job, steered)))
        and value != current(job, key)
    }
    if "ReqNodeList" in original and "NumNodes" in was:
        # See in_full.
        original["NumNodes"] = was["NumNodes"]
    return original


def is_nice_of_a_move(job: Job, steered: Steering) -> bool:
    """Whether a job has its Nice for the age that the requeue of a move took, rather than for a
    place in an exchange or for the age that an update took (``age_lost``)."""
    moved = steered.moves > 0 or bool(steered.gpus)
    return job.restarts > 0 and moved and not steered.age_lost


def current(job: Job, key: str) -> str:
    """A field of the job as it stands, in the form of :func:`fields`."""
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
        case "Nice":
            return str(job.nice)
        case _:
            return ""


def present(job: Job, steered: Steering, key: str) -> str:
    """As :func:`current`; of a field that Slurm does not show what we wrote there last."""
    return steered.wrote.get(key, "") if key in _NOT_SHOWN else current(job, key)


def differing(job: Job, fields: Mapping[str, str]) -> bool:
    """Whether Slurm shows other values than these; a begin time cannot be compared."""
    shown = {key: value for key, value in fields.items() if key != "StartTime"}
    return any(current(job, key) != value for key, value in shown.items())


def originals(
    job: Job, changes: Mapping[str, str], was: Mapping[str, str], partitions: Sequence[str] = ()
) -> Fields:
    """``was`` with the present value of every field that is about to change for the first time.

    ``partitions``: the owner's, of a job that runs: Slurm shows the one only in which it does.
    """
    found = {key: current(job, key) for key in changes if key != "StartTime"}
    if "Partition" in found and partitions:
        found["Partition"] = ",".join(partitions)
    return found | dict(was)


def listed_types(
    job: Job, request: ResourceRequest, observation: Observation, config: Config
) -> dict[str, str]:
    """Partition -> its GPU type, of those that a list of the job names: each has one type, which
    the job accepts. Empty where the job gets no list."""
    groups = config.partitions.groups if request.of_one_type else {}
    asked = open_to(job, request.partitions, observation)
    open_to_it = allowed_partitions(job, asked, observation.partitions, groups)
    types = types_of(open_to_it, observation)
    return {n: kind for n, kind in types.items() if accepts(job, request, kind, config)}


def _desired_fields(
    target: SchedulableJob, placement: Placement, observation: Observation, config: Config
) -> Fields:
    job, request = target.job, target.request
    kinds = sorted(placement.gpus)
    typed = job.request.typed
    desired: Fields = {}
    accepted = listed_types(job, request, observation, config) if len(kinds) == 1 else {}
    by_list = bool(accepted)
    if len(kinds) == 1 and not typed and not by_list:
        feature = config.gpu_types[kinds[0]].feature if kinds[0] in config.gpu_types else kinds[0]
        desired["Features"] = with_feature(request.constraint, feature)
    elif len(kinds) > 1 or by_list:
        desired["Features"] = request.constraint
    desired["Partition"] = ",".join(_partitions(request, kinds[0], accepted))
    number = placement.gpu_count // placement.copies
    if request.form == "node" and request.nodes == 1 and not (typed or request.whole):
        desired["TresPerNode"] = f"gpu:{number}"
    if request.form == "job" and not (typed or request.whole):
        desired["TresPerJob"] = f"gpu:{number}"
    if request.form == "job" and request.most_nodes > 1 and placement.nodes:
        desired |= _spread(job, placement)
    # Whole nodes of the type may have another number of GPUs.
    if racks.pinned(placement, observation.racks) or request.whole:
        desired["ReqNodeList"] = fold(tuple(placement.nodes))
    return desired | cpus.changed_fields(job, request, placement)


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


def _copies(job: Job, request: ResourceRequest, placement: Placement, pin: bool) -> Fields:
    """One task with its GPUs on each of these nodes; TresPerNode stays as it is."""
    if placement.copies == 1 and not pin:
        where = {"ReqNodeList": ""}
    else:
        where = {"ReqNodeList": fold(tuple(placement.nodes)), "Features": request.constraint}
    if request.copies[1] == 1:
        return where
    number = placement.copies
    all_cpus = number * cpus_per_copy(job)
    return {
        "NumNodes": f"{number}-{number}",
        "NumTasks": str(number),
        "NumCPUs": f"{all_cpus}-{all_cpus}",
        **where,
    }


def types_of(partitions: Sequence[Partition], observation: Observation) -> dict[str, str]:
    """Partition -> its GPU type; empty where one of them has several types, or none."""
    kind_of = {}
    for partition in partitions:
        kinds = observation.gpu_types[partition.name]
        if len(kinds) != 1:
            return {}
        (kind_of[partition.name],) = kinds
    return kind_of


def _partitions(request: ResourceRequest, kind: str, types: Mapping[str, str]) -> tuple[str, ...]:
    """The owner's partitions; where they are one per GPU type those of ``types``, which the owner
    accepts, the one of the placement's ``kind`` first."""
    return tuple(sorted(types, key=lambda name: types[name] != kind)) or request.partitions


def _gpus(gpus: Mapping[str, int]) -> str:
    return ",".join(
        f"gpu:{count}" if kind == UNTYPED else f"gpu:{kind}:{count}" for kind, count in gpus.items()
    )


def placement_text(gpus: Mapping[str, int], nodes: Sequence[str] = ()) -> str:
    """A placement for people: ``2 x v100 on v1``."""
    what = " + ".join(f"{count} x {kind}" for kind, count in sorted(gpus.items()))
    return f"{what} on {fold(tuple(nodes))}" if nodes else what


def assignments(fields: Mapping[str, object]) -> str:
    """Fields of a request as ``scontrol update`` takes them: ``Partition=v100,k80``."""
    return " ".join(f"{key}={value}" for key, value in fields.items())


def steering_text(steering: Steering) -> str:
    """Where a job was sent: ``1 x k80 on k1``."""
    return placement_text(steering.gpus, list(steering.nodes))
