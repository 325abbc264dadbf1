"""``hadar status`` and ``hadar explain``, for every user of the site."""

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import TypeAdapter, ValidationError
from rich.text import Text

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    cluster_of,
    is_controllers_user,
    load_to_ask,
    print_json,
    reader_of,
    root_asks_as,
)
from slurm_hadar.cli.controller_of import controller_of
from slurm_hadar.cli.filters import me
from slurm_hadar.cli.job_filter import Choice, FilterOptions
from slurm_hadar.cli.options_record import takes
from slurm_hadar.cli.widen import widen_own
from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.journal.state_errors import place_cause
from slurm_hadar.controller.lock import controllers_uid
from slurm_hadar.controller.observation.accounting_limits import FAULTS
from slurm_hadar.controller.presentation import (
    job_explanation,
    overview,
    without_controller,
)
from slurm_hadar.controller.presentation.overview import Sight, Viewer
from slurm_hadar.controller.service import client
from slurm_hadar.domain.errors import HadarError, SlurmError, UnknownJobError, UsageError
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.reports import status as report
from slurm_hadar.reports import text
from slurm_hadar.reports.status import STATE_FILE, Overview
from slurm_hadar.reports.text import Explanation
from slurm_hadar.slurm.commands import checked_id

if TYPE_CHECKING:  # where a controller answers, nothing of it is loaded here
    from slurm_hadar.controller.journal.store import Store
    from slurm_hadar.controller.tick import Controller

_SHORTEST_WATCH_S, _LONGEST_WATCH_S = 2.0, 86400.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class StatusOptions(FilterOptions):
    """What the caller of ``hadar status`` typed."""

    jobs: Annotated[
        list[str] | None,
        typer.Argument(help="Only these jobs, arrays or tasks.", metavar="[JOB]..."),
    ] = None
    watch: Annotated[
        float | None, typer.Option(help="Show it again every so many seconds, until Ctrl-C.")
    ] = None
    why: Annotated[bool, typer.Option("--why", help="The whole reason, below each job.")] = False
    as_json: JsonOption = False


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command()(status)
    app.command()(explain)


@takes(StatusOptions)
def status(options: StatusOptions) -> None:
    """The cluster in figures, and the managed jobs: where they are, how far, and why.

    An operator sees all jobs, a user their own; --user shows others' as far as Slurm does.
    """
    site, watch = load_to_ask(options.config), options.watch
    chosen = replace(options.choice(), jobs=[checked_id(job) for job in options.jobs or ()])
    if watch is not None:
        if options.as_json:
            raise UsageError("--watch shows it on a terminal; leave out --json")
        if not _SHORTEST_WATCH_S <= watch <= _LONGEST_WATCH_S:
            raise UsageError(
                f"--watch takes seconds between {_SHORTEST_WATCH_S:g} and {_LONGEST_WATCH_S:g}"
            )
        with contextlib.suppress(KeyboardInterrupt):
            strict = True
            while True:
                shown = chosen_overview(site, chosen, live=True, strict=strict)
                _show(shown, options.why, chosen.why_none(shown, own_name(site)), again=True)
                strict = False
                time.sleep(watch)
        return
    try:
        found = chosen_overview(site, chosen, strict=True)
    except SlurmError:
        if not options.as_json:
            _print(text.console(), report.controller_summary(controller_of(site), time.time()))
        raise
    if options.as_json:
        print_json("status", asdict(found))
    else:
        _show(found, options.why, chosen.why_none(found, own_name(site)))


def explain(
    job: Annotated[str, typer.Argument(help="A job's id, such as 123 or 84_2.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """All that is known and was decided about one job, for its owner and the operator."""
    checked_id(job)
    result = explanation(load_to_ask(config), job)
    if as_json:
        print_json("explain", job_explanation.plain(result))
    else:
        for line in text.age_line(result.as_of_s, time.time()):
            text.console().print(line)
        text.console().print(text.explain(result))


def explanation(site: Config, job: str) -> Explanation:
    """What the caller may know of one job. Raises HadarError."""
    refused: UsageError | None = None
    try:
        answer = answered(site, "explain", Explanation, job, job_explanation.explanation_of)
        if answer:
            return answer
    except UsageError as error:
        if not asks_a_controller(site):
            raise
        refused = error
    # What it does not know may have been submitted or declared since its last tick.
    why = without_controller.CHANGED_SINCE if refused else without_controller.NO_ANSWER
    try:
        return without_controller.explain(site, cluster_of(site), job, time.time(), why)
    except HadarError as error:
        if refused is not None:
            raise refused from None
        if not isinstance(error, UnknownJobError):
            raise
        name = root_asks_as(site)
        if name:
            raise UnknownJobError(f"{error}; run: sudo -u {name} hadar explain {job}") from None
        raise


def asks_a_controller(site: Config) -> bool:
    """Whether answers come from what a running controller saw at its last tick, rather than from
    Slurm now."""
    return not is_controllers_user(site) or bool(site.ignored)


def answered(
    site: Config, command: str, kind: type[_T], job: str, read: "Callable[[Controller, str], _T]"
) -> _T | None:
    """What the controller of this host answers of a job, and what its user reads without it; None
    for another user where none answers. Raises HadarError where it refuses."""
    as_controllers_user, answer = is_controllers_user(site), None
    if not as_controllers_user or site.ignored:
        answer = asked(site, command, kind, job)
    if answer is None and as_controllers_user:
        with reader_of(site) as controller:
            return read(controller, job)
    return answer


def asked(
    site: Config, command: str, kind: type[_T], job: str = "", since_s: float | None = None
) -> _T | None:
    """What the controller of this host answers; None where none does. Raises HadarError where it
    refuses."""
    question: dict[str, object] = {"version": 1, "command": command, "job": job}
    question |= {} if since_s is None else {"since_s": since_s}
    answer = client.ask(site.status_socket, controllers_uid(site), question)
    if answer is None:
        return None
    try:
        return TypeAdapter(kind).validate_python(answer)
    except ValidationError:
        raise HadarError(
            "the controller on this host is of another version; after an upgrade its operator "
            "restarts it (systemctl restart slurm-hadar), otherwise install the same version here"
        ) from None


def chosen_overview(
    site: Config, chosen: Choice, live: bool = False, strict: bool = False
) -> Overview:
    """``live``: asked for again and again, so of the controller rather than of Slurm. ``strict``:
    raises HadarError for a job, type, user or account that is unknown."""
    data = overview_of(site, live)
    if strict:
        chosen.require_known(data, site)
    return replace(data, rows=chosen.of(data.rows, own_name(site)))


def own_name(site: Config) -> str:
    """Whose jobs are shown without a choice; empty: all."""
    return "" if is_controllers_user(site) or os.getuid() == 0 else me()


def overview_of(site: Config, live: bool) -> Overview:
    """All that the caller may see; see :func:`chosen_overview`."""
    as_controllers_user = is_controllers_user(site)
    data = None
    # A running controller knows the configuration that holds.
    if not as_controllers_user or live or site.ignored:
        data = asked(site, "status", Overview)
    if data is None and as_controllers_user:
        data = _own(site)
    elif data is None:
        widen_own(site)
        data = without_controller.status(site, cluster_of(site), time.time())
        data = replace(data, root_asks_as=root_asks_as(site))
    return replace(data, controller=replace(controller_of(site), fault=data.controller.fault))


def _own(site: Config) -> Overview:
    """For the controller's user: from Slurm and the state file as they are now."""
    with reader_of(site) as controller:
        widen_own(site)
        observation = controller.observe()
        beat = read_heartbeat(site.site.exchange_dir, site.controller_uid)
        since = overview.midnight(observation.now)
        fault = latest_fault(site, controller.store)
        sight = Sight(
            observation,
            site,
            replace(overview.controller_state(beat, time.time()), fault=fault),
            STATE_FILE,
            controller.store.decisions.last(list(observation.jobs)),
            controller.store.moves_since(since),
            controller.learning.declared_work.trust_factors(observation.now),
            in_vain=controller.store.all_in_vain(Kind.MOVE.value),
            accounting=controller.store.policy_state(FAULTS),
        )
        return overview.overview(sight, Viewer(os.getuid(), everything=True))


def latest_fault(site: Config, store: "Store") -> str:
    """Why the latest tick did nothing, or the next one will, as the controller's user sees it;
    empty where neither is so. ``store``: its state file. Raises sqlite3.Error."""
    from slurm_hadar.controller.journal import tick_fault

    # Under a timer none answers.
    return _fault(site) or tick_fault.latest(store) or _unwritable(site)


def _unwritable(site: Config) -> str:
    """Why no tick can write its own file now, nor why it failed; empty where it can."""
    cause = place_cause(site.site.state_dir)
    return f"state folder {site.site.state_dir}: {cause}" if cause else ""


def _fault(site: Config) -> str:
    """Why the latest tick of the controller of this host did nothing; empty: it did not fail, or
    none answers."""
    question: dict[str, object] = {"version": 1, "command": "fault"}
    try:
        answer = client.ask(site.status_socket, controllers_uid(site), question)
    except HadarError:
        # A controller of an earlier release does not know the question.
        return ""
    return str(answer.get("fault", "")) if isinstance(answer, dict) else ""


def _show(data: Overview, why: bool, none: str, again: bool = False) -> None:
    """``none``: see :meth:`Choice.why_none`."""
    console = text.console()
    terminal = sys.stdout.isatty()
    width = console.width if terminal else None
    lines = report.summary(data, time.time())
    lines += [Text(""), *report.table(data.rows, width, why, none)]
    if terminal and again:
        # No more than the screen has, so that the summary stays in sight.
        console.clear()
        lines = lines[: max(1, console.height - 1)]
    elif terminal and len(lines) >= console.height:
        with console.capture() as capture:
            _print(console, lines)
        if _paged(capture.get()):
            return
    _print(console, lines)


def _print(console: Any, lines: Sequence[Text]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _paged(shown: str) -> bool:
    """Show it through the user's pager; False where there is none."""
    argv = shlex.split(os.environ.get("PAGER") or "less")
    if not argv or argv == ["cat"]:
        return False
    # As git does: colours pass, and what fits on the screen is left there.
    env = {"LESS": "FRX", **os.environ}
    try:
        subprocess.run(argv, input=shown.encode(), env=env, check=False)
    except OSError:
        return False
    return True
