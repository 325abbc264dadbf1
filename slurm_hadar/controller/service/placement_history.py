"""Where the jobs of the last day were, as the ticks saw it, also those before a restart.

The journal has the moves only, and Slurm forgets a job some minutes after its end.
"""

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.placement_tables import StayTable, StoredStay
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.controller.presentation.overview import Viewer
from slurm_hadar.controller.snapshot.eligibility import placed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import by_type
from slurm_hadar.reports.cluster import JobMove, JobTimeline, Stay

DAY_S = 86_400.0
_MOST = 20_000
"""Stays of jobs that are kept; the oldest are dropped first."""
_GAP_S = 300.0
"""A shorter restart misses nothing: Slurm shows a job for as long after its end."""
_Key = tuple[str, float, str]


class PlacementHistory:
    """Records each tick; answers from another thread."""

    def __init__(self, connection: sqlite3.Connection | None = None) -> None:
        """``connection``: the state file's, of the thread that records; without one nothing
        outlives the process. Raises sqlite3.Error."""
        self._table = StayTable(connection)
        self._stays: dict[_Key, StoredStay] = {}
        self._watched: list[tuple[float, float]] = []
        self._unwritten: dict[_Key, StoredStay] = {}
        """As after a tick on a full disk."""
        self._lock = threading.Lock()

    def read(self, now: float) -> None:
        """What was recorded before now, s since the epoch. Raises sqlite3.Error."""
        with self._lock:
            self._stays = {_key(one): one for one in self._table.since(now - DAY_S)}
            self._watched = self._table.watched()

    def record(self, observation: Observation) -> None:
        """A tick is over. Raises sqlite3.Error where it could not be written."""
        if not self._watched:
            self.read(observation.now)
        with self._lock:
            last = self._watched[-1] if self._watched else None
            if last is not None and last[0] <= observation.now <= last[1] + _GAP_S:
                self._watched[-1] = (last[0], observation.now)
            else:
                self._watched.append((observation.now, observation.now))
            here = {}
            for job in observation.jobs.values():
                if job.state is JobState.RUNNING and job.gpus:
                    here[job.id, job.start_s, ",".join(job.nodes)] = job
            ended = self._ended(observation, here, last[1] if last is not None else observation.now)
            begun = [
                _stay(job, key, observation)
                for key, job in here.items()
                if key not in self._stays or self._stays[key].end_s is not None
            ]
            changed = [*begun, *ended]
            new = {_key(one): one for one in changed}
            self._stays |= new
            self._unwritten |= new
            self._forget(observation.now - DAY_S)
            watched = self._watched[-1]
        self._table.keep(self._unwritten.values(), watched, observation.now - DAY_S)
        self._unwritten.clear()

    def _ended(
        self, observation: Observation, here: dict[_Key, Job], last_s: float
    ) -> list[StoredStay]:
        """``last_s``: when a tick looked before this one."""
        found = []
        for key, stay in self._stays.items():
            if key in here or stay.end_s is not None:
                continue
            job = observation.jobs.get(stay.job)
            # Of a job that moved only the tick knows that it has left.
            same = job is not None and job.start_s == stay.begin_s
            known = job is not None and same and stay.begin_s < job.end_s <= observation.now
            found.append(replace(stay, end_s=job.end_s if job is not None and known else last_s))
        return found

    def _forget(self, before_s: float) -> None:
        for key in [key for key, one in self._stays.items() if (one.end_s or before_s) < before_s]:
            del self._stays[key]
        while len(self._stays) > _MOST:
            del self._stays[next(iter(self._stays))]
        while len(self._unwritten) > _MOST:
            del self._unwritten[next(iter(self._unwritten))]
        self._watched = [one for one in self._watched if one[1] >= before_s]

    @property
    def last_s(self) -> float:
        """When a tick looked last, s since the epoch; 0: none did."""
        return self._watched[-1][1] if self._watched else 0.0

    def timeline(self, now: float, moves: Iterable[Entry], viewer: Viewer) -> JobTimeline:
        """What this user may see of it. ``moves``: the journal's of this day."""
        begin = now - DAY_S
        with self._lock:
            stays = [
                one
                for one in self._stays.values()
                if viewer.everything or one.uid == viewer.uid or not viewer.hidden_jobs
            ]
            watched = list(self._watched)
        owners = {one.job: one.uid for one in stays}
        shown = [
            JobMove(entry.job, job_explanation.move_row(entry))
            for entry in moves
            if viewer.everything or owners.get(entry.job) == viewer.uid
        ]
        known_s = max(begin, watched[0][0]) if watched else now
        gaps = [
            (left[1], right[0])
            for left, right in pairwise(watched)
            if right[0] > max(begin, left[1])
        ]
        segments = [_segment(one, begin, now) for one in stays if (one.end_s or now) > begin]
        return JobTimeline(begin, now, known_s, segments, shown, gaps)


def _key(stay: StoredStay) -> _Key:
    return stay.job, stay.begin_s, stay.nodes


def _stay(job: Job, key: _Key, observation: Observation) -> StoredStay:
    gpus = by_type(placed(job, observation.nodes))
    return StoredStay(*key, job.uid, job.user, job.name, gpus)


def _segment(stay: StoredStay, begin: float, now: float) -> Stay:
    return Stay(
        job=stay.job,
        user=stay.user,
        name=stay.name,
        gpus=stay.gpus,
        nodes=stay.nodes,
        begin_s=max(begin, stay.begin_s),
        end_s=now if stay.end_s is None else stay.end_s,
        open=stay.end_s is None,
    )
