"""What a page shows of the cluster to one user: its nodes, its queue, and its last day."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.reports.status import Overview
from slurm_hadar.reports.text import MoveRow

HIDDEN = ""
"""Stands for jobs that the user may not see."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node. ``gpus`` and ``used``: by type; ``jobs``: GPUs that each job has there, those that
    this user may not see together under :data:`HIDDEN`; ``busy`` 0-1: mean utilization of the GPUs
    whose jobs report it, None: unknown."""

    name: str
    state: str
    usable: bool
    gpus: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All of one moment. ``expected_s``: waiting job -> when Slurm expects to start it, s since
    the epoch; ``interval_s``: between two ticks."""

    overview: Overview
    nodes: list[NodeRow] = field(default_factory=list)
    expected_s: Mapping[str, float] = field(default_factory=dict)
    interval_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Stay:
    """A job on its GPUs from ``begin_s`` to ``end_s``, s since the epoch. ``gpus``: by type;
    ``open``: it is still there."""

    job: str
    user: str
    name: str
    gpus: Mapping[str, int]
    nodes: str
    begin_s: float
    end_s: float
    open: bool = False


@dataclass(frozen=True, slots=True)
class JobMove:
    """A move or stop of a job."""

    job: str
    move: MoveRow


@dataclass(frozen=True, slots=True)
class JobTimeline:
    """The last day. ``from_s`` to ``to_s``: what is shown; ``known_s``: since when jobs that have
    ended since are known; ``gaps``: from when to when no controller looked; all in s since the
    epoch."""

    from_s: float
    to_s: float
    known_s: float
    segments: list[Stay] = field(default_factory=list)
    moves: list[JobMove] = field(default_factory=list)
    gaps: Sequence[tuple[float, float]] = ()
