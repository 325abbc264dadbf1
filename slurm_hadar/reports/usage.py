"""What ``hadar report`` shows: text for a terminal, and one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_hadar.reports import formats, pages

_TEMPLATE = "usage.html.j2"
_LEAST_SHARE = 0.005
_WHOLE = 1000.0
"""Hours from which on their tenths are left out."""


@dataclass(frozen=True, slots=True)
class AccountUse:
    """One account, or all. Times in s, GPU time in hours; None: not known to the caller.

    ``asked_gpu_h``: GPUs times the time limits of the jobs submitted in this time; ``starts``:
    runs that began, of which ``wait_mean_s`` and ``wait_p95_s`` are, with the jobs that are
    ``waiting`` at its end; ``received_gpu_h``: GPUs held, of these ``idle_nodes_gpu_h`` on idle
    nodes; ``held_idle_gpu_h``: of the ``sampled_gpu_h``, held by a job that computed nothing;
    ``gained_gpu_h`` by ``moves``, ``lost_gpu_h`` also by those that were not carried out;
    ``energy_kwh``, ``co2_kg``: of the ``energy_gpu_h`` with known power.
    """

    account: str
    users: int
    jobs: int
    asked_gpu_h: float
    starts: int
    waiting: int
    wait_mean_s: float | None
    wait_p95_s: float | None
    received_gpu_h: float
    idle_nodes_gpu_h: float
    sampled_gpu_h: float | None
    held_idle_gpu_h: float | None
    moves: int | None
    gained_gpu_h: float | None
    lost_gpu_h: float | None
    energy_kwh: float | None
    energy_gpu_h: float
    co2_kg: float | None


@dataclass(frozen=True, slots=True)
class GroupUse:
    """One side of the comparison. ``failed``: share of its jobs that failed, 0 to 1."""

    use: AccountUse
    failed: float | None


@dataclass(frozen=True, slots=True)
class UsageReport:
    """All accounts, largest first, from ``from_s`` to ``to_s`` since the epoch; ``groups``:
    managed jobs and those that opted in and are not, where management is limited."""

    from_s: float
    to_s: float
    accounts: Sequence[AccountUse]
    total: AccountUse
    co2_g_per_kwh: float
    groups: Sequence[GroupUse] = ()
    notes: Sequence[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UsageTable:
    """One table of the report: what it shows, its columns, its rows."""

    head: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def text(report: UsageReport) -> RenderableType:
    """The report for a terminal."""
    parts: list[RenderableType] = [Text(title(report), style="bold", overflow="fold")]
    for one in tables(report):
        table = Table(box=None, header_style="dim", pad_edge=False, collapse_padding=True)
        for place, head in enumerate(one.heads):
            # In a narrow terminal a name is cut, and no figure.
            table.add_column(
                head.replace(" ", "\n", 1) if place else head,
                justify="right" if place else "left",
                overflow="ellipsis",
                no_wrap=bool(place),
                vertical="bottom",
            )
        for row in one.rows:
            table.add_row(*(Text(cell) for cell in row))
        parts += [Text(""), Text(one.head, style="bold"), table]
    if lines := notes(report):
        parts += [Text(""), *(Text(f"- {formats.plain(line)}", overflow="fold") for line in lines)]
    return Group(*parts)


def page(report: UsageReport) -> str:
    """The page's text."""
    most = max((one.received_gpu_h for one in report.accounts), default=0.0) or 1.0
    return pages.render(
        _TEMPLATE,
        title=title(report),
        bars=[
            {
                "name": formats.plain(one.account) or formats.ABSENT,
                "share": f"{100 * one.received_gpu_h / most:.2f}",
                "idle": f"{100 * _part(one.held_idle_gpu_h, one.received_gpu_h):.2f}",
                "text": _bar_text(one),
            }
            for one in report.accounts
            if one.received_gpu_h
        ],
        tables=tables(report),
        notes=[formats.plain(line) for line in notes(report)],
    )


def title(report: UsageReport) -> str:
    """From when to when, and how much."""
    return (
        f"GPU use from {formats.moment(report.from_s)} to {formats.moment(report.to_s)}: "
        f"{report.total.received_gpu_h:,.1f} GPU-hours, "
        f"{formats.counted(report.total.jobs, 'job')}"
    )


def _bar_text(one: AccountUse) -> str:
    idle = one.held_idle_gpu_h
    held = f", {idle:,.1f} held idle" if idle and idle / one.received_gpu_h > _LEAST_SHARE else ""
    return f"{one.received_gpu_h:,.1f} GPU-hours{held}"


def tables(report: UsageReport) -> list[UsageTable]:
    """Its figures as text."""
    rows = [*report.accounts, report.total] if len(report.accounts) > 1 else report.accounts
    found = [
        UsageTable(
            "Asked for, waited for, received",
            ("Account", "Users", "Jobs", "Asked GPU-h", "Starts", "Mean wait", "95% within",
             "Waiting", "Received GPU-h"),
            [
                [
                    _name(one), formats.number(one.users), formats.number(one.jobs),
                    _hours(one.asked_gpu_h), formats.number(one.starts),
                    _time(one.wait_mean_s), _time(one.wait_p95_s),
                    formats.number(one.waiting), _hours(one.received_gpu_h),
                ]
                for one in rows
            ],
        )
    ]  # fmt: skip
    if report.total.moves is not None:
        found.append(UsageTable(
            "Wasted and gained",
            ("Account", "Sampled", "Idle GPU-h", "Moves", "Gained GPU-h", "Lost GPU-h",
             "Backfill GPU-h", "Energy kWh", *(("CO2 kg",) if report.co2_g_per_kwh else ())),
            [
                [
                    _name(one), formats.percent(_share(one.sampled_gpu_h, one.received_gpu_h)),
                    _hours(one.held_idle_gpu_h), formats.number(one.moves),
                    _hours(one.gained_gpu_h), _hours(one.lost_gpu_h),
                    _hours(one.idle_nodes_gpu_h), _hours(one.energy_kwh),
                    *((_hours(one.co2_kg),) if report.co2_g_per_kwh else ()),
                ]
                for one in rows
            ],
        ))  # fmt: skip
    if report.groups:
        found.append(UsageTable(
            "Jobs that opted in, by the rollout",
            ("Jobs", "Count", "Received GPU-h", "Mean wait", "95% within", "Held idle", "Moves",
             "Gained GPU-h", "Lost GPU-h", "Failed"),
            [
                [
                    one.use.account, formats.number(one.use.jobs),
                    _hours(one.use.received_gpu_h), _time(one.use.wait_mean_s),
                    _time(one.use.wait_p95_s),
                    formats.percent(_share(one.use.held_idle_gpu_h, one.use.sampled_gpu_h)),
                    formats.number(one.use.moves), _hours(one.use.gained_gpu_h),
                    _hours(one.use.lost_gpu_h), formats.percent(one.failed),
                ]
                for one in report.groups
            ],
        ))  # fmt: skip
    return found


def notes(report: UsageReport) -> list[str]:
    """What to know of the figures."""
    found = list(report.notes)
    if report.total.energy_gpu_h:
        share = formats.percent(_share(report.total.energy_gpu_h, report.total.received_gpu_h))
        factor = report.co2_g_per_kwh
        co2 = f"; CO2 at {factor:g} g per kWh" if factor else ""
        found.append(f"energy is that of the GPUs alone, of {share} of the GPU-hours{co2}")
    return found


def _name(one: AccountUse) -> str:
    return formats.plain(one.account) or formats.ABSENT


def _hours(value: float | None) -> str:
    if value is None:
        return formats.ABSENT
    # z: a small negative figure is 0.0 and not -0.0.
    return f"{value:z,.1f}" if abs(value) < _WHOLE else f"{value:,.0f}"


def _time(seconds: float | None) -> str:
    """Short, as columns are: ``42 s``, ``7 min``, ``3.1 h``, ``2.2 d``."""
    if seconds is None:
        return formats.ABSENT
    for unit, size in (("d", 86400.0), ("h", 3600.0)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(1.0, part / whole)


def _part(part: float | None, whole: float) -> float:
    return min(1.0, (part or 0.0) / whole) if whole else 0.0
