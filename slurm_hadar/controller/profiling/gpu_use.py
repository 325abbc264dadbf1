"""What a job's GPUs do, as its own samplers say: for the profiles and for people."""

import sqlite3
from collections.abc import Mapping, Sequence

from slurm_hadar.controller.journal.job_owners import StoredOwners
from slurm_hadar.controller.journal.last_reports import LastReports
from slurm_hadar.controller.journal.sampled_use import KEEP_S, SampledUses
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import batch_of, placed, profile_key
from slurm_hadar.domain.declaration import ANY
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.gpu_sampling import TrainingUse, training_use
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.profiles.gpu_use import GpuUses, MeasuredGpuUse
from slurm_hadar.reports import formats

_STALE_S = 300.0
"""A sampler writes once a minute; one that has been silent for so long is gone."""
_IN_VAIN = 0.9
"""Share of the window from which on a job that holds GPUs and computes nothing is pointed at."""
_IN_VAIN_S = 300.0
_MB_PER_GB = 1024.0
_SAME_MEMORY = 1.02


def present(observation: Observation, id_: str) -> TrainingUse | None:
    """What the present attempt of a running job does with its GPUs; None without samples."""
    job, files, progress = (
        observation.jobs[id_],
        observation.gpus.get(id_, ()),
        observation.progress.get(id_),
    )
    if not files or job.state is not JobState.RUNNING:
        return None
    # A tick asks several times: for the profiles, for its policy on idle GPUs, for metrics and
    # answers to users.
    basis = (job, files, progress, observation.now)
    known = observation.uses.get(id_)
    if known is None or any(a is not b for a, b in zip(known[0], basis, strict=True)):
        known = observation.uses[id_] = (basis, _present(job, files, progress, observation.now))
    return known[1]


def _present(
    job: Job, files: Sequence[NodeUse], progress: Progress | None, now: float
) -> TrainingUse | None:
    uses = [use for use in files if _current(use, job, now)]
    ours = progress is not None and progress.restarts == job.restarts
    rate = progress.rate if progress is not None and ours else 0.0
    return training_use(rate, (gpu for use in uses for gpu in use.gpus))


def _current(use: NodeUse, job: Job, now: float) -> bool:
    """An earlier attempt's file is older than this attempt, or of a node that it has left."""
    fresh = use.time >= max(job.start_s, now - _STALE_S)
    return fresh and not use.finished and (use.host in job.nodes or not job.nodes)


class GpuUseLearner:
    """Feeds the profiles: each file's window counts for the time since the one before."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self.uses = GpuUses(connection)
        self.sampled = SampledUses(connection)
        self.owners = StoredOwners(connection)
        self._taken = LastReports(connection, "gpus")

    def read_again(self) -> None:
        """Have what the file holds now, as after a transaction that was undone."""
        self._taken.read_again()
        self.owners.write_again()
        self.sampled.forget_again()

    def learn(self, observation: Observation) -> None:
        """Take in the use of running jobs; into the profiles of those with samples of all their
        GPUs, of one type."""
        self._taken.forget_others(observation.gpus)
        if self.sampled.forget(observation.now):
            self.owners.forget(observation.now - KEEP_S)
        self.owners.note(
            (j for j in observation.jobs.values() if j.managed or j.outside), observation.now
        )
        outside = [id_ for id_, job in observation.jobs.items() if job.outside]
        self.sampled.note_outside(outside, observation.now)
        taken: dict[str, float] = {}
        sampled = []
        for id_, files in observation.gpus.items():
            job, use = observation.jobs[id_], present(observation, id_)
            if use is None:
                continue
            # Files of earlier attempts, on other nodes, are older and stay.
            sampled_s = min(file.time for file in files if _current(file, job, observation.now))
            new = sampled_s - max(self._taken.of(id_), job.start_s)
            if new <= 0:
                continue
            taken[id_] = sampled_s
            sampled.append((id_, sampled_s, use, min(new, use.seconds)))
            if use.gpus != job.gpu_count:
                continue
            kinds = {kind for gpus in placed(job, observation.nodes).values() for kind in gpus}
            if len(kinds) == 1:
                progress = observation.progress.get(id_)
                ours = progress is not None and progress.restarts == job.restarts
                batch = (progress.batch if progress and ours else None) or batch_of(job)
                rated = (job.uid, profile_key(job), batch)
                self.uses.record(rated, kinds.pop(), use, min(new, use.seconds))
        self._taken.keep(taken)
        self.sampled.record(sampled)

    def uses_of(self, job: Job) -> list[MeasuredGpuUse]:
        """What jobs of this owner and model did with their GPUs so far."""
        return self.uses.of(profile_key(job), job.uid)


def in_vain(observation: Observation, id_: str) -> str:
    """That a job holds its GPUs for nothing, as text; empty where it does not, or without
    samples."""
    use = present(observation, id_) if id_ in observation.gpus else None
    if use is None or use.seconds < _IN_VAIN_S or use.held_idle + use.unused < _IN_VAIN:
        return ""
    what = "held and idle" if use.held_idle >= use.unused else "not used"
    share = max(use.held_idle, use.unused)
    return f"its GPUs were {what} for {share:.0%} of {formats.duration(use.seconds)}"


def rows(
    observation: Observation, job: Job, known: Sequence[MeasuredGpuUse]
) -> list[tuple[str, str]]:
    """(what, figures) of a job's GPUs, for ``hadar explain``."""
    found = []
    now = present(observation, job.id)
    if now is not None:
        words = _words(now, now.unused)
        some = "" if now.gpus == job.gpu_count else f"{now.gpus} of {job.gpu_count} GPUs: "
        found.append((f"last {formats.duration(now.seconds)}", some + words))
    for one in known:
        size = f", batch {one.batch}" if one.batch else ""
        words = _words(one)
        found.append((f"{formats.gpus({one.gpu_type: one.gpus})}{size}", words))
    return found


def too_small(job: Job, known: Sequence[MeasuredGpuUse], memory_gb: Mapping[str, float]) -> str:
    """A hint where a job that declared no memory held more than some type that it may get has.

    Only its owner knows whether it needs that: frameworks keep memory that they do not use.
    ``memory_gb`` of one GPU, by type.
    """
    most = max((one.most_memory_mb or 0.0 for one in known), default=0.0)
    declared = job.declaration
    if declared is None or declared.gpu_mem or job.request.typed:
        return ""
    wanted = declared.types if declared.types and ANY not in declared.types else tuple(memory_gb)
    small = [t for t in wanted if 0 < memory_gb.get(t, 0.0) * _MB_PER_GB * _SAME_MEMORY < most]
    if not small:
        return ""
    return (
        f"It held up to {_gb(most)} of a GPU, and {', '.join(small)} has less: if it "
        f"needs them, hadar set {job.id} gpu_mem={int(most / _MB_PER_GB) + 1}G"
    )


def _gb(memory_mb: float) -> str:
    return f"{memory_mb / _MB_PER_GB:.3g} GB"


def _words(use: TrainingUse | MeasuredGpuUse, unused: float = 0.0) -> str:
    busy, most_mb = use.utilization, use.most_memory_mb
    power_w, joules = use.power_w, use.joules_per_sample
    parts = [
        f"{busy:.0%} busy" if busy is not None else "",
        f"up to {_gb(most_mb)} of a GPU" if most_mb is not None else "",
        f"{power_w:,.0f} W" if power_w is not None else "",
        f"{joules:.3g} J per sample" if joules is not None else "",
        f"held and idle {use.held_idle:.0%} of the time" if use.held_idle >= 0.005 else "",
        f"not used {unused:.0%} of the time" if unused >= 0.005 else "",
    ]
    return ", ".join(part for part in parts if part) or "no data"
