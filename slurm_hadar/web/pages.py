"""The parts of each page, made once for all who see the same."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reports.job_report import JobReport
from slurm_hadar.reports.text import Explanation
from slurm_hadar.web import rendering
from slurm_hadar.web.controller_answers import SilentController
from slurm_hadar.web.feed import PageFeed
from slurm_hadar.web.fragments import PageFragments
from slurm_hadar.web.page_query import PageChoice
from slurm_hadar.web.usage import UsageReports
from slurm_hadar.web.what_if import WhatIf

_MOST = 128
"""Pages that are kept; one of 250 nodes takes half a megabyte."""


@dataclass(slots=True)
class _Made:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    generation: int = -1
    parts: PageFragments | None = None


class Pages:
    """Keeps the parts of the pages that are looked at."""

    def __init__(self, feed: PageFeed, what_if: WhatIf, usage: UsageReports) -> None:
        self._feed, self._what_if, self._usage = feed, what_if, usage
        self._made: OrderedDict[tuple[int, PageChoice], _Made] = OrderedDict()

    async def parts(self, uid: int, choice: PageChoice, own: str) -> PageFragments:
        """The page as it is now. Raises HadarError where it cannot be had."""
        key = (uid, choice)
        made = self._made.setdefault(key, _Made())
        self._made.move_to_end(key)
        while len(self._made) > _MOST:
            self._made.popitem(last=False)
        async with made.lock:
            generation = self._feed.generation
            if made.parts is None or made.generation != generation:
                made.parts = await self._make(uid, choice, own)
                made.generation = generation
            return made.parts

    async def _make(self, uid: int, choice: PageChoice, own: str) -> PageFragments:
        shown = await self._feed.shown(uid)
        source, asked = self._feed.source, self._feed.asked
        if choice.kind == "what-if":
            return rendering.what_if(
                shown, self._what_if.of(choice.policy) if choice.policy else []
            )
        if choice.kind == "report":
            return rendering.report(shown, self._usage.of(own))
        if choice.kind == "nodes":
            return rendering.nodes(shown, choice)
        if choice.kind == "timeline":
            day = await self._feed.timeline(uid)
            return rendering.timeline(shown, choice, day, own)
        if choice.kind == "job":
            report: JobReport | None = None
            known: Explanation | None = None
            try:
                report = await asked(lambda: source.report(uid, choice.job))
                known = await asked(lambda: source.explain(uid, choice.job))
            except (UsageError, SilentController):
                # Another user's job, one that did not opt in, or the queue is Slurm's.
                pass
            return rendering.job(shown, choice, report, known)
        return rendering.queue(shown, choice, own)
