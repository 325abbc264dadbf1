"""Each run of each GPU job in Slurm's accounting: one bulk query of sacct; and whose jobs a user
may see there.

A requeue begins another run, with a line of its own (``-D``): without those, the GPU time of a job
before its last move would be missing.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import inf

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import times, tres
from slurm_hadar.slurm.commands import Commands
from slurm_hadar.slurm.database import database_cure, database_message, is_silent

_COLUMNS = (
    "JobID", "Submit", "Eligible", "Start", "End", "State", "TimelimitRaw", "ReqTRES",
    "AllocTRES", "Partition", "User", "Account",
)  # fmt: skip
"""The last one may hold the separator."""
_MOST_ROWS = 2_000_000
_NAME = re.compile(r"[^\s,|='\"+-][^\s,|='\"]{0,99}", re.ASCII)
"""Of a user or account; sacctmgr takes a comma for the beginning of another name."""
_ADMINS = ("operator", "administrator")
TIMEOUT_S = 300.0
"""A database takes its time for a month of jobs."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a job, or its wait for one. Times in s since the epoch.

    ``queued_s``: since when Slurm could start it, at its submission or requeue at the earliest.
    ``start_s``: inf where it has not started, ``end_s``: inf where it has not ended. ``gpus``: that
    it held, or asks for while it waits; ``asked_gpu_s``: the GPUs that it asks for times its time
    limit, 0 without a limit.
    """

    job: str
    user: str
    account: str
    partition: str
    state: str
    submit_s: float
    queued_s: float
    start_s: float
    end_s: float
    gpus: int
    asked_gpu_s: float

    @property
    def started(self) -> bool:
        """Whether it got its GPUs."""
        return self.start_s < inf

    @property
    def waiting(self) -> bool:
        """Whether it waits now."""
        return self.state == "PENDING"

    def held_s(self, from_s: float, to_s: float) -> float:
        """How long it held its GPUs between two times, s."""
        return max(0.0, min(self.end_s, to_s) - max(self.start_s, from_s))


def command(from_s: float, to_s: float, user: str = "") -> list[str]:
    """The query, as an argument list: all jobs of these times that the caller may see, or that
    user's."""
    whose = ["-u", user] if user else ["-a"]
    window = ["-S", times.printed(from_s), "-E", times.printed(to_s)]
    return ["sacct", *whose, "-X", "-D", "-P", "-n", *window, "-o", ",".join(_COLUMNS)]


def read_runs(
    commands: Commands, from_s: float, to_s: float, user: str = ""
) -> tuple[list[JobRun], int]:
    """Runs of GPU jobs between two times, of that user or of all, and how many lines could not be
    read.

    Raises SlurmError where sacct does not answer, or prints nothing that can be read.
    """
    argv = command(from_s, to_s, user)
    try:
        return parse_runs(commands.read(argv[0], argv[1:]))
    except SlurmError as error:
        if is_silent(error):
            raise SlurmError(
                f"{database_message(error)}; {database_cure(error)}. hadar status shows what runs "
                "and waits now",
                retry=True,
            ) from None
        if "storage is disabled" not in str(error):
            raise
        raise SlurmError(
            "this Slurm keeps no accounting (AccountingStorageType in slurm.conf), of which a "
            "report is made; hadar status shows what runs and waits now"
        ) from None


def parse_runs(text: str) -> tuple[list[JobRun], int]:
    """The same of what sacct printed. Raises SlurmError where no line can be read."""
    found: list[JobRun] = []
    lines = bad = 0
    for line in _lines(text):
        lines += 1
        try:
            run = _run(line)
        except (SlurmError, ValueError):
            bad += 1
            continue
        if run is not None:
            found.append(run)
    if lines and bad == lines:
        raise SlurmError("no line of sacct's answer can be read")
    return found, bad


def _lines(text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n")):
        if number > _MOST_ROWS:
            raise SlurmError(f"sacct printed more than {_MOST_ROWS:,} lines; ask for less time")
        if line:
            yield line


def _run(line: str) -> JobRun | None:
    """None for a job without GPUs. Raises SlurmError or ValueError for what is no line of it."""
    cells = line.split("|", len(_COLUMNS) - 1)
    row = dict(zip(_COLUMNS, cells, strict=True))
    asked, held = (sum(tres.parse_gpus(row[at]).values()) for at in ("ReqTRES", "AllocTRES"))
    if not (asked or held):
        return None
    submit, eligible, start, end = (
        times.parse_date(row[at]) for at in ("Submit", "Eligible", "Start", "End")
    )
    if submit <= 0 or (held and end and end < start):
        raise ValueError("times")
    # Slurm shows the cancellation of a waiting job as its start.
    started = bool(held and start)
    limit = row["TimelimitRaw"]
    return JobRun(
        job=row["JobID"],
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        state=row["State"].split(" ")[0],
        submit_s=submit,
        queued_s=max(submit, eligible),
        start_s=start if started else inf,
        end_s=end or inf,
        gpus=held or asked,
        asked_gpu_s=(asked or held) * 60.0 * int(limit) if limit.isdecimal() else 0.0,
    )


@dataclass(frozen=True, slots=True)
class AccountingRights:
    """Whose jobs Slurm's accounting shows to a user beside their own, whatever is private:
    ``everything`` to operators, and to coordinators those of their ``accounts``."""

    everything: bool = False
    accounts: frozenset[str] = frozenset()


def read_rights(commands: Commands, user: str) -> AccountingRights:
    """A user's. Raises SlurmError where sacctmgr does not answer."""
    if not _NAME.fullmatch(user):
        return AccountingRights()
    words = ["-n", "-P", "show", "user", "withcoord", "format=User,AdminLevel,Coord"]
    return parse_rights(commands.read("sacctmgr", [*words, "where", f"name={user}"]), user)


def parse_rights(text: str, user: str) -> AccountingRights:
    """The same of what sacctmgr printed."""
    everything, accounts = False, set[str]()
    for line in text.splitlines():
        name, _, rest = line.partition("|")
        if name != user:
            continue
        level, _, coordinates = rest.partition("|")
        everything |= level.lower() in _ADMINS
        accounts |= {one for one in coordinates.split(",") if one}
    return AccountingRights(everything, frozenset(accounts))


def unknown_accounts(commands: Commands, names: Collection[str]) -> list[str]:
    """Those of some accounts that the accounting does not show to the caller.

    Raises SlurmError where sacctmgr does not answer.
    """
    asked = [name for name in names if _NAME.fullmatch(name)]
    known: set[str] = set()
    if asked:
        words = ["-n", "-P", "show", "account", "format=Account", "where"]
        said = commands.read("sacctmgr", [*words, f"name={','.join(asked)}"])
        known = {line.strip() for line in said.splitlines()}
    return [name for name in names if name not in known]
