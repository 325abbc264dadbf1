"""A site's own past as a trace: what ``sacct`` prints with ``-P`` and a header.

``sacct -a -X -P -S 2026-01-01
-o JobID,JobName,User,Account,Submit,Eligible,Start,End,Timelimit,AllocTRES``

Needed columns: JobID, Submit, Start, End, AllocTRES; others are used where they are there, or not
looked at. Jobs whose model is not known keep their own speed on every type: their work is the
time that they ran.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np

from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator.traces.csv_rows import CsvRow, rows
from slurm_hadar.simulator.workload import Queued, Workload
from slurm_hadar.slurm.times import parse_date, parse_duration
from slurm_hadar.slurm.tres import parse_gpus

NEEDED = ("JobID", "Submit", "Start", "End", "AllocTRES")
_ANY_NODES = 1_000_000


@dataclass(frozen=True)
class ModelNames:
    """Whose jobs train what: patterns with ``*`` and ``?``, the first that fits wins."""

    by_job_name: Mapping[str, str] = field(default_factory=dict)
    by_account: Mapping[str, str] = field(default_factory=dict)

    def of(self, job_name: str, account: str) -> str:
        """The model in the profiles; "" where nothing is said of the job. Names go first."""
        for patterns, word in ((self.by_job_name, job_name), (self.by_account, account)):
            for pattern, model in patterns.items():
                if fnmatchcase(word, pattern):
                    return model
        return ""


@dataclass(frozen=True, slots=True)
class _JobEntry:
    row: CsvRow
    id: str
    arrival_s: float
    seconds: float
    gpus: int
    kind: str
    model: str


def read(
    text: str, name: str, types: Sequence[str], rates: Rates, models: ModelNames | None = None
) -> Workload:
    """A workload of the jobs that ran on GPUs; time 0 is the first submission.

    Steps of jobs are skipped; jobs without GPUs, never started or still running are named in
    ``left_out``, and lines that a job's name broke in ``skipped``. Raises UsageError naming the
    file and the line.
    """
    skipped: list[str] = []
    found, left_out = _jobs(text, name, models or ModelNames(), skipped)
    requests = np.array([entry.gpus for entry in found], dtype=np.int64)
    counts = tuple(sorted(set(requests.tolist()))) or (1,)
    rate = np.zeros((len(found), len(types), len(counts)))
    total = np.zeros(len(found))
    for at, entry in enumerate(found):
        own, total[at] = _speed(entry, types, rates)
        rate[at, :, counts.index(entry.gpus)] = own
    first = min((entry.arrival_s for entry in found), default=0.0)
    return Workload(
        name=name,
        types=tuple(types),
        counts=counts,
        ids=tuple(entry.id for entry in found),
        arrival_s=np.array([entry.arrival_s - first for entry in found]),
        request=requests,
        total=total,
        rate=rate,
        weight=np.ones(len(found)),
        models=tuple(entry.model for entry in found),
        max_nodes=np.full(len(found), _ANY_NODES, dtype=np.int64),
        cpus_per_gpu=np.zeros(len(found)),
        mem_per_gpu_mb=np.zeros(len(found)),
        lines=tuple(entry.row.line for entry in found),
        left_out=tuple(left_out),
        skipped=tuple(skipped),
        queue=Queued(
            managed=np.full(len(found), -1),
            types=np.zeros((len(found), len(types)), dtype=np.bool_),
            limit_s=np.array([_limit_s(entry) for entry in found]),
            priority=np.zeros(len(found)),
            users=tuple(entry.row.word("User") for entry in found),
            accounts=tuple(entry.row.word("Account") for entry in found),
        ),
    )


def _jobs(
    text: str, name: str, known: ModelNames, skipped: list[str]
) -> tuple[list[_JobEntry], list[str]]:
    """The jobs that ran on GPUs, and why each other one is left out. ``skipped``: takes the lines
    of another length than the header. Raises UsageError where most are."""
    count = 0
    found: list[_JobEntry] = []
    left_out: list[str] = []
    seen: dict[str, int] = {}
    for row in rows(text, name, NEEDED, delimiter="|", skipped=skipped):
        count += 1
        if "." in row.text("JobID"):
            continue
        id_ = row.name("JobID")
        entry = _entry(row, known)
        if isinstance(entry, str):
            left_out.append(f"line {row.line}: job {id_} {entry}")
            continue
        if entry.id in seen:
            raise row.error(
                f"job {entry.id} stands on line {seen[entry.id]} already; run sacct without -D"
            )
        seen[entry.id] = row.line
        found.append(entry)
    if len(skipped) > count:
        raise UsageError(
            f"{len(skipped)} of {count + len(skipped)} lines of {name} are not understood; the "
            f"first: {skipped[0]}; a name may hold a | or a line end: run sacct without that column"
        )
    if left_out and not found:
        more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        raise UsageError(f"{name} has no job to simulate; {left_out[0]}{more}")
    return found, left_out


def _limit_s(entry: _JobEntry) -> float:
    """The time limit; nan where it is not known, or was raised while the job ran."""
    try:
        limit = parse_duration(entry.row.text("Timelimit"))
    except SlurmError:
        return float("nan")
    if limit is None or not entry.seconds <= limit < float("inf"):
        return float("nan")
    return limit


def _entry(row: CsvRow, models: ModelNames) -> _JobEntry | str:
    """The job, or why it is none to simulate."""
    try:
        submit, start, end = (parse_date(row.text(at)) for at in ("Submit", "Start", "End"))
        eligible = parse_date(row.text("Eligible"))
        gpus = parse_gpus(row.text("AllocTRES"))
    except SlurmError as error:
        raise row.error(str(error)) from None
    if not submit:
        raise row.error(f"job {row.text('JobID')} has no time of submission")
    if not start:
        return "never started"
    if not end:
        return "has not ended"
    if not gpus:
        return "has no GPU"
    if end < start or start < submit:
        raise row.error(
            f"job {row.text('JobID')} has a negative time: submitted {row.text('Submit')}, "
            f"started {row.text('Start')}, ended {row.text('End')}"
        )
    if end == start:
        return "ran for 0 s"
    return _JobEntry(
        row=row,
        id=row.text("JobID"),
        # Waiting for a dependency or a begin time is not the scheduler's doing.
        arrival_s=min(max(submit, eligible), start),
        seconds=end - start,
        gpus=sum(gpus.values()),
        kind=next(iter(gpus)) if len(gpus) == 1 else UNTYPED,
        model=models.of(row.text("JobName"), row.text("Account")),
    )


def _speed(entry: _JobEntry, types: Sequence[str], rates: Rates) -> tuple[list[float], float]:
    """(R,) rates and the work of a job."""
    if entry.model and not rates.anchored(entry.model):
        raise UsageError(
            f"model {entry.model!r}, which the configuration gives to job {entry.id}, "
            "is in no throughput table; correct [simulation] or add a table to [profiles]"
        )
    if entry.model and entry.kind != UNTYPED:
        found = rates.rates((None, entry.model, None), [*types, entry.kind], (entry.gpus,))[0][:, 0]
        if found[-1] > 0.0:
            return found[:-1].tolist(), float(found[-1]) * entry.seconds
    return [1.0] * len(types), entry.seconds
