"""HTML pages: one file each, with nothing loaded from elsewhere and all values escaped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined

CHART_WIDTH, CHART_HEIGHT = 1000.0, 300.0
"""A chart's own units; a page stretches it to its width."""
_FEW = 0.02
_MUCH_FURTHER = 1.5


@dataclass(frozen=True, slots=True)
class AxisMark:
    """A label of an axis, at a place in a chart's own units."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart: its path, in a chart's own units."""

    name: str
    colour: str
    path: str


def render(template: str, **values: object) -> str:
    """A page of ``templates/`` with these values, which may be hostile."""
    page = _environment().get_template(template)
    return page.render(chart_width=CHART_WIDTH, chart_height=CHART_HEIGHT, **values)


def without_tail(values: Sequence[float]) -> float:
    """Where an axis for these values ends: at the largest, or, where the last 2% of them reach half
    as far again as the others, a little behind the others. The page says where it was cut."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return 0.0
    most = ordered[math.ceil((1 - _FEW) * len(ordered)) - 1] * 1.05
    return most if ordered[-1] > _MUCH_FURTHER * most > 0 else ordered[-1]


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _source(name: str) -> str:
    return resources.files("slurm_hadar.reports").joinpath("templates", name).read_text()
