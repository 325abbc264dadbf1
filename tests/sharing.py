"""How tests are shared among pytest's processes: ``--dist loadfile``, in an order of our own.

Live tests mostly wait and unit tests compute. So one process in three begins with the unit tests,
at a lower priority, and the others begin with the live tests. Each takes what takes longest first,
as LIST says. Tests of a file stay together, since they share what the file starts. A line of LIST
may be one test, or a pattern of tests (``*``), which are then shared out apart from their file.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

LIST = Path(__file__).with_name("longest.txt")
_LIVE = "tests/live/"
_NICE = 2


def longest() -> list[str]:
    """Files and tests of the list, as pytest names them, longest first."""
    lines = LIST.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def begins_with_unit_tests(worker: str, count: int) -> bool:
    """Of the process that xdist calls ``worker`` (gw0, gw1, ...), one of ``count``."""
    return int(worker.removeprefix("gw")) < count // 3


def yield_to_live_tests(nodeids: list[str]) -> None:
    """Lower the priority of a process that begins with the unit tests beside live ones."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    both = len({nodeid.startswith(_LIVE) for nodeid in nodeids}) == 2
    if worker and both and begins_with_unit_tests(worker, _count()):
        os.nice(_NICE)


def _count() -> int:
    return int(os.environ["PYTEST_XDIST_WORKER_COUNT"])


class Sharing(LoadFileScheduling):
    """Hands out files, and the tests that are named in LIST."""

    def __init__(self, config, log=None):
        super().__init__(config, log)
        self._rank = {name: rank for rank, name in enumerate(longest())}
        self._patterns = [name for name in self._rank if "*" in name]

    def _split_scope(self, nodeid):
        function = nodeid.partition("[")[0]
        for scope in (nodeid, function):
            if scope in self._rank:
                return scope
        matching = (pattern for pattern in self._patterns if fnmatchcase(nodeid, pattern))
        return next(matching, function.partition("::")[0])

    def _assign_work_unit(self, node):
        unit_first = begins_with_unit_tests(node.gateway.id, self.numnodes)
        long_ahead = self._pending_scopes(node) & self._rank.keys()

        def order(scope):
            rank = self._rank.get(scope, len(self._rank))
            live = scope.startswith(_LIVE)
            # What is handed out behind a long one waits for its end: better something short. Of
            # the unit tests, so that short live tests are left when the last long ones run.
            return (live, -rank) if long_ahead else (live is unit_first, rank)

        self.workqueue.move_to_end(min(self.workqueue, key=order), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node):
        """As late as can be: a process needs to know one test more than the one that it runs."""
        if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)

    def _pending_scopes(self, node):
        work = self.assigned_work.get(node, {})
        return {scope for scope, tests in work.items() if not all(tests.values())}
