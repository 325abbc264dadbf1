"""Limits on minutes, with what is used of them, as slurmctld's association manager shows them.

A job that is requeued must fit into them once more with its whole time limit. From
``scontrol -o show assoc_mgr flags=assoc,qos`` of Slurm 22.05 to 25.11: one record a line. What a
later release shows beside that (Lineage, Comment) stands behind the names that are read here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm import size_limits
from slurm_hadar.slurm.size_limits import Limits, SizeLimits

WALL = "wall"
"""The resource of GrpWall: minutes of jobs, however much each of them has."""
MINS, RUN_MINS, GRP_WALL = "GrpTRESMins", "GrpTRESRunMins", "GrpWall"
USE = ("--noheader", "--all", "--Format=JobID:|,tres-alloc:|")
"""squeue's arguments for what jobs have, or ask for where they wait."""
MOST_CHARACTERS = 200_000_000
"""Longest answer that is read; an association has some 1,000."""

_HEAD = "Current Association Manager state"
_COUNT = re.compile(r"(N|\d{1,20})(?:\((\d{1,20})\))?", re.ASCII)
_WALL = re.compile(r"(N|\d{1,20})(?:\((\d{1,20}(?:\.\d{1,20})?)\))?", re.ASCII)
_AMOUNT = re.compile(r"(\d{1,20}(?:\.\d{1,9})?)([KMGTPE]?)", re.ASCII)
_UNITS = {unit: 1024.0**power for power, unit in enumerate(("", "K", "M", "G", "T", "P", "E"))}


@dataclass(frozen=True, slots=True)
class MinuteLimit:
    """One limit, in minutes of a resource (MB-minutes for memory)."""

    owner: str
    """Whose: ``account phys``, ``QOS gold``, or that of one user in an account."""
    name: str
    """Slurm's name of it, such as GrpTRESMins."""
    tres: str
    """``cpu``, ``mem``, ``billing``, ``gres/gpu`` and so on, or :data:`WALL`."""
    limit: float
    taken: float
    """What is used and, but for GrpWall, what running jobs may still use."""
    whose: str = ""
    """The user of a limit of one user, or the account of a limit of one account in a QOS."""

    def __str__(self) -> str:
        what = self.name if self.tres == WALL else f"{self.name}={self.tres}"
        return f"{what} of {self.owner}"


@dataclass(frozen=True, slots=True)
class Minutes:
    """All limits on minutes of a cluster."""

    accounts: Mapping[str, tuple[MinuteLimit, ...]] = field(default_factory=dict)
    """Every account that there is; most have none."""
    users: Mapping[tuple[str, str], tuple[MinuteLimit, ...]] = field(default_factory=dict)
    """(account, user); every one that was asked for."""
    qos: Mapping[str, tuple[MinuteLimit, ...]] = field(default_factory=dict)
    parents: Mapping[str, str] = field(default_factory=dict)
    """Account -> the one above it."""
    sizes: SizeLimits = field(default_factory=SizeLimits)
    """The other limits, of the same records."""

    def known(self, user: str, account: str, *qos: str) -> bool:
        """Whether Slurm showed all that may bind such a job."""
        line = list(self.above(account))
        shown = (account, user) in self.users and all(name in self.accounts for name in line)
        return shown and all(name in self.qos for name in qos if name)

    def binding(self, user: str, account: str, *qos: str) -> list[MinuteLimit]:
        """Those of the user in the account, of it and the accounts above, and of each QOS."""
        found = list(self.users.get((account, user), ()))
        for name in self.above(account):
            found += self.accounts.get(name, ())
        for name in dict.fromkeys(qos):
            found += self.qos.get(name, ())
        return found

    def above(self, account: str) -> Iterator[str]:
        """An account, and those above it."""
        seen = set[str]()
        while account and account not in seen:
            seen.add(account)
            yield account
            account = self.parents.get(account, "")


def parse(text: str) -> Minutes:
    """From ``scontrol -o show assoc_mgr``. Raises SlurmError for any other text."""
    if len(text) > MOST_CHARACTERS:
        raise SlurmError(
            f"scontrol shows more than {MOST_CHARACTERS} characters of limits, the limit"
        )
    if not text.startswith(_HEAD) or not text.endswith("\n"):
        raise SlurmError("scontrol show assoc_mgr: the answer is not whole", retry=True)
    accounts = dict[str, tuple[MinuteLimit, ...]]()
    users = dict[tuple[str, str], tuple[MinuteLimit, ...]]()
    qos, parents = dict[str, tuple[MinuteLimit, ...]](), dict[str, str]()
    sizes_of_accounts, sizes_of_users = dict[str, Limits](), dict[tuple[str, str], Limits]()
    sizes_of_qos, of_each = dict[str, Limits](), dict[str, str]()
    for line in _lines(text):
        if line.startswith("QOS="):
            name = line[4:].partition(" ")[0].rpartition("(")[0]
            qos[name] = (*qos.get(name, ()), *_limits(line, f"QOS {name}"))
            sizes_of_qos[name], of_each[name] = size_limits.of_qos(line, f"QOS {name}")
        elif line.startswith("ClusterName="):
            head, _, rest = line.partition(" UserName=")
            account = head.partition(" Account=")[2]
            user = rest.partition(" Partition=")[0].strip().rpartition("(")[0]
            if not account:
                raise _not_understood(line)
            if user:
                # One of a user for each partition; all of them count.
                known = users.get((account, user), ())
                found = _limits(line, f"its user in account {account}", user)
                users[account, user] = (*known, *found)
                if own := size_limits.limits(line, f"its user in account {account}"):
                    others = sizes_of_users.get((account, user), ())
                    sizes_of_users[account, user] = (*others, *own)
                continue
            accounts[account] = _limits(line, f"account {account}")
            if own := size_limits.limits(line, f"account {account}"):
                sizes_of_accounts[account] = own
            above = _value(line, "ParentAccount").rpartition("(")[0]
            if above:
                parents[account] = above
    sizes = SizeLimits(sizes_of_accounts, sizes_of_users, sizes_of_qos, of_each)
    return Minutes(accounts, users, qos, parents, sizes)


def parse_use(text: str) -> dict[int, dict[str, float]]:
    """From squeue with :data:`USE`: Slurm's own number of a job -> resource -> amount (memory in
    MB); of a job that waits what it asks for. Raises SlurmError for any other text."""
    found = {}
    for line in _lines(text):
        if not line.strip():
            continue
        number, bar, rest = line.partition("|")
        tres, end, _ = rest.partition("|")
        if not (bar and end and re.fullmatch(r"\d{1,10}", number.strip(), re.ASCII)):
            raise SlurmError(f"squeue answered with a line that is not understood: {line[:80]!r}")
        found[int(number)] = amounts(tres.strip())
    return found


def amounts(text: str) -> dict[str, float]:
    """``cpu=2,mem=4G,node=1,billing=2,gres/gpu:v100=1`` by resource, memory in MB."""
    found = {}
    for entry in _entries("" if text in ("N/A", "(null)") else text):
        name, _, shown = entry.partition("=")
        match = _AMOUNT.fullmatch(shown)
        if match is None:
            raise SlurmError(f"Slurm shows resources as {entry[:80]!r}, which is not understood")
        number = float(match[1]) * _UNITS[match[2]]
        found[name] = number / _UNITS["M"] if name == "mem" and match[2] else number
    return found


def _limits(line: str, owner: str, whose: str = "") -> tuple[MinuteLimit, ...]:
    used, running = _counts(line, MINS), _counts(line, RUN_MINS)
    found = []
    for tres, (limit, now) in used.items():
        if limit is not None:
            later = running.get(tres, (None, 0.0))[1]
            found.append(MinuteLimit(owner, MINS, tres, limit, now + later, whose))
    for tres, (limit, now) in running.items():
        if limit is not None:
            found.append(MinuteLimit(owner, RUN_MINS, tres, limit, now, whose))
    wall = _WALL.fullmatch(_value(line, GRP_WALL))
    if wall is None:
        raise _not_understood(line)
    if wall[1] != "N":
        spent = float(wall[2] or 0)
        found.append(MinuteLimit(owner, GRP_WALL, WALL, float(wall[1]), spent, whose))
    return tuple(found)


def _counts(line: str, key: str) -> dict[str, tuple[float | None, float]]:
    """Resource -> its limit, None where it has none, and what is counted against it."""
    found = {}
    for entry in _entries(_value(line, key)):
        tres, _, shown = entry.partition("=")
        match = _COUNT.fullmatch(shown)
        if match is None:
            raise _not_understood(entry)
        found[tres] = (None if match[1] == "N" else float(match[1]), float(match[2] or 0))
    return found


def _value(line: str, key: str) -> str:
    start = line.find(f" {key}=")
    if start < 0:
        raise _not_understood(line)
    start += len(key) + 2
    end = line.find(" ", start)
    return line[start:] if end < 0 else line[start:end]


def _entries(text: str) -> Iterable[str]:
    return (entry for entry in text.split(",") if entry)


def _lines(text: str) -> Iterator[str]:
    """The lines, without a second copy of a long text."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def _not_understood(text: str) -> SlurmError:
    return SlurmError(f"scontrol shows limits as {text[:80]!r}, which is not understood")
