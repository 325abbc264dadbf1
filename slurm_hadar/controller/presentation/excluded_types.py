"""Messages for a job of which the features or partitions exclude the GPU types that it declares."""

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
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


def _type_words(declared: Declaration) -> str:
    """What it declares of GPU types: ``types=v100,p100``."""
    shown = declared.assignments()
    return " ".join(f"{key}={shown[key]}" for key in ("types", "gpu_mem") if key in shown)


def in_an_excluded_partition(job: Job, observation: Observation, config: Config) -> str:
    """Where a waiting job starts whose owner set partitions that have no GPU type which it
    accepts; else empty."""
    declared = job.declaration
    if declared is None or job.state is not JobState.PENDING or job.request.typed:
        return ""
    names = ",".join(job.partitions)
    kinds = {kind for name in job.partitions for kind in observation.gpu_types.get(name, ())}
    is_owners = "Partition" in observation.steered(job.id).foreign
    if not (is_owners and kinds) or any(declares(declared, kind, config) for kind in kinds):
        return ""
    return (
        f"Slurm starts it in Partition={names}, as its owner set it, which has no GPU type that "
        f"{_type_words(declared)} accepts"
    )
