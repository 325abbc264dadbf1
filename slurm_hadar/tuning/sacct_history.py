"""What ``sacct -P`` tells of a site's past, as arrays: one row per GPU job.

A line that cannot be is left out and counted with its reason; a history of which most lines are
so is refused. Times in s since the epoch.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

import numpy as np

from slurm_hadar import reading
from slurm_hadar.domain import declaration
from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.domain.view import FloatArray, IntArray
from slurm_hadar.simulator.traces.csv_rows import CsvRow, rows_of
from slurm_hadar.simulator.traces.sacct import NEEDED
from slurm_hadar.slurm import times, tres
from slurm_hadar.tuning.requested_types import OPEN, RequestedTypes
from slurm_hadar.tuning.site import SlurmSite

COLUMNS = (
    "JobID", "Account", "Partition", "Submit", "Eligible", "Start", "End", "State", "NNodes",
    "ReqTRES", "AllocTRES", "NodeList", "Comment", "Constraints", "JobName",
)  # fmt: skip
"""What is asked of sacct. Those that may hold the separator stand last; with one in a Comment the
rest of it is taken for a constraint."""
_MOST_ROWS = 1_000_000
_LONGEST_ID = 80
_LATEST_S = 1e11


@dataclass(frozen=True)
class History:
    """J GPU jobs in the order of their arrival."""

    name: str
    types: tuple[str, ...]
    """R GPU types of the site."""
    ids: tuple[str, ...]
    job_names: tuple[str, ...]
    accounts: tuple[str, ...]
    partitions: tuple[str, ...]
    """That each was submitted to, as far as a record holds them: see ``submitted``."""
    arrival_s: FloatArray
    """(J,) submission, or when the job became eligible."""
    start_s: FloatArray
    """(J,) inf: it has not started."""
    end_s: FloatArray
    """(J,) inf: it has not ended."""
    held: IntArray
    """(J, R) GPUs that it held; for one that never started, those that it asked for."""
    asked: IntArray
    """(J,) index of the only type that it asked for, by request, constraint or partition;
    :data:`OPEN` where several would have done."""
    max_nodes: IntArray
    """(J,) nodes that it had; 0: unknown."""
    cpus: FloatArray
    """(J,) CPUs that it had; 0: unknown."""
    mem_mb: FloatArray
    """(J,) memory that it had; 0: unknown."""
    rows: int
    """Lines of jobs that were read, without steps."""
    left_out: Mapping[str, int]
    """Reason -> lines that are not among the J."""
    untyped: int
    """Jobs whose GPU type the accounting does not tell (it was taken from their nodes)."""
    submitted: tuple[bool, ...]
    """Of each, whether a record holds the partitions that it was submitted to; those of another
    are the ones that the accounting shows, which a controller may have chosen."""
    commented: bool
    """Whether a Comment holds a declaration. Where Comments are recorded, a job without one was not
    steered."""

    @property
    def gpus(self) -> IntArray:
        """(J,) GPUs."""
        found: IntArray = self.held.sum(axis=1)
        return found

    @property
    def run_s(self) -> FloatArray:
        """(J,) s that each ran; 0 where it has not ended."""
        ran = np.isfinite(self.end_s)
        return np.where(ran, self.end_s - np.where(ran, self.start_s, 0.0), 0.0)

    @property
    def ended(self) -> IntArray:
        """Rows of the jobs that ran and ended."""
        return np.flatnonzero(np.isfinite(self.end_s) & (self.end_s > self.start_s))

    @property
    def until_s(self) -> float:
        """Last moment that the history knows of."""
        moments = np.concatenate([self.arrival_s, self.start_s, self.end_s])
        return float(moments[np.isfinite(moments)].max(initial=0.0))


@dataclass(frozen=True, slots=True)
class _JobEntry:
    row: CsvRow
    id: str
    arrival_s: float
    start_s: float
    end_s: float
    held: dict[str, int]
    asked: int
    typed: bool
    partitions: str
    submitted: bool
    commented: bool


def read(
    text: str,
    name: str,
    site: SlurmSite,
    since_s: float = 0.0,
    owners: Mapping[str, str] = MappingProxyType({}),
) -> History:
    """The GPU jobs of a site's accounting that arrived, ran or ended after ``since_s``. ``owners``:
    job -> the partitions that it was submitted to, of those that a controller gave others.

    Needed columns: JobID, Submit, Start, End, AllocTRES; the others make it better. Raises
    UsageError for a text that is not sacct's, and where most lines cannot be read.
    """
    known = RequestedTypes(site)
    left_out: Counter[str] = Counter()
    first_bad = ""
    found: dict[str, _JobEntry] = {}
    count = bad = 0
    for row in _rows(text, name):
        if isinstance(row, str):
            count, bad, first_bad = count + 1, bad + 1, first_bad or row
            left_out["cannot be read"] += 1
            continue
        if "." in row.text("JobID"):
            continue
        count += 1
        try:
            entry = _entry(row, known, owners)
        except (SlurmError, UsageError) as error:
            bad, first_bad = bad + 1, first_bad or str(row.error(str(error)))
            left_out["cannot be read"] += 1
            continue
        if isinstance(entry, str):
            left_out[entry] += 1
        elif min(entry.end_s, 1e12) < since_s:
            left_out["before --since"] += 1
        else:
            # With -D a requeued job stands there once for each time that it ran.
            left_out["an earlier run of a job that was requeued"] += entry.id in found
            found[entry.id] = entry
    if bad > count / 2:
        raise UsageError(f"{bad} of {count} lines of {name} are not understood; the first: "
                         f"{first_bad}")  # fmt: skip
    return _arrays(list(found.values()), name, known, count, +left_out)


def _rows(text: str, name: str) -> Iterator[CsvRow | str]:
    """Rows below the header; of a line that is none, why."""
    header: list[str] = []
    count = 0
    for number, line in enumerate(rows_of(text), 1):
        if not line.strip():
            continue
        if not header:
            header = [cell.strip() for cell in line.lstrip("\ufeff").split("|")]
            missing = [column for column in NEEDED if column not in header]
            if missing:
                raise UsageError(
                    f"{name} is not what sacct -P prints with a header: column {missing[0]} is "
                    f"missing; make it with: {command()}"
                )
            continue
        count += 1
        if count > _MOST_ROWS:
            raise UsageError(
                f"{name} has more than {_MOST_ROWS:,} lines; ask sacct for a shorter time (-S)"
            )
        cells = _cells(line, header)
        row = CsvRow(name, number, dict(zip(header, cells, strict=False)))
        if len(cells) == len(header):
            yield row
        else:
            yield str(row.error(f"{len(cells)} cells, the header has {len(header)}"))
    if not header:
        raise UsageError(f"{name} is empty; make it with: {command()}")


def _cells(line: str, header: list[str]) -> list[str]:
    """Cells of a line. Where a constraint (``v100|k80``) or a job's name holds the separator, what
    is too many goes to the constraint: a choice in doubt is taken for one."""
    cells = line.split("|")
    more = len(cells) - len(header)
    if more > 0 and header[-2:] == ["Constraints", "JobName"]:
        first = len(header) - 2
        return [*cells[:first], "|".join(cells[first:-1]), cells[-1]]
    if more > 0 and header[-1] == "JobName":
        return line.split("|", len(header) - 1)
    return cells


def command(since: str = "2026-01-01") -> str:
    """What an admin types for a history."""
    return f"sacct -a -X -P -S {since} -o {','.join(COLUMNS)}"


@reading.remembered(100_000)
def _gpus(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(tres.parse_gpus(text).items())


def _partitions(row: CsvRow, id_: str, owners: Mapping[str, str]) -> tuple[str, bool, bool]:
    """The partitions that a job was submitted to, whether that is recorded: by the controller, or
    in its Comment, where hbatch keeps them beside a list of its own; and whether that has a
    declaration."""
    shown = row.text("Partition")
    try:
        declared = declaration.decode(row.text("Comment"))
    except UsageError:
        # A controller leaves such a job alone.
        return shown, True, True
    typed = ",".join(declared.partitions) if declared else ""
    commented = declared is not None
    return typed or owners.get(id_, shown), commented or id_ in owners, commented


def _entry(row: CsvRow, known: RequestedTypes, owners: Mapping[str, str]) -> _JobEntry | str:
    """The job, or why it is not counted. Raises SlurmError, UsageError for what cannot be."""
    id_ = row.text("JobID")
    if not id_ or not id_.isprintable() or len(id_) > _LONGEST_ID:
        raise UsageError("JobID is empty, too long, or holds what is not to be shown")
    submit, eligible, start, end = (
        times.parse_date(row.text(at)) for at in ("Submit", "Eligible", "Start", "End")
    )
    if not 0 < submit < _LATEST_S or max(eligible, start, end) > _LATEST_S:
        raise UsageError("it has no time of submission, or one far in the future")
    request, held = (known.spelled(dict(_gpus(row.text(at)))) for at in ("ReqTRES", "AllocTRES"))
    if start and not held:
        # Slurm shows the time of a cancellation as the start.
        never = request and not row.text("AllocTRES")
        return "cancelled before it started" if never else "no GPU"
    if not start:
        if not request:
            return "never started" if end else "waits, with no record of its requested GPUs"
        if end:
            return "cancelled before it started"
        held = request
    if end and start and (end < start or start < submit):
        return "times that contradict each other"
    if end and end == start:
        return "ran for 0 s"
    typed = UNTYPED not in held
    partitions, submitted, commented = _partitions(row, id_, owners)
    asked = known.asked(request, row.text("Constraints"), partitions)
    if not typed:
        kind = known.of_nodes(row.text("NodeList")) if start else None
        if kind is None and asked == OPEN:
            return "GPUs of no known type"
        kind = known.types[asked] if kind is None else kind
        number = held.pop(UNTYPED)
        held[kind] = held.get(kind, 0) + number
    if unknown := [kind for kind in held if kind not in known.index]:
        return f"a GPU type that the site does not have ({_shown(unknown[0])})"
    if sum(held.values()) > 1_000_000:
        raise UsageError("it has more than a million GPUs")
    arrival = max(submit, eligible)
    return _JobEntry(
        row=row,
        id=id_,
        # Waiting for a dependency or a begin time is not the scheduler's doing.
        arrival_s=min(arrival, start) if start else arrival,
        start_s=start or inf,
        end_s=end or inf,
        held=held,
        asked=asked,
        typed=typed,
        partitions=partitions,
        submitted=submitted,
        commented=commented,
    )


def _arrays(
    found: list[_JobEntry],
    name: str,
    known: RequestedTypes,
    count: int,
    left_out: Mapping[str, int],
) -> History:
    found.sort(key=lambda entry: entry.arrival_s)
    held = np.zeros((len(found), len(known.types)), dtype=np.int64)
    for at, entry in enumerate(found):
        for kind, number in entry.held.items():
            held[at, known.index[kind]] = number
    amounts = [_amounts(entry.row.text("AllocTRES")) for entry in found]
    return History(
        name=name,
        types=known.types,
        ids=tuple(entry.id for entry in found),
        job_names=tuple(_shown(entry.row.text("JobName")) for entry in found),
        accounts=tuple(_shown(entry.row.text("Account")) or "-" for entry in found),
        partitions=tuple(_shown(entry.partitions) for entry in found),
        arrival_s=np.array([entry.arrival_s for entry in found]),
        start_s=np.array([entry.start_s for entry in found]),
        end_s=np.array([entry.end_s for entry in found]),
        held=held,
        asked=np.array([entry.asked for entry in found], dtype=np.int64),
        max_nodes=np.array([_whole(entry.row.text("NNodes")) for entry in found], dtype=np.int64),
        cpus=np.array([cpus for cpus, _ in amounts]),
        mem_mb=np.array([mem for _, mem in amounts]),
        rows=count,
        left_out=left_out,
        untyped=sum(not entry.typed for entry in found),
        submitted=tuple(entry.submitted for entry in found),
        commented=any(entry.commented for entry in found),
    )


@reading.remembered(100_000)
def _amounts(text: str) -> tuple[float, float]:
    """CPUs and MB in a TRES string; 0 where it tells none."""
    words = dict(part.partition("=")[::2] for part in text.split(","))
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)([KMGT]?)", words.get("mem", ""), re.ASCII)
    factor = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
    return float(_whole(words.get("cpu", ""))), float(match[1]) * factor[match[2]] if match else 0.0


def _whole(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else 0


def _shown(text: str) -> str:
    return reading.shown(text, 60)


def texts(history: History, rows: Sequence[int]) -> str:
    """These jobs as sacct prints them, with the types that were found out, for the simulator."""
    lines = ["JobID|JobName|Account|Submit|Start|End|AllocTRES"]
    for at in rows:
        gpus = ",".join(
            f"gres/gpu:{kind}={number}" if kind else f"gres/gpu={number}"
            for kind, number in zip(history.types, history.held[at].tolist(), strict=True)
            if number
        )
        name = history.job_names[at].replace("|", "?")
        lines.append(
            f"{history.ids[at]}|{name}|{history.accounts[at].replace('|', '?')}|"
            + "|".join(
                times.printed(float(value[at]))
                for value in (history.arrival_s, history.start_s, history.end_s)
            )
            + f"|{gpus}"
        )
    return "\n".join(lines)
