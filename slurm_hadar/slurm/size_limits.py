"""Limits on the size, the length and the number of jobs, as slurmctld's association manager shows
them, with what is used of them now (Slurm 22.05.8 and 24.11.5).

A limit that is set at several points counts at the first of them only: the partition's QOS, the
job's QOS (before it where that has the flag OverPartQOS), the association. Of a user's association
Slurm shows the limits of the accounts above as its own, but those of all their jobs together.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

JOB, NODE, LEAST, MINUTES = "MaxTRESPJ", "MaxTRESPN", "MinTRESPJ", "MaxTRESMinsPJ"
WALL = "MaxWallPJ"
OF_ALL = ("GrpTRES", "GrpJobs", "MaxTRES", "MaxJobs")
"""Limits on what running jobs have together."""
_OF_GROUP = ("GrpTRES", "GrpJobs")
_NAMES = (WALL, JOB, NODE, LEAST, MINUTES, *OF_ALL)
_FIELD = re.compile(rf"(?:^| )({'|'.join(_NAMES)})(P[AU])?=(\S*)")
_ENTRY = re.compile(r"(?:([a-z][^=,\s]{0,99})=)?(\d{1,20})(?:\((\d{1,20})\))?", re.ASCII)
_EACH = " Account Limits="


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """One limit. ``name`` as Slurm shows it; ``tres``: the resource, memory in MB, empty for jobs
    and minutes; ``used``: what all running jobs under it have, 0 where that does not matter."""

    owner: str
    name: str
    tres: str
    limit: float
    used: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        """What may be limited at several points."""
        return "MaxJobs" if self.name == "MaxJobsPU" else self.name, self.tres

    def __str__(self) -> str:
        what = f"{self.name}={self.tres}" if self.tres else self.name
        return f"{what} of {self.owner}"


Limits = tuple[SizeLimit, ...]


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """All such limits of a cluster; most records have none."""

    accounts: Mapping[str, Limits] = field(default_factory=dict)
    users: Mapping[tuple[str, str], Limits] = field(default_factory=dict)
    """(account, user); the strictest of several that a user has there, one a partition, count."""
    qos: Mapping[str, Limits] = field(default_factory=dict)
    of_each: Mapping[str, str] = field(default_factory=dict)
    """QOS -> its limits of each account and user, as Slurm shows them."""

    def binding(self, user: tuple[str, int], accounts: Sequence[str], qos: Sequence[str]) -> Limits:
        """Those that bind a job. ``user``: name and UID; ``accounts``: its own, then those above;
        ``qos``: those that count, the first one first."""
        found: list[SizeLimit] = []
        for name in qos:
            known = {one.key for one in found}
            own = chain(self.qos.get(name, ()), self._of_each(name, user, accounts[:1]))
            found += [one for one in own if one.key not in known]
        known = {one.key for one in found}
        association = self.users.get((accounts[0] if accounts else "", user[0]), ())
        above = [one for name in accounts for one in self.accounts.get(name, ())]
        above = [one for one in above if one.name in _OF_GROUP]
        found += [one for one in (*association, *above) if one.key not in known]
        return tuple(found)

    def _of_each(
        self, qos: str, user: tuple[str, int], account: Sequence[str]
    ) -> Iterator[SizeLimit]:
        text = self.of_each.get(qos, "")
        users_at = text.find(" User Limits=")
        (name, uid), halves = user, (text[:users_at], text[users_at:])
        # 22.05 shows the UID alone.
        for half, whose in ((0, account), (1, (str(uid), f"{name}({uid})"))):
            for one in whose:
                if shown := re.search(rf" {re.escape(one)}=\{{([^}}]*)\}}", halves[half]):
                    yield from limits(shown[1], f"QOS {qos}")


def of_qos(line: str, owner: str) -> tuple[Limits, str]:
    """The limits of a QOS's record, and the part of it on each account and user."""
    record, mark, each = line.partition(_EACH)
    return limits(record, owner), mark + each


def limits(record: str, owner: str) -> Limits:
    """Those that a record has; what has none is ``N``, or nothing."""
    return tuple(
        SizeLimit(owner, match[1] + (match[2] or ""), found[1] or "", float(found[2]), used)
        for match in _FIELD.finditer(record)
        for entry in match[3].split(",")
        if (found := _ENTRY.fullmatch(entry)) is not None
        for used in (float(found[3] or 0),)
    )
