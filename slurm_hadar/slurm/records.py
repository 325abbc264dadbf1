"""Nodes, partitions, reservations, racks and the configuration as ``scontrol show`` prints them.

One record a line (``scontrol -o``). Values may contain blanks (OS, Reason, Comment), and some of
them are free text: the first ``Key=`` of a name counts, since free text stands at the end.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Literal

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.node import Node, Partition, Reservation
from slurm_hadar.slurm import hosts, partition_lines, states, times, tres

QUEUE_DEPTHS = {"default_queue_depth": 100, "bf_max_job_test": 500}
"""Option of SchedulerParameters -> Slurm's default, of how many jobs a scheduling pass looks at."""
USUAL_QUEUE_DEPTH = min(QUEUE_DEPTHS.values())
USUAL_CRED_EXPIRE_S = 120
"""``cred_expire`` where slurm.conf does not say it."""
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/_]*)=")
_NOTHING = ("", "(null)", "N/A", "NONE")
MOST_NAMED = 20_000_000
"""Nodes that all partitions may name together: a few bytes of a host list stand for thousands."""
_OF_NODES = re.compile(r"(?:cpu|mem|node)$|gres/")
"""Resources of nodes, as TRESBillingWeights names them in small letters."""
_SWITCH = re.compile(r"SwitchName=(\S+)\s")
_LEVEL = re.compile(r"\bLevel=0\b")
_LEAF_NODES = re.compile(r"\bNodes=(\S+)")

_MOST_ON_LEAVES = 10 * hosts.MOST_NODES
"""A node hangs on one leaf switch, or on a few."""


Preempts = Literal["none", "partitions", "all"]
"""Whose running jobs something may end for others: those of partitions with a lower tier, or of
any."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Whose running jobs Slurm ends for others, those of lower partitions or of any QOS, and what
    the time of their start has to do with it.

    ``youngest_first``: the one that started last first. ``exempts``: none for a time after its
    start (PreemptExemptTime); ``exempts_qos``: the same of each QOS that has a time of its own.
    ``cancels``: a job that makes way by its QOS ends for good (PreemptMode=CANCEL);
    ``cancels_qos``: the QOS of which that holds, None where that is not known. ``within``: jobs of
    any QOS make way for those of the same one with a higher priority (PreemptMode=WITHIN).
    """

    whose: Preempts = "none"
    youngest_first: bool = False
    exempts: bool = False
    exempts_qos: Mapping[str, bool] = field(default_factory=dict)
    cancels: bool = False
    cancels_qos: frozenset[str] | None = None
    within: bool = False

    def cancels_job_of(self, qos: str) -> bool:
        """Whether a job that comes before one of this QOS may end it for good."""
        if self.whose != "all":
            return False
        return self.cancels if self.cancels_qos is None else qos in self.cancels_qos


class BillingRule(Enum):
    """How Slurm makes a bill of what a job has of each resource (PriorityFlags): the sum, with
    MAX_TRES the dearest of the resources of nodes, and with MAX_TRES_GRES the sum of its GRES and
    the dearer of the others; what is of no node, such as licenses, is added to each."""

    SUM = "sum"
    MAX = "max"
    MAX_AND_GRES = "max and gres"

    def bill(self, parts: Mapping[str, float]) -> float:
        """``parts``: resource as in TRESBillingWeights, in small letters -> amount times weight."""
        of_nodes = {name: part for name, part in parts.items() if _OF_NODES.match(name)}
        gres = sum(part for name, part in of_nodes.items() if name.startswith("gres/"))
        rest = sum(part for name, part in parts.items() if name not in of_nodes)
        match self:
            case BillingRule.MAX:
                return max(of_nodes.values(), default=0.0) + rest
            case BillingRule.MAX_AND_GRES:
                others = (p for name, p in of_nodes.items() if not name.startswith("gres/"))
                return max(others, default=0.0) + gres + rest
            case _:
                return sum(parts.values())


def nodes(text: str) -> list[Node]:
    """From ``scontrol -a -o -d show node``."""
    return [_node(record) for record in _records(text, "NodeName")]


def partitions(text: str) -> list[Partition]:
    """From ``scontrol -a -o show partition``."""
    found: list[Partition] = []
    named = 0
    for record in _records(text, "PartitionName"):
        found.append(_partition(record))
        named += len(found[-1].nodes)
        if named > MOST_NAMED:
            raise SlurmError(
                f"scontrol shows more than {MOST_NAMED} nodes in partitions, the limit"
            )
    return found


def reservations(text: str) -> list[Reservation]:
    """From ``scontrol -a -o show reservation``."""
    return [
        Reservation(
            name=record["ReservationName"],
            nodes=hosts.expand(record.get("Nodes", "")),
            start_s=times.parse_date(record.get("StartTime", "")),
            end_s=times.parse_date(record.get("EndTime", "")),
        )
        for record in _records(text, "ReservationName")
    ]


def mail_types(text: str) -> dict[int, tuple[str, ...]]:
    """From ``scontrol -o show job``: Slurm's number of a job -> the mails that it asked for.

    Where scontrol was built without readline its prompts stand before the records.
    A name may hold line breaks, and lines that look like another job's: of a job that is shown with
    several answers none is believed. An array's number shows all of its tasks.
    """
    shown = re.findall(r"^(?:scontrol: )*JobId=(\d{1,10}) (.*)$", text, re.MULTILINE | re.ASCII)
    answers: dict[int, set[str]] = {}
    for number, rest in shown:
        asked = re.findall(r" MailType=([A-Z0-9_,]+)(?= |$)", rest)
        answers.setdefault(int(number), set()).add(asked[-1] if asked else "")
    only = {number: said.pop() for number, said in answers.items() if len(said) == 1}
    return {number: tuple(said.split(",")) for number, said in only.items() if said}


def checked_whole(text: str, kind: str) -> str:
    """The answer of a ``scontrol show``, which ends with a line break even where there is nothing
    to show. Raises :class:`SlurmError` for a part of one."""
    if not text.endswith("\n"):
        what = "ends in the middle of a line" if text else "is empty"
        raise SlurmError(f"scontrol: the answer about {kind} {what}", retry=True)
    return text


def settings(text: str) -> dict[str, str]:
    """From ``scontrol show config``: key -> value, ``(null)`` as the empty string."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"([A-Za-z][A-Za-z0-9_/:]*)\s*= ?(.*)$", line)
        if match:
            value = match[2].strip()
            found[match[1]] = "" if value == "(null)" else value
    if "ClusterName" not in found:
        raise SlurmError("scontrol show config: the answer is not a configuration", retry=True)
    return found


def option(setting: str, name: str) -> str:
    """The value of ``name=value`` in a setting of Slurm with several of them, "" without."""
    parts = (part.strip().partition("=") for part in setting.split(","))
    return next((value for key, _, value in parts if key.lower() == name), "")


def queue_depth(found: Mapping[str, str]) -> int:
    """How many jobs Slurm looks at in a scheduling pass, each once for every partition of its list:
    the fewer of its main scheduler (default_queue_depth) and backfill (bf_max_job_test). ``found``:
    see :func:`settings`. What cannot be read counts as Slurm's default."""
    options = found.get("SchedulerParameters", "")
    said = ((option(options, name), usual) for name, usual in QUEUE_DEPTHS.items())
    return min(int(text) if re.fullmatch(r"[0-9]{1,9}", text) else usual for text, usual in said)


def preemption(found: Mapping[str, str]) -> Preemption:
    """``found``: see :func:`settings`."""
    how = found.get("PreemptType", "").removeprefix("preempt/")
    if how in ("", "(null)", "none"):
        return Preemption()
    options = (part.strip() for part in found.get("SchedulerParameters", "").split(","))
    mode = found.get("PreemptMode", "").upper()
    return Preemption(
        "partitions" if how == "partition_prio" else "all",
        youngest_first="preempt_youngest_first" in options,
        exempts=times.is_some_time(found.get("PreemptExemptTime", "")),
        cancels="CANCEL" in mode,
        within="WITHIN" in mode,
    )


def billing_rule(found: Mapping[str, str]) -> BillingRule:
    """``found``: see :func:`settings`."""
    flags = found.get("PriorityFlags", "").upper().split(",")
    # 25.05 and later; read from its source, not run.
    if "MAX_TRES_GRES" in flags:
        return BillingRule.MAX_AND_GRES
    return BillingRule.MAX if "MAX_TRES" in flags else BillingRule.SUM


def requeue_delay_s(found: Mapping[str, str]) -> float:
    """How far ahead Slurm puts the begin time of a requeued job; inf where that is not understood.
    ``found``: see :func:`settings`.

    ``requeue_delay`` is of 25.11 and later; read from its documentation, not run.
    """
    expire = option(found.get("AuthInfo", ""), "cred_expire") or str(USUAL_CRED_EXPIRE_S)
    delay = option(found.get("SchedulerParameters", ""), "requeue_delay") or "0"
    numbers = [float(text) for text in (expire, delay) if re.fullmatch(r"[0-9]{1,9}", text)]
    return max(numbers) + 1 if len(numbers) == 2 else inf


def _records(text: str, first: str) -> list[dict[str, str]]:
    found = []
    for line in text.splitlines():
        if not line.startswith(f"{first}="):
            if line.strip() and not re.match(r"No .* in the system", line):
                raise SlurmError(
                    f"scontrol: a line that is no record of {first}: {line[:80]!r}", retry=True
                )
            continue
        keys = list(_KEY.finditer(line))
        record: dict[str, str] = {}
        for match, following in zip(keys, [*keys[1:], None], strict=True):
            end = following.start() if following else len(line)
            record.setdefault(match[1], line[match.end() : end].strip())
        found.append(record)
    return found


def _node(record: dict[str, str]) -> Node:
    state = record.get("State", "")
    return Node(
        name=record["NodeName"],
        gpus=tres.parse_gpus(record.get("Gres", "")),
        gpus_used=tres.gpus_used(record.get("GresUsed", "")),
        features=_words(record.get("ActiveFeatures", "")),
        partitions=_words(record.get("Partitions", "")),
        cpus=_whole(record, "CPUEfctv") or _whole(record, "CPUTot"),
        cpus_used=_whole(record, "CPUAlloc"),
        memory_mb=max(0, _whole(record, "RealMemory") - _whole(record, "MemSpecLimit")),
        memory_used_mb=_whole(record, "AllocMem"),
        state=state,
        usable=states.node_usable(state),
        asleep=states.node_asleep(state),
        weight=_whole(record, "Weight"),
    )


def _partition(record: dict[str, str]) -> Partition:
    most = times.parse_duration(record.get("MaxTime", "")) or inf
    usual = times.parse_duration(record.get("DefaultTime", ""))
    return Partition(
        name=record["PartitionName"],
        nodes=hosts.expand(record.get("Nodes", "")),
        state=record.get("State", "UP"),
        default=record.get("Default") == "YES",
        max_time_s=most,
        default_time_s=most if usual is None else usual,
        min_nodes=_whole(record, "MinNodes"),
        max_nodes=_limit(record, "MaxNodes"),
        max_cpus_per_node=_limit(record, "MaxCPUsPerNode"),
        priority_tier=_whole(record, "PriorityTier"),
        priority_factor=_whole(record, "PriorityJobFactor"),
        preempt_mode=record.get("PreemptMode", ""),
        grace_s=float(_whole(record, "GraceTime")),
        allow_groups=_who(record, "AllowGroups"),
        allow_accounts=_who(record, "AllowAccounts"),
        deny_accounts=_who(record, "DenyAccounts"),
        allow_qos=_who(record, "AllowQos"),
        deny_qos=_who(record, "DenyQos"),
        root_only=record.get("RootOnly") == "YES",
        reservation_required=record.get("ReqResv") == "YES",
        # 26.05 shows the partition's OverSubscribe=EXCLUSIVE so.
        exclusive=record.get("OverSubscribe") == "EXCLUSIVE" or record.get("Exclusive") == "NODE",
        submit_hosts=_who(record, "AllocNodes"),
        max_mem_per_node_mb=_limit(record, "MaxMemPerNode") or inf,
        max_mem_per_cpu_mb=_limit(record, "MaxMemPerCPU") or inf,
        qos="" if record.get("QoS", "") in _NOTHING else record["QoS"],
        billing=record.get("TRESBillingWeights", ""),
        defaults=partition_lines.defaults(record),
    )


def _words(text: str) -> tuple[str, ...]:
    return () if text in _NOTHING else tuple(word for word in text.split(",") if word)


def _who(record: dict[str, str], key: str) -> tuple[str, ...]:
    text = record.get(key, "")
    return () if text == "ALL" else _words(text)


def _whole(record: dict[str, str], key: str) -> int:
    text = record.get(key, "")
    if text in _NOTHING or not text.strip():
        return 0
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise SlurmError(f"scontrol: {key}={text[:40]!r} is not a whole number")
    return int(text)


def _limit(record: dict[str, str], key: str) -> float:
    return inf if record.get(key, "UNLIMITED") == "UNLIMITED" else float(_whole(record, key))


def racks(text: str) -> dict[str, str]:
    """Node -> its leaf switch, as ``scontrol show topology`` tells of them; empty where there is no
    tree.

    Seen on 22.05.8 and 24.11.5: one line a switch, ``SwitchName=r1 Level=0 LinkSpeed=1
    Nodes=a[1-2]``; switches of a higher level name those below as well. Nothing at all where the
    topology is flat.

    A node on several leaf switches counts to the first of them. Lines that are no leaf switch
    (upper levels, blocks of topology/block) say nothing about racks. Raises SlurmError for a list
    of nodes that cannot be read.
    """
    found: dict[str, str] = {}
    named = 0
    for line in text.splitlines():
        line = line.strip()
        switch = _SWITCH.match(line)
        level = _LEVEL.search(line, switch.end()) if switch else None
        nodes = _LEAF_NODES.search(line, level.end()) if level else None
        if switch and nodes:
            names = hosts.expand(nodes[1])
            named += len(names)
            if named > _MOST_ON_LEAVES:
                raise SlurmError(
                    f"scontrol shows more than {_MOST_ON_LEAVES} nodes on leaf switches, the limit"
                )
            for node in names:
                found.setdefault(node, switch[1])
    return found
