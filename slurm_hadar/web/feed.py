"""The newest answers of the controller, asked for once for all who see the same.

One task has a question open that the controller answers at its next tick; one that does not
answer, or at once, is asked again after :data:`_LOOK_S`. What a user sees is
asked for when a page is open, once for each tick, and is kept for :data:`_MOST_USERS` users. While
the controller is silent Slurm itself is asked; where that does not answer either the last answers
stay, and are marked as stale.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports.cluster import ClusterView, JobTimeline
from slurm_hadar.web.controller_answers import ControllerAnswers, Latest, SilentController
from slurm_hadar.web.without_controller import QueueOfSlurm

_LOOK_S = 0.25
_MOST_USERS = 32
_STALE_AFTER_INTERVALS, _STALE_AFTER_S = 3.0, 30.0
_SILENT_LOOKS = 8
"""Looks in a row without an answer until the controller counts as silent: one may be busy."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Shown:
    """What one user sees. ``stale_s``: since when it is old, s since the epoch; 0: it is not.
    ``alone``: it is from Slurm, as no controller answers."""

    view: ClusterView
    stale_s: float = 0.0
    problem: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class _Kept:
    generation: int
    view: ClusterView
    alone: bool


class PageFeed:
    """Serves while :meth:`looking` is entered."""

    def __init__(self, source: ControllerAnswers, slurm: QueueOfSlurm) -> None:
        self.source = source
        self._slurm = slurm
        self.generation = 0
        """Counts what has changed."""
        self.closing = False
        self._latest: Latest | None = None
        self._failed_looks = 0
        self._answered = False
        self._problem = ""
        self._stale_s = 0.0
        self._interval_s = 60.0
        self._views: OrderedDict[int, _Kept] = OrderedDict()
        self._locks: dict[int, asyncio.Lock] = {}
        self._changed = asyncio.Condition()
        # The controller takes four connections of one user at a time; one waits for news.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="ask")
        # Of its own: Slurm may take long to answer.
        self._slurm_thread = ThreadPoolExecutor(1, thread_name_prefix="slurm")

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Looks for news while this is entered."""
        await self._look(None)
        task = asyncio.create_task(self._look_again())
        try:
            yield
        finally:
            task.cancel()
            await self.close()
            for one in (self._threads, self._slurm_thread):
                one.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Ends the streams."""
        self.closing = True
        async with self._changed:
            self._changed.notify_all()

    async def touch(self) -> None:
        """Something that is shown has changed."""
        async with self._changed:
            self.generation += 1
            self._changed.notify_all()

    async def news(self, generation: int, timeout_s: float) -> None:
        """Returns once something is newer than that generation, or after a time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.generation != generation or self.closing)

    async def shown(self, uid: int) -> Shown:
        """What this user sees now. Raises SilentController and HadarError where nothing is known
        for them yet."""
        lock = self._locks.setdefault(uid, asyncio.Lock())
        async with lock:
            kept = self._views.get(uid)
            if kept is None or kept.generation != self.generation:
                try:
                    kept = await self._newest(uid, kept is None)
                    self._keep(uid, kept)
                except HadarError:
                    # A controller that has just started knows nothing before its first tick.
                    if kept is None:
                        raise
        return Shown(kept.view, 0.0 if kept.alone else self._stale_s, self._problem, kept.alone)

    async def _newest(self, uid: int, first: bool) -> _Kept:
        """``first``: better Slurm's answer now than the controller's soon."""
        generation, silent = self.generation, self._problem
        if not self._silent:
            try:
                view = await self.asked(lambda: self.source.cluster(uid))
                self._interval_s, self._answered = view.interval_s, True
                return _Kept(generation, view, False)
            except SilentController as error:
                if not first:
                    raise
                silent = str(error)
        try:
            view = await self._of_slurm(lambda: self._slurm.cluster(uid))
        except HadarError as error:
            raise SilentController(f"{silent}. Slurm does not answer either: {error}") from None
        if self._answered and view.overview.controller.alive:
            # Its last heartbeat is still fresh.
            state = replace(view.overview.controller, state="silent")
            view = replace(view, overview=replace(view.overview, controller=state))
        return _Kept(generation, view, True)

    async def timeline(self, uid: int) -> JobTimeline:
        """The last day, or that before the controller's end. Raises HadarError."""
        try:
            return await self.asked(lambda: self.source.timeline(uid))
        except SilentController:
            return await self._of_slurm(lambda: self._slurm.timeline(uid))

    async def _of_slurm(self, question: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._slurm_thread, question)

    async def asked(self, question: Callable[[], _T]) -> _T:
        """The answer to a question that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, question)

    @property
    def _failed(self) -> bool:
        """The last look had no answer."""
        return bool(self._failed_looks or self._problem)

    @property
    def _silent(self) -> bool:
        return self._failed_looks >= _SILENT_LOOKS

    def _keep(self, uid: int, kept: _Kept) -> None:
        self._views[uid] = kept
        self._views.move_to_end(uid)
        while len(self._views) > _MOST_USERS:
            old, _ = self._views.popitem(last=False)
            self._locks.pop(old, None)

    async def _look_again(self) -> None:
        asked_again = time.monotonic()
        while True:
            looked = time.monotonic()
            if not await self._look(None if self._failed else self._latest):
                await asyncio.sleep(max(0.0, looked + _LOOK_S - time.monotonic()))
            if self._silent and looked - asked_again > self._slurm.again_s:
                asked_again = looked
                await self.touch()

    async def _look(self, known: Latest | None) -> bool:
        """Whether there was something new. ``known``: wait for another one than this."""
        before = (self._latest, self._stale_s, self._problem)
        try:
            self._latest = await self.source.latest(known)
            self._failed_looks, self._problem = 0, ""
        except SilentController as error:
            self._failed_looks += 1
            if self._silent:
                self._problem = str(error)
        except HadarError as error:
            # It has just started, or its first tick failed.
            self._failed_looks, self._problem = 0, str(error)
        self._stale_s = self._old_since()
        new = before != (self._latest, self._stale_s, self._problem)
        if new:
            await self.touch()
        return new

    def _old_since(self) -> float:
        if self._latest is None:
            return 0.0
        old = time.time() - self._latest.observed_s
        late = old > max(_STALE_AFTER_S, _STALE_AFTER_INTERVALS * self._interval_s)
        return self._latest.observed_s if late or self._silent or self._problem else 0.0
