"""What a trace may say of its jobs for Slurm's queue, by optional columns.

managed (yes or no), types (``v100 k80``), time_limit_s, priority, user, account.
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.simulator.traces.csv_rows import CsvRow
from slurm_hadar.simulator.workload import Queued

_WORDS = {"": -1, "yes": 1, "no": 0}
_LONGEST_S = 1e10


def queued(rows: Sequence[CsvRow], types: Sequence[str]) -> Queued:
    """What stands in the rows. Raises UsageError naming the file and the line."""
    return Queued(
        managed=np.array([_managed(row) for row in rows], dtype=np.int64),
        types=np.array([_types(row, types) for row in rows], dtype=np.bool_).reshape(
            len(rows), len(types)
        ),
        limit_s=np.array([_limit(row) for row in rows]),
        priority=np.array([_priority(row) for row in rows]),
        users=tuple(row.word("user") for row in rows),
        accounts=tuple(row.word("account") for row in rows),
    )


def _managed(row: CsvRow) -> int:
    word = row.text("managed").lower()
    if word not in _WORDS:
        raise row.error(f"managed is {word[:20]!r}; write yes or no")
    return _WORDS[word]


def _types(row: CsvRow, types: Sequence[str]) -> list[bool]:
    words = row.text("types").lower().split()
    if unknown := [word for word in words if word not in types]:
        raise row.error(f"types names {unknown[0][:20]!r}; the cluster has {', '.join(types)}")
    return [kind in words for kind in types]


def _limit(row: CsvRow) -> float:
    if not row.text("time_limit_s"):
        return float("nan")
    return row.number("time_limit_s", above=True, most=_LONGEST_S)


def _priority(row: CsvRow) -> float:
    return row.number("priority", most=2.0**32) if row.text("priority") else 0.0
