"""Where alerts go: a mail program, an SMTP server, or a command of the site's.

A recipient and a text reach a program as one argument or on its standard input, never through a
shell.
"""

import json
import re
import smtplib
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from email.message import EmailMessage
from pathlib import Path

from slurm_hadar.config import AlertSettings
from slurm_hadar.controller.alerts.conditions import Alert
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports import formats

_TIMEOUT_S = 30.0
_RECIPIENT = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,254})?", re.ASCII
)
_DEFAULT_MAIL_PROG = Path("/bin/mail")
"""Slurm's own default of MailProg."""


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
