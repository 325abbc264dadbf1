"""The site's TOML, typed, with every default in one place.

Units stand in the names: ``_s`` seconds, ``_gb`` GB, ``_mb`` MB.
"""

import os
import pwd
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from slurm_hadar import paths, reading
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.paths import ENV

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


def _absolute(path: Path) -> Path:
    # A timer, a shell and a job each stand in another folder.
    if not path.is_absolute():
        raise ValueError("a path from / on, so that it is the same wherever a command is typed")
    return path


_RUN, _WEB = Path("/run/slurm-hadar/hadar.sock"), Path("/run/slurm-hadar-web/web.sock")
_Place = Annotated[Path, AfterValidator(_absolute)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Site(_Section):
    """Who we are and how far we may go."""

    name: str = "site"
    mode: Literal["observe", "act"] = "observe"
    """observe: decide and explain, change nothing. act: also carry it out."""
    rights: Literal["operator", "user", "sandbox"] = "operator"
    """operator: an own user with AdminLevel=Operator. user: one researcher, for their own jobs.
    sandbox: a test cluster with SlurmUser as the controller's user."""
    controller_user: str = ""
    """User whose plan files jobs trust; empty: the user who runs the controller."""
    state_dir: _Place = Path("/var/lib/slurm-hadar")
    """Folder of the controller's own file, mode 0700, on a local disk."""
    exchange_dir: _Place = Path("/var/spool/slurm-hadar")
    """Folder that nodes and controller share, mode 1777 (per-user mode: in the home)."""


class Slurm(_Section):
    """How to reach Slurm."""

    backend: Literal["auto", "cli", "pyslurm"] = "auto"
    bin_dir: _Place | None = None
    """Folder of Slurm's commands; None: as PATH has them."""
    conf: _Place | None = None
    """slurm.conf; None: as Slurm finds it."""
    timeout_s: float = Field(default=30.0, gt=0)


class GpuType(_Section):
    """One GPU type, named as in the site's GRES."""

    feature: str = ""
    """Node feature that selects it; empty: the type's own name."""
    memory_gb: float = Field(default=0.0, ge=0)
    """Memory of one GPU; 0: unknown, and then jobs that declare gpu_mem do not use it."""
    tflops: float = Field(default=0.0, ge=0)
    """Training speed from the specification, to estimate unmeasured pairs; 0: unknown."""
    profile: str = ""
    """Name of the type in the throughput tables; empty: the type's own name."""


class Partitions(_Section):
    """Partitions that stand for others, and those that opt every job in."""

    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Partition -> the partitions, one per GPU type, that a managed job which asks for it may run
    in: they have together its nodes, and its access, limits and tier."""
    opt_in: tuple[str, ...] = ()
    """Partitions whose jobs are managed without a declaration of their own."""
    chain: tuple[str, ...] = ()
    """Partitions in which a job whose owner declared max_requeues is saved and requeued before its
    time limit ends, until it is done. With a partition of groups also those that it stands for, and with all that it
    stands for also the partition itself."""


class Queue(_Section):
    """How waiting jobs are steered."""

    max_wait_s: float = Field(default=0.0, ge=0)
    """Longest time, from its submission on, in which a managed job may leave out partitions where
    it would end later than where it waits; then it may run in all of them again. What its owner
    declared as ``wait`` counts instead."""
    exchange: Literal["none", "association", "account", "all"] = "none"
    """Which managed jobs that wait may exchange their priorities, where the policy wants another
    order: those of one user, account and QOS, of one account, or all. The one that moves up asks
    for no more of anything, or no other job stands between them. Only under
    priority/multifactor."""


class Guards(_Section):
    """What keeps a wrong decision from doing harm."""

    min_between_moves_s: float = Field(default=600.0, ge=0)
    """Least time a job runs between two moves."""
    max_moves_per_tick: int = Field(default=20, ge=0)
    max_moves_per_hour: int = Field(default=200, ge=0)
    max_moves_per_job: int = Field(default=50, ge=0)
    preempt: bool = False
    """Whether a running job may be checkpointed and sent back to the queue for one that gains more
    and is next in Slurm's order for what it leaves."""
    gain_over_cost: float = Field(default=2.0, ge=1)
    """A move must save at least this many times the seconds that it costs. Policies that share GPUs
    in turns (gavel_*, tiresias) know no such gain."""
    max_queries_per_minute: int = Field(default=60, ge=20)
    """Most requests to Slurm in any minute, over ticks and within one."""
    slow_answer_s: float = Field(default=5.0, gt=0)
    """After an answer of Slurm that took longer the time to the next tick doubles."""
    longest_interval_s: float = Field(default=600.0, ge=1)
    """As far as it doubles, and back to controller.interval_s after quick answers."""
    max_jobs_per_array: int = Field(default=100, ge=1)
    """Waiting tasks of one array that are steered at a time."""
    interactive_names: tuple[str, ...] = ("*sys/dashboard/*", "spawner-*", "jupyterhub*")
    """Patterns (* and ?) of names of batch jobs that are interactive sessions, as Open OnDemand and
    JupyterHub submit them: they are left alone, like salloc and srun."""
    stop_file: _Place = Path("/etc/slurm-hadar/stop")
    """While this file exists nothing is changed."""

    def between_moves_s(self, unanswered: int) -> float:
        """Least time between two moves of a job, s: doubled for each save request in a row without
        an answer, up to a day. A training that cannot answer may pause or lose work each time."""
        usual = self.min_between_moves_s
        return max(usual, min(usual * 2.0 ** min(unanswered, 20), 86_400.0))


class Moving(_Section):
    """Times of a move."""

    ack_wait_s: float = Field(default=120.0, gt=0)
    """Longest wait for a job to save; one that does not answer stays where it is."""
    settle_s: float = Field(default=20.0, ge=0)
    """Longest time a tick spends on carrying its own moves through."""
    commit_s: float = Field(default=120.0, ge=0)
    """A moved job has this long to start where it was sent; then it may start anywhere again."""
    after_return_s: float = Field(default=40.0, ge=0)
    """A node that was down is used this long after it came back, and a job that another user or
    Slurm requeued this long after that: more than Slurm's KillWait, as processes may still be
    leaving."""


class ControllerSettings(_Section):
    """The tick."""

    interval_s: float = Field(default=60.0, ge=1)
    round_s: float = Field(default=360.0, gt=0)
    policy: str = "hadar"
    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """The policy's own settings."""


class Backfill(_Section):
    """Trainings on idle nodes, which give way to all other jobs. Caps of 0: none."""

    enabled: bool = False
    """Off: jobs that wait in these partitions are not steered."""
    partitions: tuple[str, ...] = ()
    """Partitions for idle nodes: of a lower PriorityTier, with PreemptMode=REQUEUE."""
    tfwd_s: float = Field(default=120.0, gt=0)
    """Time looked ahead: a rescale must pay for itself within it."""
    margin_s: float = Field(default=60.0, ge=0)
    """Nodes that Slurm expects to give to a pending job within this time are left to it."""
    at_once: int = Field(default=10, ge=1)
    """Trainings that have nodes at a time."""
    max_nodes: int = Field(default=0, ge=0)
    max_nodes_per_user: int = Field(default=0, ge=0)
    max_nodes_per_job: int = Field(default=0, ge=0)


class Profiles(_Section):
    """Throughput tables beside the shipped one."""

    tables: tuple[_Place, ...] = ()
    cpu_tables: tuple[_Place, ...] = ()
    """Tables of the rate by CPUs and memory, which ``hadar profile`` writes."""


class Wrapper(_Section):
    """What hbatch adds."""

    quiet: bool = False
    default_types: str = ""
    """types of a job in an opt-in partition that declares none."""


class Log(_Section):
    """The controller's log: a line of JSON for each decision that changed, each action and each
    tick, beside the text that its commands print."""

    enabled: bool = True
    """Off: no such lines, only text output."""
    file: _Place | None = None
    """File for them, on a local disk; None: stderr, where that is no terminal."""
    max_mb: float = Field(default=10.0, gt=0, le=10_000)
    """Size at which the file is put aside as FILE.1, the older ones one further, MB."""
    files: int = Field(default=5, ge=1, le=100)
    """How many that were put aside are kept."""
    people: Literal["none", "ids", "names"] = "ids"
    """ids: numbers of jobs and users only. none: no user at all. names: also the names of users
    and jobs, and accounts. Paths and comments never stand in it."""


class Status(_Section):
    """How ``hadar run`` answers ``hadar status``, ``explain`` and ``doctor`` of every user."""

    serve: bool = True
    """Off: no socket; users see what Slurm and their jobs' own files say."""
    socket: _Place | None = None
    """Its path; None: /run/slurm-hadar/hadar.sock, and hadar.sock in the state folder where
    site.rights is not "operator"."""


class Web(_Section):
    """``hadar web``: the live page, for every user of this host."""

    socket: _Place | None = None
    """Path of its unix socket; None: /run/slurm-hadar-web/web.sock, and web.sock in the state
    folder where site.rights is not "operator"."""
    proxy_user: str = ""
    """User of the web server in front of it, whose header X-Remote-User is believed; empty: none
    is, and each caller is the user whom the kernel names."""


class Metrics(_Section):
    """Figures for Prometheus. None of them names a user, an account or a job."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the loopback address on which ``hadar run`` answers /metrics; 0: none."""
    textfile: _Place | None = None
    """File that each tick writes, for node_exporter's textfile collector, such as
    /var/lib/prometheus/node-exporter/hadar.prom; None: none."""


class AlertSettings(_Section):
    """What ``hadar alerts`` sends, and to whom. A limit of 0 switches that alert off."""

    enabled: bool = False
    """Off: it shows alerts and sends none."""
    operators: tuple[str, ...] = ()
    """Users or mail addresses that hear of the controller, and of jobs where ``owners`` is off."""
    owners: bool = True
    """Whether a job's alerts go to its owner."""
    mail_prog: _Place | None = None
    """Program, run as ``PROGRAM -s SUBJECT RECIPIENT`` with the text on standard input; None:
    MailProg of slurm.conf."""
    mail_domain: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]*)?$")
    """Appended to a user's name with @; empty: the mail system knows the names."""
    smtp: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?)?$")
    """Mail server, ``HOST`` or ``HOST:PORT``, in place of a program."""
    mail_from: str = Field(default="", pattern=r"^[!-~]*$")
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
    def _told_first(self) -> "AlertSettings":
        if self.preempt_held_idle_s and not (self.enabled and self.owners and self.held_idle_s):
            raise ValueError(
                "preempt_held_idle_s needs enabled = true, owners = true and held_idle_s: the "
                "owner has to know first"
            )
        return self


class Energy(_Section):
    """What ``hadar report`` adds."""

    co2_g_per_kwh: float = Field(default=0.0, ge=0, le=5000)
    """CO2 of a kWh as the site buys it, g, with cooling where that is wanted; 0: not shown."""


class Rollout(_Section):
    """Which of the jobs that opted in are managed, while a site tries that; by default all."""

    accounts: tuple[str, ...] = ()
    """Jobs of these accounts, and of ``users``; both empty: of all."""
    users: tuple[str, ...] = ()
    """The same, by users."""
    percent: float = Field(default=100.0, ge=0, le=100)
    """Of these jobs that share, drawn by their numbers: tasks of an array go together, and
    a job that is in stays in when the share grows."""


class Simulation(_Section):
    """What ``hadar simulate jobs --from-sacct`` takes past jobs for: patterns with ``*`` and ``?``
    of job names, then of accounts, each with a model of the throughput tables."""

    job_names: dict[str, str] = Field(default_factory=dict)
    accounts: dict[str, str] = Field(default_factory=dict)


class Config(_Section):
    """The whole file."""

    version: Literal[1] = 1
    site: Site = Site()
    slurm: Slurm = Slurm()
    gpu_types: dict[str, GpuType] = Field(default_factory=dict)
    partitions: Partitions = Partitions()
    queue: Queue = Queue()
    guards: Guards = Guards()
    moving: Moving = Moving()
    controller: ControllerSettings = ControllerSettings()
    backfill: Backfill = Backfill()
    profiles: Profiles = Profiles()
    wrapper: Wrapper = Wrapper()
    log: Log = Log()
    status: Status = Status()
    web: Web = Web()
    metrics: Metrics = Metrics()
    alerts: AlertSettings = AlertSettings()
    energy: Energy = Energy()
    rollout: Rollout = Rollout()
    simulation: Simulation = Simulation()
    _notes: tuple[str, ...] = PrivateAttr(default=())

    @property
    def notes(self) -> tuple[str, ...]:
        """What in the file has no effect any more, a sentence each."""
        return self._notes

    @field_validator("gpu_types")
    @classmethod
    def _name_the_feature(cls, types: dict[str, GpuType]) -> dict[str, GpuType]:
        return {
            name: gpu.model_copy(
                update={"feature": gpu.feature or name, "profile": gpu.profile or name}
            )
            for name, gpu in types.items()
        }

    @property
    def status_socket(self) -> Path:
        """Where ``hadar run`` answers."""
        if self.status.socket is not None:
            return self.status.socket
        return _RUN if self.site.rights == "operator" else self.site.state_dir / _RUN.name

    @property
    def web_socket(self) -> Path:
        """Where ``hadar web`` answers."""
        if self.web.socket is not None:
            return self.web.socket
        # A folder of its own: systemd removes the controller's when that restarts.
        return _WEB if self.site.rights == "operator" else self.site.state_dir / _WEB.name

    @property
    def controller_uid(self) -> int:
        """UID whose plan files jobs believe. Raises UsageError when the user does not exist."""
        if not self.site.controller_user:
            return os.getuid()
        try:
            return pwd.getpwnam(self.site.controller_user).pw_uid
        except KeyError:
            raise UsageError(
                f"site.controller_user = {self.site.controller_user!r} is no user of this machine; "
                "create it or correct the name"
            ) from None


def find() -> Path:
    """The configuration file: ``$HADAR_CONFIG``, the user's own, the system's, in this order."""
    return Path(paths.config_file(os.environ))


def load_believed(path: Path) -> Config:
    """As :func:`load`, for what a command acts on: only a file of root, of the controller's user or
    of the caller, see :func:`slurm_hadar.paths.opened`."""
    return load(path, paths.opened)


def load(path: Path, opener: Callable[[str], int] | None = None) -> Config:
    """Read a configuration. Raises :class:`UsageError` naming the file and the key at fault.

    ``opener``: opens the file by its name; see :func:`load_believed`.
    """
    try:
        text = reading.content(path, reading.SITE_BYTES, opener).decode()
    except FileNotFoundError:
        raise UsageError(
            f"no configuration at {path}; copy one of the site examples there, or set {ENV}"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not TOML: byte {error.start} is not UTF-8") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Config:
    """Read a configuration's text; ``name`` stands in errors."""
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > reading.SITE_LINE:
            raise UsageError(
                f"{name}: line {number} is longer than {reading.SITE_LINE} characters, the limit; "
                "a list may go on in the next line"
            )
    try:
        found = tomllib.loads(text)
        notes = _obsolete(found)
        config = Config.model_validate(found)
        config._notes = notes
        return config
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {reading.shown(str(error), 200)}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = reading.shown(".".join(str(part) for part in first["loc"]))
        raise UsageError(f"{name}: {key}: {reading.shown(_wrong(first), 300)}") from None


def _obsolete(found: dict[str, object]) -> tuple[str, ...]:
    """Take out of a file what earlier releases knew; a sentence on each."""
    notes = []
    if found.pop("lease", None) is not None:
        notes.append("[lease] has no effect any more: remove it from the configuration")
    partitions = found.get("partitions")
    if isinstance(partitions, dict) and partitions.pop("steer", None) is not None:
        notes.append(
            "partitions.steer has no effect any more: a job keeps the partitions that it asks for; "
            "say in [partitions.groups] which partition stands for others"
        )
    return tuple(notes)


_IN_TOML = {
    "extra_forbidden": "unknown key; correct it, or see the example configurations",
    "model_type": "this is a table, written in [brackets] with its keys below",
    "path_type": "takes a path in quotes",
}
"""Pydantic's kinds of mistakes with messages in terms of Python."""


def _wrong(mistake: "ErrorDetails") -> str:
    return _IN_TOML.get(mistake["type"], mistake["msg"].removeprefix("Value error, "))


def group_types(config: Config) -> dict[str, dict[str, str]]:
    """Group of ``partitions.groups`` -> its members -> the GPU type of each.

    A member is named like a GPU type of ``gpu_types`` or like that type's feature. A group with a
    member whose type is not clear by this is left out.
    """
    by_feature: dict[str, list[str]] = {}
    for name, gpu in config.gpu_types.items():
        by_feature.setdefault(gpu.feature, []).append(name)

    def type_of(member: str) -> str:
        named = by_feature.get(member, [])
        if member in config.gpu_types:
            return member
        return named[0] if len(named) == 1 else ""

    groups = {
        name: {member: type_of(member) for member in members}
        for name, members in config.partitions.groups.items()
    }
    return {name: types for name, types in groups.items() if types and all(types.values())}


def wrapper_path(config_path: Path) -> Path:
    """The small JSON beside the TOML that hbatch and the runtime read."""
    return Path(paths.wrapper_file(str(config_path)))
