"""``hbatch --hadar-plan``: what would be asked, where the job would go, start and finish per GPU
type, as a text and as JSON. Nothing is submitted. It may be slower than a submit, and import more.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from rich.table import Table
from rich.text import Text

from slurm_hadar import config as configuration
from slurm_hadar import users
from slurm_hadar.cli.batch_script import read_handle
from slurm_hadar.cli.real_sbatch import is_same, without_pythons_traces
from slurm_hadar.cli.rollout_remark import MAYBE, remark
from slurm_hadar.cli.sbatch_parser import read_argv
from slurm_hadar.cli.submit import Submit, SubmitOutcome
from slurm_hadar.cli.wrapper_site import controller_is_active
from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.submit_plan.hypothetical_job import Asked
from slurm_hadar.controller.submit_plan.plan import PlanRow, Submission, SubmitPlan, plan_submit
from slurm_hadar.domain.declaration import decode
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reports import formats, text
from slurm_hadar.slurm.expected_start import Start, start_of

_NOW_S = 5.0
"""A start within this time is now."""


def show(submit: Submit, outcome: SubmitOutcome) -> int:
    """Print the plan; returns what ``sbatch --test-only`` returns for the same submit.

    Raises HadarError where Slurm does not answer, UsageError for a wrong configuration.
    """
    if submit.line.unclear:
        print(f"hbatch: there is no plan: {submit.line.unclear}", file=sys.stderr, flush=True)
    if submit.line.unclear or submit.line.refused or submit.header.refused:
        # sbatch answers or refuses this by itself; --test-only, should we be wrong about that.
        submit.line.words.insert(0, "--test-only")
        submit.hand_over()
    if submit.once:
        raise UsageError(f"{outcome.why}; a plan asks Slurm several times: give it a file")
    found = _plan(submit, outcome)
    if "json" in submit.line.asked:
        print_json(found)
    else:
        print_text(found)
    if found.alone.refused:
        sys.stderr.write(found.alone.stderr)
    return found.alone.code


def _plan(submit: Submit, outcome: SubmitOutcome) -> SubmitPlan:
    ask = _Questions(submit, outcome)
    notes = [*outcome.doubts, *(outcome.added.notes if outcome.added else [])]
    if outcome.added and outcome.added.omitted:
        notes.append(outcome.added.omitted)
    if submit.site_problem:
        notes.append(submit.site_problem)
    if submit.site is not None and submit.site.rollout is not None and outcome.declaration:
        _, text = remark(submit.site.rollout, submit.held)
        notes += [f"managed {text}" if text == MAYBE else text] if text else []
    config = _config(submit, notes)
    managed = outcome.declaration is not None and not outcome.declaration.off
    why = outcome.why
    if not managed and not why:
        why = "off=yes is declared" if outcome.declaration else "it declares nothing"
    submission = Submission(
        asked=ask.asked,
        start=ask.start,
        listed=ask.listed,
        words=["sbatch", *submit.sbatch_arguments(outcome.added)],
        managed=managed,
        why=why,
        notes=notes,
    )
    found = plan_submit(submission, config)
    active = managed and submit.site is not None and controller_is_active(submit.site, found.now_s)
    return replace(found, controller_active=active)


class _Questions:
    """The submit as Slurm is asked about it."""

    def __init__(self, submit: Submit, outcome: SubmitOutcome) -> None:
        self._options = list(outcome.added.options) if outcome.added else []
        self._behind = list(outcome.added.behind) if outcome.added else []
        self._submit = submit
        self._program = submit.program()
        self._environment = without_pythons_traces(submit.environment)
        self._body = _typed_script(submit)
        behind = dict(read_argv(self._behind).options)
        self.listed = [name for name in (behind.get("partition") or "").split(",") if name]
        uid = os.getuid()
        self.asked = Asked(
            held={
                **dict(read_argv(self._options).options),
                **submit.held,
                **behind,
            },
            # As the job would carry it: the user's own -C and -p stand there too.
            declaration=decode(outcome.added.comment) if outcome.added else None,
            script=submit.name,
            uid=uid,
            user=users.name_of(uid),
        )

    def start(self, more: Sequence[str]) -> Start:
        """When Slurm alone would start it with ``more`` options behind all others."""
        line = self._submit.line
        # A quiet sbatch would not say what it is asked.
        typed = [w for w in line.words[: line.end] if w not in ("-Q", "--quiet")]
        words = [*self._options, *typed, *self._behind, *more, *line.words[line.end :]]
        return start_of(self._program, words, self._environment, self._body)


def _typed_script(submit: Submit) -> bytes | None:
    """The script where it comes on standard input; each question needs it anew."""
    if submit.line.script is not None or "wrap" in dict(submit.line.options):
        return None
    return submit.body if submit.name == "stdin" else read_handle(0)


def _config(submit: Submit, notes: list[str]) -> Config:
    """The site's TOML; where there is none that we may read, Slurm as it is on PATH."""
    path = configuration.find()
    try:
        config = configuration.load_believed(path)
    except UsageError as error:
        if os.access(path, os.R_OK):
            raise
        notes.append(f"{error}. Its policy and GPU types are not known here")
        return Config()
    named = submit.environment.get("SLURM_CONF")
    if named and config.slurm.conf and not is_same(named, str(config.slurm.conf)):
        notes.append(f"{path} is ignored: SLURM_CONF names another cluster")
        return Config()
    return config


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
