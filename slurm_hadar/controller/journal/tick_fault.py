"""Why the latest tick failed, in the state file: under a timer no process is left to ask."""

import sqlite3
from contextlib import suppress

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.reports import formats

_NAME = "fault"
"""Under this name the store keeps it."""


def keep(store: Store, what: str, now: float) -> None:
    """A tick failed. ``now``: s since the epoch."""
    # Where its own file is the fault, this is lost.
    with suppress(sqlite3.Error):
        store.keep_policy_state(_NAME, {"what": what, "time_s": now})


def clear(store: Store) -> None:
    """A tick came to its end. Raises sqlite3.Error."""
    if store.policy_state(_NAME):
        store.keep_policy_state(_NAME, {})


def latest(store: Store) -> str:
    """A sentence; empty where the latest tick did not fail. Raises sqlite3.Error."""
    kept = store.policy_state(_NAME)
    what, at = kept.get("what"), kept.get("time_s")
    if not isinstance(what, str) or not isinstance(at, (int, float)):
        return ""
    return f"the tick at {formats.moment(at)} failed: {what}"
