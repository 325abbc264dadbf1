"""One trial: jobs in every state that a tick acts on, a controller that dies, and what follows."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults import scene
from benchmarks.faults.child import ACTED, WANT
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.promises import Promises
from benchmarks.faults.scene import ALL, ASKED, BEFORE, HELD, LEASE_S, OVER, RUNNING, WAITING
from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.runtime.heartbeat import write_heartbeat
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.slurm.cluster import Update, open_cluster

LONGEST_S = 240.0
_BEGIN_S = 90.0
THEN = ("at once", "later", "never")
"""When another controller ticks after one has died; later is when Slurm has acted by itself."""
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
    touches: list[Touch] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    seconds: float = 0.0
    acted: bool = False


class Trial:
    """A folder with the managed jobs of the scene and one that is not, on a sandbox of its own."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder = box, folder
        folder.mkdir(parents=True)
        self.config = configuration.load(box.config_path)
        write_wrapper_site(self.config, box.config_path)
        self.cluster = open_cluster(self.config.slurm)
        self.env = {**box.env, "HADAR_PROGRESS_S": "0.2", "OMP_NUM_THREADS": "1"}
        self.ids: dict[str, str] = {}
        self.other = ""
        self.seen_wrong: dict[str, None] = {}
        self._promises = Promises(self.config, folder, self.ids, self._say)

    def run(self, at: str = "", then: str = "never", plant: str | None = None) -> Found:
        """``at``: name of the touch before which the controller dies, "": it lives.

        ``then``: one of :data:`THEN`, or :data:`LOOK`; ``plant``: a fault in the recovery.
        """
        began = time.monotonic()
        found = Found()
        try:
            self._begin()
            found.killed = self._tick(at) < 0
            found.touches, found.kinds = self._touches(), self._promises.kinds()
            if then == "later":
                time.sleep(LATER_S)
            if then in ("at once", "later"):
                self._want(ASKED, ASKED, ALL)
                self._tick("", "again", 3, plant)
            if then != LOOK:
                self._to_the_end(alone=then == "never", plant=plant)
        except HadarError as error:
            self._say(f"the trial failed: {error}")
        finally:
            self._clean_up()
        found.acted = (self.folder / ACTED).exists()
        found.wrong = list(self.seen_wrong)
        found.seconds = time.monotonic() - began
        return found

    def _begin(self) -> None:
        self._beat()
        self.other = self.cluster.submit(
            "#!/bin/bash\nexec sleep 600\n", ["-o", "/dev/null", f"--gres=gpu:{scene.RARE}:1"]
        )
        for name in (*RUNNING, *HELD):
            self.ids[name] = self._submit(name)
        scene.fail_next_launch(self.box, self.ids["fails"])
        self.box.wait_state(self.other, ("RUNNING",))
        self._want(BEFORE)
        self._tick("", "before")
        scene.take_the_feature(self.box)
        for name in WAITING:
            self.ids[name] = self._submit(name)
        self._send("leaves", "Features", scene.ODD_CONSTRAINT)
        self._want(ASKED)
        what = "the jobs begin, and Slurm holds what it shall hold"
        self._until(self._ready, what, _BEGIN_S)
        scene.undrain(self.box)
        self._until(lambda: scene.all_answer(self.box), "all nodes answer", _BEGIN_S)

    def _submit(self, name: str) -> str:
        path = self.folder / f"{name}.sh"
        path.write_text(scene.script(self.folder, name))
        argv = [str(Path(sys.executable).parent / "hbatch"), "--parsable", "--gres=gpu:1"]
        argv += ["-o", f"{self.folder}/{name}.out", str(path)]
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=90, check=False
        )
        if done.returncode:
            raise HadarError(done.stderr.strip())
        return done.stdout.strip()

    def _want(self, *plans: Mapping[str, Placement]) -> None:
        named = [
            {
                self.ids[name]: {"gpus": dict(one.gpus), "batch": one.batch}
                for name, one in p.items()
            }
            for p in plans
        ]
        (self.folder / WANT).write_text(json.dumps(named))

    def _tick(self, at: str, log: str = "touches", ticks: int = 1, plant: str | None = None) -> int:
        argv = [sys.executable, "-m", "benchmarks.faults.child", str(self.folder)]
        argv += ["--log", f"{self.folder}/{log}", "--at", at, "--ticks", str(ticks)]
        argv += ["--plant", plant] if plant else []
        done = subprocess.run(
            argv, env=self.env, cwd=scene.ROOT, capture_output=True, text=True, timeout=180,
            check=False,
        )  # fmt: skip
        if done.returncode > 0 or (done.returncode and not at):
            raise HadarError(f"the controller failed: {done.stderr.strip()[-300:]}")
        return done.returncode

    def _touches(self) -> list[Touch]:
        lines = (self.folder / "touches").read_text().splitlines()
        return [Touch(*json.loads(line)) for line in lines]

    def _ready(self) -> bool:
        """Each job is in its state, and of the leases is left what shall be."""
        jobs = {job.id: job for job in self.cluster.read_jobs([*self.ids.values()])}
        ready = all(self._saves(name) for name in RUNNING)
        ready &= all(jobs[self.ids[name]].held for name in HELD)
        for name in WAITING:
            left_s = scene.LEASES_S.get(name, LEASE_S)
            self._send(name, "StartTime", f"now+{left_s:.0f}")
        return ready

    def _send(self, name: str, key: str, value: str) -> None:
        for error in self.cluster.apply([Update(self.ids[name], {key: value})]):
            if error is not None:
                raise error

    def _saves(self, name: str) -> bool:
        # Before its first step a training does not listen yet.
        folder = self.config.site.exchange_dir
        return any(folder.glob(f"progress.{self.ids[name]}.*"))

    def _to_the_end(self, alone: bool, plant: str | None) -> None:
        """``plant``: one sentence about it is enough, as it may hold a job for ever."""
        (self.folder / OVER).touch()
        self._until(lambda: self._all_over(alone) or self._caught(plant), "all jobs end")

    def _caught(self, plant: str | None) -> bool:
        return plant is not None and FAULTS[plant].told_by(self.seen_wrong) is not None

    def _all_over(self, alone: bool) -> bool:
        jobs = {job.id: job for job in self.cluster.read_jobs([*self.ids.values(), self.other])}
        other = jobs.get(self.other)
        if other is None or other.state is not JobState.RUNNING or other.restarts or other.comment:
            self._say("the job that did not opt in was touched")
        return self._promises.all_over(jobs, alone)

    def _until(self, holds: Callable[[], bool], what: str, longest_s: float = LONGEST_S) -> None:
        end = time.monotonic() + longest_s
        while not holds():
            if time.monotonic() > end:
                raise HadarError(f"not within {longest_s:g} s: {what}; {self._queue()}")
            time.sleep(0.5)

    def _queue(self) -> str:
        shown = self.box.run("squeue", "-h", "-t", "all", "-o", "%i %T %r begins %S on %R")
        wanted = {id_: name for name, id_ in self.ids.items()}
        lines = [line.split(" ", 1) for line in shown.splitlines()]
        return "; ".join(f"{wanted[id_]} {rest}" for id_, rest in lines if id_ in wanted)

    def _beat(self) -> None:
        write_heartbeat(self.config.site.exchange_dir, "act", 5.0)

    def _say(self, what: str) -> None:
        self.seen_wrong.setdefault(what)

    def _clean_up(self) -> None:
        ids = [id_ for id_ in (*self.ids.values(), self.other) if id_]
        self.cluster.cancel(ids)
        for kind in ("plan", "progress", "steer"):
            for file in self.config.site.exchange_dir.glob(f"{kind}.*.json"):
                file.unlink(missing_ok=True)
        end = time.monotonic() + 30
        while any(self.box.job_state(id_) in ("RUNNING", "COMPLETING") for id_ in ids):
            if time.monotonic() > end:
                break
            time.sleep(0.3)
        scene.repair_nodes(self.box)
