"""A site's nodes, partitions and settings, from whichever of three places has them.

Files that an admin hands over (``scontrol show node`` or ``sinfo``), slurm.conf itself, or the
Slurm that answers. Nothing here needs more than the right to look.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.domain.node import Node, Partition
from slurm_hadar.simulator.traces.csv_rows import rows, text_of
from slurm_hadar.slurm import hosts, partition_lines, records, times, tres
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.tuning.conf import ConfEntry, SlurmConf

SINFO = "sinfo -a -N -o '%N|%G|%c|%m|%f|%R'"
"""What an admin types for a file of nodes, where it is not scontrol's."""

_ALL = ("all",)
_MOST_PARTITIONS = 1_000
_SUFFIX = {"": 1, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}


@dataclass(frozen=True)
class SlurmSite:
    """What advice is about. ``settings``: slurm.conf's by name in small letters; ``conf``: the file
    where there is one, so that whole lines can be shown; ``sources``: where all that is from."""

    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    settings: Mapping[str, str]
    conf: SlurmConf | None
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether anything is known beside the nodes."""
        return bool(self.settings or self.partitions)

    @property
    def types(self) -> tuple[str, ...]:
        """GPU types, in order of appearance."""
        return tuple(dict.fromkeys(kind for node in self.nodes for kind in node.gpus))

    @property
    def gpu_nodes(self) -> tuple[Node, ...]:
        """The nodes that have GPUs."""
        return tuple(node for node in self.nodes if node.gpus)

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs by type."""
        return {kind: sum(node.gpus.get(kind, 0) for node in self.nodes) for kind in self.types}

    def entry_of(self, partition: str) -> ConfEntry | None:
        """The line of a partition; None where slurm.conf is not known or has it twice."""
        lines = self.conf.partitions if self.conf else ()
        found = [entry for entry in lines if entry.keys["partitionname"] == partition]
        return found[0] if len(found) == 1 else None


NOTHING = SlurmSite((), (), {}, None, ())


def of_conf(conf: SlurmConf) -> SlurmSite:
    """From slurm.conf alone. Raises UsageError for a line that cannot be read."""
    defined: list[Node] = []
    for entry in conf.nodes:
        defined += _nodes_of(entry)
        if len(defined) > hosts.MOST_NODES:
            raise UsageError(
                f"{entry.where}: that is more than {hosts.MOST_NODES} nodes, the limit"
            )
    nodes = _linked(defined, ())
    names = tuple(node.name for node in nodes)
    partitions = tuple(_partition_of(entry, names) for entry in conf.partitions[:_MOST_PARTITIONS])
    if len(conf.partitions) > _MOST_PARTITIONS:
        raise UsageError(f"{conf.path} has more than {_MOST_PARTITIONS} partitions, the limit")
    return SlurmSite(
        nodes=tuple(_linked(nodes, partitions)),
        partitions=partitions,
        settings=conf.settings,
        conf=conf,
        sources=(f"{conf.path}",),
        notes=conf.notes,
    )


def of_slurm(cluster: Cluster, conf: SlurmConf | None) -> SlurmSite:
    """From the Slurm that answers; ``conf``: its slurm.conf, where that can be read. Raises
    SlurmError when Slurm does not answer."""
    settings = {key.lower(): value for key, value in cluster.read_config().items()}
    return SlurmSite(
        nodes=tuple(cluster.read_nodes()),
        partitions=tuple(cluster.read_partitions()),
        settings=settings,
        conf=conf,
        sources=("the Slurm that answers here", *([str(conf.path)] if conf else [])),
        notes=conf.notes if conf else (),
    )


def with_nodes(site: SlurmSite, path: Path) -> SlurmSite:
    """The same site with the nodes of a file, which may be all that is known of it.

    Raises UsageError for a file that is not understood.
    """
    nodes = read_nodes(text_of(path), path.name)
    known = {node.name: node for node in site.nodes}
    if site.partitions:
        nodes = [
            node if node.partitions or node.name not in known
            else replace(node, partitions=known[node.name].partitions)
            for node in nodes
        ]  # fmt: skip
    return replace(site, nodes=tuple(nodes), sources=(path.name, *site.sources))


def read_nodes(text: str, name: str) -> list[Node]:
    """Nodes of ``scontrol show node`` (with or without ``-o``) or of :data:`SINFO`.

    Raises UsageError naming the file.
    """
    first = next((line.strip() for line in text.split("\n") if line.strip()), "")
    try:
        if first.startswith("NodeName="):
            found = records.nodes(_one_line_each(text))
        elif "|" in first:
            found = _of_sinfo(text, name)
        else:
            raise UsageError(
                f"{name} is not what 'scontrol show node' or {SINFO} prints; make it with one of "
                "these"
            )
    except SlurmError as error:
        raise UsageError(f"{name}: {error}") from None
    if not found:
        raise UsageError(f"{name} holds no node")
    return found


def _one_line_each(text: str) -> str:
    """scontrol's records of several lines as ``-o`` prints them."""
    parts: list[str] = []
    for line in text.replace("\r", "").split("\n"):
        if line.startswith("NodeName="):
            parts += ["\n", line.strip()]
        elif line.strip() and parts:
            parts += [" ", line.strip()]
    return "".join(parts[1:])


def _of_sinfo(text: str, name: str) -> list[Node]:
    found: dict[str, Node] = {}
    named = 0
    for row in rows(text, name, ("NODELIST", "GRES"), delimiter="|"):
        gpus = tres.parse_gpus(row.text("GRES"))
        features = row.text("AVAIL_FEATURES")
        names = hosts.expand(row.text("NODELIST"))
        named += len(names)
        if named > 10 * hosts.MOST_NODES:
            raise UsageError(f"{name} names more than {10 * hosts.MOST_NODES} nodes, the limit")
        for host in names:
            node = Node(
                name=host,
                gpus=gpus,
                features=() if features in ("", "(null)") else tuple(features.split(",")),
                partitions=tuple(p.rstrip("*") for p in [row.text("PARTITION")] if p),
                cpus=_count(row.text("CPUS")),
                memory_mb=_count(row.text("MEMORY")),
            )
            if host in found:
                # -N prints a node once for each of its partitions.
                both = dict.fromkeys((*found[host].partitions, *node.partitions))
                node = replace(node, partitions=tuple(both))
            found[host] = node
    return list(found.values())


def names_of(entry: ConfEntry) -> tuple[str, ...]:
    """The nodes of a NodeName line; () where it cannot be read."""
    try:
        return hosts.expand(entry.keys["nodename"])
    except SlurmError:
        return ()


def _nodes_of(entry: ConfEntry) -> list[Node]:
    keys = entry.keys
    try:
        sockets = _count(keys.get("sockets", "")) or _count(keys.get("boards", "")) or 1
        cores = _count(keys.get("corespersocket", "")) or 1
        threads = _count(keys.get("threadspercore", "")) or 1
        words = keys.get("features") or keys.get("feature") or ""
        node = Node(
            name="",
            gpus=tres.parse_gpus(keys.get("gres", "")),
            features=tuple(word for word in words.split(",") if word),
            cpus=_count(keys.get("cpus", "")) or sockets * cores * threads,
            memory_mb=_count(keys.get("realmemory", "")),
            state=keys.get("state", "").upper(),
            weight=_count(keys.get("weight", "")) or 1,
        )
        return [replace(node, name=name) for name in hosts.expand(keys["nodename"])]
    except SlurmError as error:
        raise UsageError(f"{entry.where}: {error}") from None


def _partition_of(entry: ConfEntry, all_nodes: tuple[str, ...]) -> Partition:
    keys = entry.keys
    try:
        most = times.parse_duration(keys.get("maxtime", "")) or inf
        usual = times.parse_duration(keys.get("defaulttime", ""))
        listed = keys.get("nodes", "").strip()
        nodes = all_nodes if listed.lower() in _ALL else hosts.expand(listed)
    except SlurmError as error:
        raise UsageError(f"{entry.where}: {error}") from None
    return Partition(
        name=keys["partitionname"],
        nodes=nodes,
        state=keys.get("state", "UP").upper(),
        default=keys.get("default", "").upper() == "YES",
        max_time_s=most,
        default_time_s=most if usual is None else usual,
        # Priority is the older name of both PriorityTier and PriorityJobFactor.
        priority_tier=_count(keys.get("prioritytier") or keys.get("priority") or "1"),
        preempt_mode=keys.get("preemptmode", ""),
        priority_factor=_count(keys.get("priorityjobfactor") or keys.get("priority") or "1"),
        min_nodes=_count(keys.get("minnodes", "")),
        max_nodes=_limit(keys, "maxnodes"),
        max_cpus_per_node=_limit(keys, "maxcpuspernode"),
        max_mem_per_node_mb=_limit(keys, "maxmempernode"),
        max_mem_per_cpu_mb=_limit(keys, "maxmempercpu"),
        grace_s=float(_count(keys.get("gracetime", ""))),
        allow_groups=_who(keys, "allowgroups"),
        allow_accounts=_who(keys, "allowaccounts"),
        deny_accounts=_who(keys, "denyaccounts"),
        allow_qos=_who(keys, "allowqos"),
        deny_qos=_who(keys, "denyqos"),
        root_only=keys.get("rootonly", "").upper() == "YES",
        reservation_required=keys.get("reqresv", "").upper() == "YES",
        submit_hosts=_who(keys, "allocnodes"),
        qos=keys.get("qos", ""),
        billing=keys.get("tresbillingweights", ""),
        defaults=partition_lines.defaults(keys),
        exclusive=keys.get("oversubscribe", "").upper() == "EXCLUSIVE"
        or keys.get("exclusive", "").upper() == "NODE",
    )


def _linked(nodes: Iterable[Node], partitions: Iterable[Partition]) -> list[Node]:
    """Nodes that know their partitions; a node that is defined twice keeps its last definition."""
    member: dict[str, list[str]] = {}
    for partition in partitions:
        for name in partition.nodes:
            member.setdefault(name, []).append(partition.name)
    by_name = {node.name: node for node in nodes}
    return [replace(node, partitions=tuple(member.get(n, ()))) for n, node in by_name.items()]


def _who(keys: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = keys.get(key, "")
    return () if text.upper() == "ALL" else tuple(word for word in text.split(",") if word)


def _limit(keys: Mapping[str, str], key: str) -> float:
    return float(_count(keys.get(key, ""))) or inf


def _count(text: str) -> int:
    """A number as slurm.conf and sinfo write it: ``64``, ``256000M``, ``1+``; 0 for none."""
    match = re.match(r"\s*(\d{1,15})\s*([kmgt]?)", text, re.IGNORECASE | re.ASCII)
    return int(int(match[1]) * _SUFFIX[match[2].lower()]) if match else 0
