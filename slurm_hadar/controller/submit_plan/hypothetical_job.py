"""The job that a submit would make: how Slurm would show it, and what the policy says to it."""

import math
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import GpuRequest, Job, JobState
from slurm_hadar.domain.node import Partition
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm import hosts
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.times import parse_duration
from slurm_hadar.slurm.tres import parse_gpus

ID = "4000000000"
"""Above all numbers that Slurm gives, so that no other job has it."""
_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task")
_A_DAY_S = 86400.0
_MB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a submit asks for: ``held`` by sbatch's long names, ours included."""

    held: Mapping[str, str | None]
    declaration: Declaration | None
    script: str
    uid: int
    user: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of ``scontrol show config``: what memory a job gets that asks for none."""


def job_of(asked: Asked, partitions: Mapping[str, Partition], now: float, priority: int) -> Job:
    """The waiting job, one task of it where it is an array. ``now`` in s since the epoch.

    What sbatch leaves to slurmctld is filled in as slurmctld does, but for a partition's own
    default of memory.
    """
    held = asked.held
    names = tuple(name for name in (held.get("partition") or "").split(",") if name)
    names = names or tuple(p.name for p in partitions.values() if p.default)
    first = next((partitions[name] for name in names if name in partitions), None)
    nodes = _nodes(held)
    request = gpus_of(held)
    tasks = _tasks(held, nodes)
    per_task = _whole(held.get("cpus-per-task")) or 1
    total = sum(request.per_job.values()) or (
        sum(request.per_node.values()) * nodes or sum(request.per_task.values()) * tasks
    )
    cpus = max(tasks * per_task, (_whole(held.get("cpus-per-gpu")) or 0) * total)
    per_node_mb = _megabytes(held.get("mem")) or _megabytes(held.get("mem-per-gpu")) * -(
        -total // nodes
    )
    per_cpu_mb = _megabytes(held.get("mem-per-cpu"))
    if not (per_node_mb or per_cpu_mb or held.get("mem")):
        per_cpu_mb = _megabytes(asked.settings.get("DefMemPerCPU"))
        per_node_mb = 0 if per_cpu_mb else _megabytes(asked.settings.get("DefMemPerNode"))
    return Job(
        id=ID,
        raw_id=int(ID),
        uid=asked.uid,
        user=asked.user,
        name=held.get("job-name") or ("wrap" if "wrap" in held else Path(asked.script).name),
        state=JobState.PENDING,
        slurm_state="PENDING",
        account=held.get("account") or "",
        qos=held.get("qos") or "",
        partitions=names,
        priority=priority,
        held="hold" in held,
        submit_s=now,
        eligible_s=now + _A_DAY_S if "begin" in held else now,
        time_limit_s=_limit_s(held.get("time"), first),
        request=request,
        features=held.get("constraint") or "",
        required_nodes=_hosts(held.get("nodelist")),
        excluded_nodes=_hosts(held.get("exclude")),
        node_count=nodes,
        tasks=tasks,
        cpus=cpus,
        cpus_per_task=per_task,
        mem_per_cpu_mb=per_cpu_mb,
        mem_per_node_mb=per_node_mb,
        requeue="no-requeue" not in held,
        exclusive="exclusive" in held,
        whole_nodes="exclusive" in held and not held["exclusive"],
        reservation=held.get("reservation") or "",
        dependency=held.get("dependency") or "",
        declaration=asked.declaration,
    )


def gpus_of(held: Mapping[str, str | None]) -> GpuRequest:
    """The GPUs that sbatch's options ask for, in its own three ways of counting."""
    found: dict[str, dict[str, int]] = {}
    for name in (*_GPU_OPTIONS, "gres", "tres-per-task"):
        text = held.get(name)
        if text:
            entries = ["gpu:" + e for e in text.split(",")] if name in _GPU_OPTIONS else [text]
            try:
                found[name] = parse_gpus(",".join(entries))
            except SlurmError:
                continue
    return GpuRequest(
        per_node=found.get("gpus-per-node") or found.get("gres") or {},
        per_job=found.get("gpus", {}),
        per_task=found.get("gpus-per-task") or found.get("tres-per-task") or {},
    )


def count_option(held: Mapping[str, str | None], count: int) -> str | None:
    """The option that asks for another number of untyped GPUs in the submit's own way of counting;
    None where it counts by task or socket."""
    if held.get("gpus"):
        return f"--gpus={count}"
    if held.get("gpus-per-node"):
        return f"--gpus-per-node={count}"
    if held.get("gres"):
        others = [e for e in (held["gres"] or "").split(",") if not e.startswith(("gpu", "gres"))]
        return "--gres=" + ",".join([*others, f"gpu:{count}"])
    return None


def _nodes(held: Mapping[str, str | None]) -> int:
    match = re.match(r"\d{1,6}", held.get("nodes") or "")
    if match:
        return max(1, int(match[0]))
    tasks, each = _whole(held.get("ntasks")), _whole(held.get("ntasks-per-node"))
    by_tasks = -(-tasks // each) if tasks and each else 1
    return max(1, by_tasks, len(_hosts(held.get("nodelist"))))


def _tasks(held: Mapping[str, str | None], nodes: int) -> int:
    return _whole(held.get("ntasks")) or nodes * (_whole(held.get("ntasks-per-node")) or 1)


def _whole(text: str | None) -> int:
    return int(text) if text and re.fullmatch(r"\d{1,9}", text) else 0


def _megabytes(text: str | None) -> int:
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", (text or "").upper())
    return math.ceil(int(match[1]) * _MB[match[2] or "M"]) if match else 0


def _limit_s(text: str | None, partition: Partition | None) -> float:
    try:
        wished = parse_duration(text or "")
    except SlurmError:
        wished = None
    if wished is not None:
        return wished
    if partition is None:
        return math.inf
    return min(partition.default_time_s, partition.max_time_s)


def _hosts(text: str | None) -> tuple[str, ...]:
    try:
        return hosts.expand(text or "")
    except SlurmError:
        return ()


class Asking(Controller):
    """A controller that also sees a job which is not there. For ``plan`` only."""

    def __init__(
        self, config: Config, cluster: Cluster, store: Store, job: Callable[[Observation, int], Job]
    ) -> None:
        """``job``: makes it from what is seen and the priority that it would have."""
        super().__init__(config, cluster, store, open_rates(config, store.connection), os.getuid())
        self._job = job

    def observe(self) -> Observation:
        """The cluster, and the job as the last in Slurm's order."""
        observation = super().observe()
        waiting = [j.priority for j in observation.jobs.values() if j.state is JobState.PENDING]
        job = self._job(observation, min((p for p in waiting if p > 0), default=1))
        return replace(observation, jobs={**observation.jobs, job.id: job})


@contextmanager
def copy_of_store(config: Config) -> Iterator[tuple[Store, bool]]:
    """A throw-away copy of the controller's file, and whether it could be read.

    Empty where it could not: it is the controller's user's alone. Nothing is written beside it.
    """
    with tempfile.TemporaryDirectory(prefix="hadar-plan-") as name:
        folder = Path(name)
        copied = _copy(config.site.state_dir / "hadar.sqlite", folder / "hadar.sqlite")
        store = Store.open(folder)
        try:
            yield store, copied
        finally:
            store.close()


def _copy(source: Path, target: Path) -> bool:
    try:
        if not os.access(source, os.R_OK):
            return False
        reading = sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)
        writing = sqlite3.connect(target)
        try:
            reading.backup(writing)
        finally:
            reading.close()
            writing.close()
    except sqlite3.Error:
        target.unlink(missing_ok=True)
        return False
    return True


def place_in(report: TickReport, job: str) -> tuple[Mapping[str, int], Sequence[str], str]:
    """Where the policy expects Slurm to start the job: GPUs by type, nodes, and the reason; no GPUs
    where it has to wait, or is not steered."""
    idle = report.backfill
    for excluded in (report.snapshot.excluded, idle.excluded):
        if job in excluded:
            return {}, (), f"it is not steered: {excluded[job]}"
    placement = {**report.plan.placements, **idle.placements}.get(job)
    if placement is None:
        why = {**report.plan.waiting, **idle.waiting}.get(job, "the policy has no place for it now")
        return {}, (), f"it waits: {why}"
    deferred = report.diff.deferred.get(job)
    if deferred:
        return {}, (), f"it waits: {deferred}. The policy said: {placement.reason}"
    return placement.gpus, tuple(placement.nodes), placement.reason
