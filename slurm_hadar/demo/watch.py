"""Follows the jobs of one run and keeps what the page shows of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.exchange.progress import read_all_progress
from slurm_hadar.reports.run import ClusterGpu, JobTimes, Run, TimelineSegment
from slurm_hadar.slurm.cluster import Cluster

_POLL_S = 1.0


@dataclass
class _Piece:
    job: str
    name: str
    attempt: int
    start_s: float
    end_s: float
    gpus: Mapping[str, Mapping[str, int]]
    over: bool = False


@dataclass
class RunObserver:
    """One run under observation. Times of the result are s since ``began``."""

    cluster: Cluster
    exchange: Path
    uid: int
    began: float
    submitted: dict[str, tuple[str, float]] = field(default_factory=dict)
    """job -> (name, time of submission in s since the epoch)."""
    _pieces: dict[tuple[str, int], _Piece] = field(default_factory=dict)
    _ends: dict[str, tuple[float, bool]] = field(default_factory=dict)
    _samples: list[tuple[float, float]] = field(default_factory=list)
    _lost: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """One reading of the queue and of the jobs' own progress."""
        now = time.time()
        for job in self.cluster.read_jobs():
            if job.id in self.submitted:
                self._note(job, now)
        progress = read_all_progress(self.exchange, dict.fromkeys(self.submitted, self.uid))
        alive = {p.job for p in self._pieces.values() if not p.over}
        rate = sum(p.rate for p in progress.values() if p.job in alive and not p.finished)
        self._samples.append((now - self.began, rate))
        self._lost |= {p.job: p.lost for p in progress.values()}

    @property
    def done(self) -> int:
        """Jobs that have ended."""
        return len(self._ends)

    def until_done(
        self, timeout_s: float, tell: Callable[[str], None], beside: Callable[[], None]
    ) -> None:
        """Look until every job has ended; ``beside`` is called at each look.

        Raises HadarError after ``timeout_s``.
        """
        while self.done < len(self.submitted):
            beside()
            self.look()
            tell(self._words())
            if time.time() - self.began > timeout_s:
                left = sorted(set(self.submitted) - set(self._ends))
                raise HadarError(
                    f"jobs {', '.join(left)} did not end within {timeout_s:.0f} s; see their logs"
                )
            time.sleep(_POLL_S)

    def run(self, name: str, description: str, nodes: Sequence[Node]) -> Run:
        """The run as the page wants it."""
        gpus = tuple(
            ClusterGpu(node.name, kind, index)
            for node in nodes
            for index, kind in enumerate(
                kind for kind, count in node.gpus.items() for _ in range(count)
            )
        )
        jobs = tuple(
            JobTimes(
                job,
                label,
                at - self.began,
                self._ends[job][0] - self.began if job in self._ends else None,
                self._ends.get(job, (0.0, False))[1],
            )
            for job, (label, at) in self.submitted.items()
        )
        return Run(
            name=name,
            description=description,
            gpus=gpus,
            jobs=jobs,
            segments=tuple(self._segments(gpus)),
            samples=tuple(self._samples),
            samples_lost=sum(self._lost.values()),
        )

    def _note(self, job: Job, now: float) -> None:
        key = (job.id, job.restarts)
        for (id_, attempt), piece in self._pieces.items():
            if id_ == job.id and attempt < job.restarts:
                piece.over = True
        if job.state is JobState.RUNNING and job.gpus:
            piece = self._pieces.setdefault(
                key, _Piece(job.id, self.submitted[job.id][0], job.restarts, job.start_s, now, {})
            )
            piece.gpus, piece.end_s = job.gpus, now
        elif job.state is JobState.FINISHED and job.id not in self._ends:
            self._ends[job.id] = (job.end_s, job.slurm_state.startswith("COMPLETED"))
            if key in self._pieces:
                self._pieces[key].end_s = job.end_s
                self._pieces[key].over = True

    def _segments(self, gpus: Sequence[ClusterGpu]) -> list[TimelineSegment]:
        """Slurm tells how many GPUs of a node a job has; which of them is filled in by time."""
        free_at = {(gpu.node, gpu.type, gpu.index): 0.0 for gpu in gpus}
        found = []
        for piece in sorted(self._pieces.values(), key=lambda p: p.start_s):
            for node, by_type in piece.gpus.items():
                for kind, count in by_type.items():
                    rows = sorted(
                        (free, index)
                        for (name, type_, index), free in free_at.items()
                        if name == node and type_ == kind
                    )[:count]
                    for _, index in rows:
                        free_at[node, kind, index] = piece.end_s
                    found.append(
                        TimelineSegment(
                            job=piece.job,
                            name=piece.name,
                            node=node,
                            gpu_indices=tuple(sorted(index for _, index in rows)),
                            start_s=piece.start_s - self.began,
                            end_s=piece.end_s - self.began,
                            attempt=piece.attempt,
                            type=kind,
                        )
                    )
        return found

    def _words(self) -> str:
        running = sum(not piece.over for piece in self._pieces.values())
        return (
            f"{time.time() - self.began:4.0f} s  {running} running, {self.done} of "
            f"{len(self.submitted)} done"
        )
