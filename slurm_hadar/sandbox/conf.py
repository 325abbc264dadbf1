"""Slurm's configuration files for a sandbox: values in, text out."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.sandbox import accounting
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import SlurmTimes
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
