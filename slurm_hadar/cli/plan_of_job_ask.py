"""What Slurm and the policy say to a job that is not submitted."""

import os
import re
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observed
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.cluster import Cluster
from slurm_hadar.slurm.commands import clean_line
from slurm_hadar.slurm.times import parse_date

_SAYS_START = re.compile(
    r"to start at (\S+) using \d+ \w+ on (?:nodes )?(\S+)(?: in partition (\S+))?"
)
_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Start:
    """sbatch's answer to ``--test-only``. ``start_s`` since the epoch; ``refused``: why it would
    not take the job, else empty; ``code``: its exit code; ``said``: its stderr."""

    start_s: float = 0.0
    nodes: str = ""
    partition: str = ""
    refused: str = ""
    code: int = 0
    said: str = ""


def start_of(
    program: str, words: Sequence[str], environment: Mapping[str, str], script: bytes | None
) -> Start:
    """When Slurm alone would start the job. ``script``: what comes on its standard input.

    Slurm counts a job number on for each such question, and keeps nothing else.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--test-only", *words],
            executable=program,
            env=dict(environment),
            input=script,
            stdin=subprocess.DEVNULL if script is None else None,
            capture_output=True,
            # A script that came down a pipe waits behind its number.
            close_fds=False,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HadarError(f"sbatch --test-only gave no answer within {_LIMIT_S:g} s") from None
    except OSError as error:
        raise HadarError(f"{program} cannot be run: {error.strerror}") from None
    said = done.stderr.decode(errors="replace")
    match = _SAYS_START.search(said)
    if done.returncode == 0 and match:
        return Start(parse_date(match[1]), match[2], match[3] or "", said=said)
    lines = [
        clean_line(line).removeprefix("allocation failure: ")
        for line in said.splitlines()
        if line.strip()
    ]
    lines = [line for line in lines if not line.startswith("Try ")]
    return Start(refused=lines[-1] if lines else "no reason given", code=done.returncode, said=said)


class Asking(Controller):
    """A controller that also sees a job which is not there. For ``plan`` only."""

    def __init__(
        self, config: Config, cluster: Cluster, store: Store, job: Callable[[Observed, int], Job]
    ) -> None:
        """``job``: makes it from what is seen and the priority that it would have."""
        super().__init__(config, cluster, store, open_rates(config, store.connection), os.getuid())
        self._job = job

    def observe(self) -> Observed:
        """The cluster, and the job as the last in Slurm's order."""
        seen = super().observe()
        waiting = [j.priority for j in seen.jobs.values() if j.state is JobState.PENDING]
        job = self._job(seen, min((p for p in waiting if p > 0), default=1))
        return replace(seen, jobs={**seen.jobs, job.id: job})


@contextmanager
def copy_of_store(config: Config) -> Iterator[tuple[Store, bool]]:
    """A throw-away copy of the controller's file, and whether it could be read.

    Empty where it could not: it is the controller's user's alone. Nothing is written beside it.
    """
    with tempfile.TemporaryDirectory(prefix="hadar-plan-") as name:
        folder = Path(name)
        told = _copy(config.site.state_dir / "hadar.sqlite", folder / "hadar.sqlite")
        store = Store.open(folder)
        try:
            yield store, told
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
