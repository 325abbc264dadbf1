"""The soak itself: some time of everything at once, then quiet until all jobs have ended."""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak import jobs
from benchmarks.soak.books import Account, Books, account
from benchmarks.soak.daemon import Daemon
from benchmarks.soak.leftovers import (
    Exchange,
    Journal,
    Work,
    read_exchange,
    read_journal,
    releases_of,
)
from benchmarks.soak.liveness import Liveness, Look, backfill_cycles, idle_since
from benchmarks.soak.memory import Memory
from benchmarks.soak.nodes import SLURMD_TIMEOUT_S, Faults
from benchmarks.soak.publications import Publications
from benchmarks.soak.silence import KILL_WAIT_S
from benchmarks.soak.slurm_log import most_bare, revoked
from benchmarks.soak.squatters import Squatters
from benchmarks.soak.stalls import Stalls
from benchmarks.soak.watched import Watched, join
from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster

LAYOUT = Layout(
    (NodeGroup("v", 2, "v100", 1), NodeGroup("p", 2, "p100", 1), NodeGroup("k", 2, "k80", 1))
)
POLICIES = ("hadar", "gavel_las", "timetable", "tiresias", "hadare")
"""Each life of the controller has one of these; all but the first move jobs at every round."""
CALM = 1 / 3
"""This last part of the storm no controller is killed in, so that one lives long enough to be
weighed. All other faults go on."""
_POLL_S = 2.0
_MOST_RELEASES = 3
_WATCH_S = 0.1
_LONGEST_STALL_S = 30.0
"""More than SlurmdTimeout and the times that the controller waits for a training."""


@dataclass(frozen=True)
class Rates:
    """Mean seconds between two of a kind."""

    submit_s: float = 5.0
    cancel_s: float = 40.0
    fault_s: float = 10.0
    kill_s: float = 12.0
    stall_s: float = 15.0
    squat_s: float = 5.0
    burst: int = 0
    """Trainings that are submitted at once before all else: with more of them than GPUs jobs move
    in a short storm too."""
    backlog: int = 20
    """Short ordinary jobs that are submitted after those, so that managed jobs wait behind them;
    then one of each hostile kind."""


@dataclass(frozen=True)
class Result:
    """What a soak came to; ``wrong`` holds one sentence for each broken promise."""

    minutes: float
    drained_s: float
    submitted: Mapping[str, int]
    refused: int
    cancelled: int
    faults: Mapping[str, int]
    lives: int
    kills_in_moves: int
    ticks: int
    idle_ticks: int
    released: int
    nodes_resumed: int
    """Nodes that did not come back by themselves."""
    stalls: int
    stalls_in_saves: int
    superseded_stalls: Mapping[str, int]
    """How the attempts ended that were superseded when they were continued -> how many."""
    published: int
    """Checkpoints, as they were seen."""
    account: Account
    journal: Journal
    memory: Memory
    exchange: Exchange
    squatted: int
    """Names in the exchange folder that another user took first."""
    liveness: Liveness
    wrong: tuple[str, ...]


def start(folder: Path, rights: str = "user") -> Sandbox:
    """A sandbox whose controller moves a lot. ``rights``: ``user`` keeps what it did as on a site,
    in its state file and in the exchange folder; ``sandbox`` in the jobs' AdminComments."""
    table = folder / "speeds.json"
    rows = [[jobs.MODEL, kind, 1, 8, speed, None] for kind, speed in jobs.SPEEDS.items()]
    table.write_text(json.dumps({"version": 1, "source": "benchmark", "rows": rows}))
    return Sandbox.up(
        folder / "box",
        LAYOUT,
        cred_expire_s=5,
        kill_wait_s=KILL_WAIT_S,
        slurmd_timeout_s=SLURMD_TIMEOUT_S,
        options=SandboxOptions(
            mode="act",
            settings={
                "site": {"rights": rights},
                "guards": {
                    "min_between_moves_s": 4.0,
                    "max_moves_per_tick": 3,
                    "max_moves_per_hour": 10_000,
                    "max_moves_per_job": 10_000,
                    "gain_over_cost": 1.0,
                    "preempt": True,
                },
                "moving": {"ack_wait_s": 20.0, "settle_s": 5.0, "commit_s": 5.0},
                "controller": {"interval_s": 2.0, "round_s": 10.0, "policy": POLICIES[0]},
                "backfill": {"enabled": True, "partitions": ("idle",), "margin_s": 2.0},
                "profiles": {"tables": (str(table),)},
            },
            base_rates={jobs.MODEL: {kind: {1: speed} for kind, speed in jobs.SPEEDS.items()}},
        ),
    )


class Storm:
    """Submits, cancels and looks in this thread; nodes, the controller, stalls and the watch over
    checkpoints have one each."""

    def __init__(self, box: Sandbox, folder: Path, seed: int, rates: Rates) -> None:
        self.box, self.folder, self.rates = box, folder, rates
        self._draws = [
            random.Random(f"{seed}/{name}")
            for name in ("jobs", "nodes", "controller", "stalls", "squatters")
        ]
        self.config = configuration.load(box.config_path)
        write_wrapper_site(self.config, box.config_path)
        self.cluster = open_cluster(self.config.slurm)
        self.books = Books()
        self.daemon = Daemon(box, folder)
        self.memory = Memory()
        self._over = threading.Event()
        self._calm = threading.Event()
        self.stalls = Stalls(folder, self._draws[3], self._over.is_set)
        self.faults = Faults(box, self._draws[1], self._over.is_set, self.stalls)
        self.publications = Publications(folder)
        self.squatters = Squatters(self.config.site.exchange_dir, self._draws[4], self._newest)
        self.liveness = Liveness()
        self._alive: frozenset[str] = frozenset()
        """Submissions that train and had not ended at the last look."""
        self._watched: frozenset[str] = frozenset()
        """The same with those of the look before."""
        self._ended = threading.Event()

    def run(self, minutes: float, drain_s: float) -> Result:
        """The whole soak. ``drain_s``: longest time until all jobs have ended, s."""
        began = time.monotonic()
        end = began + 60 * minutes
        threads = [
            Watched("the faults", lambda: self.faults.run(self.rates.fault_s)),
            Watched("the controllers", self._controllers),
            Watched("the stalls", lambda: self.stalls.run(self.rates.stall_s, _LONGEST_STALL_S)),
        ]
        if os.getuid() == 0:
            threads.append(Watched("the squatters", self._squats))
        watch = Watched("the watch over checkpoints", self._watch)
        watch.start()
        try:
            try:
                for thread in threads:
                    thread.start()
                self._submits(began + 60 * minutes * (1 - CALM), end)
            finally:
                self._calm.set()
                self._over.set()
                join(threads)
            calmed = time.monotonic()
            self._drain(calmed + drain_s)
            self.daemon.alive()
        finally:
            self._ended.set()
            self.daemon.stop()
            join([watch])
        ended = [sentence for thread in (*threads, watch) for sentence in thread.wrong]
        return self._result(minutes, time.monotonic() - calmed, ended)

    def _submits(self, calm: float, end: float) -> None:
        dice = self._draws[0]
        for number in range(self.rates.burst):
            self._submit(jobs.training(number), 0.0)
        for kind in (*["ordinary"] * self.rates.backlog, *jobs.HOSTILE):
            self._submit(jobs.draw(dice, len(self.books.sent), kind), dice.uniform(1, 4))
        at = time.monotonic()
        next_submit, next_cancel, next_look = at, at + self.rates.cancel_s, at
        while (now := time.monotonic()) < end:
            if now >= calm:
                self._calm.set()
            if now >= next_submit:
                self._submit(jobs.draw(dice, len(self.books.sent)), dice.uniform(2, 15))
                next_submit = now + dice.expovariate(1 / self.rates.submit_s)
            if now >= next_cancel:
                pause = dice.expovariate(1 / self.rates.cancel_s)
                next_cancel = now + (pause if self._cancel(dice) else _POLL_S)
            if now >= next_look:
                self._look()
                next_look = now + _POLL_S
            time.sleep(0.1)

    def _submit(self, sent: jobs.Sent, seconds: float) -> None:
        self.books.sent[sent.name] = sent
        why = jobs.submit(self.box, self.folder, sent, seconds)
        if why:
            self.books.refused[sent.name] = why

    def _cancel(self, dice: random.Random) -> bool:
        """Whether a job was cancelled, or may have been."""
        alive = sorted(self.books.alive(), key=lambda job: job.id)
        if not alive:
            return False
        job = dice.choice(alive).id
        refused: HadarError | None
        try:
            refused = self.cluster.cancel([job])[0]
        except HadarError as error:
            refused = error
        return self.books.cancel(job, refused)

    def _look(self) -> None:
        try:
            found = self.cluster.read_jobs()
            nodes = self.cluster.read_nodes()
            since = idle_since(self.box.run("scontrol", "-a", "-o", "show", "node"))
            cycles = backfill_cycles(self.box.run("sdiag"))
        except HadarError:
            self.liveness.forget()
            return
        self.books.look(found)
        any_gpu = {one.name for one in self.books.sent.values() if one.any_gpu}
        seen = Look(time.monotonic(), time.time(), found, nodes, since, cycles)
        self.liveness.look(seen, any_gpu)
        alive = {job.name for job in self.books.alive()} | set(self.books.missing())
        now = frozenset(one for one in alive if self.books.sent[one].samples)
        self._watched, self._alive = self._alive | now, now
        releases = releases_of(self.config.site.state_dir)
        for job in self.books.held_by_slurm(releases, _MOST_RELEASES):
            try:
                self.cluster.release(job.id)
            except HadarError:
                continue
            self.books.released[job.id] += 1
        self.memory.note(self.daemon.lives, time.monotonic(), self.daemon.rss_mb())

    def _newest(self) -> int:
        return max((job.raw_id for job in tuple(self.books.seen.values())), default=0)

    def _squats(self) -> None:
        dice = self._draws[4]
        while not self._over.wait(dice.uniform(0.5, 1.5) * self.rates.squat_s):
            self.squatters.lay()

    def _controllers(self) -> None:
        dice = self._draws[2]
        self.daemon.start(dice.choice(POLICIES))
        while not self._calm.wait(dice.uniform(0.5, 1.5) * self.rates.kill_s):
            self.daemon.kill(dice, self._calm.is_set)
            # Now and then nobody ticks for a while: Slurm starts what waits all the same.
            self._calm.wait(25.0 if dice.random() < 0.1 else dice.uniform(0.0, 4.0))
            self.daemon.start(dice.choice(POLICIES[1:]))
        while not self._over.wait(1.0):
            self.daemon.alive()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_S):
            self.publications.look(self._watched)
        self.publications.look(self._watched)

    def _drain(self, until: float) -> None:
        while time.monotonic() < until:
            self._look()
            if not self.books.alive() and not self.books.missing():
                break
            time.sleep(1.0)
        # A last tick or two for what ended just now.
        end = time.monotonic() + 120
        while self.daemon.moves_open() and time.monotonic() < end:
            time.sleep(0.5)

    def _result(self, minutes: float, drained_s: float, ended: Sequence[str]) -> Result:
        log = (self.box.places.log / "slurmctld.log").read_text(errors="replace")
        found = account(self.books, self.folder, self.faults.silences, revoked(log))
        work = Work(
            jobs=len(self.books.seen),
            starts=len(self.books.seen) + found.restarts,
            ticks=self.daemon.ticks() + self.daemon.idle_ticks() + self.daemon.lives,
            kills=self.daemon.lives,
        )
        journal = read_journal(self.config.site.state_dir, time.time())
        self.squatters.remove()
        exchange = read_exchange(self.config.site.exchange_dir)
        wrong = [*found.wrong, *ended, *self.faults.wrong, *self.memory.wrong()]
        wrong += self.liveness.wrong
        wrong += [*self.publications.wrong, *self.stalls.wrong()]
        if found.bare > (most := most_bare(log, self.books.nodes())):
            wrong.append(
                f"{found.bare} starts without a GPU: jobs that were COMPLETING as slurmctld "
                f"restarted, and steps that outlived a requeue, explain {most}"
            )
        wrong += [f"the controller ended by itself: {why}" for why in self.daemon.ended]
        wrong += [f"the controller's log: {line}" for line in self.daemon.faults()]
        wrong += [*journal.wrong(work), *exchange.wrong(work)]
        if not journal.moved:
            wrong.append("no job moved: this soak shows nothing")
        if not journal.actions.get("hint"):
            wrong.append("no job got a hint: this soak shows nothing")
        return Result(
            minutes=minutes,
            drained_s=drained_s,
            submitted=dict(Counter(one.kind for one in self.books.sent.values())),
            refused=len(self.books.refused),
            cancelled=len(self.books.cancelled),
            faults=dict(self.faults.done),
            lives=self.daemon.lives,
            kills_in_moves=self.daemon.kills_in_moves,
            ticks=self.daemon.ticks(),
            idle_ticks=self.daemon.idle_ticks(),
            released=sum(self.books.released.values()),
            nodes_resumed=self.faults.by_hand,
            stalls=len(self.stalls.done),
            stalls_in_saves=sum(stall.in_save for stall in self.stalls.done),
            superseded_stalls=dict(self.stalls.outcomes()),
            published=self.publications.seen,
            account=found,
            journal=journal,
            memory=self.memory,
            exchange=exchange,
            squatted=len(self.squatters.taken),
            liveness=self.liveness,
            wrong=tuple(wrong),
        )
