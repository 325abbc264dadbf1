"""What the policy says to a job that is not submitted."""

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.cluster import Cluster


class Asking(Controller):
    """A controller that also sees a job which is not there. For ``plan`` only."""

    def __init__(
        self, config: Config, cluster: Cluster, store: Store, job: Callable[[Observation, int], Job]
    ) -> None:
        """``job``: makes it from what is seen and the priority that it would have."""
        super().__init__(config, cluster, store, open_rates(config, store.connection), os.getuid())
        self._job = job

    def observe(self) -> Observation:
        """The cluster, and the job as the last in Slurm's order."""
        observation = super().observe()
        waiting = [j.priority for j in observation.jobs.values() if j.state is JobState.PENDING]
        job = self._job(observation, min((p for p in waiting if p > 0), default=1))
        return replace(observation, jobs={**observation.jobs, job.id: job})


@contextmanager
def copy_of_store(config: Config) -> Iterator[tuple[Store, bool]]:
    """A throw-away copy of the controller's file, and whether it could be read.

    Empty where it could not: it is the controller's user's alone. Nothing is written beside it.
    """
    with tempfile.TemporaryDirectory(prefix="hadar-plan-") as name:
        folder = Path(name)
        copied = _copy(config.site.state_dir / "hadar.sqlite", folder / "hadar.sqlite")
        store = Store.open(folder)
        try:
            yield store, copied
        finally:
            store.close()


def _copy(source: Path, target: Path) -> bool:
    try:
        if not os.access(source, os.R_OK):
            return False
        reading = sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)
        writing = sqlite3.connect(target)
        try:
            reading.backup(writing)
        finally:
            reading.close()
            writing.close()
    except sqlite3.Error:
        target.unlink(missing_ok=True)
        return False
    return True


def place_in(report: TickReport, job: str) -> tuple[Mapping[str, int], Sequence[str], str]:
    """Where the policy expects Slurm to start the job: GPUs by type, nodes, and the reason; no GPUs
    where it has to wait, or is not steered."""
    idle = report.backfill
    for excluded in (report.snapshot.excluded, idle.excluded):
        if job in excluded:
            return {}, (), f"it is not steered: {excluded[job]}"
    placement = {**report.plan.placements, **idle.placements}.get(job)
    if placement is None:
        why = {**report.plan.waiting, **idle.waiting}.get(job, "the policy has no place for it now")
        return {}, (), f"it waits: {why}"
    deferred = report.diff.deferred.get(job)
    if deferred:
        return {}, (), f"it waits: {deferred}. The policy said: {placement.reason}"
    return placement.gpus, tuple(placement.nodes), placement.reason
