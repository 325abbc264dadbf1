"""The text of ``hbatch --hadar-plan``."""

import shlex
from collections.abc import Mapping
from datetime import datetime

from rich.table import Table
from rich.text import Text

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.submit_plan.plan import PlanRow, SubmitPlan
from slurm_hadar.reports import formats, text
from slurm_hadar.slurm.expected_start import Start

_NOW_S = 5.0
"""A start within this time is now."""


def print_text(plan: SubmitPlan) -> None:
    """For a person, on stdout."""
    out = text.console()
    for line in format_plan(plan):
        out.print(Text(formats.plain(line)), soft_wrap=True)
    if plan.rows:
        out.print()
        out.print(_table(plan))


def format_plan(plan: SubmitPlan) -> list[str]:
    """What stands above the table."""
    lines = ["Nothing is submitted.", "asks     " + shlex.join(plan.words)]
    if not plan.managed:
        lines.append(f"managed  no: {plan.why}")
    elif plan.alone.refused:
        lines.append("managed  it would be, if Slurm accepted it")
    elif plan.controller_active:
        lines.append(
            "managed  yes: Slurm starts it, and the controller looks at it every "
            f"{formats.duration(plan.interval_s)}"
        )
    else:
        lines.append(
            "managed  later: no controller is acting now, and until one does it is an ordinary job"
        )
    if plan.reason:
        where = job_updates.placement_text(plan.gpus, plan.nodes) if plan.gpus else ""
        has_place = plan.reason.startswith(where)
        lines.append("policy   " + (plan.reason if has_place else f"{where}: {plan.reason}"))
    lines.append("Slurm    " + _alone(plan.alone, plan.now_s))
    return lines + [f"note     {note}" for note in plan.notes]


def _alone(start: Start, now_s: float) -> str:
    if start.refused:
        return f"would refuse it: {start.refused}"
    when = _when(start.start_s, now_s)
    where = f" in partition {start.partition}" if start.partition else ""
    return f"would start it {when} on {start.nodes}{where}"


def _table(plan: SubmitPlan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("GPUS", "START", "ON", "FINISH", "TAKES", "SAMPLES/S"):
        right = head in ("TAKES", "SAMPLES/S")
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    table.add_column("KNOWN FROM", ratio=1, overflow="fold")
    for row in plan.rows:
        table.add_row(*_cells(row, plan.now_s))
    return table


def _cells(row: PlanRow, now_s: float) -> list[Text]:
    if row.start.refused:
        when, where = "never", row.start.refused
    else:
        when, where = _when(row.start.start_s, now_s), row.start.nodes
    finish = formats.UNKNOWN
    if row.start.refused:
        finish = formats.ABSENT
    elif row.finish_s is not None:
        finish = _when(row.finish_s, now_s)
        if row.takes_s is None:
            finish = f"{finish} at the latest"
        elif not row.in_limit:
            finish = f"{finish}, cut by its time limit"
    cells = (
        f"{row.gpus} x {row.gpu_type}" + (" (policy)" if row.chosen else ""),
        when,
        where,
        finish,
        formats.UNKNOWN if row.takes_s is None else formats.duration(row.takes_s),
        formats.rate(row.samples_per_s) if row.samples_per_s else formats.UNKNOWN,
        row.source if row.samples_per_s else "no table and no job has this model's speed",
    )
    return [Text(formats.plain(cell)) for cell in cells]


def _when(time_s: float, now_s: float) -> str:
    if time_s <= now_s + _NOW_S:
        return "now"
    moment = datetime.fromtimestamp(time_s).astimezone()
    return moment.isoformat(sep=" ", timespec="minutes")[:16]


def print_json(plan: SubmitPlan) -> None:
    """The envelope of all commands, on stdout. Times in s since the epoch."""
    from slurm_hadar.cli.common import print_json as print_result

    print_result("hbatch --hadar-plan", plain(plan))


def plain(plan: SubmitPlan) -> dict[str, object]:
    """The plan as data: null where something is not known."""
    return {
        "submitted": False,
        "argv": list(plan.words),
        "managed": plan.managed,
        "why_not": plan.why,
        "controller_active": plan.controller_active,
        "now_s": plan.now_s,
        "interval_s": plan.interval_s,
        "time_limit_s": plan.time_limit_s,
        "policy": {"gpus": dict(plan.gpus), "nodes": list(plan.nodes), "reason": plan.reason}
        if plan.reason
        else None,
        "slurm": _start(plan.alone),
        "types": [_row(row) for row in plan.rows],
        "notes": list(plan.notes),
    }


def _start(start: Start) -> Mapping[str, object]:
    if start.refused:
        return {"start_s": None, "nodes": "", "partition": "", "refused": start.refused}
    return {
        "start_s": start.start_s,
        "nodes": start.nodes,
        "partition": start.partition,
        "refused": "",
    }


def _row(row: PlanRow) -> dict[str, object]:
    return {
        "gpu_type": row.gpu_type,
        "gpus": row.gpus,
        **_start(row.start),
        "finish_s": row.finish_s,
        "takes_s": row.takes_s,
        "in_limit": row.in_limit,
        "samples_per_s": row.samples_per_s,
        "source": row.source,
        "policy": row.chosen,
    }
