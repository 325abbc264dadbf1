"""Self-contained HTML pages about simulations: of jobs (their times, utilization, and the figures),
and of trainers on idle nodes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slurm_hadar.reports import formats, pages
from slurm_hadar.reports.colours import colour
from slurm_hadar.reports.pages import CHART_HEIGHT, CHART_WIDTH, AxisMark, ChartLine

_TEMPLATE = "simulation.html.j2"
_BINS = 290
_LABEL = 80.0
_MOST_GPU_TIME, _MUCH_FURTHER = 0.98, 1.5
_MOST_POINTS = 600
_TIMES = (60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 4 * 86400, 14 * 86400, 60 * 86400)
_COLUMNS = (
    ("finished", "Finished", 1),
    ("avg_jct_h", "Mean job time", -1),
    ("median_jct_h", "Median", -1),
    ("p99_jct_h", "99 of 100 within", -1),
    ("makespan_h", "Makespan", -1),
    ("utilization", "Utilization", 1),
    ("moves", "Moves", -1),
    ("user_worst_rho", "Worst user's rho", -1),
    ("user_jain", "Jain's index, users", 1),
    ("decide_s_mean", "Decision", -1),
    ("decide_s_max", "Longest decision", -1),
)
_IDLE_TEMPLATE = "idle.html.j2"
_MOST_DAYS = 12


@dataclass(frozen=True)
class Simulated:
    """One policy's run. ``summary``: its figures as ``hadar simulate --json`` prints them;
    ``jct_s`` of the finished jobs; per decision ``start_s``, ``end_s`` and ``gpu_s``, the
    GPU-seconds assigned between; ``gpus`` in the cluster."""

    policy: str
    summary: Mapping[str, object]
    jct_s: Sequence[float]
    start_s: Sequence[float]
    end_s: Sequence[float]
    gpu_s: Sequence[float]
    gpus: int


def page(runs: Sequence[Simulated], title: str, notes: Sequence[str] = ()) -> str:
    """The page's text; all policies share the axes. Names may be hostile: they are escaped."""
    times = [jct for run in runs for jct in run.jct_s]
    low, high = max(1.0, min(times, default=1.0)), max(2.0, max(times, default=2.0))
    start = min((run.start_s[0] for run in runs if run.start_s), default=0.0)
    last = max((run.end_s[-1] for run in runs if run.end_s), default=1.0)
    end = _end(runs, start, last)
    shades = [colour(i) for i in range(len(runs))]
    names = [formats.plain(run.policy) for run in runs]

    def lines(paths: Sequence[str]) -> list[ChartLine]:
        return [ChartLine(*one) for one in zip(names, shades, paths, strict=True)]

    return pages.render(
        _TEMPLATE,
        title=formats.plain(title),
        names=lines([""] * len(runs)),
        jct=lines([_distribution(run.jct_s, low, high) for run in runs]),
        jct_ticks=_apart(
            AxisMark(_x_log(t, low, high), formats.duration(t)) for t in _TIMES if low <= t <= high
        ),
        used=lines([_utilization(run, start, end) for run in runs]),
        used_ticks=_hours(start, end),
        levels=[AxisMark(_y(part), formats.percent(part)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)],
        heads=[label for _, label, _ in _COLUMNS],
        rows=_rows(runs),
        tail=f" Cut at the right: a few jobs run until {formats.duration(last - start)}."
        if last > end
        else "",
        notes=[formats.plain(note) for note in notes],
    )


def _apart(marks: Iterable[AxisMark]) -> list[AxisMark]:
    """Those whose labels do not cover the one before."""
    found: list[AxisMark] = []
    for mark in marks:
        if not found or mark.at - found[-1].at >= _LABEL:
            found.append(mark)
    return found


def _end(runs: Sequence[Simulated], start: float, last: float) -> float:
    """Where the time axis ends: where each run has given 98% of its GPU time, if a tail follows
    that would flatten the rest."""
    used = []
    for run in runs:
        if run.end_s and (total := sum(run.gpu_s)) > 0:
            given = np.cumsum(run.gpu_s)
            used.append(run.end_s[int(np.searchsorted(given, _MOST_GPU_TIME * total))])
    most = start + (max(used, default=last) - start) * 1.05
    return most if last - start > _MUCH_FURTHER * (most - start) > 0 else last


def _y(part: float) -> float:
    return CHART_HEIGHT * (1 - min(max(part, 0.0), 1.0))


def _x(part: float) -> float:
    return CHART_WIDTH * min(max(part, 0.0), 1.0)


def _x_log(time_s: float, low: float, high: float) -> float:
    return _x(math.log(max(time_s, low) / low) / math.log(high / low)) if high > low else _x(1.0)


def _distribution(jct_s: Sequence[float], low: float, high: float) -> str:
    """Path of the part of the jobs that ended within a time, the time on a logarithmic axis."""
    ordered = sorted(jct_s)
    if not ordered:
        return ""
    step = max(1, len(ordered) // _MOST_POINTS)
    path = f"M{_x_log(ordered[0], low, high):.1f} {_y(0):.1f}"
    for at in [*range(0, len(ordered) - 1, step), len(ordered) - 1]:
        path += f"H{_x_log(ordered[at], low, high):.1f}V{_y((at + 1) / len(ordered)):.1f}"
    return path


def _utilization(run: Simulated, start: float, end: float) -> str:
    """Path of the part of the GPUs that is assigned, averaged over equal slices of time."""
    if not run.start_s or end <= start:
        return ""
    width = (end - start) / _BINS
    used = [0.0] * _BINS
    for begin, stop, gpu_s in zip(run.start_s, run.end_s, run.gpu_s, strict=True):
        if stop <= begin or begin >= end:
            continue
        first = min(_BINS - 1, int((begin - start) / width))
        last = min(_BINS - 1, int((stop - start) / width))
        for at in range(first, last + 1):
            inside = min(stop, start + (at + 1) * width) - max(begin, start + at * width)
            used[at] += gpu_s * max(0.0, inside) / (stop - begin)
    points = [used[at] / (width * run.gpus) for at in range(_BINS)]
    stop_at = min(_BINS, max(1, math.ceil((min(run.end_s[-1], end) - start) / width)))
    path = f"M{_x(0):.1f} {_y(points[0]):.1f}"
    for at in range(1, stop_at):
        path += f"L{_x((at + 0.5) / _BINS):.1f} {_y(points[at]):.1f}"
    return path + f"V{_y(0):.1f}"


def _hours(start: float, end: float) -> list[AxisMark]:
    span = max(end - start, 1.0)
    step = next((t for t in _TIMES if span / t <= 12), _TIMES[-1])
    step = max(step, math.ceil(span / 12 / 86400) * 86400 if span > 12 * _TIMES[-1] else step)
    count = int(span / step)
    return [AxisMark(_x(at * step / span), formats.duration(at * step)) for at in range(count + 1)]


def _rows(runs: Sequence[Simulated]) -> list[dict[str, object]]:
    all_done = max((_number(run, "finished") or 0.0 for run in runs), default=0.0)
    best: dict[str, float] = {}
    for key, _, better in _COLUMNS:
        # A policy that left jobs unfinished cannot win by the rest.
        values = [_number(run, key) for run in runs if _number(run, "finished") == all_done]
        known = [value * better for value in values if value is not None]
        if len(runs) > 1 and known and max(known) > min(known):
            best[key] = max(known)
    return [
        {
            "name": formats.plain(run.policy),
            "cells": [
                {
                    "text": _words(key, _number(run, key), run),
                    "best": key in best
                    and _number(run, "finished") == all_done
                    and (_number(run, key) or 0.0) * better == best[key],
                }
                for key, _, better in _COLUMNS
            ],
        }
        for run in runs
    ]


def _number(run: Simulated, key: str) -> float | None:
    value = run.summary.get(key)
    return float(value) if isinstance(value, int | float) else None


def _words(key: str, value: float | None, run: Simulated) -> str:
    if value is None:
        return formats.ABSENT
    if key == "finished":
        return f"{value:.0f} of {_number(run, 'jobs') or 0:.0f}"
    if key == "moves":
        return formats.number(int(value))
    if key == "utilization":
        return f"{value:.1%}"
    if key.startswith("user_"):
        return f"{value:.2f}"
    if key.startswith("decide"):
        return f"{value * 1000:.1f} ms"
    return f"{value:.2f} h"


class Replayed(Protocol):
    """What the page needs of a replay: figures by name, samples by hour."""

    policy: str
    done_by_slice: dict[int, float]
    best_by_slice: dict[int, float]

    def summary(self) -> dict[str, object]:
        """The figures."""
        ...


_IDLE_COLUMNS = (
    ("efficiency", "Efficiency", "{:.1%}"),
    ("lost_work_share", "Lost to nodes taken back", "{:.1%}"),
    ("rescale_share", "Spent on rescales", "{:.1%}"),
    ("unused_share", "Idle or badly spread", "{:.1%}"),
    ("rescales", "Rescales", "{:,}"),
    ("preemptions", "Preemptions", "{:,}"),
    ("trainers_finished", "Finished", "{:,}"),
    ("decide_ms_mean", "Decision, ms", "{:.2f}"),
    ("decide_ms_max", "Longest, ms", "{:.1f}"),
)


def idle_page(runs: Sequence[Replayed], title: str) -> str:
    """The page's text. The lines: samples/s trained in each hour, costs not taken off, over what
    the cost-free optimum would have trained (grey)."""
    hours = max((hour for run in runs for hour in run.best_by_slice), default=0) + 1
    rates = [run.best_by_slice for run in runs] + [run.done_by_slice for run in runs]
    values = [value for rate in rates for value in rate.values()]
    most = pages.without_tail(values) or 1.0
    top = max(values, default=0.0)
    lines = [
        ChartLine(formats.plain(run.policy), colour(i), _path(run.done_by_slice, hours, most))
        for i, run in enumerate(runs)
    ]
    best = _path(runs[0].best_by_slice, hours, most) if runs else ""
    step = -(-hours // (24 * _MOST_DAYS))
    return pages.render(
        _IDLE_TEMPLATE,
        title=formats.plain(title),
        names=lines,
        heads=[label for _, label, _ in _IDLE_COLUMNS],
        rows=[{"name": formats.plain(run.policy), "cells": _cells(run.summary())} for run in runs],
        lines=[ChartLine("cost-free optimum", "#98a1ae", best), *lines],
        levels=[
            AxisMark(CHART_HEIGHT * (1 - part), formats.rate(part * most / 3600) if part else "0")
            for part in (0.0, 0.25, 0.5, 0.75, 1.0)
        ],
        days=[
            AxisMark(CHART_WIDTH * 24 * day / hours, f"day {day + 1}")
            for day in range(0, (hours + 23) // 24, step)
        ],
        peak=f" Cut at the top: a few hours reach {formats.rate(top / 3600)}."
        if top > most
        else "",
        notes=(),
    )


def _cells(figures: Mapping[str, object]) -> list[str]:
    return [form.format(figures[key]) for key, _, form in _IDLE_COLUMNS]


def _path(rate: Mapping[int, float], hours: int, most: float) -> str:
    path = ""
    for hour in range(hours):
        x = CHART_WIDTH * (hour + 0.5) / hours
        y = CHART_HEIGHT * (1 - min(1.0, rate.get(hour, 0.0) / most))
        path += f"{'L' if path else 'M'}{x:.1f} {y:.1f}"
    return path
