"""What is held for each job of a trial while it goes on and when it is over."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.faults.child import BEGINS_AT
from benchmarks.faults.jobs import Jobs, held_by_slurm
from benchmarks.faults.plans import complaint
from benchmarks.faults.scene import (
    ALONE,
    BEGINS,
    HELD,
    LEAVES,
    PREFERRED,
    PREFERS,
    TRAININGS,
    WAITING,
)
from slurm_hadar.config import Config
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.runtime.samples import check_lineage, from_plain

_CURED = ("released", "its placement could not")
"""How the outcomes begin by which a job that Slurm held is not held any more."""
_ENDED = ("moved", "stopped")
_SLACK_S = 2.0
"""Of Slurm's times, which are whole seconds."""


class Promises:
    """Looks at the jobs of one trial while no controller is at work; says what is broken."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        jobs: Jobs,
        states: Sequence[Path],
        say: Callable[[str], None],
        samples: int,
    ) -> None:
        """``folder`` has the jobs' own files; ``states``: state folders of the controllers that
        take part, also of those that come later; ``samples``: of a training."""
        self._config, self._folder, self._say = config, folder, say
        self._jobs, self._ids, self._states, self._samples = jobs, jobs.ids, states, samples

    def kinds(self) -> set[str]:
        """What was done to the jobs, in the words of the journal."""
        return {entry.kind for id_ in self._ids.values() for entry in self._read(id_)}

    def _read(self, id_: str) -> list[Entry]:
        found: list[Entry] = []
        for folder in self._states:
            store = Store.open(folder)
            try:
                found += store.history(id_)
            finally:
                store.close()
        return found if len(self._states) == 1 else sorted(found, key=_opened, reverse=True)

    def decided(self, waiting: Mapping[str, Mapping[str, str]]) -> None:
        """After an undisturbed tick each job that waits has what was decided for it.

        ``waiting``: job -> what it asks for then.
        """
        for name in WAITING:
            now = waiting.get(self._ids[name])
            if now is None:
                continue
            if BEGINS_AT in now:
                self._say(f"{name}: a tick left it an earlier release's begin time")
            if name == PREFERS and now["Partition"] != ",".join(PREFERRED):
                self._say(f"{name}: a tick did not give it its list, but {now['Partition']}")
            if name == LEAVES and now["Partition"] != self._jobs.asked[name][0]:
                self._say(f"{name}: a tick did not restore its list {now['Partition']}")

    def retired(self, jobs: Mapping[str, Job]) -> None:
        """After ``hadar retire`` each job is an ordinary one, and one that waits is as its owner
        asked."""
        for name, id_ in self._ids.items():
            job = jobs[id_]
            if job.managed and job.state is not JobState.FINISHED:
                self._say(f"{name}: it is managed after hadar retire")
            if job.state is not JobState.PENDING:
                continue
            if job.held and HELD.get(name) != "launch failed":
                self._say(f"{name}: it is held after hadar retire ({job.reason})")
            if not job.restarts and _begins_later(job):
                self._say(f"{name}: it has a begin time after hadar retire")
            partitions, features = self._jobs.asked[name]
            # After a requeue Slurm puts the one first in which the job ran.
            same = set(job.partitions) == set(partitions.split(","))
            if not same or job.features != features:
                found = f"{','.join(job.partitions)} and {job.features!r}"
                self._say(f"{name}: its request is not its owner's after hadar retire, but {found}")

    def all_over(self, jobs: Mapping[str, Job], alone: bool) -> bool:
        """Whether every job has ended, or is held by Slurm and nobody is there to release it.

        ``alone``: no controller ticks any more.
        """
        history = {name: self._read(id_) for name, id_ in self._ids.items()}
        over = True
        for name, id_ in self._ids.items():
            job = jobs.get(id_)
            if job is None:
                self._say(f"{name}: Slurm does not show it")
                over = False
                continue
            self._look(name, job, history[name])
            left = alone and held_by_slurm(name, job) and not _cured(history[name])
            over &= left or job.state is JobState.FINISHED
            if job.state is JobState.FINISHED:
                self._ended(name, job, history[name])
        return over

    def _look(self, name: str, job: Job, history: Sequence[Entry]) -> None:
        if job.state is JobState.PENDING and job.held and not held_by_slurm(name, job):
            self._say(f"{name}: it is held ({job.reason})")
        if job.state is JobState.PENDING and not job.restarts and _begins_later(job):
            given_s = self._jobs.begins_s if name == BEGINS else 0.0
            if job.eligible_s > given_s + _SLACK_S:
                self._say(f"{name}: it waits for a begin time that its owner did not ask for")
        plan = read_plan(self._config.site.exchange_dir, job.id, (self._config.controller_uid,))
        wrong = complaint(plan, job, history)
        move = next((entry for entry in history if entry.kind == "move"), None)
        if plan is None and move is not None and move.outcome in _ENDED:
            wrong = "it has no plan file, although it was sent a plan"
        if wrong:
            self._say(f"{name}: {wrong}")

    def _ended(self, name: str, job: Job, history: Sequence[Entry]) -> None:
        if not job.slurm_state.startswith("COMPLETED"):
            self._say(f"{name}: it ended as {job.slurm_state}")
        if job.features != self._jobs.asked[name][1]:
            self._say(f"{name}: its owner's constraint became {job.features!r}")
        if name == ALONE and any(entry.kind != "retire" for entry in history):
            self._say(f"{name}: it was not left alone: {history[0].kind}")
        # The script of a job whose launch failed did not begin with its first attempt.
        first = 1 if name == "fails" else 0
        path = self._folder / f"{name}.starts"
        starts = path.read_text().split() if path.exists() else []
        if not starts or starts != [str(first + number) for number in range(len(starts))]:
            self._say(f"{name}: its starts were {starts}")
        moves = sum(entry.kind == "move" for entry in history)
        if len(starts) - 1 > moves:
            self._say(f"{name}: {len(starts)} starts, {moves} moves in the journal")
        if name in TRAININGS:
            self._lineage(name)

    def _lineage(self, name: str) -> None:
        path = self._folder / f"{name}.json"
        if not path.exists():
            self._say(f"{name}: it left no record of what went in")
            return
        record = json.loads(path.read_text())
        rows = from_plain(record["segments"])
        fault = check_lineage(rows, record["dataset_size"], samples=self._samples)
        if fault:
            self._say(f"{name}: not every sample went in exactly once: {fault}")


def _opened(entry: Entry) -> float:
    return entry.opened_s


def _begins_later(job: Job) -> bool:
    return job.eligible_s > time.time() + _SLACK_S


def _cured(history: Sequence[Entry]) -> bool:
    return any((entry.outcome or "").startswith(_CURED) for entry in history)
