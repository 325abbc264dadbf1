"""Several runs of the same jobs side by side: the best of each row is marked."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from rich.table import Table
from rich.text import Text

from slurm_hadar.reports import formats
from slurm_hadar.reports.run import Run, Summary, summarise


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of all runs: its name, the figures as text, and which of them are the best.

    The hint ends in ↑ where more is better and in ↓ where less is.
    """

    label: str
    hint: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Metric:
    label: str
    hint: str
    value: Callable[[Summary], float | None]
    words: Callable[[Summary], str]
    better: int
    """1: more is better, -1: less is better, 0: neither."""
    needs_all: bool = False
    """Only a run that completed as many jobs as any other can be the best."""


_METRICS = (
    _Metric("Jobs", "submitted", lambda s: s.jobs, lambda s: formats.number(s.jobs), 0),
    _Metric(
        "Completed",
        "↑",
        lambda s: s.completed,
        lambda s: formats.number(s.completed),
        1,
    ),
    _Metric(
        "Makespan",
        "first submit to last end ↓",
        lambda s: s.makespan_s,
        lambda s: formats.duration(s.makespan_s) if s.makespan_s is not None else "not all ended",
        -1,
        needs_all=True,
    ),
    _Metric(
        "Mean job time",
        "submit to end ↓",
        lambda s: s.avg_jct_s,
        lambda s: formats.duration(s.avg_jct_s),
        -1,
        needs_all=True,
    ),
    _Metric(
        "Job time, spread",
        "a quarter, half and three quarters of the jobs took at most ↓",
        lambda s: s.jct_quartiles_s[1] if s.jct_quartiles_s else None,
        lambda s: " / ".join(map(formats.duration, s.jct_quartiles_s or (None,))),
        -1,
        needs_all=True,
    ),
    _Metric(
        "Longest job time",
        "submit to end ↓",
        lambda s: s.longest_jct_s,
        lambda s: formats.duration(s.longest_jct_s),
        -1,
        needs_all=True,
    ),
    _Metric(
        "Median wait",
        "submit to first start ↓",
        lambda s: s.median_wait_s,
        lambda s: formats.duration(s.median_wait_s),
        -1,
        needs_all=True,
    ),
    _Metric(
        "GPUs held",
        "of all GPU time ↑",
        lambda s: s.utilization,
        lambda s: formats.percent(s.utilization),
        1,
        needs_all=True,
    ),
    _Metric("Moves", "to other GPUs", lambda s: s.moves, lambda s: str(s.moves), 0),
    _Metric(
        "Restarts",
        "on the same GPUs ↓",
        lambda s: s.restarts,
        lambda s: str(s.restarts),
        -1,
    ),
    _Metric(
        "Samples lost",
        "thrown away by kills ↓",
        lambda s: s.samples_lost,
        lambda s: formats.number(s.samples_lost),
        -1,
    ),
)


def rows(summaries: Sequence[Summary]) -> list[ComparedFigure]:
    """The comparison. In a row where all are equal none is the best."""
    most = max((s.completed for s in summaries), default=0)
    found = []
    for metric in _METRICS:
        values = [
            None if metric.needs_all and s.completed < most else metric.value(s) for s in summaries
        ]
        cells = tuple(metric.words(s) for s in summaries)
        known = [value for value in values if value is not None]
        best = [False] * len(values)
        if metric.better and known and len(set(cells)) > 1:
            top = max(known) if metric.better > 0 else min(known)
            winners = {c for c, v in zip(cells, values, strict=True) if v == top}
            best = [v is not None and c in winners for c, v in zip(cells, values, strict=True)]
        found.append(ComparedFigure(metric.label, metric.hint, cells, tuple(best)))
    return found


def verdict(runs: Sequence[Run]) -> str:
    """One sentence on who finished everything first, and by how much."""
    times = {run.name: summarise(run).makespan_s for run in runs}
    done = sorted((time, name) for name, time in times.items() if time is not None)
    if not done:
        return "No run completed all jobs."
    time, name = done[0]
    words = f"First to finish all jobs: {_quoted(name)} in {formats.duration(time)}"
    others = [
        f"{_quoted(other)} took {late / time:.2f} times as long"
        for late, other in done[1:]
        if time > 0
    ]
    others += [
        f"{_quoted(other)} did not complete them all"
        for other, late in times.items()
        if late is None
    ]
    return "; ".join([words, *others]) + "."


def _quoted(name: str) -> str:
    return f"“{formats.plain(name)}”"


def as_dict(runs: Sequence[Run]) -> dict[str, object]:
    """The comparison for ``--json``: units stand in the keys."""
    return {
        "runs": [
            {
                "name": run.name,
                "description": run.description,
                "gpus": len(run.gpus),
                **asdict(summarise(run)),
            }
            for run in runs
        ],
        "verdict": verdict(runs),
    }


def table(runs: Sequence[Run]) -> Table:
    """The comparison for the terminal, the best of each row bold with a mark."""
    shown = Table(title_justify="left", caption="* best of the row", caption_justify="left")
    shown.add_column("")
    for run in runs:
        shown.add_column(Text(formats.plain(run.name)), justify="right")
    for row in rows([summarise(run) for run in runs]):
        shown.add_row(
            row.label,
            *(
                Text(f"{cell} *" if best else f"{cell}  ", style="bold green" if best else "")
                for cell, best in zip(row.cells, row.best, strict=True)
            ),
        )
    return shown
