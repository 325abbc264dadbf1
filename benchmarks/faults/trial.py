"""One trial: jobs in every state that a tick acts on, a controller that dies or is stopped,
and what it comes to."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults import scene
from benchmarks.faults.child import ACTED, GAVE_UP, REFUSED, WANT
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.promises import Promises
from benchmarks.faults.scene import ALL, ASKED, BEFORE, HELD, LEASE_S, OVER, RUNNING, WAITING
from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.runtime.heartbeat import NAME as HEARTBEAT
from slurm_hadar.runtime.heartbeat import write_heartbeat
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.slurm.cluster import Update, open_cluster

LONGEST_S = 240.0
_BEGIN_S = 90.0
THEN = ("at once", "later", "never")
"""When another controller ticks after one has died; later is when Slurm has acted by itself."""
STALLED = ("refused", "taken over")
"""What another controller meets while one is stopped: on the same state folder the lock, which
stays with the stopped one; on another host, with a state folder of its own, a heartbeat that is too
old, so that it takes over. Then the first one is continued and ends its tick."""
LATER_S = 10.0
OTHER_HOST = "another"
_OLD_S = 200.0
Process = subprocess.Popen[str]
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


class Trial:
    """A folder with the managed jobs of the scene and one that is not, on a sandbox of its own."""

    def __init__(self, box: Sandbox, folder: Path, samples: int = scene.SAMPLES) -> None:
        """``samples``: of a training."""
        self.box, self.folder, self.samples = box, folder, samples
        folder.mkdir(parents=True)
        self.config = configuration.load(box.config_path)
        write_wrapper_site(self.config, box.config_path)
        self.cluster = open_cluster(self.config.slurm)
        self.env = {**box.env, "HADAR_PROGRESS_S": "0.2", "OMP_NUM_THREADS": "1"}
        self.ids: dict[str, str] = {}
        self.other = ""
        self.seen_wrong: dict[str, None] = {}
        self._promises = Promises(self.config, folder, self.ids, self._say, samples)

    def run(self, at: str = "", then: str = "never", plant: str | None = None) -> Found:
        """``at``: name of the touch before which the controller dies or stops, "": it does not.

        ``then``: one of :data:`THEN`, then it dies; one of :data:`STALLED`, then it stops; or
        :data:`LOOK`. ``plant``: a fault in the recovery.
        """
        began = time.monotonic()
        found = Found()
        try:
            self._begin()
            host = OTHER_HOST if then == "taken over" else None
            if then in STALLED:
                found.killed = self._stalled_tick(at, host)
            else:
                found.killed = self._tick(at) < 0
            found.touches, found.kinds = self._touches(), self._promises.kinds()
            if then == "later":
                time.sleep(LATER_S)
            if then in ("at once", "later", *STALLED):
                self._want(ASKED, ASKED, ALL)
                self._tick("", "again", 3, plant, host)
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
        path.write_text(scene.script(self.folder, name, self.samples))
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

    def _tick(
        self,
        at: str,
        log: str = "touches",
        ticks: int = 1,
        plant: str | None = None,
        host: str | None = None,
    ) -> int:
        words = ["--at", at, "--ticks", str(ticks), *(["--plant", plant] if plant else [])]
        return self._ended(self._start(log, words, host), dies=bool(at))

    def _start(self, log: str, words: list[str], host: str | None = None) -> Process:
        """A controller; ``host``: another one than this, with a state folder of its own."""
        argv = [sys.executable, "-m", "benchmarks.faults.child", str(self.folder)]
        argv += ["--log", f"{self.folder}/{log}", *words, *(["--host", host] if host else [])]
        env = self.env if host is None else {**self.env, "HADAR_CONFIG": str(self._site_of(host))}
        return subprocess.Popen(
            argv, env=env, cwd=scene.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _site_of(self, host: str) -> Path:
        """The configuration of a controller on another host."""
        site, state = self.folder / f"{host}.toml", self.folder / host
        if not site.exists():
            text = self.box.config_path.read_text()
            here = str(self.config.site.state_dir)
            if here not in text:
                raise HadarError(f"no {here} in {self.box.config_path}")
            site.write_text(text.replace(here, str(state)))
            self._promises.states.append(state)
        return site

    def _ended(self, process: Process, expected: int = 0, *, dies: bool = False) -> int:
        """Exit status of a controller, 0 or ``expected``. ``dies``: whether it may have been
        killed."""
        try:
            _, err = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise HadarError("the controller did not end within 180 s") from None
        code = process.returncode
        if code not in (0, expected) and not (dies and code < 0):
            raise HadarError(f"the controller failed: {err.strip()[-300:]}")
        return code

    def _stalled_tick(self, at: str, host: str | None) -> bool:
        """A tick in which the controller is stopped at ``at`` and continued after all times that a
        controller waits; whether it came there. ``host``: of the one that takes over."""
        first = self._start("touches", ["--at", at, "--stop"])
        try:
            # Waited for without reaping it: a stopped child stays a child.
            os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if not _is_stopped(first.pid):
                self._ended(first)
                return False
            time.sleep(scene.STALL_S)
            if host is None:
                self._is_refused()
            else:
                self._age_heartbeat()
                self._want(ASKED, ASKED, ALL)
                self._tick("", "meanwhile", 3, host=host)
            first.send_signal(signal.SIGCONT)
            self._ended(first, GAVE_UP)
        finally:
            if first.returncode is None:
                first.kill()
                first.communicate()
        return True

    def _is_refused(self) -> None:
        """Another controller on the same state folder ends at once and says why."""
        second = self._start("meanwhile", [])
        _, err = second.communicate(timeout=180)
        if second.returncode != REFUSED or "in the middle of a tick" not in err:
            self._say(f"a second controller on one state folder was not refused: {err[-300:]}")

    def _age_heartbeat(self) -> None:
        """The last heartbeat is too old to count; to wait for that would take 40 s more."""
        path = self.config.site.exchange_dir / HEARTBEAT
        beat = json.loads(path.read_text())
        path.write_text(json.dumps({**beat, "time": beat["time"] - _OLD_S}))

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


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt"
