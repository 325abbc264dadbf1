"""What ``hadar tune`` shows: text for a terminal, and one self-contained HTML page.

Both are made from the plain result that ``hadar tune --json`` prints, so that all three agree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from slurm_hadar.reports import formats, pages
from slurm_hadar.reports.colours import colour
from slurm_hadar.reports.text import whole_line

Result = Mapping[str, Any]

_TEMPLATE = "tuning.html.j2"
_TYPE_HEADS = ("GPU TYPE", "GPUS", "OFFERED h", "USED h", "IDLE h", "IDLE", "WHILE OTHERS WAITED h")
_WAIT_HEADS = ("ASKED FOR", "JOBS", "WAITED", "HOURS", "WHILE ANOTHER TYPE WAS FREE h")
_POLICY_HEADS = ("POLICY", "FINISHED", "MEAN JCT h", "MEDIAN h", "P99 h", "MAKESPAN h", "GPU h",
                 "MOVES", "FAIRNESS")  # fmt: skip
_ACCOUNT_HEADS = ("ACCOUNT", "JOBS", "GPU h")
_LONGEST_WORD = 20
"""Of a name, which may be long and is broken behind so many characters."""
_WIDEST = 10_000
_MANY = 8
"""Accounts in the terminal; the page and the JSON have all."""


def text(result: Result) -> RenderableType:
    """The result for a terminal."""
    parts: list[RenderableType] = [_title(_headline(result))]
    for head, heads, rows in _tables(result):
        if rows:
            many = rows[:_MANY] if heads[:1] == _ACCOUNT_HEADS[:1] else rows
            parts += [Text(""), Text(head, style="bold"), _Table(heads, many)]
        if heads == _POLICY_HEADS:
            parts += [_title(f"  {line}", "") for line in _why_not(result["policies"])]
    parts += [Text(""), Text("Advice", style="bold")]
    if not result["advice"]:
        parts.append(Text("  No advice."))
    parts += [_advice(number, one) for number, one in enumerate(_once(result["advice"]), 1)]
    if len(result["slurm_conf"]) > 1:
        parts += [Text(""), Text("All lines of slurm.conf together", style="bold")]
        parts += [whole_line(f"  {line}") for line in _block(result)]
    for head, lines in (("Left as it is", result["fine"]), ("Notes", result["notes"])):
        if lines:
            parts += [Text(""), Text(head, style="bold")]
            parts += [Text(f"  - {formats.plain(line)}", overflow="fold") for line in lines]
    return Group(*parts)


def page(result: Result) -> str:
    """The page's text. Names may be hostile: they are escaped."""
    return pages.render(
        _TEMPLATE,
        title=_headline(result),
        tables=[
            {
                "head": head,
                "heads": [_head(one) for one in heads],
                "rows": rows,
                "below": _why_not(result["policies"]) if heads == _POLICY_HEADS else [],
            }
            for head, heads, rows in _tables(result)
            if rows
        ],
        bars=_bars(result["gpu_types"]),
        advice=[
            {
                "topic": formats.plain(one["topic"]),
                "why": formats.plain(one["why"]),
                "gain": formats.plain(one["gain"]),
                "basis": one["basis"],
                "lines": one["slurm_conf"],
                "seen": one["seen"],
                "toml": "\n".join(formats.plain(line) for line in one["hadar_toml"]),
            }
            for one in _once(result["advice"])
        ],
        block="\n".join(_block(result)),
        fine=[formats.plain(line) for line in result["fine"]],
        notes=[formats.plain(line) for line in result["notes"]],
    )


def _headline(result: Result) -> str:
    gpus = formats.gpus(result["site"]["gpus"])
    nodes = result["site"]["nodes"]
    site = f"{gpus} on {nodes} nodes" if nodes else "a simulated cluster"
    past = result["history"]
    if past is None:
        return f"Advice for {site}"
    return (
        f"Advice for {site}, from {formats.number(past['gpu_jobs'])} GPU jobs "
        f"({past['from']} to {past['to']}); {formats.number(past['replayed_jobs'])} replayed"
    )


def _block(result: Result) -> list[str]:
    return [
        formats.plain(line["line"]) + f"   # {formats.plain(line['where'])}"
        for line in result["slurm_conf"]
    ]


_Rows = list[list[str]]


def _tables(result: Result) -> list[tuple[str, tuple[str, ...], _Rows]]:
    return [
        ("What idled", _TYPE_HEADS, [_type(one) for one in result["gpu_types"]]),
        ("Who waited for one type", _WAIT_HEADS, [_wait(one) for one in result["waits"]]),
        (
            "What each policy would have given",
            _POLICY_HEADS,
            [_policy(one) for one in result["policies"]],
        ),
        ("By account: mean job time in h (times the recorded run)", *_accounts(result["policies"])),
    ]


def _type(one: Result) -> list[str]:
    return [
        formats.plain(one["type"]),
        formats.number(one["gpus"]),
        *(_figure(one[f"{key}_gpu_h"], 0) for key in ("offered", "used", "idle")),
        formats.percent(one["idle_share"]),
        _figure(one["idle_while_others_waited_gpu_h"], 0),
    ]


def _wait(one: Result) -> list[str]:
    free = " ".join(
        f"{formats.plain(kind or '(no type)')} {hours:.1f}"
        for kind, hours in one["waited_while_free_h"].items()
    )
    return [
        formats.plain(one["type"]),
        formats.number(one["jobs"]),
        formats.number(one["jobs_that_waited"]),
        _figure(one["waited_h"], 1),
        f"{one['waited_while_any_free_h']:.1f}" + (f" ({free})" if free else ""),
    ]


def _policy(one: Result) -> list[str]:
    name = formats.plain(one["policy"])
    if "why_not" in one:
        return [name, *[formats.ABSENT] * (len(_POLICY_HEADS) - 1)]
    return [
        name,
        f"{one['finished']}/{one['jobs']}",
        *(_figure(one[key], 2) for key in ("avg_jct_h", "median_jct_h", "p99_jct_h", "makespan_h")),
        _figure(one["gpu_h"], 0),
        formats.number(one["moves"]),
        _figure(one["fairness"], 2),
    ]


def _why_not(policies: Sequence[Result]) -> list[str]:
    """Why there are no figures, with the policies of which it is so."""
    found: dict[str, list[str]] = {}
    for one in policies:
        if "why_not" in one:
            found.setdefault(formats.plain(one["why_not"]), []).append(formats.plain(one["policy"]))
    return [f"{', '.join(names)}: {why}" for why, names in found.items()]


def _accounts(policies: Sequence[Result]) -> tuple[tuple[str, ...], _Rows]:
    """One row an account, one column a policy: mean job time in h, and the slowdown."""
    runs = [one for one in policies if one.get("accounts")]
    by_name = [{row["account"]: row for row in run["accounts"]} for run in runs]
    names = list(dict.fromkeys(name for run in by_name for name in run))
    heads = (*_ACCOUNT_HEADS, *(formats.plain(run["policy"]).upper() for run in runs))
    if len(names) < 2:
        return heads, []
    rows = []
    for name in names:
        first = next(run[name] for run in by_name if name in run)
        cells = [
            f"{run[name]['avg_jct_h']:.2f} ({run[name]['slowdown']:.1f}x)"
            if name in run
            else formats.ABSENT
            for run in by_name
        ]
        figures = [formats.number(first["jobs"]), _figure(first["gpu_h"], 0)]
        rows.append([formats.plain(name), *figures, *cells])
    return heads, rows


def _once(advice: Sequence[Result]) -> list[Result]:
    """A line that several pieces of advice change stands with the first of them; ``seen``: the
    others' numbers where it stands already."""
    places: dict[str, int] = {}
    found: list[Result] = []
    for number, one in enumerate(advice, 1):
        new = [
            {"line": formats.plain(line["line"]), "where": formats.plain(line["where"])}
            for line in one["slurm_conf"]
            if places.setdefault(line["line"], number) == number
        ]
        before = sorted({places[line["line"]] for line in one["slurm_conf"]} - {number})
        found.append({**one, "slurm_conf": new, "seen": ", ".join(map(str, before))})
    return found


def _figure(value: float | None, digits: int) -> str:
    return formats.ABSENT if value is None else f"{value:,.{digits}f}"


def _title(line: str, style: str = "bold") -> Text:
    return Text(line, style=style, overflow="fold")


class _Table:
    """Where it is wider than the terminal its heads stand in several lines, then its cells. No
    figure is broken, as a part of one is another figure."""

    def __init__(self, heads: Sequence[str], rows: _Rows) -> None:
        self._heads, self._rows = heads, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As rich wants it of what it prints."""
        table = self._with(self._heads)
        if Measurement.get(console, options.update(max_width=_WIDEST), table).maximum > (
            options.max_width
        ):
            table = self._with([head.replace(" ", "\n") for head in self._heads])
        yield table

    def _with(self, heads: Sequence[str]) -> Table:
        table = Table(box=None, header_style="dim", padding=(0, 0, 0, 2))
        for place, head in enumerate(heads):
            words = " ".join([head, *(row[place] for row in self._rows)]).split()
            longest = max(map(len, words))
            table.add_column(
                head,
                justify="right" if place else "left",
                overflow="fold",
                min_width=longest if place else min(longest, _LONGEST_WORD),
            )
        for row in self._rows:
            table.add_row(*(Text(cell) for cell in row))
        return table


def _advice(number: int, one: Result) -> RenderableType:
    lines = [Text(f"{number}. {formats.plain(one['topic'])}", style="bold")]
    for line in one["slurm_conf"]:
        lines += [
            whole_line(f"     {formats.plain(line['line'])}"),
            whole_line(f"       slurm.conf, {formats.plain(line['where'])}", "dim"),
        ]
    if one["seen"]:
        lines.append(Text(f"     the lines of {one['seen']} serve this too", style="dim"))
    if one["hadar_toml"]:
        lines += [whole_line(f"     {formats.plain(line)}") for line in one["hadar_toml"]]
        lines.append(Text("       hadar.toml, then hadar check --write", style="dim"))
    lines.append(Text(f"   why:  {formats.plain(one['why'])}", overflow="fold"))
    lines.append(Text(f"   gain: {formats.plain(one['gain'])}", overflow="fold"))
    return Group(*lines)


def _bars(types: Sequence[Result]) -> list[dict[str, object]]:
    """Used, idle while others waited, and otherwise idle, in parts of what was offered."""
    found: list[dict[str, object]] = []
    for at, one in enumerate(types):
        offered = one["offered_gpu_h"] or 1.0
        used, bad = one["used_gpu_h"] / offered, one["idle_while_others_waited_gpu_h"] / offered
        found.append({
            "name": formats.plain(one["type"]),
            "colour": colour(at),
            "used": f"{100 * used:.2f}",
            "bad": f"{100 * bad:.2f}",
            "words": f"used {used:.0%}, idle while others waited {bad:.0%}",
        })  # fmt: skip
    return found


def _head(words: str) -> str:
    return words.capitalize().replace("jct", "job time").replace("Gpu", "GPU")
