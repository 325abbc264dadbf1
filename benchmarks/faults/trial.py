"""One trial: jobs in every state that a tick acts on, a controller that dies or is stopped,
and what it comes to."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults import scene
from benchmarks.faults.child import ACTED
from benchmarks.faults.controllers import OTHER_HOST, Controllers
from benchmarks.faults.jobs import Jobs
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.promises import Promises
from benchmarks.faults.scene import ASKED, OVER
from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.sandbox.cluster import Sandbox

THEN = ("at once", "later", "never", "retired")
"""When another controller ticks after one has died; later is when Slurm has acted by itself. Or
``hadar retire`` gives all jobs back to Slurm, and none ticks any more."""
STALLED = ("refused", "taken over")
"""What another controller meets while one is stopped: on the same state folder the lock, which
stays with the stopped one; on another host, with a state folder of its own, a heartbeat that is too
old, so that it takes over. Then the first one is continued and ends its tick."""
LATER_S = 10.0
LOOK = "look"
"""Only to find the points: what becomes of the jobs is not waited for."""


@dataclass(frozen=True)
class Touch:
    """One statement that touches Slurm or the journal, or a file that jobs read.

    ``place``: file and function that asked. ``times``: how often it came, this time included.
    """

    what: str
    words: str
    place: str
    times: int

    @property
    def name(self) -> str:
        """What :class:`Touches` knows it by."""
        return f"{self.place} {self.what} {self.words} #{self.times}"


@dataclass
class Found:
    """What a trial came to. ``acted``: whether the planted fault had anything to spoil; ``wrong``:
    sentences, empty where all held; ``kinds``: what was done, in the words of the journal."""

    killed: bool = False
    """Killed or stopped at its point."""
    touches: list[Touch] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    seconds: float = 0.0
    acted: bool = False
    unset: str = ""
    """Why there was no tick to disturb: a job did not come into its state."""


class Trial:
    """A folder with the managed jobs of the scene and one that is not, on a sandbox of its own."""

    def __init__(self, box: Sandbox, folder: Path, samples: int = scene.SAMPLES) -> None:
        """``samples``: of a training."""
        self._folder = folder
        folder.mkdir(parents=True)
        config = configuration.load(box.config_path)
        write_wrapper_site(config, box.config_path)
        env = {**box.env, "HADAR_PROGRESS_S": "0.2", "OMP_NUM_THREADS": "1"}
        self._wrong: dict[str, None] = {}
        self.jobs = Jobs(box, folder, env, samples)
        self.controllers = Controllers(box, folder, self.jobs.ids, env, self._say)
        self.promises = Promises(
            config, folder, self.jobs, self.controllers.states, self._say, samples
        )

    def run(self, at: str = "", then: str = "never", plant: str | None = None) -> Found:
        """``at``: name of the touch before which the controller dies or stops, "": it does not.

        ``then``: one of :data:`THEN`, then it dies; one of :data:`STALLED`, then it stops; or
        :data:`LOOK`. ``plant``: one of :data:`FAULTS`.
        """
        began = time.monotonic()
        found = Found()
        try:
            found.unset = self._set_up()
            if not found.unset:
                self._disturb(found, at, then, plant)
                if then != LOOK:
                    self._to_the_end(alone=then in ("never", "retired"), plant=plant)
        except HadarError as error:
            self._say(f"the trial failed: {error}")
        finally:
            self.jobs.clean_up()
        found.acted = (self._folder / ACTED).exists()
        found.wrong = list(self._wrong)
        found.seconds = time.monotonic() - began
        return found

    def _set_up(self) -> str:
        """Bring the jobs into their states; why not, as on a machine that is too busy."""
        self.controllers.beat()
        try:
            self.jobs.begin()
        except HadarError as error:
            return str(error)
        self.controllers.want(ASKED)
        return ""

    def _disturb(self, found: Found, at: str, then: str, plant: str | None) -> None:
        """The tick that is disturbed, and who comes after it."""
        first, after = (plant, None) if plant and FAULTS[plant].where == "tick" else (None, plant)
        host = OTHER_HOST if then == "taken over" else None
        if then in STALLED:
            found.killed = self.controllers.stalled_tick(at, host)
        else:
            found.killed = self.controllers.dying_tick(at, first)
        found.touches, found.kinds = self._touches(), self.promises.kinds()
        if then == "later":
            time.sleep(LATER_S)
        if then in ("at once", "later", *STALLED):
            decided = self.controllers.more_ticks("again", after, host)
            for line in decided.read_text().splitlines():
                self.promises.decided(json.loads(line))
        if then == "retired":
            self.controllers.retire(after)
            self.promises.retired(self.jobs.read())

    def _touches(self) -> list[Touch]:
        lines = (self._folder / "touches").read_text().splitlines()
        return [Touch(*json.loads(line)) for line in lines]

    def _to_the_end(self, alone: bool, plant: str | None) -> None:
        """``plant``: one sentence about it is enough, as it may hold a job for ever."""
        (self._folder / OVER).touch()
        self.jobs.until(lambda: self._all_over(alone) or self._caught(plant), "all jobs end")

    def _caught(self, plant: str | None) -> bool:
        return plant is not None and FAULTS[plant].reported_by(self._wrong) is not None

    def _all_over(self, alone: bool) -> bool:
        jobs = self.jobs.read()
        other = jobs.get(self.jobs.other)
        if other is None or other.state is not JobState.RUNNING or other.restarts or other.comment:
            self._say("the job that did not opt in was touched")
        return self.promises.all_over(jobs, alone)

    def _say(self, what: str) -> None:
        self._wrong.setdefault(what)
