"""When the next tick may begin: later while Slurm is slow, within the requests of a minute.

Kept in the state file, so that ticks of a timer, each a process of its own, know of each other.
Times are those of a clock that is never set back; it goes on over processes, not over a restart of
the machine.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_hadar.config import Config
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.errors import JustStartedError
from slurm_hadar.domain.view import State
from slurm_hadar.slurm.traffic import Traffic

_NAME = "requests"
"""Under this name the store keeps it."""
_ONE_TICK = 8
"""Requests that a tick needs to read and to send its changes."""


class Backoff:
    """Doubles the time between ticks while Slurm is slow, and counts over processes."""

    def __init__(self, config: Config, traffic: Traffic, store: Store) -> None:
        self._guards, self._usual_s = config.guards, config.controller.interval_s
        self._traffic, self._store = traffic, store
        traffic.limit = config.guards.max_queries_per_minute
        kept = store.policy_state(_NAME)
        self._factor = max(1.0, _number(kept, "factor", 1.0))
        self._until = _number(kept, "until", 0.0)
        self._slow = str(kept.get("slow", "")) if self._factor > 1 else ""
        sent = kept.get("sent", [])
        if isinstance(sent, list):
            traffic.remember(float(t) for t in sent if isinstance(t, (int, float)))
        if self._until > traffic.clock() + self._stretched(self._usual_s):
            # The machine was started anew, and its clock with it.
            self._until = 0.0

    @property
    def interval_s(self) -> float:
        """Seconds between two ticks as they are now, for the heartbeat."""
        return self._stretched(self._usual_s)

    def pause_s(self, usual_s: float) -> float:
        """Seconds from a tick's beginning to the next one's; ``usual_s`` when all is well."""
        return max(self._stretched(usual_s), self._traffic.seconds_until_allowed(_ONE_TICK))

    def why_not_now(self) -> str:
        """Why a tick should not begin now, as a sentence; empty where it may."""
        left = self._until - self._traffic.clock()
        if self._factor > 1 and left > 0:
            return f"{self._slow}: no tick for another {left:.0f} s"
        return self._without_room(0.0)

    def message(self, usual_s: float) -> str:
        """What the operator should know of the time until the next tick; empty when all is well.
        ``usual_s``: from one to the next."""
        if self._factor == 1:
            return self._without_room(usual_s)
        return f"{self._slow}: ticks are {self.interval_s:.0f} s apart until it answers quickly"

    def _without_room(self, usual_s: float) -> str:
        wait = self._traffic.seconds_until_allowed(_ONE_TICK)
        if wait <= usual_s:
            return ""
        return (
            f"{len(self._traffic.sent())} requests went to Slurm within a minute "
            f"(guards.max_queries_per_minute): no tick for another {wait:.0f} s"
        )

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Around one tick: its requests are limited and measured."""
        began = self._traffic.clock()
        try:
            with self._traffic.rate_limited():
                yield
        except JustStartedError:
            # Its commands waited for it to start.
            self._traffic.slowest_s = 0.0
            raise
        finally:
            self._judge(began)

    def _judge(self, began: float) -> None:
        slow = self._why_slow()
        self._slow = slow
        # At most as far as the longest interval, so that it comes back at once afterwards.
        most = max(1.0, self._guards.longest_interval_s / self._usual_s)
        self._factor = min(2 * self._factor, max(2.0, most)) if slow else 1.0
        # A timer that fires a little early must not lose a whole interval by it.
        self._until = began + self.interval_s - self._usual_s / 2 if slow else 0.0
        kept: State = {
            "factor": self._factor,
            "until": self._until,
            "slow": slow,
            "sent": self._traffic.sent(),
        }
        # The tick itself reports a full disk.
        with contextlib.suppress(sqlite3.Error):
            self._store.keep_policy_state(_NAME, kept)

    def _why_slow(self) -> str:
        if self._traffic.strain:
            return f"Slurm is overloaded ({self._traffic.strain})"
        limit = self._guards.slow_answer_s
        if self._traffic.slowest_s > limit:
            took = f"{self._traffic.slowest} took {self._traffic.slowest_s:.1f} s"
            return f"Slurm answers slowly ({took}, above guards.slow_answer_s of {limit:g} s)"
        return ""

    def _stretched(self, usual_s: float) -> float:
        longest = max(usual_s, self._guards.longest_interval_s)
        return min(longest, usual_s * self._factor)


def _number(kept: State, key: str, default: float) -> float:
    value = kept.get(key, default)
    return float(value) if isinstance(value, (int, float)) else default
