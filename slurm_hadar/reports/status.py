"""What ``hadar status`` prints: a summary of the cluster, then one line for each job."""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from slurm_hadar.reports import formats
from slurm_hadar.reports.text import STATE_STYLES, StatusRow, where

_LEAST_REASON = 24
"""Cells of a reason's column, below which another column is left out instead."""
_GAP = 2
_INDENT = 4
NO_JOBS = "No managed jobs."
CONTROLLER, STATE_FILE, SLURM = "controller", "state file", "Slurm"
"""The source of an overview."""
_STAYS = re.compile(r"\bstays on [^();]*\([^()]*\)[,;]? ")
"""What a reason says that ON says as well: ``stays on 1 x k80 (k1), ``."""
_TURN = re.compile(r"^Slurm: (?:Priority|Resources); (?=\S)")
"""That a job waits for its turn, before what was decided."""
_ALARM, _WARNING = "bold red", "yellow"


@dataclass(frozen=True, slots=True)
class ControllerState:
    """``state``: ``acts``, ``observes``, ``silent``, ``stopped`` (in order) or ``never seen``.
    ``last_s``: its last tick, s since the epoch, 0 where none is known. ``fault``: why the latest
    tick did nothing; ``doubt``: why it may have died since its last heartbeat; ``stop_file``: the
    one under which it changes nothing, empty where there is none; ``stop_file_unseen``: why the
    caller cannot see whether there is one."""

    state: str
    host: str = ""
    last_s: float = 0.0
    fault: str = ""
    doubt: str = ""
    stop_file: str = ""
    stop_file_unseen: str = ""

    @property
    def alive(self) -> bool:
        """Whether its reasons are those of now."""
        return self.state in ("acts", "observes")


@dataclass(frozen=True, slots=True)
class GpuCounts:
    """The GPUs of one type. ``used``: jobs have them; ``idle``: free on nodes that jobs can use;
    ``down``: on other nodes; ``planned``: for jobs that are not there yet; ``backfilled``: of those
    used, by trainings on idle nodes."""

    gpu_type: str
    total: int
    used: int
    idle: int
    planned: int = 0
    backfilled: int = 0
    down: int = 0


CHAINED = "requeued at the time limit"
"""An outcome that is no move."""


@dataclass(frozen=True, slots=True)
class MovesToday:
    """The moves since midnight, by what became of them, and the GPU-hours that they gained and lost
    as far as the trainings reported. ``own``: of the caller's jobs only."""

    moves: Mapping[str, int] = field(default_factory=dict)
    gained_gpu_h: float = 0.0
    lost_gpu_h: float = 0.0
    own: bool = False

    @property
    def number(self) -> int:
        """A requeue at the time limit is no move."""
        return sum(count for outcome, count in self.moves.items() if outcome != CHAINED)


@dataclass(frozen=True, slots=True)
class Overview:
    """The cluster and the jobs that one user may see. ``observed_s``: when Slurm showed this;
    ``source``: ``controller``, its ``state file`` or ``Slurm`` alone; ``managed`` and ``others``:
    jobs by state; ``today`` None: not known; ``trust``: how many times the work counts that this
    user's jobs declare, None: not known; ``nodes_hidden``: Slurm shows this user no nodes;
    ``root_asks_as``: the user as whom root reads the controller's state, empty: no such user."""

    observed_s: float
    source: str
    controller: ControllerState
    gpus: Sequence[GpuCounts] = ()
    managed: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)
    today: MovesToday | None = None
    trust: float | None = None
    nodes_hidden: bool = False
    root_asks_as: str = ""
    rollout: str = ""
    interactive: int = 0
    """Of the others: salloc, srun, Open OnDemand and JupyterHub."""
    group_problems: list[str] = field(default_factory=list)
    """Groups of partitions that do not work, and why; for the operator."""
    accounting: str = ""
    """What is wrong with the accounting database, and what follows; for the operator."""
    rows: list[StatusRow] = field(default_factory=list)
    """A list: of another sequence pydantic writes each item twice."""


def summary(found: Overview, now: float) -> list[Text]:
    """The lines above the jobs. ``now``: s since the epoch."""
    answers = found.source == CONTROLLER
    lines = controller_summary(found.controller, now, answers)
    if answers and (found.controller.last_s - found.observed_s > 1 or not found.controller.alive):
        # Else the line on the controller says of when all this is.
        age = formats.duration(max(0.0, now - found.observed_s))
        lines.append(_line("As of", f"{age} ago: {_no_result(found.controller)}"))
    if found.controller.fault:
        lines.append(_line("Fault", formats.plain(found.controller.fault), _WARNING))
    if found.accounting:
        lines.append(_line("Accounting", formats.plain(found.accounting), _WARNING))
    title = "Groups"
    for problem in found.group_problems:
        lines.append(_line(title, formats.plain(problem), _WARNING))
        title = ""
    title = "GPUs"
    for use in found.gpus:
        lines.append(_line(title, _gpus(use)))
        title = ""
    if found.nodes_hidden:
        lines.append(_line(title, "not shown: Slurm hides the nodes from you (PrivateData)"))
    managed = _counts(found.managed) or "none"
    others = _counts(found.others)
    if found.interactive:
        others += f" ({found.interactive} interactive)"
    lines.append(_line("Jobs", managed + (f"; not managed: {others}" if others else "")))
    if found.today is not None:
        lines.append(_line("Today", _today(found.today)))
    if found.rollout:
        lines.append(_line("Rollout", found.rollout))
    if found.trust is not None:
        lines.append(_line("Your work", _trust(found.trust)))
    if found.source == SLURM:
        said = "Slurm and the jobs' own files"
        if found.controller.alive:
            # As under a timer, where this is not its host, or where this user may not reach it.
            host = formats.plain(found.controller.host) or "its host"
            said += f"; no hadar run answered at its socket (status.socket), which is on {host}"
        if found.root_asks_as:
            said += f"; for the reasons of all jobs run: sudo -u {found.root_asks_as} hadar status"
        lines.append(_line("Source", said))
    return lines


def _no_result(controller: ControllerState) -> str:
    """Why what a controller answers is not of now."""
    if controller.fault:
        return "each tick since then failed"
    return "the tick since then has no result yet"


def table(
    rows: Sequence[StatusRow], width: int | None, why: bool = False, none: str = NO_JOBS
) -> list[Text]:
    """A header and one line for each job.

    ``width``: cells that a line may take, None: as many as it needs; columns that are empty or do
    not fit are left out, the least important first. ``why``: the whole reason stands below its job
    instead. ``none``: what stands there where there is no row.
    """
    if not rows:
        return [Text(none)]
    shown = [_Column(*one) for one in _COLUMNS]
    cells = {column.head: [formats.plain(column.cell(row)) for row in rows] for column in shown}
    if width is not None:
        shown = [c for c in shown if any(cell != formats.ABSENT for cell in cells[c.head])]
        cells = {column.head: cells[column.head] for column in shown}
    least = min(_LEAST_REASON, (width or _LEAST_REASON * 3) // 3)
    sizes = _sizes(shown, cells, width, 0 if why else least)
    kept = [column for column in shown if column.head in sizes]
    heads = [_sized(c.head, sizes[c.head], c.right) for c in kept]
    lines = [Text(_cut(_join(heads) + ("" if why else "  REASON"), width), style="bold")]
    for number, row in enumerate(rows):
        parts = [_sized(cells[c.head][number], sizes[c.head], c.right) for c in kept]
        reason = formats.plain(row.reason)
        if row.here and not why:
            reason = _STAYS.sub("stays: ", reason)
        elif width is not None and not why:
            reason = _TURN.sub("", reason)
        line = Text(_cut(_join(parts if why else [*parts, reason]).rstrip(), width))
        style = STATE_STYLES.get(row.state.lower(), "")
        if style and "STATE" in sizes:
            place = [column.head for column in kept].index("STATE")
            start = len(_join(parts[:place])) + _GAP
            line.stylize(style, start, start + len(parts[place]))
        lines.append(line)
        if why and reason:
            lines += [Text(part) for part in _wrapped(reason, width)]
    return lines


@dataclass(frozen=True, slots=True)
class _Column:
    """``most`` and ``least``: cells; ``rank``: the highest is left out first, 0 never is."""

    head: str
    cell: Callable[[StatusRow], str]
    rank: int
    most: int
    least: int
    right: bool = False


_COLUMNS: tuple[tuple[str, Callable[[StatusRow], str], int, int, int, bool], ...] = (
    ("JOB", lambda row: row.id, 0, 30, 6, True),
    ("USER", lambda row: row.user, 5, 16, 6, False),
    ("NAME", lambda row: row.name, 3, 24, 8, False),
    ("STATE", lambda row: row.state, 1, 12, 7, False),
    ("ON", lambda row: where(row), 2, 40, 10, False),
    ("PLANNED", lambda row: formats.gpus(row.planned), 9, 20, 7, False),
    ("DONE", lambda row: formats.percent(row.done), 4, 4, 4, True),
    ("SAMPLES/S", lambda row: formats.rate(row.samples_per_s), 7, 9, 9, True),
    ("MOVES", lambda row: formats.number(row.moves), 8, 5, 5, True),
)


def _sizes(
    columns: Sequence[_Column],
    cells: Mapping[str, Sequence[str]],
    width: int | None,
    reason: int,
) -> dict[str, int]:
    """Cells of each column that is shown."""
    needed = {
        c.head: max(len(c.head), min(c.most, max(map(_cells, cells[c.head]), default=0)))
        for c in columns
    }
    if width is None:
        return needed

    def excess(sizes: Mapping[str, int]) -> int:
        return sum(sizes.values()) + _GAP * len(sizes) + reason - width

    sizes = dict(needed)
    for column in sorted(columns, key=lambda one: one.rank, reverse=True):
        # First what is long is cut, then the least important is left out.
        for flexible in ("NAME", "PLANNED", "ON", "USER"):
            if flexible == "ON" and "PLANNED" in sizes:
                # Where it is matters more than where it may go, which the reason says too.
                continue
            if flexible in sizes and excess(sizes) > 0:
                least = next(c.least for c in columns if c.head == flexible)
                sizes[flexible] = max(least, sizes[flexible] - excess(sizes))
                sizes[flexible] = min(sizes[flexible], needed[flexible])
        if excess(sizes) <= 0 or column.rank == 0:
            break
        del sizes[column.head]
        sizes = {head: needed[head] for head in sizes}
    return sizes


def _join(cells: Sequence[str]) -> str:
    return (" " * _GAP).join(cells)


def _sized(text: str, size: int, right: bool) -> str:
    length = _cells(text)
    if length > size:
        return _fitted(text, size - 1) + "…"
    pad = " " * (size - length)
    return pad + text if right else text + pad


def _cut(line: str, width: int | None) -> str:
    if width is None or _cells(line) <= width:
        return line
    return _fitted(line, width - 1) + "…"


def _fitted(text: str, size: int) -> str:
    return text[:size] if text.isascii() else set_cell_size(text, size)


def _cells(text: str) -> int:
    # Nearly all are ASCII, and there may be thousands.
    return len(text) if text.isascii() else cell_len(text)


def _wrapped(reason: str, width: int | None) -> list[str]:
    if width is None:
        return [" " * _INDENT + reason]
    # A wide character takes two cells.
    room = max(8, width - _INDENT) // (1 if cell_len(reason) == len(reason) else 2)
    return [" " * _INDENT + part for part in textwrap.wrap(reason, room)]


def _line(title: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{title:<12}", "bold"), (text, style))


def controller_summary(state: ControllerState, now: float, answers: bool = False) -> list[Text]:
    """What is known of the controller. ``now``: s since the epoch; ``answers``: it answered a
    question just now."""
    host = f" on {formats.plain(state.host)}" if state.host else ""
    if state.alive:
        age = formats.duration(max(0.0, now - state.last_s))
        lines = [_line("Controller", f"{state.state}{host}, last tick {age} ago")]
        if state.stop_file:
            said = f"the stop file {formats.plain(state.stop_file)} exists: nothing is changed"
            lines.append(_line("", said, _WARNING))
        if state.stop_file_unseen:
            lines.append(_line("", formats.plain(state.stop_file_unseen), _WARNING))
        if state.doubt:
            lines.append(_line("", formats.plain(state.doubt), _ALARM))
        return lines
    means = "Slurm goes on alone; reasons may be old"
    if state.state in ("silent", "stopped"):
        age = formats.duration(max(0.0, now - state.last_s))
        what = state.state.upper()
        if answers and state.state == "silent":
            what, means = "NO TICK", "it answers, and may wait for Slurm; reasons may be old"
        said = f"{what}{host} since {formats.moment(state.last_s)} ({age})"
    else:
        said = "NONE: no heartbeat in the exchange folder"
    return [_line("Controller", said, _ALARM), _line("", means, _ALARM)]


def _gpus(use: GpuCounts) -> str:
    parts = [f"{use.used} used", f"{use.idle} idle", f"{use.planned} planned"]
    parts += [f"{use.backfilled} of the used backfilled"] if use.backfilled else []
    parts += [f"{use.down} down"] if use.down else []
    return f"{formats.plain(use.gpu_type)}: {', '.join(parts)}, of {use.total}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items() if number)


def _today(today: MovesToday) -> str:
    number = today.number
    by = f" ({_counts(today.moves)})" if today.moves else ""
    gained = round(today.gained_gpu_h, 1) + 0.0  # never -0.0
    hours = f"{gained:.1f} GPU-hours gained, {today.lost_gpu_h:.1f} lost"
    whose = " of your jobs" if today.own else ""
    return f"{number} move{'' if number == 1 else 's'}{whose}{by}; {hours}"


def _trust(trust: float) -> str:
    if trust < 1.1:
        return "counts as you declare it"
    return (
        f"counts {trust:.1f} times what you declare: in the last 90 days your jobs took that much "
        "longer than declared"
    )
