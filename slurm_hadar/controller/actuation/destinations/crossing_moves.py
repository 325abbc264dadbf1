"""Moves that would take each other's place: one job leaves the node that another one moves to.

What leaves may be the rest of what a job that waits needs to start there. And Slurm starts nothing
on a node while a job leaves it, so one that prefers this node would start elsewhere meanwhile.
"""

from collections.abc import Iterable
from typing import Protocol

from slurm_hadar.controller.snapshot.eligibility import Place
from slurm_hadar.domain.job import Job, JobState


class MovingJob(Protocol):
    """A job whose move is under way."""

    @property
    def job(self) -> Job:
        """As Slurm shows it."""
        ...

    @property
    def held(self) -> Place:
        """Where it goes."""
        ...


class CrossingMoves:
    """The moves that are under way or chosen already: which nodes they leave, and where they go."""

    def __init__(self, under_way: Iterable[MovingJob]) -> None:
        """``under_way``: moves of earlier ticks."""
        self._leaving: dict[str, str] = {}
        self._coming: dict[str, str] = {}
        for target in under_way:
            self._coming |= dict.fromkeys(target.held, target.job.id)
            if target.job.state in (JobState.RUNNING, JobState.COMPLETING):
                self._leave(target.job, target.held)

    def add(self, job: Job, place: Place) -> None:
        """This job, which runs, is moved to ``place``."""
        self._coming |= dict.fromkeys(place, job.id)
        self._leave(job, place)

    def _leave(self, job: Job, place: Place) -> None:
        self._leaving |= {name: job.id for name in job.gpus if name not in place}

    def why_not(self, job: Job, place: Place) -> str:
        """Why this job cannot be moved to ``place`` beside the others; "": it can."""
        for name in job.gpus:
            if name in self._coming and name not in place:
                return f"job {self._coming[name]} is on its way to {name}, which it would leave"
        for name in place:
            if name in self._leaving and name not in job.gpus:
                return f"job {self._leaving[name]} leaves {name}, where it would go"
        return ""
