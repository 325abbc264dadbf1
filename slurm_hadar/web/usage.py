"""The GPU use of the last week, as ``hadar report`` has it: to an operator of all accounts, to
others of their own jobs. Asked of Slurm's accounting aside, one at a time, and kept for a while."""

import asyncio
import os
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from slurm_hadar.config import Config
from slurm_hadar.controller.presentation import account_usage
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports.usage import UsageReport
from slurm_hadar.slurm import accounting
from slurm_hadar.slurm.commands import Commands
from slurm_hadar.web.feed import PageFeed
from slurm_hadar.web.state_file import opened

DAYS = 7
_KEPT, _FRESH_S, _FAILED_S = 64, 600.0, 60.0


@dataclass(frozen=True, slots=True)
class WeeksUse:
    """``report`` None and ``problem`` empty while Slurm is asked. ``asked_s``: s since the
    epoch."""

    asked_s: float
    report: UsageReport | None = None
    problem: str = ""


class UsageReports:
    """One for each user who looks."""

    def __init__(self, feed: PageFeed, config: Config, controllers_uid: int) -> None:
        self._feed, self._config, self._controllers_uid = feed, config, controllers_uid
        self._found: OrderedDict[str, WeeksUse] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sacct")

    def of(self, user: str) -> WeeksUse:
        """That user's jobs; empty: all jobs. What is not known yet is asked for."""
        found = self._found.get(user)
        if found is None or (user not in self._tasks and self._is_old(found)):
            found = WeeksUse(time.time())
            self._found[user] = found
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
            task = self._tasks[user] = asyncio.create_task(self._ask(user, found.asked_s))
            task.add_done_callback(lambda _: self._tasks.pop(user, None))
        return found

    async def finished(self, user: str) -> UsageReport:
        """The same once it is there. Raises HadarError."""
        self.of(user)
        if (task := self._tasks.get(user)) is not None:
            await asyncio.shield(task)
        found = self.of(user)
        if found.report is None:
            raise HadarError(found.problem or "too many reports are asked for; try again later")
        return found.report

    def close(self) -> None:
        """Ends what is under way."""
        for task in list(self._tasks.values()):
            task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_old(self, found: WeeksUse) -> bool:
        age = time.time() - found.asked_s
        return not 0 <= age < (_FAILED_S if found.problem else _FRESH_S)

    async def _ask(self, user: str, asked_s: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            report = await loop.run_in_executor(self._thread, lambda: self._report(user, asked_s))
            self._found[user] = WeeksUse(asked_s, report)
        except HadarError as error:
            self._found[user] = WeeksUse(asked_s, None, str(error))
        await self._feed.touch()

    def _report(self, user: str, now: float) -> UsageReport:
        """Raises HadarError."""
        slurm = self._config.slurm
        window = account_usage.UsageWindow(now - DAYS * 86_400.0, now)
        commands = Commands(slurm.bin_dir, slurm.conf, accounting.TIMEOUT_S)
        runs, bad = accounting.read_runs(commands, window.from_s, now, user)
        # Whatever sacct took for that name: nothing of others.
        ours = [run for run in runs if user in ("", run.user)]
        notes = [f"unreadable lines of sacct's answer, which are not counted: {bad}"] if bad else []
        known = None
        if os.getuid() == self._controllers_uid:
            with opened(self._config) as store:
                known = account_usage.recorded(store, window.from_s)
        return account_usage.usage(ours, known, window, self._config, notes)
