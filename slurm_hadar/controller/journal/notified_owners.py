"""Which alerts owners know of, as ``hadar alerts`` keeps it in the state folder."""

import json
from pathlib import Path

from slurm_hadar import reading

FILE = "sent_alerts.json"
MOST_BYTES = 64_000_000
_LOOKED_S = 1800.0
"""After a longer time without a look what it kept may be over."""


def first_notified(folder: Path, kind: str, now: float) -> dict[tuple[str, str], float]:
    """(user, job) -> since when the owner knows of an alert of that kind which lasts, s since the
    epoch. Nothing where the latest look is too old, or the file is missing or damaged."""
    try:
        found = json.loads(reading.content(folder / FILE, MOST_BYTES))
        first, looked_s = found["first"], found["looked_s"]
        if not isinstance(first, dict) or not 0 <= now - looked_s <= _LOOKED_S:
            return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    notified = {}
    for key, time_s in first.items():
        user, _, rest = key.partition("|")
        of_kind, _, job = rest.partition("|")
        if of_kind == kind and isinstance(time_s, int | float):
            notified[user, job] = float(time_s)
    return notified
