"""What is held for each job of a trial while it goes on and when it is over."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.faults.plans import complaint
from benchmarks.faults.scene import ALL, HELD, ODD_CONSTRAINT, TRAININGS
from slurm_hadar.config import Config
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.runtime.plan_file import read_plan
from slurm_hadar.runtime.samples import check_lineage, from_plain

_CURED = ("released", "its placement could not")
"""How the outcomes begin by which a job that Slurm held is not held any more."""
_TOLD = ("done", "moved", "stopped")


class Promises:
    """Looks at the jobs of one trial while no controller is at work; says what is broken."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        ids: Mapping[str, str],
        say: Callable[[str], None],
        samples: int,
    ) -> None:
        """``folder`` has the jobs' own files; ``ids``: name -> job id; ``samples``: of a
        training."""
        self._config, self._folder, self._ids, self._say = config, folder, ids, say
        self._samples = samples
        self.states = [config.site.state_dir]
        """State folders of all controllers that took part."""

    def kinds(self) -> set[str]:
        """What was done to the jobs, in the words of the journal."""
        # The renewal of leases is written down for all jobs together.
        return {entry.kind for id_ in (*self._ids.values(), "") for entry in self._read(id_)}

    def _read(self, id_: str) -> list[Entry]:
        found: list[Entry] = []
        for folder in self.states:
            store = Store.open(folder)
            try:
                found += store.history(id_)
            finally:
                store.close()
        return found if len(self.states) == 1 else sorted(found, key=_opened, reverse=True)

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
            left = alone and _held_by_slurm(name, job) and not _cured(history[name])
            over &= left or job.state is JobState.FINISHED
            if job.state is JobState.FINISHED:
                self._ended(name, job, history[name])
        return over

    def _look(self, name: str, job: Job, history: Sequence[Entry]) -> None:
        if job.state is JobState.PENDING and job.held and not _held_by_slurm(name, job):
            self._say(f"{name}: it is held ({job.reason})")
        plan = read_plan(self._config.site.exchange_dir, job.id, (self._config.controller_uid,))
        wrong = complaint(plan, job, history)
        told = next((entry for entry in history if entry.kind in ("start", "move")), None)
        if plan is None and told is not None and told.outcome in _TOLD:
            wrong = "it has no plan file, although it was told a plan"
        if wrong:
            self._say(f"{name}: {wrong}")

    def _ended(self, name: str, job: Job, history: Sequence[Entry]) -> None:
        if not job.slurm_state.startswith("COMPLETED"):
            self._say(f"{name}: it ended as {job.slurm_state}")
        if name == "leaves" and job.features != ODD_CONSTRAINT:
            self._say(f"{name}: its owner's constraint became {job.features!r}")
        if name == "cannot" and job.features not in ("", *ALL[name].gpus):
            self._say(f"{name}: it ran with the constraint {job.features!r}")
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


def _held_by_slurm(name: str, job: Job) -> bool:
    """Whether it is as Slurm itself left it before the tick."""
    reason = job.reason.lower().replace("_", " ")
    return job.state is JobState.PENDING and job.held and HELD.get(name, "?") in reason


def _cured(history: Sequence[Entry]) -> bool:
    return any((entry.outcome or "").startswith(_CURED) for entry in history)
