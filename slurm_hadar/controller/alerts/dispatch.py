"""One look: which alerts there are, and how they are sent: by a mail program, an SMTP server, or a
command of the site's.

A recipient and a text reach a program as one argument or on its standard input, never through a
shell.
"""

import json
import re
import smtplib
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from email.message import EmailMessage
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from slurm_hadar import reading
from slurm_hadar.config import AlertSettings, Config
from slurm_hadar.controller.alerts import conditions
from slurm_hadar.controller.alerts.conditions import Alert, AlertMemory
from slurm_hadar.controller.journal.notified_owners import FILE, MOST_BYTES
from slurm_hadar.controller.journal.store import Store, make_private
from slurm_hadar.controller.metrics.totals import NAME, remembered
from slurm_hadar.controller.observation.accounting_limits import FAULTS
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation.overview import controller_state
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.heartbeat import read_heartbeat
from slurm_hadar.reports import formats

_TIMEOUT_S = 30.0
_RECIPIENT = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,254})?", re.ASCII
)
_DEFAULT_MAIL_PROG = Path("/bin/mail")
"""Slurm's own default of MailProg."""


@dataclass
class Looked:
    """``sent``: recipient -> alerts; ``problems``: what could not be looked at or sent."""

    alerts: list[Alert] = field(default_factory=list)
    sent: dict[str, list[Alert]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AlertSource:
    """Where a look reads, each apart: the silence of a controller is also seen where the state file
    is damaged or Slurm does not answer. ``mail_prog``: Slurm's own."""

    store: Callable[[], Store]
    observe: Callable[[], Observation]
    mail_prog: Callable[[], str]


def look(config: Config, source: AlertSource, dry_run: bool) -> Looked:
    """Look, and send what is due; ``dry_run``: only look, and keep nothing."""
    settings, now, found = config.alerts, time.time(), Looked()
    folder = config.site.state_dir
    make_private(folder)
    memory = _memory(config)
    beat = read_heartbeat(config.site.exchange_dir, config.controller_uid)
    found.alerts += conditions.silence(controller_state(beat, now), now)
    try:
        counts = remembered(source.store().policy_state(NAME)).counts
        found.alerts += conditions.of_ticks(counts, memory, now, settings)
        found.alerts += conditions.of_accounting(source.store().policy_state(FAULTS))
        found.alerts += conditions.of_jobs(source.observe(), memory, settings)
    except HadarError as error:
        found.problems.append(f"not all was looked at: {error}")
    if dry_run:
        return found
    for recipient, alerts in conditions.due(found.alerts, memory, now, settings).items():
        try:
            send(recipient, alerts, settings, config.site.name, _mail_prog(config, source))
        except HadarError as error:
            found.problems.append(f"not sent to {recipient}: {error}")
        else:
            conditions.mark_sent(recipient, alerts, memory, now)
            found.sent[recipient] = alerts
    _keep(config, memory, found.problems)
    return found


def send_test(config: Config, source: AlertSource) -> Sequence[str]:
    """Send one to each operator. Raises HadarError."""
    alert = Alert("test", "this is a test of the alerts of slurm-hadar; nothing is wrong")
    for recipient in config.alerts.operators:
        prog = _mail_prog(config, source)
        send(recipient, [alert], config.alerts, config.site.name, prog)
    return config.alerts.operators


def _mail_prog(config: Config, source: AlertSource) -> str:
    settings = config.alerts
    if settings.command or settings.smtp or settings.mail_prog:
        return ""
    try:
        found = source.mail_prog()
        return found if found.startswith("/") else ""
    except HadarError:
        # Alerts matter most while Slurm does not answer.
        return ""


def _memory(config: Config) -> AlertMemory:
    try:
        data = reading.content(config.site.state_dir / FILE, MOST_BYTES)
        return TypeAdapter(AlertMemory).validate_json(data)
    except (OSError, ValidationError):
        # The first look, or a damaged file: an alert may come once more.
        return AlertMemory()


def _keep(config: Config, memory: AlertMemory, problems: list[str]) -> None:
    path = config.site.state_dir / FILE
    aside = path.with_name(f".{FILE}.aside")
    try:
        aside.write_text(json.dumps(asdict(memory)))
        aside.replace(path)
    except OSError as error:
        problems.append(f"{path} cannot be written ({error.strerror}): alerts may come again")


def send(
    recipient: str, alerts: Sequence[Alert], settings: AlertSettings, site: str, mail_prog: str
) -> None:
    """One message with these alerts. ``mail_prog``: Slurm's MailProg, "" where it is not known.

    Raises HadarError where it could not be handed over.
    """
    if not _RECIPIENT.fullmatch(recipient):
        raise HadarError(f"{formats.plain(recipient)[:80]!r} is no user or mail address")
    if settings.command:
        message = {"to": recipient, "site": site, "alerts": [asdict(one) for one in alerts]}
        _run([*settings.command], json.dumps(message))
        return
    domain = settings.mail_domain
    address = f"{recipient}@{domain}" if domain and "@" not in recipient else recipient
    subject = f"slurm-hadar on {formats.plain(site)}: {formats.counted(len(alerts), 'alert')}"
    text = "\n\n".join(formats.plain(one.text) for one in alerts) + "\n"
    if settings.smtp:
        _smtp(address, subject, text, settings)
    else:
        program = settings.mail_prog or Path(mail_prog or _DEFAULT_MAIL_PROG)
        _run([str(program), "-s", subject, address], text)


def _run(argv: Sequence[str], text: str) -> None:
    try:
        done = subprocess.run(
            argv, input=text.encode(), capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise HadarError(f"{argv[0]} did not end within {_TIMEOUT_S:g} s") from None
    except (OSError, ValueError) as error:
        raise HadarError(f"{argv[0]} could not be run: {error}") from None
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip().splitlines()
        said = formats.plain(why[0])[:200] if why else "no reason given"
        raise HadarError(f"{argv[0]} ended with {done.returncode}: {said}")


def _smtp(address: str, subject: str, text: str, settings: AlertSettings) -> None:
    message = EmailMessage()
    message["From"] = settings.mail_from or f"slurm-hadar@{socket.gethostname()}"
    message["To"], message["Subject"] = address, subject
    message.set_content(text)
    host, _, port = settings.smtp.partition(":")
    try:
        with smtplib.SMTP(host, int(port or 25), timeout=_TIMEOUT_S) as server:
            server.send_message(message)
    except (OSError, OverflowError, smtplib.SMTPException) as error:
        raise HadarError(f"the mail server {settings.smtp} took no message: {error}") from None
