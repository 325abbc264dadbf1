"""The last day as a drawing: one row for each job, a bar for each stay on its GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_hadar.reports import formats
from slurm_hadar.reports.cluster import JobTimeline, Stay

ROWS = 50
"""Jobs on one page."""
WIDTH, MARGIN, ROW, TOP = 1000.0, 10.0, 38.0, 22.0
"""Units of the drawing."""
_TICKS_MIN = {24: 180, 6: 60, 1: 10}
"""Hours that are drawn -> minutes between two lines."""
_LEAST = 2.0
_HUES = 8


@dataclass(frozen=True, slots=True)
class StayBar:
    """A stay: its place, the class of its GPU type, and what it says."""

    x: float
    width: float
    hue: str
    text: str
    moved: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One job. ``x`` and ``anchor``: where its label stands, near its bars."""

    job: str
    label: str
    x: float
    anchor: str
    y: float
    bars: Sequence[StayBar]


@dataclass(frozen=True, slots=True)
class DayDrawing:
    """``jobs``: of all pages; ``ticks``: place and text of the hours; ``hues``: class -> GPU
    type."""

    page: int
    jobs: int
    height: float
    rows: Sequence[Row]
    ticks: Sequence[tuple[float, str]]
    hues: Sequence[tuple[str, str]]


def draw(day: JobTimeline, page: int, hours: int = 24) -> DayDrawing:
    """One page of the day's last 24, 6 or 1 hours; the jobs that came last stand first."""
    from_s = day.to_s - hours * 3600
    shown_stays = [one for one in day.segments if one.end_s > from_s]
    day = replace(day, from_s=from_s, segments=shown_stays)
    kinds = sorted({kind for one in day.segments for kind in one.gpus})
    hues = {kind: f"t{number % _HUES}" for number, kind in enumerate(kinds)}
    by_job: dict[str, list[Stay]] = {}
    for one in day.segments:
        by_job.setdefault(one.job, []).append(one)
    order = sorted(by_job.values(), key=lambda stays: -max(one.begin_s for one in stays))
    last = max(1, -(-len(order) // ROWS))
    number = min(page, last)
    shown = order[(number - 1) * ROWS : number * ROWS]
    rows = [_row(stays, place, day, hues) for place, stays in enumerate(shown)]
    step = _TICKS_MIN[hours]
    ticks = [
        (_x(day.to_s - minutes * 60, day), _ago(minutes))
        for minutes in range(hours * 60, -1, -step)
    ]
    height = TOP + max(1, len(rows)) * ROW
    return DayDrawing(number, len(order), height, rows, ticks, [(hues[k], k) for k in kinds])


def _ago(minutes: int) -> str:
    if not minutes:
        return "now"
    return f"{minutes // 60} h ago" if minutes % 60 == 0 else f"{minutes} min ago"


def _row(stays: list[Stay], place: int, day: JobTimeline, hues: dict[str, str]) -> Row:
    stays = sorted(stays, key=lambda one: one.begin_s)
    bars = []
    for number, one in enumerate(stays):
        begin, end = _x(one.begin_s, day), _x(one.end_s, day)
        stood = formats.duration(max(0.0, one.end_s - one.begin_s))
        kind = max(one.gpus, key=lambda name: one.gpus[name], default="")
        bars.append(
            StayBar(
                round(begin, 1),
                round(max(_LEAST, end - begin), 1),
                hues.get(kind, "held"),
                f"{formats.gpus(one.gpus)} on {one.nodes} for {stood}"
                + (", still there" if one.open else ""),
                number > 0,
            )
        )
    # A label at the left would be far from bars that begin late.
    late = bars[0].x > WIDTH / 2
    x, anchor = (WIDTH - MARGIN, "end") if late else (bars[0].x, "start")
    label = f"{stays[0].job} {stays[0].name}"
    return Row(stays[0].job, label, x, anchor, TOP + place * ROW, bars)


def _x(time_s: float, day: JobTimeline) -> float:
    share = (time_s - day.from_s) / max(1.0, day.to_s - day.from_s)
    return MARGIN + (WIDTH - 2 * MARGIN) * min(1.0, max(0.0, share))
