"""What one run leaves: a JSON that the analysis reads, whenever it was written.

Times are seconds since the run began.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job, on one node. ``by``: ``main``, ``backfill``, or empty where Slurm's log
    does not say which of its schedulers it was."""

    start_s: float
    end_s: float
    node: str
    gpus: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, or one task of an array.

    ``partitions``, ``gpu_type`` (empty: any), ``gpus``, ``types`` (declared; empty: any) and
    ``limit_s``, its time limit, are its owner's request. ``priority`` is the first that squeue
    showed, ``number`` Slurm's own.
    """

    name: str
    kind: str
    user: str
    managed: bool
    arrival_s: float
    submit_s: float
    number: int
    priority: int
    partitions: tuple[str, ...]
    gpus: int
    gpu_type: str = ""
    types: tuple[str, ...] = ()
    limit_s: float = 0.0
    state: str = ""
    attempts: tuple[Attempt, ...] = ()

    @property
    def completed(self) -> bool:
        """Whether it ended well."""
        return self.state == "COMPLETED" and bool(self.attempts)

    @property
    def end_s(self) -> float:
        """When its last attempt ended."""
        return self.attempts[-1].end_s

    @property
    def time_s(self) -> float:
        """From its arrival to its end."""
        return self.end_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue as squeue shows it at one moment."""

    name: str
    number: int
    priority: int
    eligible_s: float
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """The waiting jobs from ``at_s`` on, until the next look."""

    at_s: float
    waiting: tuple[Waiting, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. ``share``: part of the jobs that went through hbatch, 0 to 1; ``nodes``: name ->
    (GPU type, GPUs); ``partitions``: name -> nodes; ``load``: mean load of the machine;
    ``passes``: when Slurm's main scheduler began to look through its queue."""

    label: str
    seed: int
    share: float
    nodes: Mapping[str, tuple[str, int]]
    partitions: Mapping[str, tuple[str, ...]]
    jobs: tuple[JobRecord, ...]
    looks: tuple[Look, ...]
    load: float = 0.0
    passes: tuple[float, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def by_name(self) -> dict[str, JobRecord]:
        """The jobs by name."""
        return {job.name: job for job in self.jobs}

    def write(self, path: Path) -> None:
        """Write the JSON."""
        path.write_text(json.dumps({"version": _VERSION, **asdict(self)}) + "\n")


def read(path: Path) -> RunRecord:
    """The run in a JSON of :meth:`RunRecord.write`. Raises ValueError for another version."""
    source: dict[str, Any] = json.loads(path.read_text())
    if source.pop("version", None) != _VERSION:
        raise ValueError(f"{path} is of another version; run the benchmark again")
    return RunRecord(
        label=source["label"],
        seed=source["seed"],
        share=source["share"],
        nodes={name: (kind, gpus) for name, (kind, gpus) in source["nodes"].items()},
        partitions={name: tuple(nodes) for name, nodes in source["partitions"].items()},
        jobs=tuple(_job(one) for one in source["jobs"]),
        looks=tuple(
            Look(
                one["at_s"],
                tuple(
                    Waiting(**{**row, "partitions": tuple(row["partitions"])})
                    for row in one["waiting"]
                ),
            )
            for one in source["looks"]
        ),
        load=source["load"],
        passes=tuple(source["passes"]),
        notes=tuple(source["notes"]),
    )


def _job(one: dict[str, Any]) -> JobRecord:
    changed = {
        "partitions": tuple(one["partitions"]),
        "types": tuple(one["types"]),
        "attempts": tuple(Attempt(**attempt) for attempt in one["attempts"]),
    }
    return JobRecord(**{**one, **changed})
