"""One self-contained HTML page with the timelines of several runs: it loads nothing."""

from collections.abc import Sequence

from slurm_hadar.reports import compare, drawing, formats, pages
from slurm_hadar.reports.run import Run, last_end_s, summarise

_TEMPLATE = "timeline.html.j2"


def page(runs: Sequence[Run], title: str, notes: Sequence[str] = ()) -> str:
    """The page's text: a comparison, then each run's GPUs over time with the throughput below.

    All runs share one time axis and one throughput axis. Names of jobs may be hostile: they are
    escaped, and stripped of control characters.
    """
    by = drawing.scale(runs)
    summaries = [summarise(run) for run in runs]
    most = max((s.completed for s in summaries), default=0)
    means = [s.avg_jct_s if s.completed == most else None for s in summaries]
    last = max((last_end_s(run) for run in runs), default=0.0)
    return pages.render(
        _TEMPLATE,
        title=formats.plain(title),
        verdict=compare.verdict(runs),
        runs=[
            {
                "name": formats.plain(run.name),
                "description": formats.plain(run.description),
                "drawing": drawing.draw(run, by),
            }
            for run in runs
        ],
        races=[
            ("Until all jobs are done", _race(runs, [s.makespan_s for s in summaries])),
            ("A job, on average", _race(runs, means)),
        ],
        rows=compare.rows(summaries),
        tail=f" Cut at the right: a few jobs run until {formats.clock(last)}."
        if last > by.end_s
        else "",
        notes=[formats.plain(note) for note in notes],
        size={"width": drawing.WIDTH, "gutter": drawing.GUTTER, "right": drawing.RIGHT},
        moved=any(s.moves for s in summaries),
        restarted=any(s.restarts for s in summaries),
    )


def _race(runs: Sequence[Run], times: Sequence[float | None]) -> list[dict[str, object]]:
    """Bars of one time for all runs; the shortest is the best, if all runs completed as much."""
    known = [time for time in times if time is not None]
    longest, shortest = max(known, default=0.0), min(known, default=0.0)
    return [
        {
            "name": formats.plain(run.name),
            "time": formats.duration(time) if time is not None else "not all jobs ended",
            "share": time / longest if time is not None and longest else 0.0,
            "best": time == shortest and longest > shortest,
        }
        for run, time in zip(runs, times, strict=True)
    ]
