"""Jobs that are longer than their time limit: saved and requeued before it, until they are done.

Slurm keeps a job's time limit over a requeue, and its next start begins the time anew. The site
allows it by partition (``partitions.chain``), and the owner asks for it (``max_requeues``).
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.progress import Progress

HABITS = ("yes", "signal")
"""Of jobs that save when they are asked."""
DETAIL = "chain"
"""Under this name a journal entry has its :class:`ChainRecord`."""
_MARGIN_S = 10.0
"""For the requests to Slurm, and clocks that differ."""
_IDLE_ATTEMPTS = 2
"""Attempts in a row without progress after which a job is not requeued again."""


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """What the journal knows of a job's requeues at its time limit.

    ``requests``: how many times it was asked, each attempt counted once; ``idle``: how many
    attempts in a row had made no progress by then; ``samples``: its progress at the last request;
    ``asked``: Slurm's restart count of the attempt that was asked last, -1: none was.
    """

    requests: int = 0
    idle: int = 0
    samples: int = 0
    asked: int = -1

    def done(self, job: Job) -> int:
        """The requeues so far."""
        return self.requests - (self.asked == job.restarts)

    def asked_again(self, job: Job, progress: Progress | None) -> "ChainRecord":
        """The record when the job, which runs, is asked now."""
        samples = _samples(job, progress)
        if self.asked == job.restarts:
            return replace(self, samples=max(self.samples, samples or 0))
        idle = self.idle + 1 if samples is not None and samples <= self.samples else 0
        return ChainRecord(self.requests + 1, idle, max(self.samples, samples or 0), job.restarts)


NONE = ChainRecord()


def records(entries: Iterable[Entry]) -> dict[str, ChainRecord]:
    """Job -> its last record among journal entries, which come oldest first."""
    found = {}
    for entry in entries:
        said = entry.details.get(DETAIL)
        if isinstance(said, dict):
            whole = {key: said.get(key) for key in asdict(NONE)}
            if all(type(value) is int for value in whole.values()):
                found[entry.job] = ChainRecord(**whole)  # type: ignore[arg-type]
    return found


def why_not(job: Job, config: Config, record: ChainRecord) -> str | None:
    """Why a job is not requeued before its time limit ends; empty where it is, None where its owner
    did not ask for it."""
    declared = job.declaration or Declaration()
    if not (job.managed and declared.max_requeues):
        return None
    closed = [name for name in job.partitions if name not in allowed_partitions(config)]
    if closed or not job.partitions:
        where = f"partition {closed[0]}" if closed else "its partition"
        return f"the site does not allow it in {where} (partitions.chain)"
    if declared.habit not in HABITS:
        return "max_requeues needs checkpoint=yes or checkpoint=signal"
    if declared.pin:
        return "its owner pinned it"
    if not job.requeue or job.expedited:
        return (
            "Slurm may not requeue it (Requeue=0, as by --no-requeue) or it has --requeue=expedite"
        )
    if job.time_limit_s < 2 * (_wait_s(job, config) + _MARGIN_S):
        return "its time limit is shorter than twice the time that a save may take"
    if record.done(job) >= declared.max_requeues:
        return f"max_requeues={declared.max_requeues} is reached"
    if record.idle >= _IDLE_ATTEMPTS:
        return "two attempts in a row made no progress"
    return ""


def longest(job: Job, config: Config, record: ChainRecord) -> Job:
    """The job with the time that it has over all its attempts as its time limit, for plans."""
    if why_not(job, config, record) != "":
        return job
    left = (job.declaration or Declaration()).max_requeues - record.done(job)
    return replace(job, time_limit_s=job.time_limit_s * (1 + left))


def due(
    job: Job, config: Config, record: ChainRecord, interval_s: float, now: float
) -> float | None:
    """Seconds until a running job is asked to save, 0 where it is time; None where it never is.

    ``interval_s``: time between two ticks. Asked once in an attempt, and again where the time for
    a save is left.
    """
    if job.state is not JobState.RUNNING or job.end_s <= now or why_not(job, config, record) != "":
        return None
    wait_s = _wait_s(job, config)
    left_s = job.end_s - now
    if record.asked == job.restarts and left_s < wait_s + _MARGIN_S:
        return None
    # A tick may come late, and the next one may have to requeue it. Of a short limit a slow
    # controller does not take more than a quarter.
    lead_s = wait_s + _MARGIN_S + min(2 * interval_s, job.time_limit_s / 4)
    return max(0.0, left_s - lead_s)


def note(job: Job, config: Config, record: ChainRecord) -> str:
    """A sentence for the job's decision; empty where its owner asked for no requeue."""
    why = why_not(job, config, record)
    if why is None:
        return ""
    if why:
        return f"not requeued at its time limit: {why}"
    most = (job.declaration or Declaration()).max_requeues
    return f"requeued before its time limit ends ({record.done(job)} of {most} requeues so far)"


def allowed_partitions(config: Config) -> frozenset[str]:
    """The partitions where the site allows it, with those that they stand for, and with each that
    stands for none but these: a job keeps its name where Slurm starts it before it is steered."""
    names = set(config.partitions.chain)
    for group, members in config.partitions.groups.items():
        if group in names:
            names.update(members)
        elif members and names.issuperset(members):
            names.add(group)
    return frozenset(names)


def _wait_s(job: Job, config: Config) -> float:
    declared = job.declaration or Declaration()
    grace_s = declared.asks.grace_s if declared.habit == "signal" else None
    return config.moving.ack_wait_s if grace_s is None else grace_s


def _samples(job: Job, progress: Progress | None) -> int | None:
    """Its progress in this attempt; None where that is not known."""
    if progress is None or progress.restarts != job.restarts:
        return None
    by_runtime = job.declaration is not None and job.declaration.habit == "yes"
    return progress.samples if by_runtime or progress.samples > 0 else None
