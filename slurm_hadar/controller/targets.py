"""Which jobs take part in a round, where each is, and why the others do not."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.config import Config
from slurm_hadar.controller import claims
from slurm_hadar.controller.observed import Observed
from slurm_hadar.controller.request import Wanted, wanted
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, Job, JobState

_STUCK = ("QOS", "Assoc", "Dependency", "Licenses", "PartitionTimeLimit")

Place = Mapping[str, Mapping[str, int]]
"""node -> GPU type -> GPUs."""


@dataclass(frozen=True)
class Past:
    """What the controller remembers. ``attained``: job -> GPU-seconds received; ``moving``: jobs in
    the middle of a move -> where they are going; ``last_moves``: job -> time of its last move, s.
    """

    attained: Mapping[str, float] = field(default_factory=dict)
    moving: Mapping[str, Place] = field(default_factory=dict)
    last_moves: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A managed job that takes part in this round."""

    job: Job
    wanted: Wanted
    held: Place = field(default_factory=dict)
    """Where it runs or was told to start; empty where it waits."""
    starting: bool = False


def profile_key(job: Job) -> str:
    """Name under which a job's speed is kept: its declared model, else its own name."""
    declaration = job.declaration or Declaration()
    return declaration.model or "~" + "".join(c if c.isalnum() else "_" for c in job.name[:60])


def batch_of(job: Job) -> int | None:
    """The declared global batch, the least of a range; None where it was not declared."""
    return job.declaration.batch[0] if job.declaration and job.declaration.batch else None


def placed(job: Job, seen: Observed) -> dict[str, dict[str, int]]:
    """GPUs that a running job holds, with untyped ones named by their node's type."""
    held: dict[str, dict[str, int]] = {}
    for name, gpus in job.gpus.items():
        node = seen.nodes.get(name)
        if node is None:
            continue
        only = next((kind for kind in node.gpus if kind != UNTYPED), "")
        row = held.setdefault(name, {})
        for kind, count in gpus.items():
            row[kind or only] = row.get(kind or only, 0) + count
    return held


def targets_of(
    seen: Observed, config: Config, moving: Mapping[str, Place]
) -> tuple[dict[str, Target], dict[str, str]]:
    """The managed jobs of this round, and those left out of it with the reason.

    ``moving``: jobs in the middle of a move -> where they are going; they keep that place.
    """
    targets: dict[str, Target] = {}
    left_out: dict[str, str] = {}
    starting: list[tuple[Job, Wanted]] = []
    for job in seen.jobs.values():
        if not job.managed or job.state in (JobState.FINISHED, JobState.COMPLETING):
            continue
        steered = seen.steered(job.id)
        want = _why_not(job, seen) or wanted(job, steered)
        if isinstance(want, str):
            left_out[job.id] = want
        elif job.id in moving:
            targets[job.id] = Target(job, want, moving[job.id], starting=True)
        elif job.state is JobState.RUNNING:
            targets[job.id] = Target(job, want, placed(job, seen))
        elif _told_to_start(job, seen, config):
            starting.append((job, want))
        else:
            targets[job.id] = Target(job, want)
    free = claims.free_now(seen)
    for job, want in starting:
        place = _expected(seen, job.id, free)
        targets[job.id] = Target(job, want, place, starting=bool(place))
    return targets, left_out


def _why_not(job: Job, seen: Observed) -> str:
    if job.state is JobState.UNKNOWN or job.state is JobState.SUSPENDED:
        return f"its state is {job.slurm_state}"
    if job.state is JobState.PENDING:
        if job.held:
            return "it is held by its owner or an admin"
        if job.dependency and job.reason.startswith("Depend"):
            return "it waits for another job"
        if job.reason.startswith(_STUCK):
            return f"Slurm keeps it waiting: {job.reason}"
        ours = seen.steered(job.id).leased or bool(job.declaration and job.declaration.lease)
        if job.start_s > seen.now and not ours and job.restarts == 0:
            return "its owner set a begin time"
    return ""


def _told_to_start(job: Job, seen: Observed, config: Config) -> bool:
    steered = seen.steered(job.id)
    return (
        bool(steered.gpus)
        and not steered.leased
        and job.start_s <= seen.now + 1
        and seen.now - steered.time <= config.moving.commit_s
    )


def _expected(seen: Observed, job: str, free: claims.Free) -> dict[str, dict[str, int]]:
    """Where a job that was told to start will land: the planned nodes, else any with room."""
    steered = seen.steered(job)
    names = [*(n for n in steered.nodes if n in free), *(n for n in free if n not in steered.nodes)]
    place: dict[str, dict[str, int]] = {}
    for kind, count in steered.gpus.items():
        left = count
        for name in names:
            part = min(left, free[name].get(kind, 0) - place.get(name, {}).get(kind, 0))
            if part > 0:
                place.setdefault(name, {})[kind] = part
                left -= part
        if left:
            return {}
    for name, gpus in place.items():
        for kind, count in gpus.items():
            free[name][kind] -= count
    return place
