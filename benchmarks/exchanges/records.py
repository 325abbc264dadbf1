"""What a run saw, and what people did in it."""

from dataclasses import dataclass, field

from slurm_hadar.domain.job import Job, JobState

USERS_NICE = frozenset({"submit", "nice", "top"})
"""Acts after which a job has the Nice that is noted with them."""


@dataclass(frozen=True, slots=True)
class Act:
    """What a person did to a job, that ended at ``at_s`` (since the epoch). ``what``: submit, nice,
    hold, release, or top, of which each job whose Nice it changed has one. ``nice``: that the job
    has then."""

    at_s: float
    what: str
    job: str
    user: str
    nice: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A job in one look."""

    job: str
    user: str
    managed: bool
    state: JobState
    priority: int
    nice: int
    held: bool
    number: int
    restarts: int

    @classmethod
    def of(cls, job: Job) -> "Row":
        """As Slurm shows it."""
        return cls(
            job.id, job.user, job.managed, job.state, job.priority, job.nice, job.held, job.raw_id,
            job.restarts,
        )  # fmt: skip

    @property
    def waits(self) -> bool:
        """Whether Slurm may start it."""
        return self.state is JobState.PENDING and not self.held


@dataclass(frozen=True, slots=True)
class Look:
    """All jobs as squeue showed them, asked at ``at_s`` (since the epoch)."""

    at_s: float
    rows: tuple[Row, ...]


@dataclass
class Record:
    """A run. ``written``: Nices that the controller wrote, (time, job, Nice), from its journal;
    ``retired``: the last look, after ``hadar retire``."""

    interval_s: float
    acts: list[Act] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    written: list[tuple[float, str, int]] = field(default_factory=list)
    retired: Look | None = None
