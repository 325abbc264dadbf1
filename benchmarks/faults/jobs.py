"""The jobs of one trial on its sandbox: submitted, brought into their states, looked at."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.faults import scene
from benchmarks.faults.scene import (
    BEGINS,
    EARLIER,
    HELD,
    JOBS,
    LEAVES,
    ODD_CONSTRAINT,
    RARE,
    RUNNING,
    WAITING,
)
from slurm_hadar import config as configuration
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration, merge
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.slurm.cluster import Update, open_cluster

LONGEST_S = 240.0
_BEGIN_S = 90.0
_EARLIER_S = 60.0
"""So long before its tick was what earlier ones sent."""


class Jobs:
    """The managed jobs of the scene, and one that did not opt in."""

    def __init__(self, box: Sandbox, folder: Path, env: Mapping[str, str], samples: int) -> None:
        """``env``: of hbatch, and so of the jobs; ``samples``: of a training."""
        self._box, self._folder, self._env, self._samples = box, folder, dict(env), samples
        self._config = configuration.load(box.config_path)
        self._cluster = open_cluster(self._config.slurm)
        self.ids: dict[str, str] = {}
        """Name -> job id."""
        self.other = ""
        """Id of the one that did not opt in."""
        self.asked: dict[str, tuple[str, str]] = {}
        """Name -> the partitions and features that its owner asks for."""
        self.begins_s = 0.0
        """The begin time of BEGINS, s since the epoch."""

    def begin(self) -> None:
        """Submit them and bring each into its state. Raises HadarError where that fails."""
        self.other = self._cluster.submit(
            "#!/bin/bash\nexec sleep 600\n",
            ["-o", "/dev/null", "-p", RARE, f"--gres=gpu:{RARE}:1"],
        )
        for name in JOBS:
            self.ids[name] = self._submit(name)
        self._before()
        scene.fail_next_launch(self._box, self.ids["fails"])
        self._box.wait_state(self.other, ("RUNNING",))
        scene.take_the_feature(self._box)
        self._release(HELD)
        self.until(self._holds, "Slurm holds what it shall hold", _BEGIN_S)
        scene.undrain(self._box)
        self.until(lambda: scene.all_free(self._box), "all nodes answer and are idle", _BEGIN_S)
        # In the order of their submission, which is that of their start.
        self._release((*RUNNING, *WAITING))
        self.until(self._ready, "the jobs begin", _BEGIN_S)

    def read(self) -> dict[str, Job]:
        """All of them, by id, as Slurm shows them."""
        return {job.id: job for job in self._cluster.read_jobs([*self.ids.values(), self.other])}

    def until(self, holds: Callable[[], bool], what: str, longest_s: float = LONGEST_S) -> None:
        """Wait. Raises HadarError, with the queue, where it takes longer."""
        end = time.monotonic() + longest_s
        while not holds():
            if time.monotonic() > end:
                raise HadarError(f"not within {longest_s:g} s: {what}; {self.queue()}")
            time.sleep(0.5)

    def queue(self) -> str:
        """What squeue shows of them."""
        columns = "%i %T %r begins %S on %R of %P %f %n"
        shown = self._box.run("squeue", "-h", "-t", "all", "-o", columns)
        wanted = {id_: name for name, id_ in self.ids.items()}
        lines = [line.split(" ", 1) for line in shown.splitlines()]
        return "; ".join(f"{wanted[id_]} {rest}" for id_, rest in lines if id_ in wanted)

    def clean_up(self) -> None:
        """Cancel what is left, remove its files, and mend the nodes."""
        ids = [id_ for id_ in (*self.ids.values(), self.other) if id_]
        self._cluster.cancel(ids)
        for kind in ("plan", "progress", "steer"):
            for file in self._config.site.exchange_dir.glob(f"{kind}.*.json"):
                file.unlink(missing_ok=True)
        end = time.monotonic() + 30
        while any(self._box.job_state(id_) in ("RUNNING", "COMPLETING") for id_ in ids):
            if time.monotonic() > end:
                break
            time.sleep(0.3)
        scene.repair_nodes(self._box)

    def _submit(self, name: str) -> str:
        path = self._folder / f"{name}.sh"
        path.write_text(scene.script(self._folder, name, self._samples))
        argv = [str(Path(sys.executable).parent / "hbatch"), "--parsable", "--gres=gpu:1"]
        argv += ["-o", f"{self._folder}/{name}.out", *scene.options(name), str(path)]
        done = subprocess.run(
            argv, env=self._env, capture_output=True, text=True, timeout=90, check=False
        )
        if done.returncode:
            raise HadarError(done.stderr.strip())
        return done.stdout.strip()

    def _before(self) -> None:
        """What owners, and earlier ticks, have done to them."""
        jobs = self.read()
        begins = jobs[self.ids[BEGINS]]
        declared = replace(begins.declaration or Declaration(), lease=True)
        self._send(BEGINS, "Comment", merge(begins.comment, declared))
        asked = {
            name: (",".join(jobs[id_].partitions), jobs[id_].features)
            for name, id_ in self.ids.items()
        }
        store = Store.open(self._config.site.state_dir)
        try:
            context = ActionContext(self._cluster, store, self._config)
            before_s = time.time() - _EARLIER_S
            updates = [
                context.update(
                    jobs[self.ids[name]], dict(sent), scene.steering(name, *asked[name], before_s)
                )
                for name, sent in EARLIER.items()
            ]
        finally:
            store.close()
        self._apply(*updates)
        self._send(LEAVES, "Features", ODD_CONSTRAINT)
        self.asked = {**asked, LEAVES: (asked[LEAVES][0], ODD_CONSTRAINT)}

    def _release(self, names: Iterable[str]) -> None:
        for name in names:
            self._cluster.release(self.ids[name])

    def _holds(self) -> bool:
        jobs = self.read()
        return all(held_by_slurm(name, jobs[self.ids[name]]) for name in HELD)

    def _ready(self) -> bool:
        """Each job is in its state, and of the begin time is left what shall be."""
        self._send(BEGINS, "StartTime", f"now+{scene.BEGINS_S}")
        self.begins_s = time.time() + scene.BEGINS_S
        jobs = self.read()
        early = [name for name in WAITING if jobs[self.ids[name]].state is not JobState.PENDING]
        if early:
            raise HadarError(f"{', '.join(early)}: shall wait and does not; {self.queue()}")
        return all(self._saves(name) for name in RUNNING) and self._holds()

    def _saves(self, name: str) -> bool:
        # Before its first step a training does not listen yet.
        folder = self._config.site.exchange_dir
        return any(folder.glob(f"progress.{self.ids[name]}.*"))

    def _send(self, name: str, key: str, value: str) -> None:
        self._apply(Update(self.ids[name], {key: value}))

    def _apply(self, *updates: Update) -> None:
        for error in self._cluster.apply(updates):
            if error is not None:
                raise error


def held_by_slurm(name: str, job: Job) -> bool:
    """Whether it is as Slurm itself left it before the tick."""
    reason = job.reason.lower().replace("_", " ")
    return job.state is JobState.PENDING and job.held and HELD.get(name, "?") in reason
