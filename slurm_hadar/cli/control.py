"""The operator's commands: tick, run, plan, backfill, status, explain."""

import signal
import threading
import time
import traceback
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from slurm_hadar.cli.common import (
    ConfigOption,
    JsonOption,
    controller_of,
    load,
    print_json,
    reader_of,
)
from slurm_hadar.cli.widen import widen_own
from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Damaged
from slurm_hadar.controller.report import Report
from slurm_hadar.controller.seen.rules import TooMuch, refuse_root
from slurm_hadar.controller.tick import Controller
from slurm_hadar.controller.words import record, telling
from slurm_hadar.controller.words.log_file import Log, open_log
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.reports import text
from slurm_hadar.slurm.commands import checked_id

_LOCK_WAIT_S = 30.0
_SHORTEST_INTERVAL_S = 1.0
_DAY_S = 86400.0


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (tick, run, plan, backfill, status, explain):
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
        log = open_log(site)
        if why := controller.backoff.why_not_now():
            # No failure: a timer fires again.
            record.fault(log, why)
            if as_json:
                print_json("tick", {"left_out": why})
            else:
                typer.echo(f"{_clock()} {why}")
            return
        try:
            report = controller.tick()
        except TooMuch:
            raise
        except HadarError as error:
            record.fault(log, str(error))
            raise
        _record(log, controller, report)
    if as_json:
        print_json("tick", telling.summary(report))
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
            with controller_of(site, 0.0) as controller:
                log = open_log(site)
                opened = healthy = True
                while healthy and not asked.any:
                    began = time.monotonic()
                    healthy = _one(controller, log)
                    rest = controller.backoff.pause_s(pause)
                    asked.wait(max(0.2, rest - (time.monotonic() - began)))
        except TooMuch:
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
        # A terminal that is closed sends SIGHUP too: then there is nobody left to run for.
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


def plan(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what a tick would do and why. Changes nothing."""
    with reader_of(load(config)) as controller:
        report = controller.plan()
    if as_json:
        print_json("plan", telling.summary(report))
        return
    for line in telling.plan_lines(report):
        typer.echo(line)


def backfill(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what a tick would do with idle nodes, and why. Changes nothing."""
    with reader_of(load(config)) as controller:
        report = controller.plan()
    if as_json:
        print_json("backfill", telling.backfill_summary(report))
        return
    for line in telling.backfill_lines(report):
        typer.echo(line)


def status(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the managed jobs: placement, progress, reason."""
    site = load(config)
    with reader_of(site) as controller:
        widen_own(site)
        rows = telling.status_rows(controller)
    if as_json:
        print_json("status", [telling.plain(row) for row in rows])
    else:
        text.console().print(text.status(rows))


def explain(
    job: Annotated[str, typer.Argument(help="Job ID, such as 123 or 84_2.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state and the last decision of one job."""
    checked_id(job)
    with reader_of(load(config)) as controller:
        story = telling.story(controller, job)
    if as_json:
        print_json("explain", telling.plain(story))
    else:
        text.console().print(text.explain(story))


def _in_range(name: str, seconds: float, least: float) -> None:
    # A comparison that holds for no NaN, which typer's own min and max let through.
    if not least <= seconds <= _DAY_S:
        raise UsageError(f"{name} takes seconds between {least:g} and {_DAY_S:g}")


def _record(log: Log | None, controller: Controller, report: Report) -> None:
    if log is not None:
        record.write(log, controller.store, report)


def _one(controller: Controller, log: Log | None) -> bool:
    """A tick of the daemon: Slurm may be away for a while, the daemon stays.

    False where the state file must be opened anew, which puts a damaged one aside.
    """
    try:
        report = controller.tick()
        _say(report)
        _record(log, controller, report)
    except TooMuch:
        raise
    except Damaged as error:
        typer.echo(f"{_clock()} nothing done: {error}", err=True)
        record.fault(log, str(error))
        return False
    except HadarError as error:
        typer.echo(f"{_clock()} nothing done: {error}", err=True)
        record.fault(log, str(error))
    except Exception as error:
        # A fault of ours in one tick must not end the daemon: jobs wait for the next one.
        typer.echo(f"{_clock()} this tick failed, internal error: {error!r}", err=True)
        record.fault(log, f"internal error of slurm-hadar: {type(error).__name__}")
        traceback.print_exc()
    if words := controller.backoff.words():
        typer.echo(f"{_clock()} {words}")
        record.fault(log, words)
    return True


def _say(report: Report) -> None:
    for line in telling.tick_lines(report):
        typer.echo(f"{_clock()} {line}")


def _clock() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
