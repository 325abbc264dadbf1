"""The configuration files of a sandbox: Slurm's, and its own hadar.toml. Values in, text out."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar import config
from slurm_hadar.profiles.specs import lookup
from slurm_hadar.sandbox import accounting
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SandboxOptions, SlurmTimes, Value
from slurm_hadar.sandbox.places import SandboxPaths

_EMULATION = "slurm_hadar.sandbox.gpu_emulation"
UNUSED_PORT = 1
"""Port of nodes without a slurmd; nothing listens there."""


@dataclass(frozen=True, slots=True)
class Values:
    """What the files depend on beside the layout.

    ``ports``: ``""`` -> slurmctld's, node -> its slurmd's, with accounting also slurmdbd's.
    ``release``: Slurm's (22, 5).
    """

    host: str
    user: str
    release: tuple[int, int]
    ports: Mapping[str, int]
    first_job_id: int
    times: SlurmTimes


def slurm_conf(layout: Layout, places: SandboxPaths, values: Values) -> str:
    """slurm.conf: everything on loopback, nothing outside of the sandbox's folder."""
    run, log = places.run, places.log
    lines = [
        f"ClusterName=sandbox{values.ports['']}",
        f"SlurmctldHost={values.host}(127.0.0.1)",
        f"SlurmctldPort={values.ports['']}",
        f"SlurmUser={values.user}",
        f"SlurmdUser={values.user}",
        "AuthType=auth/munge",
        f"AuthInfo=cred_expire={values.times.cred_expire_s},socket={places.munge_socket}",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        f"StateSaveLocation={places.state}",
        f"SlurmdSpoolDir={places.spool}/%n",
        f"SlurmctldPidFile={run}/slurmctld.pid",
        f"SlurmdPidFile={run}/slurmd.%n.pid",
        f"SlurmctldLogFile={log}/slurmctld.log",
        f"SlurmdLogFile={log}/slurmd.%n.log",
        f"TaskProlog={places.task_prolog}",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1024",
        "PriorityType=priority/basic",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=5,bf_continue,sched_interval=5,batch_sched_delay=1,"
        "sched_min_interval=0",
        f"KillWait={values.times.kill_wait_s}",
        f"SlurmdTimeout={values.times.slurmd_timeout_s}",
        "MinJobAge=600",
        f"FirstJobId={values.first_job_id}",
        "MaxJobCount=50000",
        "MaxArraySize=20000",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "SlurmctldParameters=preempt_send_user_signal",
        "MailProg=/bin/true",
    ]
    if accounting.PORT in values.ports:
        lines += accounting.slurm_conf(places, values.ports[accounting.PORT])
    if layout.gpu_types:
        lines.append("GresTypes=gpu")
    if layout.racks:
        lines.append("TopologyPlugin=topology/tree")
    if not all(group.started for group in layout.groups):
        lines += _sleeping(values.release)
    for group in layout.groups:
        lines += _nodes(group, values)
    lines += [_partition(one, layout) for one in layout.all_partitions]
    return "\n".join(lines) + "\n"


def _partition(partition: PartitionSpec, layout: Layout) -> str:
    members = [g for g in layout.groups if not partition.groups or g.prefix in partition.groups]
    return (
        f"PartitionName={partition.name} Nodes={','.join(g.expression for g in members)} "
        f"Default={'YES' if partition.default else 'NO'} PriorityTier={partition.tier} "
        f"PreemptMode={'REQUEUE' if partition.preempted else 'OFF'} "
        "DefaultTime=01:00:00 MaxTime=1-00:00:00 State=UP"
    )


def _sleeping(release: tuple[int, int]) -> list[str]:
    """Settings under which nodes without a slurmd can be had.

    Plainly defined they stay UNKNOWN, and after DOWN and RESUME they are IDLE+NOT_RESPONDING.
    As cloud nodes that are powered down they are ``idle~``, Slurm contacts none of them and takes
    them for usable; a job that is placed there stays in CONFIGURING. Seen on 22.05 and 24.11.
    """
    lines = [
        "SuspendProgram=/bin/true",
        "ResumeProgram=/bin/true",
        "SuspendTime=31536000",
        "SuspendTimeout=30",
        "ResumeTimeout=65000",
    ]
    return [*lines, "PrivateData=cloud"] if release < (23, 2) else lines


def _nodes(group: NodeGroup, values: Values) -> list[str]:
    sockets = 2 if group.cpus % 2 == 0 else 1
    rest = (
        f"NodeHostname={values.host} NodeAddr=127.0.0.1 CPUs={group.cpus} Sockets={sockets} "
        f"CoresPerSocket={group.cpus // sockets} ThreadsPerCore=1 RealMemory={group.memory_mb}"
    )
    if group.types:
        rest += " Gres=" + ",".join(f"gpu:{kind}:{count}" for kind, count in group.types.items())
    features = dict.fromkeys((*group.types, *group.features))
    if features:
        rest += " Feature=" + ",".join(features)
    if group.weight != 1:
        rest += f" Weight={group.weight}"
    if not group.started:
        return [f"NodeName={group.expression} State=CLOUD Port={UNUSED_PORT} {rest}"]
    return [f"NodeName={name} Port={values.ports[name]} {rest}" for name in group.names]


def topology_conf(layout: Layout) -> str:
    """topology.conf: a leaf switch per rack, and one above them."""
    lines = [
        f"SwitchName={rack} Nodes={','.join(group.expression for group in groups)}"
        for rack, groups in layout.racks.items()
    ]
    return "\n".join([*lines, f"SwitchName=core Switches={','.join(layout.racks)}"]) + "\n"


def cgroup_conf(release: tuple[int, int]) -> str:
    """cgroup.conf: no cgroups, whatever the release calls that."""
    return "CgroupPlugin=disabled\n" if release >= (23, 11) else "CgroupAutomount=no\n"


def task_prolog(true_rates: Path) -> str:
    """The script whose output gives every task the pretend GPUs and the file of their rates."""
    lines = (f"export HADAR_TRUE_RATES={true_rates}", f"export HADAR_EMULATION={_EMULATION}")
    return "#!/bin/sh\n" + "".join(f"echo {shlex.quote(line)}\n" for line in lines)


def site_toml(
    layout: Layout,
    places: SandboxPaths,
    bin_dir: Path,
    options: SandboxOptions,
    times: SlurmTimes,
) -> str:
    """Text of a hadar.toml for a sandbox; the options' settings go over what a demo
    wants.

    Times are short: a sandbox lives for minutes. Raises UsageError for settings that no
    configuration knows.
    """
    sections: dict[str, dict[str, Value]] = {
        "site": {
            "name": "sandbox",
            "mode": options.mode,
            "rights": "sandbox",
            "state_dir": str(places.hadar_state),
            "exchange_dir": str(places.exchange),
        },
        # Not in the state folder, which other users may not enter.
        "status": {"socket": str(places.folder / "hadar.sock")},
        "web": {"socket": str(places.folder / "web.sock")},
        "slurm": {"bin_dir": str(bin_dir), "conf": str(places.slurm_conf)},
        "partitions": {"groups": _partition_groups(layout)},
        "guards": {
            "min_between_moves_s": 15.0,
            "max_moves_per_tick": 4,
            "gain_over_cost": 1.5,
            # Its slurmctld serves no other user, and its days are minutes.
            "max_queries_per_minute": 100_000,
            # A laptop that is busy answers late; its ticks need not become rarer for that.
            "slow_answer_s": 60.0,
            "stop_file": str(places.folder / "stop"),
        },
        "moving": {
            "ack_wait_s": 20.0,
            "settle_s": 5.0,
            "commit_s": 10.0,
            "after_return_s": times.kill_wait_s + 1.0,
        },
        "controller": {"interval_s": 5.0, "round_s": 30.0},
        "gpu_types": {kind: _gpu_type(kind) for kind in layout.gpu_types},
    }
    for section, values in (options.settings or {}).items():
        sections.setdefault(section, {}).update(values)
    text = _toml(sections)
    config.parse(text, str(places.site))
    return text


def _partition_groups(layout: Layout) -> dict[str, tuple[str, ...]]:
    """``gpu`` with the partitions of its GPU types; empty where the layout has no such shape."""
    by_name = {partition.name: partition for partition in layout.all_partitions}
    common = by_name.pop("gpu", None)
    if common is None:
        return {}
    inside = [g for g in layout.groups if not common.groups or g.prefix in common.groups]
    kinds = list(dict.fromkeys(kind for group in inside for kind in group.types))
    if len(kinds) < 2 or any(len(group.types) != 1 for group in inside):
        return {}
    for kind in kinds:
        holders = {group.prefix for group in inside if kind in group.types}
        own = by_name.get(kind)
        if own is None or set(own.groups) != holders:
            return {}
        if (own.tier, own.preempted) != (common.tier, common.preempted):
            return {}
    return {common.name: tuple(kinds)}


def _gpu_type(kind: str) -> dict[str, object]:
    spec = lookup(kind)
    known = {"memory_gb": spec.memory_gb, "tflops": spec.tflops} if spec else {}
    return {"feature": kind, **known}


def _toml(sections: Mapping[str, Mapping[str, Value]]) -> str:
    lines = ["# Written by the sandbox.", "version = 1"]
    for name, values in sections.items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_literal(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_literal(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value, ensure_ascii=False)
