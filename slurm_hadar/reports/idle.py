"""One self-contained HTML page about a replay of idle nodes."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Protocol

from jinja2 import DictLoader, Environment, StrictUndefined

from slurm_hadar.reports import formats
from slurm_hadar.reports.colours import colour

_TEMPLATE = "idle.html.j2"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 1160.0, 260.0, 70.0, 26.0


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
    most = max((value for rate in rates for value in rate.values()), default=0.0) or 1.0
    lines = [
        {"colour": colour(i), "path": _path(run.done_by_slice, hours, most)}
        for i, run in enumerate(runs)
    ]
    best = _path(runs[0].best_by_slice, hours, most) if runs else ""
    return (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            title=formats.plain(title),
            width=_WIDTH,
            height=_HEIGHT,
            left=_LEFT,
            floor=_HEIGHT - _BOTTOM,
            names=[
                {"name": formats.plain(run.policy), "colour": colour(i)}
                for i, run in enumerate(runs)
            ],
            heads=[label for _, label, _ in _COLUMNS],
            rows=[
                {"name": formats.plain(run.policy), "cells": _cells(run.summary())} for run in runs
            ],
            best=best,
            lines=lines,
            top=formats.rate(most / 3600),
            days=[
                {"x": f"{_x(24 * day, hours):.1f}", "text": f"day {day + 1}"}
                for day in range((hours + 23) // 24)
            ],
        )
    )


def _cells(figures: Mapping[str, object]) -> list[str]:
    return [form.format(figures[key]) for key, _, form in _COLUMNS]


def _x(hour: float, hours: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - 10) * hour / max(hours, 1)


def _path(rate: Mapping[int, float], hours: int, most: float) -> str:
    path = ""
    for hour in range(hours):
        y = (_HEIGHT - _BOTTOM) - (_HEIGHT - _BOTTOM - 12) * rate.get(hour, 0.0) / most
        path += f"{'L' if path else 'M'}{_x(hour + 0.5, hours):.1f} {y:.1f}"
    return path


@cache
def _environment() -> Environment:
    template = resources.files("slurm_hadar.reports").joinpath("templates", _TEMPLATE).read_text()
    return Environment(
        loader=DictLoader({_TEMPLATE: template}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
