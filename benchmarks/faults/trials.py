"""Many trials, several sandboxes at a time."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from benchmarks.digits import write_digits
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.scene import DIGITS, SAMPLES, STALL_SAMPLES, Rights, sandbox
from benchmarks.faults.trial import STALLED, THEN, Found, Touch, Trial
from slurm_hadar.sandbox.cluster import Sandbox


@dataclass(frozen=True)
class Case:
    """Where the controller dies or is stopped ("": nowhere), what another one does then (see
    :data:`THEN` and :data:`STALLED`), and a planted fault."""

    at: str = ""
    then: str = "never"
    plant: str | None = None


_LOOKS = 3
"""So many times one statement counts as a point of its own."""
_UNDISTURBED = 3
"""So many ticks are looked at until one moves what it should."""
_TRIED_AT = 3
"""Points at which a planted fault is tried; one is enough to catch it."""


def planted(plant: str, points: Sequence[Touch]) -> list[Case]:
    """Where a planted fault is tried: one in the recovery between the requeue of a move and its
    end, where a recovery has most to do; the others when hints were sent, before these are known to
    be done."""
    where = FAULTS[plant].where
    if where == "recovery":
        asked = max(n for n, touch in enumerate(points) if is_sent(touch))
        sent = next(n for n in range(asked, len(points)) if points[n].words.startswith("scontrol"))
        some = points[sent + 1 : sent + 1 + _TRIED_AT]
        return [Case(touch.name, then, plant) for touch in some for then in THEN[:2]]
    then = "never" if where == "tick" else "retired"
    hints = [touch for touch in points if touch.place.endswith("apply.py send_hints")]
    journal = [touch for touch in hints if touch.words.startswith("UPDATE")]
    return [Case(touch.name, then, plant) for touch in journal[-_TRIED_AT:]]


def has_moved(found: Found) -> bool:
    """Whether a move came to its end, and not all of its jobs to theirs before."""
    return any(touch.place.endswith("moves.py _release") for touch in found.touches)


def is_sent(touch: Touch) -> bool:
    """Whether it belongs to the sending of what a tick decided; a plan file also comes later, and
    what was refused before is asked for earlier."""
    asks = touch.what == "file" or touch.words.startswith("SELECT")
    return touch.place.startswith("controller/actuation/apply") and not asks


def distinct(points: Sequence[Touch]) -> list[Touch]:
    """The points without further looks at the same thing: how often a move is looked at differs."""
    return [touch for touch in points if touch.times <= _LOOKS]


THENS = {"kill": THEN, "stall": STALLED}
"""How a controller is disturbed -> what another one does then."""


def not_reached(
    found: Sequence[tuple[Case, Found]], only: str = "", thens: Sequence[str] = THEN
) -> list[Case]:
    """Where no controller died or stopped yet: points tried in vain, and those that only a trial
    has met.

    ``only``: what the name of a point that was not tried must have in it; ``thens``: one of
    :data:`THENS`.
    """
    died = {(case.at, case.then) for case, one in found if one.killed}
    tried = [case.at for case, _ in found]
    met = [touch.name for _, one in found for touch in distinct(one.touches)]
    names = dict.fromkeys([*tried, *(name for name in met if only in name)])
    return [Case(at, then) for at in names for then in thens if (at, then) not in died]


def never_reached(
    found: Sequence[tuple[Case, Found]], left: Sequence[Case], first: Collection[str]
) -> list[str]:
    """Names of points in ``left`` at which no controller died, whatever came then.

    ``first``: points of the undisturbed tick. Of those that only a trial met, one more time of a
    statement counts for nothing where a controller died at another time of it.
    """
    died = {case.at for case, one in found if one.killed}
    statements = {_statement(at) for at in died}
    return [
        at
        for at in dict.fromkeys(case.at for case in left)
        if at not in died and (at in first or _statement(at) not in statements)
    ]


def _statement(point: str) -> str:
    return point.rsplit(" #", 1)[0]


Tell = Callable[[Case, Found], None]
"""Called with each answer as it comes, from the thread of its sandbox."""


class TrialSandboxes:
    """Sandboxes that are started when they are needed, and a folder for the trials."""

    def __init__(
        self, folder: Path, side_by_side: int, rights: Rights, stalls: bool = False
    ) -> None:
        """``stalls``: whether controllers are stopped in it instead of killed."""
        self.folder, self.stalls = folder, stalls
        self.side_by_side = side_by_side
        self.rights = rights
        self._boxes: dict[int, Sandbox] = {}
        self._trials = 0

    def run(self, cases: Sequence[Case], tell: Tell | None = None) -> list[tuple[Case, Found]]:
        """Run every case; the answers in the order of the cases."""
        waiting: SimpleQueue[tuple[int, Case]] = SimpleQueue()
        for number, case in enumerate(cases):
            waiting.put((number, case))
        answers: dict[int, Found] = {}
        first = self._trials
        self._trials += len(cases)

        def work(worker: int) -> None:
            mine = self.folder / f"w{worker}"
            if worker not in self._boxes:
                mine.mkdir(parents=True, exist_ok=True)
                write_digits(mine / DIGITS)
                self._boxes[worker] = sandbox(mine / "box", self.rights, self.stalls)
            while True:
                try:
                    number, case = waiting.get_nowait()
                except Empty:
                    return
                samples = STALL_SAMPLES if self.stalls else SAMPLES
                trial = Trial(self._boxes[worker], mine / f"t{first + number}", samples)
                answers[number] = trial.run(case.at, case.then, case.plant)
                if tell is not None:
                    tell(case, answers[number])

        workers = min(self.side_by_side, len(cases))
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(work, worker) for worker in range(workers)]:
                done.result()
        return [(case, answers[number]) for number, case in enumerate(cases)]

    def undisturbed(self, then: str = "never") -> Found:
        """A tick that nobody disturbs, from its beginning to its end: of several the first that
        moved a job, or broke a promise. A slow machine may come to it when a training is over.

        ``then``: as of a case.
        """
        for _ in range(_UNDISTURBED):
            found = self.run([Case(then=then)])[0][1]
            if has_moved(found) or found.wrong:
                break
        return found

    def close(self) -> None:
        """Take all sandboxes down."""
        for box in self._boxes.values():
            box.down()


@contextmanager
def trial_sandboxes(
    folder: Path, side_by_side: int, rights: Rights = "user", stalls: bool = False
) -> Iterator[TrialSandboxes]:
    """Sandboxes below ``folder``, taken down at the end."""
    made = TrialSandboxes(folder, side_by_side, rights, stalls)
    try:
        yield made
    finally:
        made.close()
