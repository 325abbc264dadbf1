"""One trial: jobs in every state that a tick acts on, a controller that dies, and what follows."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.child import WANT
from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.runtime.heartbeat import write_heartbeat
from slurm_hadar.runtime.plan_file import read_plan
from slurm_hadar.runtime.samples import check_lineage, from_plain
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.slurm.cluster import Update, open_cluster

ROOT = Path(__file__).parents[2]
MODEL = "paced"
SPEEDS = {"v100": 240.0, "p100": 160.0, "k80": 120.0}
"""Samples/s."""
SAMPLES = 1600
LAYOUT = Layout(
    (NodeGroup("v", 2, "v100", 1), NodeGroup("p", 2, "p100", 1), NodeGroup("k", 2, "k80", 1))
)
CRED_EXPIRE_S = 5
"""Slurm takes no less, and 120 s instead."""
LEASE_S = 20
"""The least that a configuration allows."""
LONGEST_S = 240.0
THEN = ("at once", "later", "never")
"""When another controller ticks after one has died; later is when Slurm has acted by itself."""
LATER_S = 10.0
LOOK = "look"
"""Only to find the points: what becomes of the jobs is not waited for."""

TRAINING = """#!/bin/bash
#HADAR model={model} types=any gpus=1 batch=8 samples={samples} checkpoint=yes
exec 9>>{folder}/{name}.lock
flock -n 9 || echo twice >> {folder}/{name}.starts
echo "${{SLURM_RESTART_COUNT:-0}}" >> {folder}/{name}.starts
exec {python} {root}/examples/train_digits.py --model {model} --batch 8 --samples {samples} \\
  --checkpoint {folder}/{name}.pt --data {folder}/../digits.npy --lineage {folder}/{name}.json \\
  --every 600
"""
SHORT = """#!/bin/bash
#HADAR types=any gpus=1
exec 9>>{folder}/{name}.lock
flock -n 9 || echo twice >> {folder}/{name}.starts
echo "${{SLURM_RESTART_COUNT:-0}}" >> {folder}/{name}.starts
exec sleep 2
"""
TRAININGS = {"moves": "k80", "stops": "p100"}
"""Jobs that run when the tick begins, and where."""
WAITING = ("starts", "waits")
ASKED = {"moves": {"v100": 1}, "starts": {"k80": 1}}
"""What the policy answers in the tick that dies: one moves, one stops, one starts, one waits."""
OWN = {"moves": {"k80", "v100"}, "stops": {"p100"}, "starts": {"k80"}, "waits": {"p100"}}
"""GPU types that each job's plan may name, beside those that it was seen on."""
ALL = {**ASKED, "stops": {"p100": 1}, "waits": {"p100": 1}}


def sandbox(folder: Path) -> Sandbox:
    """A sandbox for trials, one after another."""
    settings: dict[str, dict[str, str | int | float | bool]] = {
        "guards": {"min_between_moves_s": 0.0, "preempt": True},
        "lease": {"length_s": LEASE_S},
        "slurm": {"backend": "cli"},
        "moving": {"ack_wait_s": 20.0, "settle_s": 20.0, "commit_s": 4.0},
    }
    base = {MODEL: {kind: {1: speed} for kind, speed in SPEEDS.items()}}
    return Sandbox.up(
        folder, LAYOUT, mode="act", settings=settings, base_rates=base, cred_expire_s=CRED_EXPIRE_S
    )


@dataclass(frozen=True)
class Touch:
    """One statement that touches Slurm or the journal.

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
    """What a trial came to. ``wrong``: sentences, empty where all held."""

    killed: bool = False
    touches: list[Touch] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Trial:
    """A folder with four managed jobs and one that is not, on a sandbox of its own."""

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
        self._been: dict[str, set[str]] = {name: set() for name in OWN}

    def run(self, at: str = "", then: str = "never", plant: str | None = None) -> Found:
        """``at``: name of the touch before which the controller dies, "": it lives.

        ``then``: one of :data:`THEN`, or :data:`LOOK`; ``plant``: a fault in the recovery.
        """
        began = time.monotonic()
        found = Found()
        try:
            self._begin()
            found.killed = self._tick(at) < 0
            found.touches = self._touches()
            if then == "later":
                time.sleep(LATER_S)
            if then in ("at once", "later"):
                self._want(ASKED, ASKED, ALL)
                self._tick("", "again", 3, plant)
            if then != LOOK:
                self._to_the_end(enough=plant is not None)
        except HadarError as error:
            self._say(f"the trial failed: {error}")
        finally:
            self._clean_up()
        found.wrong = list(self.seen_wrong)
        found.seconds = time.monotonic() - began
        return found

    def _begin(self) -> None:
        self._beat()
        self.other = self.cluster.submit(
            "#!/bin/bash\nexec sleep 600\n", ["-o", "/dev/null", "--gres=gpu:v100:1"]
        )
        for name in TRAININGS:
            self.ids[name] = self._submit(name, TRAINING)
        self._want({name: {kind: 1} for name, kind in TRAININGS.items()})
        self._tick("", "before")
        for name in WAITING:
            self.ids[name] = self._submit(name, SHORT)
        self._want(ASKED)
        self._until(self._ready, "the trainings begin")

    def _submit(self, name: str, text: str) -> str:
        script = self.folder / f"{name}.sh"
        script.write_text(
            text.format(
                folder=self.folder, name=name, python=sys.executable, root=ROOT, model=MODEL,
                samples=SAMPLES,
            )
        )  # fmt: skip
        argv = [str(Path(sys.executable).parent / "hbatch"), "--parsable", "--gres=gpu:1"]
        argv += ["-o", f"{self.folder}/{name}.out", str(script)]
        done = subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=90, check=False
        )
        if done.returncode:
            raise HadarError(done.stderr.strip())
        return done.stdout.strip()

    def _want(self, *plans: Mapping[str, Mapping[str, int]]) -> None:
        named = [{self.ids[name]: gpus for name, gpus in plan.items()} for plan in plans]
        (self.folder / WANT).write_text(json.dumps(named))

    def _tick(self, at: str, log: str = "touches", ticks: int = 1, plant: str | None = None) -> int:
        argv = [sys.executable, "-m", "benchmarks.faults.child", str(self.folder)]
        argv += ["--log", f"{self.folder}/{log}", "--at", at, "--ticks", str(ticks)]
        argv += ["--plant", plant] if plant else []
        done = subprocess.run(
            argv, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode > 0:
            self._say(f"the controller failed: {done.stderr.strip()[-300:]}")
        return done.returncode

    def _touches(self) -> list[Touch]:
        lines = (self.folder / "touches").read_text().splitlines()
        return [Touch(*json.loads(line)) for line in lines]

    def _ready(self) -> bool:
        """The trainings train, and a whole lease is left to those that wait."""
        lease = {"StartTime": f"now+{LEASE_S}"}
        ready = all(self._saves(name) for name in TRAININGS)
        for error in self.cluster.apply([Update(self.ids[name], lease) for name in WAITING]):
            if error is not None:
                raise error
        return ready

    def _saves(self, name: str) -> bool:
        # Before its first step a training does not listen yet.
        folder = self.config.site.exchange_dir
        return any(folder.glob(f"progress.{self.ids[name]}.*"))

    def _to_the_end(self, enough: bool) -> None:
        """``enough``: one broken promise is, as for a planted fault that holds a job for ever."""
        self._until(lambda: self._all_over() or (enough and bool(self.seen_wrong)), "all jobs end")
        if enough and self.seen_wrong:
            return
        for name in (*TRAININGS, *WAITING):
            starts = (self.folder / f"{name}.starts").read_text().split()
            if starts != [str(number) for number in range(len(starts))]:
                self._say(f"{name}: its starts were {starts}")
            moves = self._moves(self.ids[name])
            if len(starts) - 1 > moves:
                self._say(f"{name}: {len(starts)} starts, {moves} moves in the journal")
        for name in TRAININGS:
            record = json.loads((self.folder / f"{name}.json").read_text())
            rows = from_plain(record["segments"])
            fault = check_lineage(rows, record["dataset_size"], samples=SAMPLES)
            if fault:
                self._say(f"{name}: not every sample went in exactly once: {fault}")

    def _moves(self, id_: str) -> int:
        store = Store.open(self.config.site.state_dir)
        try:
            return sum(entry.kind == "move" for entry in store.history(id_))
        finally:
            store.close()

    def _all_over(self) -> bool:
        jobs = {job.id: job for job in self.cluster.read_jobs([*self.ids.values(), self.other])}
        for name, id_ in self.ids.items():
            if id_ not in jobs:
                self._say(f"{name}: Slurm does not show it")
            else:
                self._look(name, jobs[id_])
        other = jobs[self.other]
        if other.state is not JobState.RUNNING or other.restarts or other.comment:
            self._say("the job that did not opt in was touched")
        return all(jobs[id_].state is JobState.FINISHED for id_ in self.ids.values())

    def _look(self, name: str, job: Job) -> None:
        if job.state is JobState.FINISHED and not job.slurm_state.startswith("COMPLETED"):
            self._say(f"{name}: it ended as {job.slurm_state}")
        if job.state is JobState.PENDING and job.held:
            self._say(f"{name}: it is held ({job.reason})")
        plan = read_plan(self.config.site.exchange_dir, job.id, (self.config.controller_uid,))
        self._been[name].update(kind for gpus in job.gpus.values() for kind in gpus)
        allowed = [{}, *({kind: 1} for kind in OWN[name] | self._been[name])]
        if plan is not None and dict(plan.gpus) not in allowed:
            self._say(f"{name}: its plan speaks of {dict(plan.gpus)}")

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LONGEST_S
        while not holds():
            if time.monotonic() > end:
                raise HadarError(f"not within {LONGEST_S:g} s: {what}; {self._queue()}")
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
        for file in self.config.site.exchange_dir.glob("p*.json"):
            file.unlink(missing_ok=True)
        end = time.monotonic() + 30
        while any(self.box.job_state(id_) in ("RUNNING", "COMPLETING") for id_ in ids):
            if time.monotonic() > end:
                break
            time.sleep(0.3)
