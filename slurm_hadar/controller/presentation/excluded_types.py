"""Messages for a job of which the features or partitions exclude the GPU types that it declares."""

from dataclasses import replace

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.constraints import OpaqueConstraint, met
from slurm_hadar.controller.snapshot.resource_request import declares, excludes
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState


def contradicting_features(job: Job, config: Config) -> str:
    """That the features of a waiting job exclude all GPU types that it declares; else empty."""
    declared = job.declaration
    if declared is None or job.state is not JobState.PENDING or job.request.typed:
        return ""
    accepted = [kind for kind in config.gpu_types if declares(declared, kind, config)]
    if not (job.managed and accepted and excludes(job.features, accepted, config)):
        return ""
    return (
        f"It cannot start: Features={job.features} excludes each GPU type that "
        f"{_type_words(declared)} accepts; run: scontrol update JobId={job.id} Features="
    )


def cannot_start(job: Job, observation: Observation) -> str:
    """:func:`without_node` as a sentence of its own; else empty."""
    found = without_node(job, observation)
    return f"It cannot start: {found}" if found else ""


def without_node(job: Job, observation: Observation) -> str:
    """Which partitions of a waiting job's list have no node with its features, and what to type;
    empty where that is not why Slurm does not start it."""
    if job.state is not JobState.PENDING or job.reason.split(",")[0] != "BadConstraints":
        return ""
    try:
        fit = {
            name
            for name in job.partitions
            if name in observation.partitions
            for node in observation.partitions[name].nodes
            if node in observation.nodes and met(job.features, {*observation.nodes[node].features})
        }
    except OpaqueConstraint:
        return ""
    wrong = [name for name in job.partitions if name not in fit]
    if not wrong:
        return ""
    kept = ",".join(name for name in job.partitions if name in fit)
    command = f"Partition={kept}" if kept else "Features="
    many = len(wrong) > 1
    return (
        f"partition{'s' if many else ''} {' and '.join(wrong)} {'have' if many else 'has'} no node "
        f"with Features={job.features}, and Slurm starts no job with such a partition in its list; "
        f"run: scontrol update JobId={job.id} {command}"
    )


def in_an_excluded_partition(job: Job, observation: Observation, config: Config) -> str:
    """Where a waiting job starts whose owner set partitions that have no GPU type which it
    accepts; else empty."""
    if job.state is not JobState.PENDING:
        return ""
    return _excluded("Slurm starts it", job, observation, config)


def corrected(
    decision: Decision | None, job: Job, observation: Observation, config: Config
) -> Decision | None:
    """The last decision on a job as far as it holds: none for one that is left alone by now, and
    another reason for one that Slurm starts wherever its owner set it."""
    if decision is None or not job.managed:
        return None
    excluded = in_an_excluded_partition(job, observation, config)
    return replace(decision, reason=excluded) if excluded else decision


def on_an_excluded_type(job: Job, observation: Observation, config: Config) -> str:
    """The same of a job that runs."""
    if job.state is not JobState.RUNNING:
        return ""
    return _excluded("It runs", job, observation, config)


def _excluded(what: str, job: Job, observation: Observation, config: Config) -> str:
    declared, names = job.declaration, job.partitions
    if declared is None or job.request.typed:
        return ""
    kinds = {kind for name in names for kind in observation.gpu_types.get(name, ())}
    is_owners = "Partition" in observation.steered(job.id).foreign or names == declared.partitions
    if not (is_owners and kinds) or any(declares(declared, kind, config) for kind in kinds):
        return ""
    return (
        f"{what} in Partition={','.join(names)}, as its owner set it, which has no GPU type that "
        f"{_type_words(declared)} accepts"
    )


def _type_words(declared: Declaration) -> str:
    """What it declares of GPU types: ``types=v100,p100``."""
    shown = declared.assignments()
    return " ".join(f"{key}={shown[key]}" for key in ("types", "gpu_mem") if key in shown)
