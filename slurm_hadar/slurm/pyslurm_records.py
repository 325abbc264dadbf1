"""PySlurm's jobs as the domain's; nothing here imports PySlurm.

PySlurm's traps that are covered: the number 0 of an array's task reads as None, times and counts
may be None or ``"UNLIMITED"``, dependencies come apart into a dict.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import GpuRequest, Job, JobState
from slurm_hadar.slurm import hosts, jobs, states, tres

REQUESTS = (
    "--noheader",
    "--all",
    "--states=all",
    "--Format=JobID:|,tres-per-job:|,tres-per-task:|,tres-alloc:|",
)
"""squeue's arguments for the GPU requests that PySlurm does not show."""

_NOTHING = ("", "N/A", "(null)")
_ODD = (
    *("temporary_disk_per_node", "sockets_per_node", "cores_per_socket", "threads_per_core"),
    "gres_per_socket",
)
""":attr:`Job.odd` says what these are; not every release of PySlurm has them all."""


def job(entry: Any) -> tuple[Job, str]:
    """A PySlurm job, and the list of tasks where it is a waiting array."""
    raw_id, array, het = int(entry.id), int(entry.array_id or 0), int(entry.heterogeneous_id or 0)
    task_list = entry.array_tasks_waiting or ""
    name = str(raw_id)
    if het:
        name = f"{het}+{int(entry.heterogeneous_offset or 0)}"
    elif array and not task_list:
        name = f"{array}_{int(entry.array_task_id or 0)}"
    shown = str(entry.state or "").upper()
    state = states.job_state([shown])
    priority, reason = int(entry.priority or 0), entry.state_reason or ""
    nodes = hosts.expand(entry.allocated_nodes or "") if state is not JobState.PENDING else ()
    comment = entry.comment or ""
    declared, wrong = jobs.declared_in(comment)
    requested = ",".join(f"{name}:{count}" for name, count in (entry.gres_per_node or {}).items())
    per_node = tres.parse_gpus(requested)
    return Job(
        id=name,
        raw_id=raw_id,
        uid=int(entry.user_id or 0),
        user=entry.user_name or "",
        name=entry.name or "",
        state=state,
        slurm_state=shown,
        reason="" if reason == "None" else reason,
        account=entry.account or "",
        qos=entry.qos or "",
        partitions=tuple(part for part in (entry.partition or "").split(",") if part),
        priority=priority,
        nice=int(entry.nice or 0),
        held=states.held(state, priority, reason),
        submit_s=_seconds(entry.submit_time),
        eligible_s=_seconds(entry.eligible_time),
        accrue_s=_seconds(getattr(entry, "accrue_time", None)),
        start_s=_seconds(entry.start_time),
        end_s=_seconds(entry.end_time),
        time_limit_s=_minutes(entry.time_limit, inf),
        least_limit_s=_minutes(getattr(entry, "time_limit_min", None), 0.0),
        deadline_s=_seconds(getattr(entry, "deadline", None)),
        nodes=nodes,
        gpus=_allocated(entry, state),
        request=GpuRequest(per_node=per_node),
        features=",".join(entry.constraints or []),
        required_nodes=hosts.expand(entry.required_nodes or ""),
        excluded_nodes=hosts.expand(entry.excluded_nodes or ""),
        node_count=max(1, int(entry.num_nodes or 1)),
        tasks=max(1, int(entry.ntasks or 1)),
        cpus=max(1, int(entry.cpus or 1)),
        cpus_per_task=max(1, int(entry.cpus_per_task or 1)),
        mem_per_cpu_mb=int(entry.memory_per_cpu or 0),
        mem_per_node_mb=int(entry.memory_per_node or 0),
        per_gpu=bool(entry.cpus_per_gpu or entry.memory_per_gpu),
        least_cpus=int(getattr(entry, "min_cpus_per_node", None) or 0),
        odd=any(getattr(entry, name, None) for name in _ODD) or tres.others(requested),
        batch=bool(entry.is_batch_job),
        requeue=bool(entry.is_requeueable),
        # Segments of Slurm 25.05 and later; 24.11 does not show its own.
        external=bool(entry.licenses or entry.burst_buffer or getattr(entry, "segment_size", None)),
        other_gres=tres.others(requested),
        exclusive=(entry.resource_sharing or "OK") not in ("OK", "YES"),
        whole_nodes=entry.resource_sharing == "NO",
        restarts=int(entry.requeue_count or 0),
        exit_code=int(getattr(entry, "exit_code", None) or 0),
        het=het > 0,
        array_job_id=array,
        reservation=entry.reservation or "",
        dependency=_dependency(entry.dependencies),
        comment=comment,
        admin_comment=entry.admin_comment or "",
        workdir=entry.working_directory or "",
        declaration=declared,
        declaration_error=wrong,
    ), task_list


def incomplete(one: Job) -> bool:
    """Whether the job may ask for GPUs in a way that PySlurm does not show."""
    return one.state is not JobState.FINISHED and not one.request.per_node


def requests(text: str) -> dict[int, tuple[str, str, str]]:
    """GPU requests per job and per task, and all requested TRES, by Slurm's own number, from
    :data:`REQUESTS`."""
    found = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 4 or not re.fullmatch(r"\d{1,10}", fields[0], re.ASCII):
            raise SlurmError(f"squeue answered with a line that is not understood: {line[:80]!r}")
        found[int(fields[0])] = (fields[1], fields[2], fields[3])
    return found


def complete(one: Job, known: Mapping[int, tuple[str, str, str]]) -> Job:
    """The job with its requests per job and per task filled in."""
    per_job, per_task, requested = known.get(one.raw_id, ("", "", ""))
    if per_job in _NOTHING and per_task in _NOTHING:
        return one
    return replace(
        one,
        request=GpuRequest(
            per_node=one.request.per_node,
            per_job=tres.parse_gpus(per_job),
            per_task=tres.parse_gpus(per_task),
        ),
        node_count=(
            jobs.least_nodes(requested, one.node_count)
            if per_job not in _NOTHING and one.state is JobState.PENDING
            else one.node_count
        ),
    )


def _allocated(entry: Any, state: JobState) -> dict[str, dict[str, int]]:
    if state in (JobState.PENDING, JobState.FINISHED):
        return {}
    layouts = entry.get_resource_layout_per_node()
    if state is JobState.RUNNING and not layouts:
        # PySlurm 24.11.0 on Slurm 24.11.5: its GPUs would pass for free ones.
        raise ValueError(f"PySlurm shows nothing of what the running job {entry.id} has")
    found = {}
    for node, layout in layouts.items():
        text = ",".join(
            f"{name}:{gres['count'] if isinstance(gres, dict) else gres}"
            for name, gres in (layout["gres"] or {}).items()
        )
        gpus = tres.parse_gpus(text)
        if gpus:
            found[node] = gpus
    return found


def _dependency(conditions: Any) -> str:
    if not conditions:
        return ""
    if isinstance(conditions, str):
        return conditions
    joint = "?" if conditions.get("satisfy") == "any" else ","
    parts = [
        f"{kind}:{one}" for kind, ids in conditions.items() if isinstance(ids, list) for one in ids
    ]
    return joint.join(parts + (["singleton"] if conditions.get("singleton") else []))


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _minutes(value: Any, otherwise: float) -> float:
    if value is None:
        return otherwise
    return value * 60.0 if isinstance(value, (int, float)) else inf
