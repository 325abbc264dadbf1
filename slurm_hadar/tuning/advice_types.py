"""GPU types: one partition over all of them, one for each, and the group of the two."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from slurm_hadar.domain.node import Partition
from slurm_hadar.slurm import hosts, partition_lines
from slurm_hadar.slurm.partition_lines import difference, split_by_type
from slurm_hadar.tuning.advice import WORTH, Advice, Study, gained
from slurm_hadar.tuning.advice_partitions import free_name, gives_way
from slurm_hadar.tuning.draft import Ref
from slurm_hadar.tuning.replay import ANY, OWN

_NAMES = ("gpu", "gpus", "allgpus", "hadar_gpu")
_TOPIC = "GPU types"
_SPELLED = (
    "AllocNodes", "AllowAccounts", "AllowGroups", "AllowQos", "Alternate", "CpuBind",
    "DefCpuPerGPU", "DefMemPerCPU", "DefMemPerGPU", "DefMemPerNode", "DefaultTime", "DenyAccounts",
    "DenyQos", "DisableRootJobs", "ExclusiveTopo", "ExclusiveUser", "GraceTime", "Hidden", "LLN",
    "MaxCPUsPerNode", "MaxCPUsPerSocket", "MaxMemPerCPU", "MaxMemPerNode", "MaxNodes", "MaxTime",
    "MinNodes", "OverSubscribe", "OverTimeLimit", "PowerDownOnIdle", "PreemptMode",
    "PriorityJobFactor", "PriorityTier", "QOS", "ReqResv", "ResumeTimeout", "RootOnly",
    "SelectTypeParameters", "State", "SuspendTime", "SuspendTimeout", "TRESBillingWeights",
)  # fmt: skip
"""Keys of a partition's line as Slurm spells them."""


@dataclass(frozen=True)
class _Shape:
    """``like``: the partition whose line ``common`` has, "" for none; ``is_new``: whether
    ``common`` is to be added; ``chosen``: whether jobs can leave the type open today."""

    common: Partition
    like: str
    is_new: bool
    chosen: bool


def by_type(study: Study) -> Iterator[Advice]:
    """A partition per GPU type with one over all of them, so that a waiting job can be steered by
    the order of its partitions. Jobs get a choice of type that they never had only where a replay
    shows that it saves time."""
    if len(study.site.types) < 2:
        study.fine.append(f"{_TOPIC}: there is one only")
        return
    waited, gain = _waited(study)
    shape = _shape(study)
    if shape is None or not (shape.chosen or gain):
        why_none = f"no advice; {waited}" if waited else "there is no replay to judge them by"
        study.fine.append(f"{_TOPIC}: {why_none}")
        return
    split = split_by_type(shape.common, study.site.partitions, study.site.nodes, _features(study))
    config = study.config
    ours = config.partitions.groups.get(shape.common.name, ()) if config else ()
    if not shape.is_new and (split.why_not or set(ours) == set(split.members)):
        done = f"partition {shape.common.name} stands for {', '.join(ours)}"
        study.fine.append(
            f"{_TOPIC}: " + (f"no advice; {split.why_not}" if split.why_not else done)
        )
        return
    refs = [_added(study, shape, shape.common.name, shape.common.nodes)] if shape.is_new else []
    refs += [_added(study, shape, name, split.members[name]) for name in split.new]
    name = shape.common.name
    if split.why_not:
        why = f"jobs that ask for {name} can have any type; they are not steered: {split.why_not}"
    else:
        why = (
            f"{name} can stand for {', '.join(split.members)}, which have its tier, limits and "
            f"access: a waiting job that opts in, asks for {name} and names no type gets that list "
            "in the order in which it gains most, and stays as eligible as any other"
        )
    yield Advice(
        topic=_TOPIC,
        why=f"{waited}. {why}" if gain else why,
        gain=gain or "not simulated",
        basis="simulated" if gain else "not simulated",
        refs=tuple(refs),
        toml=() if split.why_not else split.toml(name),
    )


def _waited(study: Study) -> tuple[str, str]:
    """Who waited for one type while another was free, and what a free choice of type would have
    gained; "" where that is not worth a new partition."""
    own, any_ = study.run(OWN), study.run(ANY)
    if not study.usage or not own or not any_ or not own.outcome or not any_.outcome:
        return "", ""
    before, after = own.outcome.avg_jct_s, any_.outcome.avg_jct_s
    waited = sum(waits.any_free_h for waits in study.usage.waits)
    if waited <= 0 or after > (1 - WORTH) * before:
        return (
            f"jobs waited {waited:.1f} h for one type while another was free, and with a free "
            f"choice of type the replay's {gained(before, after, 'mean job time is')}"
        ), ""
    worst = max(study.usage.waits, key=lambda waits: waits.any_free_h)
    return (
        f"{worst.waited_jobs} jobs that asked for {worst.kind} waited {worst.waited_h:.0f} h "
        f"together, {worst.any_free_h:.0f} h of it while as many GPUs of another type were free"
    ), (
        f"{gained(before, after, 'mean job time')} in the replay of {len(own.outcome.finish_s)} "
        "jobs, all of them free to run on any type"
    )


def _shape(study: Study) -> _Shape | None:
    """The common partition that is there, or a new one over all nodes that are open to all users;
    None where no such nodes have several types."""
    site = study.site
    gpus = {node.name: set(node.gpus) for node in site.gpu_nodes}
    above = [p for p in study.open_partitions if not gives_way(p, study)]
    nodes = {name for p in above for name in p.nodes} & gpus.keys()
    if len({kind for name in nodes for kind in gpus[name]}) < 2:
        return None
    over_all = [p for p in above if nodes <= set(p.nodes)]
    groups = study.config.partitions.groups if study.config else {}
    if over_all:
        like = max(over_all, key=lambda p: (set(p.nodes) == nodes, p.name in groups, p.default))
        if set(like.nodes) == nodes:
            return _Shape(like, like.name, is_new=False, chosen=True)
        alike = True
    else:
        like = max(above, key=lambda p: p.priority_tier)
        alike = not any(difference(like, p) for p in above)
    ordered = tuple(node.name for node in site.gpu_nodes if node.name in nodes)
    name = free_name(_NAMES, site.partitions)
    common = replace(like, name=name, nodes=ordered, default=False)
    if not alike:
        longest = max(p.max_time_s for p in above)
        common = Partition(
            name, ordered, max_time_s=longest, default_time_s=longest,
            priority_tier=like.priority_tier, preempt_mode=like.preempt_mode,
        )  # fmt: skip
    return _Shape(common, like.name if alike else "", is_new=True, chosen=bool(over_all))


def _features(study: Study) -> dict[str, str]:
    known = study.config.gpu_types if study.config else {}
    return {kind: gpu.feature for kind, gpu in known.items()}


def _added(study: Study, shape: _Shape, name: str, nodes: tuple[str, ...]) -> Ref:
    """A line like the common partition's own, which may say more than a record holds."""
    entry = study.site.entry_of(shape.like) if shape.like else None
    if entry is None:
        keys = partition_lines.keys(shape.common, study.setting("PreemptMode", "OFF"))
    else:
        spelled = {key.lower(): key for key in _SPELLED}
        keys = {
            spelled.get(key, key): value
            for key, value in entry.keys.items()
            if key not in ("partitionname", "nodes", "default", "alternate")
        }
        if old := keys.pop("priority", ""):
            # The older name of both.
            keys = {"PriorityTier": old, "PriorityJobFactor": old, **keys}
    keys = {"Nodes": hosts.fold(nodes), **keys, "State": "UP"}
    return study.draft.add(name, keys, shape.like)
