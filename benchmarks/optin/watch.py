"""Follows the jobs of one run: the queue by squeue, starts and ends by sacct and slurmctld's log.

sacct tells whole seconds. slurmctld's log has milliseconds, and which scheduler started a job.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from benchmarks.optin.records import Attempt, JobRecord, Look, RunRecord, Waiting
from benchmarks.optin.site import LAYOUT, Site
from benchmarks.optin.workload import Spec
from benchmarks.soak.watched import Watched, join
from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.slurm.cluster import open_cluster

_POLL_S = 1.0
_SAME_S = 1.5
"""A time of the log and one of sacct that differ by less are of the same event."""
_SACCT = "JobIDRaw,JobID,JobName,Start,End,State,NodeList,AllocTRES"
_LOGGED = re.compile(
    r"^\[(?P<at>[\d:.T-]+)\] (?:(?P<main>sched: Allocate)"
    r"|(?P<backfill>.*\bbackfill: (?:\w+: )?Started)"
    r"|(?P<end>_job_complete:|Requeuing)) JobId=(?P<job>\S+)(?P<rest>.*)$"
)

_PASS = re.compile(r"^\[(?P<at>[\d:.T-]+)\] debug:\s+sched: Running job scheduler", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Logged:
    """A start or an end in slurmctld's log. ``by``: ``main`` or ``backfill``, empty of an end;
    ``at_s``: since the epoch."""

    job: int
    at_s: float
    by: str


def logged(text: str) -> list[Logged]:
    """The starts and ends in the text of slurmctld's log."""
    found = []
    for line in text.splitlines():
        match = _LOGGED.match(line)
        if match is None or (match["end"] == "_job_complete:" and match["rest"] != " done"):
            continue
        number = re.fullmatch(r"(?:\d+_\d+\()?(\d+)\)?", match["job"])
        if number is None:
            continue
        by = "main" if match["main"] else "backfill" if match["backfill"] else ""
        found.append(Logged(int(number[1]), datetime.fromisoformat(match["at"]).timestamp(), by))
    return found


def passes(text: str) -> list[float]:
    """When the main scheduler began to look through its queue, s since the epoch, by the text of
    slurmctld's log. It logs that with ``SlurmctldDebug=debug``."""
    return [datetime.fromisoformat(match["at"]).timestamp() for match in _PASS.finditer(text)]


@dataclass
class Watch:
    """One run under observation. ``sent``: submissions, each with whether hbatch got it."""

    site: Site
    sent: Sequence[tuple[Spec, bool]]
    began: float
    ended: dict[str, str] = field(default_factory=dict)
    """Job -> the state in which it ended."""
    submitted: dict[str, float] = field(default_factory=dict)
    """Submission -> when it was sent, s since the epoch."""
    _looks: list[Look] = field(default_factory=list)
    _first: dict[str, Waiting] = field(default_factory=dict)
    _load: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Who reads Slurm is root; the controller has its own reader."""
        self._cluster = open_cluster(configuration.load(self.site.box.config_path).slurm)
        self._tasks = {spec.name: spec.tasks for spec, _ in self.sent}
        self._all = [name for spec, _ in self.sent for name in spec.names]

    def follow(self, step: Callable[[], None], timeout_s: float) -> None:
        """Look until all jobs have ended, in a thread of its own; ``step`` is called again and
        again meanwhile. Raises HadarError after ``timeout_s``."""
        looker = Watched("the looks", self._look_on)
        looker.start()
        try:
            while len(self.ended) < len(self._all):
                step()
                if looker.wrong:
                    raise HadarError(looker.wrong[0])
                if time.time() - self.began > timeout_s:
                    left = sorted({*self._all} - {*self.ended})
                    raise HadarError(f"jobs {left} did not end within {timeout_s:.0f} s")
                time.sleep(0.05)
        finally:
            self._over.set()
            join([looker])

    def _look_on(self) -> None:
        while not self._over.wait(_POLL_S):
            with contextlib.suppress(SlurmError):
                at = time.time()
                self.look(self._cluster.read_jobs(), at)
            self._load.append(os.getloadavg()[0])

    def look(self, jobs: Sequence[Job], at: float) -> None:
        """Note what squeue shows at that time."""
        rows = []
        for job in jobs:
            if job.name not in self._tasks:
                continue
            task = f"_{job.id.partition('_')[2]}" if self._tasks[job.name] > 1 else ""
            row = Waiting(
                name=f"{job.name}{task}",
                number=job.raw_id,
                priority=job.priority,
                eligible_s=round(job.eligible_s - self.began, 3),
                partitions=job.partitions,
            )
            self._first.setdefault(row.name, row)
            if job.state is JobState.PENDING and not job.held:
                rows.append(row)
            elif job.state is JobState.FINISHED:
                self.ended[row.name] = job.slurm_state.split()[0]
        waiting = tuple(sorted(rows, key=lambda row: (-row.priority, row.number, row.name)))
        if not self._looks or self._looks[-1].waiting != waiting:
            self._looks.append(Look(round(at - self.began, 3), waiting))

    def record(self, label: str, seed: int, share: float) -> RunRecord:
        """The run. Raises HadarError where the accounting database does not know all its ends."""
        log = (self.site.box.places.log / "slurmctld.log").read_text(errors="replace")
        attempts = self._attempts(logged(log))
        load = sum(self._load) / max(1, len(self._load))
        nodes = {n: (types[0], len(types)) for n, types in LAYOUT.node_types().items()}
        inside = {group.prefix: group.names for group in LAYOUT.groups}
        partitions = {
            one.name: tuple(name for prefix in one.groups or inside for name in inside[prefix])
            for one in LAYOUT.all_partitions
        }
        jobs = [
            self._job(spec, managed, name, attempts.get(name, ()))
            for spec, managed in self.sent
            for name in spec.names
        ]
        return RunRecord(
            label, seed, share, nodes, partitions, tuple(jobs), tuple(self._looks), round(load, 2),
            tuple(round(at_s - self.began, 3) for at_s in passes(log)),
        )  # fmt: skip

    def _job(self, spec: Spec, managed: bool, name: str, attempts: Sequence[Attempt]) -> JobRecord:
        first = self._first.get(name, Waiting(name, 0, 0, 0.0, ()))
        return JobRecord(
            name=name, kind=spec.kind, user=spec.user, managed=managed, arrival_s=spec.arrival_s,
            submit_s=round(self.submitted[spec.name] - self.began, 3), number=first.number,
            priority=first.priority, partitions=(spec.partition,), gpus=spec.gpus,
            gpu_type=spec.gpu_type, types=spec.types, limit_s=60.0 * spec.limit_min,
            state=self.ended.get(name, ""), attempts=tuple(attempts),
        )  # fmt: skip

    def _attempts(self, known: Sequence[Logged]) -> dict[str, list[Attempt]]:
        end = time.monotonic() + 60
        while True:
            rows = self._accounted()
            if all(row["End"] != "Unknown" for row in rows) and self._complete(rows):
                break
            if time.monotonic() > end:
                raise HadarError("sacct does not know the ends of all jobs after 60 s")
            time.sleep(1.0)
        found: dict[str, list[Attempt]] = {}
        for row in sorted(rows, key=lambda row: row["Start"]):
            found.setdefault(self._name(row), []).append(self._attempt(row, known))
        return found

    def _complete(self, rows: Sequence[Mapping[str, str]]) -> bool:
        return {*self._all} <= {self._name(row) for row in rows}

    def _accounted(self) -> list[dict[str, str]]:
        """The rows of sacct of jobs that began."""
        out = self.site.box.run(
            "sacct", "-D", "-X", "-a", "-n", "-P", "-S", "now-1day", f"--format={_SACCT}"
        )
        keys = _SACCT.split(",")
        rows = [dict(zip(keys, line.split("|"), strict=True)) for line in out.splitlines()]
        return [
            row
            for row in rows
            if row["JobName"] in self._tasks and row["Start"] not in ("Unknown", "None")
        ]

    def _name(self, row: Mapping[str, str]) -> str:
        task = f"_{row['JobID'].partition('_')[2]}" if self._tasks[row["JobName"]] > 1 else ""
        return f"{row['JobName']}{task}"

    def _attempt(self, row: Mapping[str, str], known: Sequence[Logged]) -> Attempt:
        number = int(row["JobIDRaw"])
        start = _exact(row["Start"], [one for one in known if one.job == number and one.by])
        end = _exact(row["End"], [one for one in known if one.job == number and not one.by])
        gpus = re.search(r"gres/gpu=(\d+)", row["AllocTRES"])
        return Attempt(
            start_s=round(start.at_s - self.began, 3),
            end_s=round(end.at_s - self.began, 3),
            node=row["NodeList"],
            gpus=int(gpus[1]) if gpus else 0,
            by=start.by,
        )


def _exact(text: str, known: Sequence[Logged]) -> Logged:
    """The event of the log at a time of sacct; where there is none, that time."""
    at_s = datetime.fromisoformat(text).timestamp()
    near = [one for one in known if abs(one.at_s - at_s) < _SAME_S]
    return min(near, key=lambda one: abs(one.at_s - at_s), default=Logged(0, at_s, ""))
