"""One self-contained HTML page about a replay of idle nodes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from slurm_hadar.reports import formats, pages
from slurm_hadar.reports.colours import colour
from slurm_hadar.reports.pages import CHART_HEIGHT, CHART_WIDTH, AxisMark, ChartLine

_TEMPLATE = "idle.html.j2"
_MOST_DAYS = 12


class Replayed(Protocol):
    """What the page needs of a replay: figures by name, samples by hour."""

    policy: str
    done_by_slice: dict[int, float]
    best_by_slice: dict[int, float]

    def summary(self) -> dict[str, object]:
        """The figures."""
        ...


_COLUMNS = (
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


def page(runs: Sequence[Replayed], title: str) -> str:
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
        _TEMPLATE,
        title=formats.plain(title),
        names=lines,
        heads=[label for _, label, _ in _COLUMNS],
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
    return [form.format(figures[key]) for key, _, form in _COLUMNS]


def _path(rate: Mapping[int, float], hours: int, most: float) -> str:
    path = ""
    for hour in range(hours):
        x = CHART_WIDTH * (hour + 0.5) / hours
        y = CHART_HEIGHT * (1 - min(1.0, rate.get(hour, 0.0) / most))
        path += f"{'L' if path else 'M'}{x:.1f} {y:.1f}"
    return path
