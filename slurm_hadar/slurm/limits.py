"""Whose CPUs and memory the accounting database limits, as ``sacctmgr`` shows it.

After an operator's update of a job's CPUs or memory Slurm holds that job to no limit on these any
more (22.05.8: GrpTRES=cpu, MaxTRES=cpu and GrpTRES=mem were all passed; limits on GPUs and nodes
hold on). So what matters is whether there is such a limit, not how much of it is used.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.minutes import amounts
from slurm_hadar.slurm.times import is_some_time

_MINUTES = ("GrpTRESMins", "GrpTRESRunMins", "GrpWall")
_CELLS = (*_MINUTES, "GrpTRES", "MaxTRES", "MaxTRESMins", "MaxTRESPerNode")
_OF_EACH = ("MaxTRESRunMinsPU", "MaxTRESRunMinsPA")
_AGING = ("GrpJobsAccrue", "MaxJobsAccrue")
_AGING_OF_QOS = ("GrpJobsAccrue", "MaxJobsAccruePU", "MaxJobsAccruePA")
ASSOCIATIONS = ("Account", "User", "Partition", "ParentName", "QOS", *_CELLS, *_AGING)
"""Columns of ``sacctmgr show assoc``."""
QOS = (
    *("Name", "UsageFactor", *_OF_EACH, *_CELLS, "MaxTRESPU", "MaxTRESPA"),
    *("Flags", "PreemptExemptTime", "Preempt", "PreemptMode", *_AGING_OF_QOS),
)
"""Columns of ``sacctmgr show qos``."""
_FLAGS, _EXEMPT = QOS.index("Flags") - 2, QOS.index("PreemptExemptTime") - 2
_PREEMPT, _MODE = QOS.index("Preempt") - 2, QOS.index("PreemptMode") - 2

_LIMITED = re.compile(r"(?:^|,)(?:cpu|mem)=")


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """Accounts, (account, user) pairs and QOS with a limit on CPUs or memory of their own."""

    accounts: frozenset[str] = frozenset()
    users: frozenset[tuple[str, str]] = frozenset()
    qos: frozenset[str] = frozenset()
    parents: Mapping[str, str] = field(default_factory=dict)
    """Account -> the one above it."""
    per_user: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """QOS -> resource -> MaxTRESRunMinsPU: minutes that running jobs of each user may still use."""
    per_account: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """QOS -> resource -> MaxTRESRunMinsPA, the same for each account."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """QOS -> UsageFactor, by which its minutes count."""
    over_partitions: frozenset[str] = frozenset()
    """QOS whose limits count before those of a partition's QOS (OverPartQOS)."""
    partitions: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """(account, user) -> the partitions with an association of their own, whose limits hold for
    jobs that ask for this partition only."""
    qos_of: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """(account, user) -> the QOS that this user may use there."""
    exempts: Mapping[str, bool] = field(default_factory=dict)
    """QOS with a PreemptExemptTime of its own -> whether that is any time at all."""
    giving_way: frozenset[str] = frozenset()
    """QOS whose jobs others may preempt, by what the database says."""
    preempt_modes: Mapping[str, str] = field(default_factory=dict)
    """QOS -> its PreemptMode; "" where it has that of slurm.conf."""
    aging: bool = False
    """Whether any of them limits how many waiting jobs gain age."""

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


def enforces_associations(setting: str) -> bool:
    """Whether Slurm takes jobs of those only who have an association, which each value of
    AccountingStorageEnforce but two implies."""
    return not set(setting.lower().split(",")) <= {"", "none", "(null)", "nojobs", "nosteps"}


def parse(associations: str, qos: str) -> AccountLimits:
    """From ``sacctmgr -n -P show assoc`` and ``show qos`` with the columns above.

    Raises SlurmError for lines of another form.
    """
    accounts, users, parents = set[str](), set[tuple[str, str]](), {}
    aging = False
    own = dict[tuple[str, str], set[str]]()
    may_use = dict[tuple[str, str], set[str]]()
    for account, user, partition, parent, usable, *cells in _rows(associations, len(ASSOCIATIONS)):
        aging |= any(cells[-len(_AGING) :])
        if not user and parent:
            parents[account] = parent
        if user and usable:
            may_use.setdefault((account, user), set()).update(usable.split(","))
        if user and partition:
            own.setdefault((account, user), set()).add(partition)
        if not any(map(_LIMITED.search, cells)):
            continue
        if user:
            users.add((account, user))
        else:
            accounts.add(account)
    limited, over, factors = set[str](), set[str](), dict[str, float]()
    exempts, modes, giving_way = dict[str, bool](), dict[str, str](), set[str]()
    per_user, per_account = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    for name, factor, *cells in _rows(qos, len(QOS)):
        aging |= any(cells[-len(_AGING_OF_QOS) :])
        if "overpartqos" in cells[_FLAGS].lower().split(","):
            over.add(name)
        factors[name] = _factor(factor)
        if cells[_EXEMPT]:
            exempts[name] = is_some_time(cells[_EXEMPT])
        mode = cells[_MODE].upper()
        modes[name] = "" if mode == "CLUSTER" else mode
        giving_way.update(cells[_PREEMPT].split(","))
        if "WITHIN" in mode:
            giving_way.add(name)
        for cell, found in zip(cells, (per_user, per_account), strict=False):
            if cell:
                found[name] = amounts(cell)
        if any(map(_LIMITED.search, cells)):
            limited.add(name)
    return AccountLimits(
        accounts=frozenset(accounts),
        users=frozenset(users),
        qos=frozenset(limited),
        parents=parents,
        per_user=per_user,
        per_account=per_account,
        factors=factors,
        partitions={who: frozenset(names) for who, names in own.items()},
        over_partitions=frozenset(over),
        qos_of={who: frozenset(names) for who, names in may_use.items()},
        exempts=exempts,
        giving_way=frozenset(giving_way) & modes.keys(),
        preempt_modes=modes,
        aging=aging,
    )


def _factor(text: str) -> float:
    """A UsageFactor such as ``1.000000``; 1 where there is none."""
    if not text:
        return 1.0
    if not re.fullmatch(r"\d{1,15}(?:\.\d{1,15})?", text, re.ASCII):
        raise SlurmError(f"sacctmgr shows a UsageFactor as {text[:40]!r}, which is not understood")
    return float(text)


def _rows(text: str, columns: int) -> list[list[str]]:
    rows = [line.split("|") for line in text.splitlines() if line.strip()]
    for row in rows:
        if len(row) != columns:
            raise SlurmError(f"sacctmgr answered with a line that is not understood: {row!r:.80}")
    return rows
