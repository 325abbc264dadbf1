"""``hadar check`` on what Slurm shows of the cluster: the names and groups of ``[partitions]``,
GPUs that it has lost, and GPU types with their features.
"""

from collections.abc import Iterator, Sequence

from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.controller.observation.access import why_not_alike
from slurm_hadar.controller.observation.group_problems import lacks, member_problem, names_for
from slurm_hadar.controller.observation.lost_gpus import CURE, lost, lost_gpus_message
from slurm_hadar.controller.observation.observed import typed
from slurm_hadar.domain.job import UNTYPED, Job
from slurm_hadar.domain.node import Node, Partition, highest_tier
from slurm_hadar.reports import formats
from slurm_hadar.slurm import hosts
from slurm_hadar.slurm.limits import AccountLimits
from slurm_hadar.slurm.partition_lines import keys, split_by_type


def partition_findings(
    config: Config,
    settings: dict[str, str],
    partitions: Sequence[Partition],
    nodes: Sequence[Node],
) -> Iterator[Finding]:
    """Whether the named partitions exist, and each group is what it has to be; where GPU types
    share a partition and there is no group, the lines that make one."""
    nodes = [typed(node, config) for node in nodes]
    there = {partition.name: partition for partition in partitions}
    for key in ("opt_in", "chain"):
        for name in getattr(config.partitions, key):
            if name not in there:
                yield _missing(f"partitions.{key}", name, there)
    for name, members in config.partitions.groups.items():
        missing = [one for one in (name, *members) if one not in there]
        for one in missing:
            yield _missing("partitions.groups", one, there)
        if not missing:
            finding = _group(config, there[name], [there[one] for one in members], nodes)
            yield finding
            if finding.level == "ok":
                yield from _same_weight(there[name], nodes)
    if not config.partitions.groups:
        yield from _without_group(config, settings, partitions, nodes)


def association_findings(config: Config, limits: AccountLimits) -> Iterator[Finding]:
    """Users whom the accounting database binds to a partition of a group, and so to it alone."""
    for name, members in config.partitions.groups.items():
        bound = {
            who: sorted(names & {name, *members})
            for who, names in sorted(limits.partitions.items())
            if not names.isdisjoint((name, *members))
        }
        if not bound:
            continue
        (account, user), (partition, *_) = next(iter(bound.items()))
        others = f" and {len(bound) - 1} more" if len(bound) > 1 else ""
        yield Finding(
            "warning",
            f"associations by partition: user {user} of account {account} has one for {partition}"
            f"{others}, so their jobs that ask for {name} stay in it: Slurm goes by such an "
            "association in that partition only",
            "nothing, or an association without a partition, with its limits in a QOS: sacctmgr "
            f"add user {user} account={account}; sacctmgr delete user {user} account={account} "
            f"partition={partition}",
        )


def _missing(key: str, name: str, there: dict[str, Partition]) -> Finding:
    return Finding(
        "problem",
        f"{key}: {lacks(name)}",
        f"choose among {', '.join(sorted(there))}; where slurm.conf had {name} until now, put it "
        "back with State=INACTIVE: Slurm ends jobs whose list names a partition that is gone",
    )


def _group(
    config: Config, partition: Partition, members: Sequence[Partition], nodes: Sequence[Node]
) -> Finding:
    key = f"partitions.groups.{partition.name}"
    if why := why_not_alike(partition, members):
        return Finding(
            "problem",
            f"{key}: {why}, so jobs that ask for {partition.name} stay in it",
            f"give the members together the nodes of {partition.name} and the same access, limits, "
            "defaults and tier in slurm.conf, and none of them MaxCPUsPerNode, or take the group "
            "out",
        )
    gpus = {node.name: node.gpus for node in nodes}
    for member in members:
        types = list(dict.fromkeys(kind for n in member.nodes for kind in gpus.get(n, ())))
        if why := member_problem(member.name, types, config):
            cure = "give each GPU type a partition of its own"
            if len(types) == 1 and UNTYPED not in types:
                cure = f"name it {' or '.join(names_for(types[0], config))}"
            cure += " in slurm.conf, or take the group out"
            return Finding("problem", f"{key}: {why}", cure)
    names_of_members = ", ".join(member.name for member in members)
    return Finding("ok", f"partition {partition.name} stands for {names_of_members}")


def _same_weight(partition: Partition, nodes: Sequence[Node]) -> Iterator[Finding]:
    """GPU types among whose free nodes Slurm chooses by their names."""
    types: dict[int, dict[str, None]] = {}
    names_of_nodes = set(partition.nodes)
    for node in nodes:
        if node.name in names_of_nodes:
            types.setdefault(node.weight, {}).update(dict.fromkeys(node.gpus))
    for weight, kinds in sorted(types.items()):
        if len(kinds) > 1:
            names = " and ".join(kinds)
            yield Finding(
                "warning",
                f"nodes of {names} in partition {partition.name} have "
                f"Weight={weight}: a job that names no GPU type begins on a slow GPU beside a free "
                "fast one where Slurm has that node first, and managed jobs leave it more of the "
                "slow ones",
                "give nodes of a faster type a lower Weight in slurm.conf; nothing where fast GPUs "
                "are kept for jobs that name them",
            )


def _without_group(
    config: Config,
    settings: dict[str, str],
    partitions: Sequence[Partition],
    nodes: Sequence[Node],
) -> Iterator[Finding]:
    gpus = {node.name: node.gpus for node in nodes}
    several = [
        partition
        for partition in partitions
        if len({kind for name in partition.nodes for kind in gpus.get(name, ())}) > 1
        and partition.up
        and partition.name not in config.backfill.partitions
        and partition.priority_tier == highest_tier(partition, partitions)
    ]
    if not several:
        return
    common = max(several, key=lambda one: (one.default, len(one.nodes)))
    features = {kind: gpu.feature for kind, gpu in config.gpu_types.items()}
    split = split_by_type(common, partitions, nodes, features)
    if split.why_not:
        cure = f"give each GPU type a partition of its own in slurm.conf; here {split.why_not}"
    else:
        lines = [_line(common, name, split.members[name], settings) for name in split.new]
        shown = [
            *(["slurm.conf:", *lines] if lines else []),
            "hadar.toml:",
            *split.toml(common.name),
        ]
        cure = "add these lines, then hadar check --write" + "".join(
            f"\n{' ' * (10 if line.endswith(':') else 12)}{line}" for line in shown
        )
    yield Finding(
        "warning",
        f"partition {common.name} has several GPU types and no group in [partitions.groups]: "
        "waiting jobs are not steered between them",
        cure,
    )


def _line(common: Partition, name: str, nodes: tuple[str, ...], settings: dict[str, str]) -> str:
    usual = settings.get("PreemptMode", "OFF")
    found = {"Nodes": hosts.fold(nodes), **keys(common, usual), "State": "UP"}
    return f"PartitionName={name} " + " ".join(f"{key}={value}" for key, value in found.items())


def lost_findings(nodes: list[Node], jobs: list[Job]) -> Iterator[Finding]:
    """GPUs that no job has and Slurm gives to none."""
    for node in lost(nodes, jobs):
        yield Finding("problem", lost_gpus_message(node), CURE)


def type_findings(config: Config, nodes: list[Node]) -> Iterator[Finding]:
    """Whether the types of [gpu_types] are those that Slurm has, and can be selected."""
    found: dict[str, int] = {}
    for node in nodes:
        for kind, count in node.gpus.items():
            found[kind] = found.get(kind, 0) + count
    for kind, count in sorted(found.items()):
        if kind == UNTYPED:
            yield Finding(
                "warning",
                f"{count} GPUs have no type in gres.conf",
                "give each type a node feature and name it in [gpu_types.NAME] feature",
            )
        elif kind not in config.gpu_types:
            yield Finding(
                "warning",
                f"{count} x {kind}: not in the configuration",
                f"add [gpu_types.{kind}] with memory_gb (and feature)",
            )
        else:
            feature = config.gpu_types[kind].feature
            without = [n.name for n in nodes if kind in n.gpus and feature not in n.features]
            if without:
                yield Finding(
                    "problem",
                    f"{kind}: {formats.counted(len(without), 'node')} without the feature "
                    f"{feature}, first {without[0]}",
                    f"add Features={feature} in slurm.conf",
                )
            else:
                yield Finding("ok", f"{count} x {kind}, selected by feature {feature}")
    for kind in config.gpu_types:
        if kind not in found:
            yield Finding(
                "warning",
                f"[gpu_types.{kind}]: no such GPU in this Slurm",
                "remove the section, or correct the name",
            )
