"""Whose CPUs and memory the accounting database limits, as ``sacctmgr`` shows it.

After an operator's update of a job's CPUs or memory Slurm holds that job to no limit on these any
more (22.05.8: GrpTRES=cpu, MaxTRES=cpu and GrpTRES=mem were all passed; limits on GPUs and nodes
hold on). So what matters is whether there is such a limit, not how much of it is used.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.domain.errors import SlurmError

_CELLS = ("GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "MaxTRES", "MaxTRESMins", "MaxTRESPerNode")
ASSOCIATIONS = ("Account", "User", "ParentName", *_CELLS)
"""Columns of ``sacctmgr show assoc``."""
QOS = ("Name", *_CELLS, "MaxTRESPU", "MaxTRESPA")
"""Columns of ``sacctmgr show qos``."""

_LIMITED = re.compile(r"(?:^|,)(?:cpu|mem)=")


@dataclass(frozen=True, slots=True)
class Limits:
    """Accounts, (account, user) pairs and QOS with a limit on CPUs or memory of their own."""

    accounts: frozenset[str] = frozenset()
    users: frozenset[tuple[str, str]] = frozenset()
    qos: frozenset[str] = frozenset()
    parents: Mapping[str, str] = field(default_factory=dict)
    """Account -> the one above it."""

    def bind(self, user: str, account: str, *qos: str) -> bool:
        """Whether any of them, or an account above, has such a limit."""
        if (account, user) in self.users or self.qos & set(qos):
            return True
        seen = set[str]()
        while account and account not in seen:
            if account in self.accounts:
                return True
            seen.add(account)
            account = self.parents.get(account, "")
        return False


def parse(associations: str, qos: str) -> Limits:
    """From ``sacctmgr -n -P show assoc`` and ``show qos`` with the columns above.

    Raises SlurmError for lines of another form.
    """
    accounts, users, parents = set[str](), set[tuple[str, str]](), {}
    for account, user, parent, *cells in _rows(associations, len(ASSOCIATIONS)):
        if not user and parent:
            parents[account] = parent
        if not any(map(_LIMITED.search, cells)):
            continue
        if user:
            users.add((account, user))
        else:
            accounts.add(account)
    limited = {name for name, *cells in _rows(qos, len(QOS)) if any(map(_LIMITED.search, cells))}
    return Limits(frozenset(accounts), frozenset(users), frozenset(limited), parents)


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [line.split("|") for line in text.splitlines() if line.strip()]
    for row in rows:
        if len(row) != columns:
            raise SlurmError(f"sacctmgr answered with a line that is not understood: {row!r:.80}")
    return rows
