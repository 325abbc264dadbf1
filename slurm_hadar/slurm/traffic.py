"""What is sent to Slurm: how much of it, and how quickly it is answered.

A slurmctld that limits the rate of requests (``rl_enable``) shows it as a slow answer only: the
commands wait without a word and then ask again. On 24.11.5 with one token a second 16 of them at
once took 0.1 to 21 s each, all with status 0. So the time of an answer is what is measured.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.slurm.database import is_silent

MINUTE_S = 60.0
_STRAINED = ("timed out", "gave no answer within", "rate limit")
"""What is said by a Slurm that has too much to do."""
_DOWN = ("unable to contact", "connection refused", "connect failure", "munge encode failed")
"""What is said where slurmctld or munge does not run; each request then takes some seconds."""


_OF_DATABASE = frozenset(("limits", "users"))
"""Kinds of requests that slurmdbd answers: what they take says nothing of slurmctld."""


class Paused(SlurmError):
    """A request that was not sent, to spare Slurm; the same one may be sent later."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=True)


class Traffic:
    """Counts and times the requests of one process. ``clock`` in s, one that is never set back.

    The limit, and the rule that nothing more is sent after a request went unanswered, hold inside
    :meth:`rate_limited` only: a person's own commands are not slowed down. A silent slurmdbd stops
    and slows the requests to slurmdbd alone.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.queries: Counter[str] = Counter()
        """Requests sent so far by kind."""
        self.limit: float = inf
        """Most requests in any minute."""
        self.clock = clock
        self.slowest_s = 0.0
        """Longest time of an answer since :meth:`rate_limited` began."""
        self.slowest = ""
        """The kind of request that it was an answer to."""
        self.strain = ""
        """What Slurm said, since then, of having too much to do."""
        self._silent = self._silent_database = ""
        self._sent: deque[float] = deque()
        self._rate_limited = False
        self._lock = threading.Lock()

    @contextmanager
    def rate_limited(self) -> Iterator[None]:
        """One tick: the limit holds, and answers are measured anew."""
        self.slowest_s, self.slowest, self.strain = 0.0, "", ""
        self._silent = self._silent_database = ""
        self._rate_limited = True
        try:
            yield
        finally:
            self._rate_limited = False

    @contextmanager
    def request(self, kind: str, measured: bool = True) -> Iterator[None]:
        """Around one request. Raises :class:`Paused` instead of sending it.

        ``measured``: whether the time of its answer says how busy Slurm is.
        """
        self._admit(kind)
        began = self.clock()
        try:
            yield
        except SlurmError as error:
            said = str(error).lower()
            if kind in _OF_DATABASE:
                if is_silent(error):
                    self._silent_database = str(error)
                raise
            if any(word in said for word in _STRAINED):
                self.strain = str(error)
            if any(word in said for word in (*_STRAINED, *_DOWN)):
                self._silent = str(error)
            raise
        took = self.clock() - began
        if measured and kind not in _OF_DATABASE and took > self.slowest_s:
            self.slowest_s, self.slowest = took, kind

    def requests_left(self) -> float:
        """Requests that may still be sent in this minute."""
        with self._lock:
            return self._capacity(self.clock())

    def part_left(self, part: float) -> bool:
        """Whether more than this part (0 to 1) of a minute's requests is left."""
        with self._lock:
            self._capacity(self.clock())
            return len(self._sent) < self.limit * (1.0 - part)

    def seconds_until_allowed(self, requests: int) -> float:
        """Seconds until that many may be sent, 0 where they may be now."""
        with self._lock:
            now = self.clock()
            missing = requests - self._capacity(now)
            if missing <= 0 or not self._sent:
                return 0.0
            last = self._sent[min(int(missing), len(self._sent)) - 1]
            # As in _capacity, so that rounding never makes the two disagree.
            return max(0.0, last - (now - MINUTE_S))

    def sent(self) -> list[float]:
        """When the requests of the last minute were sent, by the clock."""
        with self._lock:
            self._capacity(self.clock())
            return list(self._sent)

    def remember(self, sent: Iterable[float]) -> None:
        """Count requests of another process as well: what its :meth:`sent` gave."""
        with self._lock:
            now = self.clock()
            # After the machine was started anew its clock begins at 0: those times mean nothing.
            self._sent = deque(sorted([*(t for t in sent if t <= now), *self._sent]))

    def _capacity(self, now: float) -> float:
        while self._sent and self._sent[0] <= now - MINUTE_S:
            self._sent.popleft()
        return self.limit - len(self._sent)

    def _admit(self, kind: str) -> None:
        with self._lock:
            now = self.clock()
            of_database = kind in _OF_DATABASE
            silent = self._silent_database if of_database else self._silent
            if self._rate_limited and silent:
                who = "slurmdbd" if of_database else "Slurm"
                raise Paused(f"not sent, for {who} did not answer a moment ago ({silent})")
            if self._capacity(now) < 1 and self._rate_limited:
                raise Paused(
                    f"not sent, for {len(self._sent)} requests went to Slurm within a minute "
                    "(guards.max_queries_per_minute)"
                )
            self._sent.append(now)
            self.queries[kind] += 1
