"""When a tick that follows its moves asks Slurm about them again, and for how long.

From its requeue to its release every other job may take the place of a job that moves. So it is
looked at often, with almost all requests of the minute, and past ``moving.settle_s``. A job that
was only asked keeps its GPUs: it is looked at less and less often, with half of the requests.
"""

from collections.abc import Iterable, Mapping
from enum import Enum

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.move_steps import acknowledged, only_waits
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.domain.job import Job
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.slurm.traffic import Traffic

POLL_S = 0.5
_LONGEST_ASKED_S, _LONGEST_REQUEUED_S = 4.0, 2.0
_LOOKS_OF_ONE_PAUSE = 8
"""At a requeued job, before the pause between two doubles."""
_POLLED, _ANSWERED = 0.5, 0.25
"""Parts of a minute's requests that must be left to look at a job that was asked, and at one that
has saved; the second also for its requeue, so that its release can follow."""
_FOR_RELEASES = 4
"""Requests that stay for the releases themselves."""
_FEW = 16
"""With fewer left the pauses at a requeued job are the longest at once."""
_MORE_S = 5.0
"""Most moves take less from their requeue to their release."""
_SLACK_S = 0.05


def sees_it_through(traffic: Traffic) -> bool:
    """Whether a job may be requeued now: enough requests are left to release it as well."""
    return traffic.part_left(_ANSWERED)


def longest_s(config: Config) -> float:
    """How long a tick follows jobs at most that it has requeued: until the next tick is due, which
    goes on with them, but no longer than they may take to leave. 0 where nothing is followed."""
    moving = config.moving
    if not moving.settle_s:
        return 0.0
    next_tick_s = max(config.controller.interval_s, moving.settle_s + _MORE_S)
    return min(next_tick_s, moving.settle_s + moving.after_return_s)


class _Stage(Enum):
    """How far a move is; its pauses begin anew with each stage."""

    ASKED = "asked"
    ANSWERED = "answered"
    GONE = "gone"
    """Requeued, by us or as its job left by itself."""


class PollSchedule:
    """Counts the looks of one tick at its moves. Times in s since it began to follow them."""

    def __init__(self, traffic: Traffic, after_return_s: float) -> None:
        self._traffic, self._after_return_s = traffic, after_return_s
        self._looks: dict[tuple[int, _Stage], int] = {}
        self._looked_s: dict[tuple[int, _Stage], float] = {}
        self._shown: Mapping[str, Job] = {}

    def due(
        self,
        entries: Iterable[Entry],
        progress: Mapping[str, Progress],
        passed_s: float,
        now: float,
    ) -> bool:
        """Whether Slurm is asked about these open moves now."""
        return any(self._due(one, progress.get(one.job), passed_s, now) for one in entries)

    def _due(self, entry: Entry, said: Progress | None, passed_s: float, now: float) -> bool:
        stage = self._stage(entry, said)
        if not self._pause_is_over(entry, stage, passed_s):
            return False
        if stage is _Stage.ANSWERED:
            return self._traffic.part_left(_ANSWERED)
        if stage is _Stage.ASKED:
            return _may_leave(entry, said) and self._traffic.part_left(_POLLED)
        job = self._shown.get(entry.job)
        if job is not None and only_waits(entry, job, now, self._after_return_s):
            return False
        return self._traffic.requests_left() > _FOR_RELEASES

    def looked(
        self,
        entries: Iterable[Entry],
        progress: Mapping[str, Progress],
        shown: Mapping[str, Job],
        passed_s: float,
    ) -> None:
        """Slurm was asked about them, and shows these jobs."""
        for entry in entries:
            key = entry.id, self._stage(entry, progress.get(entry.job))
            self._looks[key] = self._looks.get(key, 0) + 1
            self._looked_s[key] = passed_s
        self._shown = shown

    def _stage(self, entry: Entry, said: Progress | None) -> _Stage:
        job = self._shown.get(entry.job)
        by_itself = job is not None and job.restarts != entry.details.get("restarts")
        if entry.phase == REQUEUED or by_itself:
            return _Stage.GONE
        return _Stage.ANSWERED if acknowledged(entry, said) else _Stage.ASKED

    def _pause_is_over(self, entry: Entry, stage: _Stage, passed_s: float) -> bool:
        looks = self._looks.get((entry.id, stage), 0)
        if not looks:
            return True
        gone = stage is _Stage.GONE
        doublings = (looks - 1) // (_LOOKS_OF_ONE_PAUSE if gone else 1)
        longest = _LONGEST_REQUEUED_S if gone else _LONGEST_ASKED_S
        if gone and self._traffic.requests_left() < _FEW:
            doublings = 10
        pause_s = min(POLL_S * 2.0 ** min(doublings, 10), longest)
        return passed_s - self._looked_s[entry.id, stage] > pause_s - _SLACK_S


def _may_leave(entry: Entry, progress: Progress | None) -> bool:
    """Whether a job that has not acknowledged may get further by itself."""
    if entry.phase != "asked" or entry.details.get("habit", "yes") != "yes":
        return True
    return progress is not None and progress.finished
