"""The operator's commands: tick, run, plan, backfill."""

import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_hadar import config as configuration
from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    controller_of,
    is_controllers_user,
    load,
    print_json,
    reader_of,
)
from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import DamagedStateFile
from slurm_hadar.controller.lock import process_name, say_stopped, stop_file_exists
from slurm_hadar.controller.observation.accounting_limits import ForbiddenIdentity, refuse_root
from slurm_hadar.controller.presentation import event_log, tick_text
from slurm_hadar.controller.presentation.log_file import EventLog, open_log
from slurm_hadar.controller.presentation.own_plan import OwnPlan
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.reports import formats

if TYPE_CHECKING:  # what a tick does without, and what takes as long to load
    from slurm_hadar.controller.metrics.export import MetricsExporter
    from slurm_hadar.controller.service.published import Published
    from slurm_hadar.controller.service.server import Server

_LOCK_WAIT_S = 30.0
_SHORTEST_INTERVAL_S = 1.0
_DAY_S = 86400.0


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (tick, run, plan, backfill):
        app.command()(command)


def tick(
    config: ConfigOption = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for a running tick; 0: exit at once.")
    ] = _LOCK_WAIT_S,
    as_json: JsonOption = False,
) -> None:
    """Run one tick: observe, decide, act. For use by a timer."""
    _in_range("--wait", wait, 0.0)
    site = load(config)
    with controller_of(site, wait) as controller:
        log, metrics = open_log(site), _metrics(site, controller)
        if why := controller.backoff.why_not_now():
            # No failure: a timer fires again.
            event_log.fault(log, why)
            if as_json:
                print_json("tick", {"skipped": why})
            else:
                typer.echo(f"{_clock()} {why}")
            return
        try:
            report = controller.tick()
        except ForbiddenIdentity:
            raise
        except HadarError as error:
            event_log.fault(log, str(error))
            if metrics is not None:
                _print_message(metrics.failed(controller.store))
            raise
        _record(log, controller, report)
        if metrics is not None:
            _print_message(metrics.learn(report, controller.store, controller.backoff.interval_s))
    if as_json:
        print_json("tick", tick_text.summary(report))
    else:
        _say(report)


def run(
    config: ConfigOption = None,
    interval: Annotated[
        float | None, typer.Option(help="Seconds between ticks; default: the configuration's.")
    ] = None,
) -> None:
    """Run ticks until SIGTERM or Ctrl-C. SIGHUP rereads the configuration."""
    site = load(config)
    asked = _Asked()
    opened = False
    while not asked.stop:
        pause = site.controller.interval_s if interval is None else interval
        _in_range("--interval", pause, _SHORTEST_INTERVAL_S)
        try:
            with controller_of(site, 0.0) as controller, _shown(site, controller) as shown:
                opened = healthy = True
                controller.process = process_name()
                while healthy and not asked.any:
                    began = time.monotonic()
                    healthy = _one(controller, shown, pause)
                    rest = controller.backoff.pause_s(pause)
                    asked.wait(max(0.2, rest - (time.monotonic() - began)))
                if asked.stop:
                    say_stopped(site)
        except ForbiddenIdentity:
            raise
        except HadarError as error:
            # After a damaged file was put aside its disk may be full; that passes.
            if not opened:
                raise
            typer.echo(f"{_clock()} nothing done: {error}", err=True)
            asked.wait(pause)
        if asked.take_reread():
            site = _reread(config, site, interval)


class _Asked:
    """What signals ask of the daemon: SIGTERM and SIGINT to stop, SIGHUP to reread."""

    def __init__(self) -> None:
        self.stop = self._reread = False
        self._wake = threading.Event()
        self._terminal = _has_terminal()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    @property
    def any(self) -> bool:
        """Whether something is asked for."""
        return self.stop or self._reread

    def wait(self, seconds: float) -> None:
        """Wait until something is asked for, or that long."""
        if not self.any:
            self._wake.wait(seconds)

    def take_reread(self) -> bool:
        """Whether to reread the configuration; asked once."""
        self._wake.clear()
        if not self._reread:
            return False
        self._reread = False
        return not self.stop

    def _on_signal(self, number: int, _: object) -> None:
        # A terminal that is closed sends SIGHUP too: then no user is left to run for.
        if number == signal.SIGHUP and not (self._terminal and not _has_terminal()):
            self._reread = True
        else:
            self.stop = True
        self._wake.set()


def _has_terminal() -> bool:
    try:
        with Path("/dev/tty").open("rb"):
            return True
    except OSError:
        return False


def _reread(path: Path | None, site: Config, interval: float | None) -> Config:
    """The configuration as it stands now; ``site`` where a controller cannot run with it."""
    try:
        new = load(path)
        _require_site(new, site, path or configuration.find())
        if interval is None:
            _in_range("controller.interval_s", new.controller.interval_s, _SHORTEST_INTERVAL_S)
        refuse_root(new)
        with reader_of(new):
            pass
    except HadarError as error:
        said = f"configuration not reread, the previous one stays in force: {error}"
        typer.echo(f"{_clock()} {said}", err=True)
        return site
    typer.echo(f"{_clock()} configuration reread")
    return new


def _require_site(new: Config, site: Config, path: Path) -> None:
    """Raises UsageError for a file that lost what it said of the site, as one that was emptied: its
    defaults are another site's."""
    if "site" in site.model_fields_set and "site" not in new.model_fields_set:
        what = "has no [site] any more" if new.model_fields_set else "is empty"
        raise UsageError(f"{path} {what}; write it again, then send SIGHUP")


def plan(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what a tick would do and why. Changes nothing.

    For the operator. Others see what the last tick of the controller on this host planned for
    their own jobs.
    """
    site = load(config)
    if not is_controllers_user(site):
        _plan_of_own(site, as_json)
        return
    with reader_of(site) as controller:
        report = controller.plan()
    _print_plan(site, "plan", tick_text.summary(report), tick_text.format_plan(report), as_json)


def _print_plan(
    site: Config, command: str, summary: Mapping[str, Any], lines: Sequence[str], as_json: bool
) -> None:
    """``summary`` and ``lines``: the plan as data and as text."""
    stopped = []
    with suppress(OSError):
        if stop_file_exists(site):
            stopped.append(f"{site.guards.stop_file} exists: nothing is sent until it is removed")
    if as_json:
        print_json(command, {**summary, "messages": [*stopped, *summary.get("messages", ())]})
        return
    for line in [*stopped, *lines]:
        typer.echo(formats.plain(line))


def _plan_of_own(site: Config, as_json: bool) -> None:
    from slurm_hadar.cli.status import asked

    found = asked(site, "plan", OwnPlan)
    if found is None:
        raise HadarError(
            "no controller answers on this host, and only the controller's user can plan by "
            "themselves; hadar explain JOB shows what was decided on a job of yours"
        )
    ago = formats.duration(max(0.0, time.time() - found.observed_s))
    lines = [f"The plan of the last tick, {ago} ago:", *found.text]
    _print_plan(site, "plan", found.summary, lines, as_json)


def backfill(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what a tick would do with idle nodes, and why. Changes nothing."""
    site = load(config)
    with reader_of(site) as controller:
        report = controller.plan()
    summary, lines = tick_text.backfill_summary(report), tick_text.format_backfill(report)
    _print_plan(site, "backfill", summary, lines, as_json)


def _in_range(name: str, seconds: float, least: float) -> None:
    # A comparison that holds for no NaN, which typer's own min and max let through.
    if not least <= seconds <= _DAY_S:
        raise UsageError(f"{name} takes seconds between {least:g} and {_DAY_S:g}")


def _record(log: EventLog | None, controller: Controller, report: TickReport) -> None:
    if log is not None:
        event_log.write(log, controller.store, report)


@dataclass(frozen=True)
class _Shown:
    """What a daemon shows of its ticks."""

    log: EventLog | None
    published: "Published"
    metrics: "MetricsExporter | None"
    servers: "list[Server]"
    stack: ExitStack

    def serve(self) -> None:
        """Open the sockets, once. Not before the first tick has come to an end: a controller that
        is refused then has said one thing."""
        if self.servers:
            # What is loaded by now stays: no collection looks through it while users wait.
            gc.collect()
            gc.freeze()
        while self.servers:
            try:
                self.stack.enter_context(self.servers.pop(0))
            except HadarError as error:
                # The jobs are looked after all the same.
                _print_message(str(error))


@contextmanager
def _shown(site: Config, controller: Controller) -> Iterator[_Shown]:
    """What ticks come to, for every user and for Prometheus as far as that is possible."""
    from slurm_hadar.controller.service.published import Published
    from slurm_hadar.controller.service.server import LoopbackServer, UserServer

    published = Published(site, os.getuid(), controller.store.connection)
    metrics = _metrics(site, controller)
    servers: list[Server] = []
    if site.status.serve:
        answers = UserServer(site.status_socket, published.answer, published.close)
        published.on_news = answers.wake
        servers.append(answers)
    if metrics is not None and site.metrics.port:
        servers.append(LoopbackServer(site.metrics.port, metrics.answer))
    with ExitStack() as stack:
        yield _Shown(open_log(site), published, metrics, servers, stack)


def _metrics(site: Config, controller: Controller) -> "MetricsExporter | None":
    # Alerts compare the same counters.
    wanted = site.metrics.port or site.metrics.textfile is not None or site.alerts.enabled
    if not wanted:
        return None
    # Only where it is wanted: the library takes its time.
    try:
        from slurm_hadar.controller.metrics.export import MetricsExporter
    except ModuleNotFoundError as error:
        raise HadarError(
            f"[metrics] needs {error.name}, which is not installed; run: "
            "pip install 'slurm-hadar[controller]'"
        ) from None

    metrics = MetricsExporter(site)
    metrics.open(controller.store)
    return metrics


def _print_message(message: str) -> None:
    if message:
        typer.echo(f"{_clock()} {message}", err=True)


def _one(controller: Controller, shown: _Shown, usual_s: float) -> bool:
    """A tick of the daemon: Slurm may be away for a while, the daemon stays.

    False where the state file must be opened anew, which puts a damaged one aside.
    """
    log, metrics = shown.log, shown.metrics
    try:
        report = controller.tick()
        shown.published.publish(report)
        shown.serve()
        _say(report)
        _record(log, controller, report)
        if metrics is not None:
            _print_message(metrics.learn(report, controller.store, controller.backoff.interval_s))
    except ForbiddenIdentity:
        raise
    except DamagedStateFile as error:
        typer.echo(f"{_clock()} nothing done: {error}", err=True)
        event_log.fault(log, str(error))
        return False
    except HadarError as error:
        typer.echo(f"{_clock()} nothing done: {error}", err=True)
        _failed(controller, shown, str(error), error)
    except Exception as error:
        # A fault of ours in one tick must not end the daemon: jobs wait for the next one.
        typer.echo(f"{_clock()} this tick failed, internal error: {error!r}", err=True)
        why = f"internal error of slurm-hadar: {type(error).__name__}"
        _failed(controller, shown, why, error)
        traceback.print_exc()
    if words := controller.backoff.message(usual_s):
        typer.echo(f"{_clock()} {words}")
        event_log.fault(log, words)
    return True


def _failed(controller: Controller, shown: _Shown, why: str, error: Exception) -> None:
    from slurm_hadar.controller.service.published import general_fault

    event_log.fault(shown.log, why)
    shown.published.fault(why, general_fault(error))
    shown.serve()
    if shown.metrics is not None:
        _print_message(shown.metrics.failed(controller.store))


def _say(report: TickReport) -> None:
    for line in tick_text.format_tick(report):
        typer.echo(f"{_clock()} {line}")


def _clock() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
