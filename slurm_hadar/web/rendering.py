"""HTML of each view from what the controller answered: plain templates, everything escaped."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from slurm_hadar import policies
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reports import formats, usage
from slurm_hadar.reports.cluster import HIDDEN, JobTimeline, NodeRow
from slurm_hadar.reports.job_report import JobReport
from slurm_hadar.reports.text import Explanation, StatusRow
from slurm_hadar.web import drawing
from slurm_hadar.web.feed import Shown
from slurm_hadar.web.fragments import PageFragments
from slurm_hadar.web.page_query import HOURS, SORTS, PageChoice, natural
from slurm_hadar.web.usage import WeeksUse
from slurm_hadar.web.what_if import PolicyOutcome

ROWS, NODES = 100, 250
"""On one page."""
_HUES, _TYPE_HUES, _SHADES = 10, 8, 5
_JOBS_OF_NODE, _CHANGES = 8, 20
_JOB_PARTS = ("job-now", "job-problems", "job-speed", "job-decision", "job-moves", "job-events")


def queue(shown: Shown, choice: PageChoice, own: str) -> PageFragments:
    """The managed jobs. ``own``: see :meth:`PageChoice.rows`."""
    rows = choice.rows(shown.view.overview.rows, own)
    part, number = _page(rows, choice.page, ROWS)
    at = choice.address()
    module = _module()
    return PageFragments(
        "Queue",
        {
            **_common(shown),
            "pages": str(module.pages(_pager(choice, number, len(rows), ROWS, "job"), at)),
        },
        {
            "rows": {
                f"job-{row.id}": str(
                    module.job_row(row, shown.view.expected_s.get(row.id, 0.0), "./")
                )
                for row in part
            }
        },
    )


def nodes(shown: Shown, choice: PageChoice) -> PageFragments:
    """The map of the nodes and their GPUs."""
    kinds = sorted({kind for node in shown.view.nodes for kind in node.gpus})
    found = [
        node
        for node in shown.view.nodes
        if (not choice.gpu_type or choice.gpu_type in node.gpus) and choice.text in node.name
    ]
    part, number = _page(found, choice.page, NODES)
    module = _module()
    return PageFragments(
        "Nodes",
        {
            **_common(shown),
            "pages": str(
                module.pages(_pager(choice, number, len(found), NODES, "node"), choice.address())
            ),
        },
        {
            "nodes": {
                f"node-{node.name}": _node(_Hashed(node), choice.colour, tuple(kinds))
                for node in part
            }
        },
    )


def timeline(shown: Shown, choice: PageChoice, day: JobTimeline, own: str) -> PageFragments:
    """The jobs of the last day and their moves."""
    chosen = replace(day, segments=choice.segments(day.segments, own))
    drawn = drawing.draw(chosen, choice.page, choice.hours)
    module = _module()
    moves = sorted(day.moves, key=lambda one: one.move.time_s, reverse=True)[:ROWS]
    return PageFragments(
        "Timeline",
        {
            "state": str(module.state(shown)),
            "day": str(module.day(drawn, day)),
            "moves": str(module.moves(moves, len(day.moves))),
            "pages": str(
                module.pages(
                    _pager(choice, drawn.page, drawn.jobs, drawing.ROWS, "job"), choice.address()
                )
            ),
        },
    )


def job(
    shown: Shown, choice: PageChoice, report: JobReport | None, found: Explanation | None
) -> PageFragments:
    """One job: all for its owner and the operator, and what squeue shows for others. Raises
    UsageError for one that this user may not see."""
    row = next((one for one in shown.view.overview.rows if choice.job in one.names), None)
    if report is None and row is None:
        raise UsageError(f"no job {choice.job} that you may see is shown by Slurm")
    module = _module()
    # What is planned for it stands in the queue's row only.
    row = row or (found.row if found is not None else None)
    parts = {
        "state": str(module.state(shown)),
        "job-now": str(module.job_now(choice.job, row, report, shown.alone)),
    }
    if found is not None:
        fastest = max((one.samples_per_s or 0.0 for one in found.rates), default=0.0)
        parts["job-speed"] = str(module.job_speed(found, fastest))
        parts["job-decision"] = str(module.job_decision(found))
        parts["job-moves"] = str(module.job_moves(found.moves))
    if report is not None:
        parts["job-problems"] = str(module.job_problems(report, found is not None))
        parts["job-events"] = str(module.job_events(report.events[-ROWS:], len(report.events)))
    for name in _JOB_PARTS:
        # An open page has a place for what may come, and loses what is no longer known.
        parts.setdefault(name, f'<section id="{name}" hidden></section>')
    return PageFragments(f"Job {choice.job}", parts)


def what_if(shown: Shown, found: Sequence[PolicyOutcome]) -> PageFragments:
    """The queue of now under two policies."""
    module = _module()
    gains: list[tuple[str, float, float, float]] = []
    if len(found) > 1 and found[0].outcome and found[1].outcome:
        own, other = found[0].outcome.finish_h, found[1].outcome.finish_h
        for id_, before in own.items():
            after = other.get(id_)
            if before is not None and after is not None:
                gains.append((id_, before, after, after - before))
        gains = sorted(gains, key=lambda one: -abs(one[3]))[:_CHANGES]
    return PageFragments(
        "What if",
        {"state": str(module.state(shown)), "what-if": str(module.what_if(found, gains))},
    )


def report(shown: Shown, found: WeeksUse) -> PageFragments:
    """The GPU use of the last week."""
    module = _module()
    known = found.report
    texts = (usage.title(known), usage.tables(known), usage.notes(known)) if known else ("", (), ())
    return PageFragments(
        "Report",
        {"state": str(module.state(shown)), "report": str(module.report(found, *texts))},
    )


def page(
    parts: PageFragments, choice: PageChoice, shown: Shown | None, extra: Mapping[str, Any]
) -> str:
    """The whole document around a view's parts."""
    view = shown.view if shown is not None else None
    rows: Sequence[StatusRow] = view.overview.rows if view is not None else ()
    return _environment().get_template(f"{choice.kind}.html.j2").render(
        parts=parts,
        choice=choice,
        sorts=SORTS,
        policies=policies.names(),
        hours=HOURS,
        base="../" if choice.kind == "job" else "./",
        states=sorted({row.state for row in rows}),
        kinds=sorted({use.gpu_type for use in view.overview.gpus}) if view is not None else [],
        **extra,
    )  # fmt: skip


def failure(status: int, message: str, base: str = "./") -> str:
    """The page that says what is wrong."""
    template = _environment().get_template("failure.html.j2")
    return template.render(status=status, message=message, base=base)


def _common(shown: Shown) -> dict[str, str]:
    module = _module()
    return {"state": str(module.state(shown)), "summary": str(module.summary(shown.view.overview))}


def _page(rows: Sequence[Any], page: int, size: int) -> tuple[Sequence[Any], int]:
    """The rows of that page, or of the last one."""
    last = max(1, -(-len(rows) // size))
    number = min(page, last)
    return rows[(number - 1) * size : number * size], number


def _pager(choice: PageChoice, page: int, number: int, size: int, noun: str) -> dict[str, Any]:
    last = max(1, -(-number // size))
    return {
        "page": page,
        "last": last,
        "count": formats.counted(number, noun),
        "before": choice.address(page=page - 1) if page > 1 else "",
        "after": choice.address(page=page + 1) if page < last else "",
    }


class _Hashed:
    """A node by what is shown of it."""

    __slots__ = ("_key", "node")

    def __init__(self, node: NodeRow) -> None:
        self.node = node
        held = [tuple(one.items()) for one in (node.gpus, node.used, node.jobs)]
        self._key = (node.name, node.state, node.usable, node.busy, *held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=8192)
def _node(hashed: _Hashed, colour: str, kinds: Sequence[str]) -> str:
    """Most nodes are the same as at the last tick."""
    node = hashed.node
    return str(_module().node(node, _cells(node, colour, kinds), _jobs_of(node)))


def _cells(node: NodeRow, colour: str, kinds: Sequence[str]) -> list[str]:
    """A class for each GPU: what it is coloured by, or that it is free or down."""
    cells: list[str] = []
    shade = f"u{min(_SHADES - 1, int(node.busy * _SHADES))}" if node.busy is not None else "held"
    for kind, count in sorted(node.gpus.items()):
        used = min(count, node.used.get(kind, 0))
        hue = f"t{kinds.index(kind) % _TYPE_HUES}"
        held = [hue if colour == "type" else shade] * used
        cells += [*held, *["free" if node.usable else "down"] * (count - used)]
    if colour == "job":
        taken = [number for number, cell in enumerate(cells) if cell not in ("free", "down")]
        hues = _hues(node.jobs)
        owners = [hues[id_] for id_, gpus in sorted(node.jobs.items()) for _ in range(gpus)]
        for number, owner in zip(taken, owners, strict=False):
            cells[number] = owner
    return cells


def _hues(jobs: Mapping[str, int]) -> dict[str, str]:
    """A colour for each job of a node: by its number, the same on all its nodes, unless another job
    of this one has that."""
    found = {HIDDEN: "held"}
    free = set(range(_HUES))
    for id_ in sorted(jobs):
        if id_ != HIDDEN:
            wanted = sum(natural(id_)) % _HUES
            free = free or set(range(_HUES))
            hue = min(free, key=lambda one: (one - wanted) % _HUES)
            free.discard(hue)
            found[id_] = f"j{hue}"
    return found


def _jobs_of(node: NodeRow) -> tuple[list[tuple[str, int]], int]:
    """The first jobs of a node with their GPUs, and how many more there are."""
    jobs = sorted(node.jobs.items())
    return jobs[:_JOBS_OF_NODE], max(0, len(jobs) - _JOBS_OF_NODE)


def _clock(epoch_s: float) -> str:
    """``14:03:22``, with the date where that is not today's."""
    try:
        then = datetime.fromtimestamp(epoch_s)
    except (OSError, OverflowError, ValueError):
        return formats.ABSENT
    today = then.date() == datetime.now().date()
    return then.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M")


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("slurm_hadar.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for one in (formats.plain, formats.gpus, formats.percent, formats.rate, formats.moment,
                formats.duration, formats.counted):  # fmt: skip
        found.filters[one.__name__] = one
    found.filters["clock"] = _clock
    return found


@cache
def _module() -> Any:
    return _environment().get_template("parts.html.j2").module
