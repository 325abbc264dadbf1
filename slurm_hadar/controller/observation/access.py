"""Where a job may run: the partitions that it asks for, and those that stand for them.

An operator's update bypasses what Slurm checks at submission. So a job gets another partition only
where ``partitions.groups`` of the site says so and Slurm shows no difference but the nodes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from slurm_hadar.config import Config, group_types
from slurm_hadar.domain.declaration import ANY, Declaration
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Partition
from slurm_hadar.slurm.partition_lines import counts_apart, difference


def allowed_partitions(
    job: Job,
    asked: Sequence[str],
    partitions: Mapping[str, Partition],
    groups: Mapping[str, Sequence[str]],
) -> list[Partition]:
    """The partitions that the job may run in, in the order of those that its owner ``asked`` for.

    A partition of ``groups`` becomes its members, where these are alike and one of them at least
    is up and has as many nodes as the job needs. Not where the owner has an association for one of
    them: Slurm goes by it for that partition only. Partitions that are down are left out.
    """
    found: dict[str, Partition] = {}
    for name in asked:
        if name not in partitions or not partitions[name].up:
            continue
        members = _members(job, name, partitions, groups) or [partitions[name]]
        found |= {member.name: member for member in members if member.name not in found}
    return list(found.values())


def declared_list(declaration: Declaration, config: Config) -> tuple[str, ...]:
    """The list that a job gets whose owner asks for a partition of ``partitions.groups`` alone:
    its members of the declared types, in the site's order. Empty of a job with other partitions.
    """
    members = group_types(config).get(",".join(declaration.partitions), {})
    types = declaration.types
    return tuple(
        name for name, kind in members.items() if not types or ANY in types or kind in types
    )


def submitted_lists(declaration: Declaration, config: Config) -> tuple[tuple[str, ...], ...]:
    """The partitions with which the job can have been submitted, as far as its owner's request and
    hbatch go; the order says something of a list that is recorded only. Empty where none is.

    Where hbatch, a plugin or ``hadar set`` recorded the list that it wrote, that one; else what the
    owner asked for, and what an earlier version wrote for the declared types.
    """
    if declaration.listed or not declaration.partitions:
        return (declaration.listed,) if declaration.listed else ()
    written = declared_list(declaration, config)
    return (declaration.partitions, written) if written else (declaration.partitions,)


def _members(
    job: Job,
    name: str,
    partitions: Mapping[str, Partition],
    groups: Mapping[str, Sequence[str]],
) -> list[Partition]:
    members = tuple(partitions[one] for one in groups.get(name, ()) if one in partitions)
    if len(members) < len(groups.get(name, ())) or why_not_alike(partitions[name], members):
        return []
    if not job.own_partitions.isdisjoint((name, *(member.name for member in members))):
        return []
    up = [member for member in members if member.up]
    # A job runs in one partition: one that spans the types stays in theirs.
    return up if any(len(member.nodes) >= job.node_count for member in up) else []


def unlike_groups(
    groups: Mapping[str, Sequence[str]], partitions: Mapping[str, Partition]
) -> tuple[str, ...]:
    """Those of ``groups`` that stand for nothing: a member is missing, or they are not alike."""

    def alike(name: str, members: Sequence[str]) -> bool:
        if not partitions.keys() >= {name, *members}:
            return False
        return not why_not_alike(partitions[name], [partitions[one] for one in members])

    return tuple(name for name, members in groups.items() if not alike(name, members))


def why_not_alike(partition: Partition, members: Sequence[Partition]) -> str:
    """The first difference between a partition and the members of its group; empty: none.

    They are alike when they have its access, limits and priority, and together its nodes.
    """
    return _why_not_alike(partition, tuple(members))


@lru_cache(maxsize=256)
def _why_not_alike(partition: Partition, members: tuple[Partition, ...]) -> str:
    own = set(partition.nodes)
    if why := counts_apart(partition):
        return why
    for member in members:
        if key := difference(member, partition):
            return f"partition {member.name} has another {key} than {partition.name}"
        for node in member.nodes:
            if node not in own:
                return f"partition {member.name} has node {node}, which {partition.name} lacks"
    together = {node for member in members for node in member.nodes}
    for node in partition.nodes:
        if node not in together:
            return f"partition {partition.name} has node {node}, which no member has"
    return ""
