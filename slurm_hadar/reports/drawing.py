"""Where everything lies on a timeline's drawing: numbers only, in px, from a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.reports import formats, pages
from slurm_hadar.reports.colours import colour
from slurm_hadar.reports.run import AttemptTimeline, Run, TimelineSegment, attempts, last_end_s

WIDTH = 1160.0
GUTTER = 132.0
RIGHT = 14.0
TOP = 26.0
CHART = 84.0
_LETTER = 7.2
_GROUP_GAP = 12.0
_MOST_POINTS = 700
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Bar:
    """A job on neighbouring GPUs of a node. ``title`` has several lines."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    key: str
    title: str
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A move or restart: at ``x``, ``y``; ``path`` leads there from where the job was before."""

    x: float
    y: float
    path: str
    moved: bool
    key: str


@dataclass(frozen=True, slots=True)
class Label:
    """A word at a place."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The empty row of one GPU."""

    y: float
    height: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """One run's timeline with the throughput below it."""

    height: float
    lanes: tuple[Lane, ...]
    types: tuple[Label, ...]
    nodes: tuple[Label, ...]
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    ticks: tuple[Label, ...]
    bottom: float
    end: Label
    chart_top: float
    chart_bottom: float
    area: str
    line: str
    chart_most: str


@dataclass(frozen=True, slots=True)
class Scale:
    """What all runs of a page share, so that they can be compared by eye."""

    end_s: float
    most: float
    """Samples/s at the top of the throughput."""
    colours: Mapping[tuple[str, int], str]
    """(name, how many jobs of this name before it) -> colour."""

    def x(self, time_s: float) -> float:
        """Place of a time on the drawing."""
        inside = min(max(time_s, 0.0), self.end_s)
        return GUTTER + (WIDTH - GUTTER - RIGHT) * inside / self.end_s


def scale(runs: Sequence[Run]) -> Scale:
    """One scale for all runs: time, throughput, and a colour per job."""
    keys = dict.fromkeys(key for run in runs for key in _keys(run).values())
    ends = [segment.end_s for run in runs for segment in run.segments]
    ends += [last_end_s(run) for run in runs]
    return Scale(
        end_s=max(1.0, pages.without_tail(ends)) * 1.01,
        most=pages.without_tail([rate for run in runs for _, rate in _thinned(run.samples)]) or 1.0,
        colours={key: colour(i) for i, key in enumerate(keys)},
    )


def draw(run: Run, by: Scale) -> Drawing:
    """Draw one run."""
    height = _lane_height(len(run.gpus))
    rows = _rows(run, height)
    bars: list[Bar] = []
    marks: list[Mark] = []
    keys = _keys(run)
    names = {job.job: job.name for job in run.jobs}
    for job, tries in attempts(run.segments).items():
        before: Bar | None = None
        for attempt in tries:
            key = keys.get(job, (job, 0))
            shade = by.colours.get(key, "#888888")
            mine = _bars(attempt, names.get(job, ""), rows, by, shade)
            bars += mine
            if mine and before and (attempt.moved or attempt.restarted):
                marks.append(_mark(before, mine[0], attempt))
            before = mine[0] if mine else before
    top = rows.bottom + 34
    points = [(time_s, rate) for time_s, rate in _thinned(run.samples) if time_s <= by.end_s]
    area, line = _curve(points, last_end_s(run), by, top)
    return Drawing(
        height=top + CHART + 26,
        lanes=tuple(Lane(y, height) for y in rows.lanes.values()),
        types=rows.types,
        nodes=rows.nodes,
        bars=tuple(bars),
        marks=tuple(marks),
        ticks=_ticks(by),
        bottom=rows.bottom,
        end=Label(by.x(last_end_s(run)), TOP, formats.clock(last_end_s(run))),
        chart_top=top,
        chart_bottom=top + CHART,
        area=area,
        line=line,
        chart_most=formats.rate(by.most),
    )


def _keys(run: Run) -> dict[str, tuple[str, int]]:
    seen: dict[str, int] = {}
    keys: dict[str, tuple[str, int]] = {}
    named = [(job.submit_s, job.job, job.name) for job in run.jobs]
    known = {job for _, job, _ in named}
    named += [(s.start_s, s.job, s.name) for s in run.segments if s.job not in known]
    for _, job, name in sorted(named, key=lambda item: item[0]):
        if job not in keys:
            keys[job] = (name, seen.get(name, 0))
            seen[name] = seen.get(name, 0) + 1
    return keys


def _lane_height(gpus: int) -> float:
    return next(
        (h for most, h in ((20, 22.0), (40, 16.0), (80, 10.0), (200, 5.0)) if gpus <= most), 2.5
    )


@dataclass(frozen=True)
class _Rows:
    """Where the lane of each GPU (node, index) is, all of one ``height``, with the labels of their
    ``types`` and ``nodes``; ``bottom``: below all of them."""

    lanes: Mapping[tuple[str, int], float]
    height: float
    types: tuple[Label, ...]
    nodes: tuple[Label, ...]
    bottom: float


def _rows(run: Run, height: float) -> _Rows:
    lanes: dict[tuple[str, int], float] = {}
    types: list[Label] = []
    nodes: list[Label] = []
    kinds = list(dict.fromkeys(gpu.type for gpu in run.gpus))
    y = TOP + 6
    for kind in kinds:
        first = y
        mine = [gpu for gpu in run.gpus if gpu.type == kind]
        of_node = list(dict.fromkeys(gpu.node for gpu in mine))
        for node in of_node:
            node_first = y
            for gpu in sorted((g for g in mine if g.node == node), key=lambda g: g.index):
                lanes[node, gpu.index] = y
                y += height + 1
            if (y - node_first) >= 10:
                nodes.append(Label(GUTTER - 8, (node_first + y - 1) / 2, _cut(node, 60)))
            y += 2 if height > 4 else 0
        types.append(Label(0, (first + y) / 2 - 1, f"{_cut(kind, 52)} ×{len(mine)}"))
        y += _GROUP_GAP
    return _Rows(lanes, height, tuple(types), tuple(nodes), y - _GROUP_GAP + 4)


def _cut(text: str, width: float) -> str:
    text = formats.plain(text)
    most = int(width / _LETTER)
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"


def _bars(attempt: AttemptTimeline, name: str, rows: _Rows, by: Scale, shade: str) -> list[Bar]:
    bars, lanes, height = [], rows.lanes, rows.height
    for segment in attempt.segments:
        ys = sorted(
            lanes[segment.node, i] for i in segment.gpu_indices if (segment.node, i) in lanes
        )
        if segment.start_s >= by.end_s:
            continue
        x = by.x(segment.start_s)
        width = max(1.5, by.x(segment.end_s) - x)
        while ys:
            run = 1
            while run < len(ys) and ys[run] - ys[run - 1] < height + 1.5:
                run += 1
            tall = ys[run - 1] + height - ys[0]
            label = _cut(name or segment.name, width - 14) if tall >= 12 else ""
            if label.endswith("…") and len(label) < 6:
                label = ""
            title = _title(segment, attempt, name or segment.name)
            bars.append(Bar(x, ys[0], width, tall, shade, segment.job, title, label))
            ys = ys[run:]
    return bars


def _title(segment: TimelineSegment, attempt: AttemptTimeline, name: str) -> str:
    indices = ", ".join(str(i) for i in sorted(segment.gpu_indices))
    start, end = segment.start_s, segment.end_s
    lines = [
        f"{formats.plain(name)}  (job {formats.plain(segment.job)})",
        f"{formats.plain(segment.type)} on {formats.plain(segment.node)}, GPU {indices}",
        f"{formats.clock(start)} to {formats.clock(end)}  ({formats.duration(end - start)})",
    ]
    if attempt.moved:
        lines.append("moved here, went on from its checkpoint")
    if attempt.restarted:
        lines.append("restarted on the same GPUs")
    return "\n".join(lines)


def _mark(before: Bar, now: Bar, attempt: AttemptTimeline) -> Mark:
    x0, y0 = before.x + before.width, before.y + before.height / 2
    x1, y1 = now.x, now.y + now.height / 2
    reach = max(14.0, abs(x1 - x0) / 2)
    path = (
        f"M{x0:.1f} {y0:.1f}C{x0 + reach:.1f} {y0:.1f} {x1 - reach:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    )
    return Mark(x1, y1, path, attempt.moved, now.key)


def _ticks(by: Scale) -> tuple[Label, ...]:
    step = next((s for s in _STEPS if by.end_s / s <= 11), 86400 * math.ceil(by.end_s / 86400 / 10))
    return tuple(
        Label(by.x(step * i), TOP, formats.clock(step * i)) for i in range(int(by.end_s / step) + 1)
    )


def _thinned(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most as many points as can be seen, each the mean of those that it stands for."""
    ordered = sorted((t, rate) for t, rate in samples if math.isfinite(t) and math.isfinite(rate))
    size = -(-len(ordered) // _MOST_POINTS) or 1
    parts = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return [(part[0][0], sum(rate for _, rate in part) / len(part)) for part in parts]


def _curve(
    points: Sequence[tuple[float, float]], end_s: float, by: Scale, top: float
) -> tuple[str, str]:
    if not points:
        return "", ""
    floor = top + CHART
    line = ""
    for i, (time_s, rate) in enumerate(points):
        y = floor - CHART * min(max(rate, 0.0) / by.most, 1.0)
        line += f"{'M' if i == 0 else 'H'}{by.x(time_s):.1f}" + (
            f" {y:.1f}" if i == 0 else f"V{y:.1f}"
        )
    line += f"H{by.x(max(end_s, points[-1][0])):.1f}"
    area = f"{line}V{floor:.1f}H{by.x(points[0][0]):.1f}Z"
    return area, line
