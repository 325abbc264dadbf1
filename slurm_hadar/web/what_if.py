"""The queue of now under other policies: simulated in processes of their own, one at a time."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from slurm_hadar import policies
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.simulator.live_queue import QueueModel, QueueOutcome
from slurm_hadar.web.feed import PageFeed

CPU_LIMIT_S = 60
LONGEST_S = 600.0
"""By the clock: on a busy machine what runs with nice 10 waits for much of it."""
_FAULT = "the simulation failed, a fault of slurm-hadar"
_KEPT, _FRESH_S = 24, 600.0
_OUTCOME = TypeAdapter(QueueOutcome)


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """One policy: ``outcome`` None and ``problem`` empty while it is under way. ``asked_s``: s
    since the epoch."""

    policy: str
    asked_s: float
    outcome: QueueOutcome | None = None
    problem: str = ""

    @property
    def under_way(self) -> bool:
        """Whether it is still to come."""
        return self.outcome is None and not self.problem


class WhatIf:
    """Simulates at a request, and keeps what came of it for ten minutes."""

    def __init__(self, feed: PageFeed, present: str) -> None:
        """``present``: the site's own policy, with which others are compared."""
        self.present = present
        self._feed = feed
        self._found: OrderedDict[str, PolicyOutcome] = OrderedDict()
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, policy: str) -> list[PolicyOutcome]:
        """The site's policy and this one; what is not known yet is begun. Raises UsageError for a
        policy that there is not."""
        known = sorted({*policies.names(), self.present})
        if policy not in known:
            raise UsageError(f"policy takes one of {', '.join(known)}")
        return [self._known(name) for name in dict.fromkeys((self.present, policy))]

    def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()

    def _known(self, policy: str) -> PolicyOutcome:
        found = self._found.get(policy)
        if found is None or (not found.under_way and found.asked_s < time.time() - _FRESH_S):
            found = PolicyOutcome(policy, time.time())
            self._found[policy] = found
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
            task = asyncio.create_task(self._simulate(found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return found

    async def _simulate(self, asked: PolicyOutcome) -> None:
        outcome, problem = None, _FAULT
        try:
            async with self._one:
                model = await self._feed.asked(self._feed.source.queue_model)
                outcome = await _outcome(model, asked.policy)
            problem = ""
        except HadarError as error:
            problem = str(error)
        finally:
            # After any other error too: the page would show it as under way until a restart.
            self._found[asked.policy] = PolicyOutcome(asked.policy, asked.asked_s, outcome, problem)
            await self._feed.touch()


async def _outcome(model: QueueModel, policy: str) -> QueueOutcome:
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/env", "nice", "-n", "10",
        sys.executable, "-I", "-m", "slurm_hadar.simulator.live_queue",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    asked = {"model": asdict(model), "policy": policy, "cpu_limit_s": CPU_LIMIT_S}
    try:
        async with asyncio.timeout(LONGEST_S):
            answer, said = await process.communicate(json.dumps(asked).encode())
    except TimeoutError:
        raise HadarError(f"not done within {LONGEST_S:.0f} s, the limit") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        raise HadarError(f"not done within {CPU_LIMIT_S} s of CPU time, the limit")
    if process.returncode in (1, 2) and said and b"Traceback" not in said:
        raise HadarError(" ".join(said.decode(errors="replace").split())[:300])
    try:
        return _OUTCOME.validate_json(answer)
    except ValidationError:
        raise HadarError(_FAULT) from None
