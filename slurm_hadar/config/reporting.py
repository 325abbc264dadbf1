"""Tables that say who learns what: log, answers to users, the live page, metrics, alerts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slurm_hadar.config.section import FullPath, Section, matching

_HOST = r"([A-Za-z0-9][A-Za-z0-9.-]*)?"
_HOST_PORT = r"([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?)?"


class Log(Section):
    """The controller's log: a line of JSON for each decision that changed, each action and each
    tick, beside the text that its commands print."""

    enabled: bool = True
    """Off: no such lines, only text output."""
    file: FullPath | None = None
    """File for them, on a local disk; None: stderr, where that is no terminal."""
    max_mb: float = Field(default=10.0, gt=0, le=10_000)
    """Size at which the file is put aside as FILE.1, the older ones one further, MB."""
    files: int = Field(default=5, ge=1, le=100)
    """How many that were put aside are kept."""
    people: Literal["none", "ids", "names"] = "ids"
    """ids: numbers of jobs and users only. none: no user at all. names: also the names of users
    and jobs, and accounts. Paths and comments never stand in it."""


class Status(Section):
    """How ``hadar run`` answers ``hadar status``, ``explain`` and ``doctor`` of every user."""

    serve: bool = True
    """Off: no socket; users see what Slurm and their jobs' own files say."""
    socket: FullPath | None = None
    """Its path; None: /run/slurm-hadar/hadar.sock, and hadar.sock in the state folder where
    site.rights is not "operator"."""


class Web(Section):
    """``hadar web``: the live page, for every user of this host."""

    socket: FullPath | None = None
    """Path of its unix socket; None: /run/slurm-hadar-web/web.sock, and web.sock in the state
    folder where site.rights is not "operator"."""
    proxy_user: str = ""
    """User of the web server in front of it, whose header X-Remote-User is believed; empty: none
    is, and each caller is the user whom the kernel names."""


class Metrics(Section):
    """Figures for Prometheus. None of them names a user, an account or a job."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the loopback address on which ``hadar run`` answers /metrics; 0: none."""
    textfile: FullPath | None = None
    """File that each tick writes, for node_exporter's textfile collector, such as
    /var/lib/prometheus/node-exporter/hadar.prom; None: none."""


class AlertSettings(Section):
    """What ``hadar alerts`` sends, and to whom. A limit of 0 switches that alert off."""

    enabled: bool = False
    """Off: it shows alerts and sends none."""
    operators: tuple[str, ...] = ()
    """Users or mail addresses that hear of the controller, and of jobs where ``owners`` is off."""
    owners: bool = True
    """Whether a job's alerts go to its owner."""
    mail_prog: FullPath | None = None
    """Program, run as ``PROGRAM -s SUBJECT RECIPIENT`` with the text on standard input; None:
    MailProg of slurm.conf."""
    mail_domain: Annotated[
        str, matching(_HOST, 'a domain of letters, digits, - and ., such as "example.org"')
    ] = ""
    """Appended to a user's name with @; empty: the mail system knows the names."""
    smtp: Annotated[
        str, matching(_HOST_PORT, 'HOST or HOST:PORT, such as "mail.example.org:25"')
    ] = ""
    """Mail server, ``HOST`` or ``HOST:PORT``, in place of a program."""
    mail_from: Annotated[
        str, matching(r"[!-~]*", 'a mail address without blanks, such as "hadar@example.org"')
    ] = ""
    """Sender with ``smtp``; empty: slurm-hadar at this host."""
    command: tuple[str, ...] = ()
    """Program and its arguments, in place of mail; it reads one JSON object for each recipient on
    standard input."""
    failed_ticks: int = Field(default=3, ge=0)
    """Ticks that fail within an hour."""
    refusals: int = Field(default=20, ge=0)
    """Changes that Slurm refuses within an hour."""
    held_idle_s: float = Field(default=3600.0, ge=0)
    """Time in which a job holds its GPUs and computes nothing."""
    preempt_held_idle_s: float = Field(default=0.0, ge=0)
    """Time from the message to its owner until a job that can resume makes way: it is asked to
    save and requeued when another job waits for its GPUs; 0: never. Needs ``enabled``, ``owners``
    and ``held_idle_s``."""
    preempt_again_s: float = Field(default=86_400.0, ge=60)
    """Least time between two such requests to one job."""
    no_progress_s: float = Field(default=3600.0, ge=0)
    """Time in which a training's count of samples stands still, or one that should report says
    nothing at all."""
    nonfinite: bool = True
    """Whether NaN or infinity in a training is one."""
    repeat_s: float = Field(default=86_400.0, ge=60)
    """The same alert goes to the same recipient again after this time."""
    most_per_day: int = Field(default=10, ge=1)
    """Messages to one recipient in 24 hours; one has all new alerts of a look."""

    @model_validator(mode="after")
    def _owner_knows_first(self) -> "AlertSettings":
        if self.preempt_held_idle_s and not (self.enabled and self.owners and self.held_idle_s):
            raise ValueError(
                "preempt_held_idle_s needs enabled = true, owners = true and held_idle_s: the "
                "owner has to know first"
            )
        return self


class Energy(Section):
    """What ``hadar report`` adds."""

    co2_g_per_kwh: float = Field(default=0.0, ge=0, le=5000)
    """CO2 of a kWh as the site buys it, g, with cooling where that is wanted; 0: not shown."""
