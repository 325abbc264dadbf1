"""One part of the trial: managed trainings that are moved, beside a backlog of ordinary jobs."""

import json
import os
import pwd
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.optin.site import HADAR, Site
from benchmarks.places.child import BETWEEN
from benchmarks.places.count import Account, Cost, Look, Moved, starts, submissions
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec

LAYOUT = Layout(
    (NodeGroup("v", 1, "v100", 4), NodeGroup("p", 1, "p100", 4), NodeGroup("k", 1, "k80", 2)),
    (
        PartitionSpec("gpu", default=True),
        PartitionSpec("v100", ("v",)),
        PartitionSpec("p100", ("p",)),
        PartitionSpec("k80", ("k",)),
    ),
)
PRIORITIES = (
    "PriorityType=priority/multifactor",
    "PriorityCalcPeriod=1",
    "PriorityMaxAge=01:00:00",
    "PriorityWeightAge=10000",
)
"""Age counts, and nothing else: all jobs have one base priority."""
SETTINGS = {
    "guards": {
        "min_between_moves_s": 0.0,
        "max_moves_per_hour": 100_000,
        "max_moves_per_job": 100_000,
        "max_moves_per_tick": 20,
        "max_queries_per_minute": 100_000,
    },
    "moving": {"ack_wait_s": 20.0, "settle_s": 20.0, "commit_s": 60.0},
}
OWNER, OTHER = "news", "irc"
_ROOT = Path(__file__).resolve().parents[2]
_TRAINING = _ROOT / "benchmarks" / "optin" / "training.py"
_FOLLOWING, _NEWCOMER = "following", "newcomer"
_PATIENCE_S = 10.0
"""A job that came later and does not start for so long is cancelled."""
_LOOK_S = 0.2
_AGE_S = 70.0
"""How long the managed jobs wait at first, so that they have an age to lose: PriorityCalcPeriod is
60 s."""


@dataclass(frozen=True, slots=True)
class Part:
    """``backlog``: words for sbatch of each kind of ordinary job; ``seconds``: that they run;
    ``waiting``: how many of each kind wait at a time; ``moves``: to wait for; 0: none may be sent,
    in so many ``ticks``. ``following``: so many more wait for one GPU of the type that the managed
    jobs are on, and get what these leave; once all have moved, those that wait are cancelled and
    others wait for the other type. ``newcomers_s``: mean time between two more jobs, for either
    type or both and now and then for three GPUs, each of which comes while no other one waits and
    is cancelled where it waits for long."""

    name: str
    backlog: Sequence[tuple[str, ...]]
    seconds: float
    waiting: int
    moves: int
    managed: int = 4
    ticks: int = 0
    following: int = 0
    newcomers_s: float = 0.0


@dataclass
class Outcome:
    """What one part showed. ``kept_back``: moves that a tick did not send, by reason; ``ticks``:
    ``free``: ticks that saw a free GPU of the two types."""

    part: Part
    costs: list[Cost]
    sent: int
    given_up: list[str]
    ticks: int
    free: int
    kept_back: Mapping[str, int]
    first: Mapping[str, int]
    lowest: Mapping[str, int]
    backlog_starts: int
    newcomers: int
    seconds: float
    faults: list[str] = field(default_factory=list)


class Trial:
    """A part that runs on a site."""

    def __init__(self, site: Site, part: Part) -> None:
        self._site, self._part = site, part
        self._looks: dict[str, list[Look]] = {}
        self._gpus: dict[str, int] = {}
        self._count = 0
        self._behind = BETWEEN[0]
        self._chance = random.Random(1)
        self._next_newcomer_s = self._came_s = 0.0
        self._newcomers: set[str] = set()
        self._ticks_file = site.home(HADAR) / f"{part.name}.ticks"
        self._moves_file = site.home(HADAR) / f"{part.name}.moves"

    def run(self, limit_s: float) -> Outcome:
        """Carry it out. Raises HadarError where it takes longer than ``limit_s``."""
        began = time.time()
        managed = self._aged_trainings()
        backlog_from = time.time()
        self._feed()
        child = self._controller()
        try:
            end = time.monotonic() + limit_s
            while not self._over():
                if child.poll() is not None:
                    log = self._site.controller_log.read_text()[-2000:]
                    raise HadarError(f"the controller ended by itself:\n{log}")
                if time.monotonic() > end:
                    raise HadarError(
                        f"{self._part.name}: {self._moves_done()} moves in {limit_s:g} s; "
                        + self._site.box.run("squeue", "-o", "%i %T %P %b %r %N %Q %y")
                        + "".join(self._ticks_text()[-3:])
                    )
                self._look(managed)
                self._feed()
                time.sleep(_LOOK_S)
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        end = time.monotonic() + 15
        while time.monotonic() < end:
            self._look(managed)
            time.sleep(_LOOK_S)
        outcome = self._outcome(managed, began, backlog_from)
        self._cancel()
        return outcome

    # -- jobs ----------------------------------------------------------------------------------

    def _aged_trainings(self) -> list[str]:
        """The managed jobs, running, after a wait for GPUs that ordinary jobs had."""
        names = ",".join(BETWEEN)
        fill = [self._sbatch("-p", kind, "--gres=gpu:4", seconds=10_000.0) for kind in BETWEEN]
        self._until(lambda: all(self._state(job) == "RUNNING" for job in fill), "full nodes")
        ids = []
        for number in range(self._part.managed):
            home = self._site.home(OWNER)
            path = self._site.folder / f"{self._part.name}{number}.sh"
            saved = home / f"{self._part.name}{number}.saved"
            path.write_text(
                f"#!/bin/bash\n#HADAR model=resnet18 batch=64 samples=100000000 types=any gpus=1 "
                f"checkpoint=yes restart_cost=1\nexec {sys.executable} {_TRAINING} resnet18 64 "
                f"100000000 0.2 {saved}\n"
            )
            words = ["--parsable", "-p", names, "--gres=gpu:1", "-t", "1-0", "-o", "/dev/null"]
            done = self._site.run_as(
                OWNER,
                [self._site.command("hbatch"), *words, str(path)],
                {"HADAR_PROGRESS_S": "0.5"},
            )
            if done.returncode:
                raise HadarError(f"hbatch: {done.stderr}")
            ids.append(done.stdout.strip())
        end = time.monotonic() + _AGE_S
        while time.monotonic() < end:
            self._look(ids)
            time.sleep(1.0)
        self._site.box.run("scancel", *fill)
        for job in fill:
            # The log does not tell their ends.
            del self._gpus[job]

        def run() -> bool:
            self._look(ids)
            return all(self._looks[job][-1].state == "RUNNING" for job in ids)

        self._until(run, "running trainings")
        return ids

    def _feed(self) -> None:
        """So many jobs of each kind wait."""
        shown = self._site.box.run("squeue", "-h", "-t", "PD", "-u", OTHER, "-o", "%j")
        waiting = Counter(name.partition("-")[0] for name in shown.split())
        for kind, options in enumerate(self._part.backlog):
            for _ in range(self._part.waiting - waiting[f"b{kind}"]):
                self._sbatch("-J", f"b{kind}-{self._count}", *options, seconds=self._part.seconds)
        if self._part.following:
            self._follow(waiting[_FOLLOWING])
        if self._part.newcomers_s:
            self._newcomer(waits=bool(waiting[_NEWCOMER]))

    def _follow(self, waiting: int) -> None:
        """So many wait for the type that the managed jobs are to leave."""
        there = self._site.box.run("squeue", "-h", "-t", "R", "-u", OWNER, "-o", "%P").split()
        if len(there) == self._part.managed and self._behind not in there:
            self._site.box.run("scancel", "-t", "PENDING", "-u", OTHER, "-n", _FOLLOWING)
            self._behind, waiting = there[0], 0
        for _ in range(self._part.following - waiting):
            options = ("-J", _FOLLOWING, "-p", self._behind, "--gres=gpu:1")
            self._sbatch(*options, seconds=self._part.seconds)

    def _newcomer(self, waits: bool) -> None:
        now = time.monotonic()
        if waits:
            # Its GPUs may never be free: those of moves that it keeps from being sent.
            if now > self._came_s + _PATIENCE_S:
                self._site.box.run("scancel", "-t", "PENDING", "-u", OTHER, "-n", _NEWCOMER)
            return
        if now < self._next_newcomer_s:
            return
        mean_s = self._part.newcomers_s
        if self._next_newcomer_s:
            where = self._chance.choice([*BETWEEN, ",".join(BETWEEN)])
            gpus = self._chance.choice((1, 1, 1, 3))
            options = ("-J", _NEWCOMER, "-p", where, f"--gres=gpu:{gpus}")
            self._newcomers.add(self._sbatch(*options, seconds=self._part.seconds))
            self._came_s = now
        self._next_newcomer_s = now + self._chance.expovariate(1.0 / mean_s)

    def _sbatch(self, *options: str, seconds: float) -> str:
        self._count += 1
        done = self._site.run_as(
            OTHER,
            [
                self._site.command("sbatch"), "--parsable", "-t", "300", "-o", "/dev/null",
                *options, "--wrap", f"exec sleep {seconds:g}",
            ],
        )  # fmt: skip
        if done.returncode:
            raise HadarError(f"sbatch: {done.stderr}")
        job = done.stdout.strip()
        (gpus,) = (option for option in options if option.startswith("--gres=gpu:"))
        self._gpus[job] = int(gpus.rpartition(":")[2])
        return job

    def _cancel(self) -> None:
        for user in (OWNER, OTHER):
            self._site.box.run("scancel", "-u", user)
        box = self._site.box
        self._until(lambda: not box.run("squeue", "-h").strip(), "an empty queue")

    def _state(self, job: str) -> str:
        return self._site.box.job_state(job)

    # -- the controller ------------------------------------------------------------------------

    def _controller(self) -> "subprocess.Popen[bytes]":
        who = pwd.getpwnam(HADAR)
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONPATH": str(_ROOT)}
        with self._site.controller_log.open("ab") as output:
            return subprocess.Popen(
                [
                    sys.executable, "-m", "benchmarks.places.child",
                    str(self._ticks_file), str(self._moves_file),
                ],
                env={**env, **self._site.box.env}, cwd=self._site.home(HADAR),
                user=who.pw_uid, group=who.pw_gid, extra_groups=[who.pw_gid],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _ticks_text(self) -> list[str]:
        return self._ticks_file.read_text().splitlines() if self._ticks_file.exists() else []

    def _moves_done(self) -> int:
        found = re.findall(r"job \d+: released, to start on", "\n".join(self._ticks_text()))
        return len(found)

    def _over(self) -> bool:
        if self._part.moves:
            return self._moves_done() >= self._part.moves
        return len(self._ticks_text()) >= self._part.ticks

    # -- looks ---------------------------------------------------------------------------------

    def _look(self, jobs: Sequence[str]) -> None:
        at_s = time.time()
        out = self._site.box.run(
            "squeue", "-h", "-t", "all", "-j", ",".join(jobs), "-o", "%i|%T|%Q|%y"
        )
        for line in out.splitlines():
            job, state, priority, nice = line.split("|")
            self._looks.setdefault(job, []).append(Look(at_s, state, int(priority), int(nice)))

    def _until(self, holds: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > end:
                queue = self._site.box.run("squeue", "-o", "%i %T %P %b %r %N")
                raise HadarError(f"{what} did not come within {timeout_s:g} s\n{queue}")
            time.sleep(_LOOK_S)

    def _outcome(self, managed: Sequence[str], began: float, backlog_from: float) -> Outcome:
        log = (self._site.box.places.log / "slurmctld.log").read_text(errors="replace")
        started = [one for one in starts(log) if one.at_s >= began]
        types = {name: kinds[0] for name, kinds in LAYOUT.node_types().items()}
        ticks = [json.loads(line) for line in self._ticks_text()]
        looked_s = [tick["looked_s"] for tick in ticks]
        moves: list[Moved] = []
        given_up: list[str] = []
        text = self._moves_file.read_text()
        entries = [one for one in map(json.loads, text.splitlines()) if one["opened_s"] >= began]
        for entry in entries:
            if entry["outcome"] != "moved" or entry["requeued_s"] is None:
                given_up.append(f"job {entry['job']}: {entry['outcome']}")
                continue
            to = tuple(name for name, kind in types.items() if kind in entry["gpus"])
            decided_s = max(at_s for at_s in looked_s if at_s <= entry["opened_s"])
            moves.append(Moved(entry["job"], entry["requeued_s"], to, decided_s))
        there = {name: len(kinds) for name, kinds in LAYOUT.node_types().items()}
        gpus = {**self._gpus, **dict.fromkeys(managed, 1)}
        account = Account(started, gpus, there, moves, submissions(log))
        costs = [account.cost(move, self._looks[move.job]) for move in moves]
        kept_back = Counter(
            re.sub(r"\bjob \d+\b", "a job", reason)
            for tick in ticks
            for reason in tick["deferred"].values()
        )
        return Outcome(
            self._part, costs, len(entries), given_up, len(ticks),
            sum(any(tick["free"].get(name) for name in ("v1", "p1")) for tick in ticks), kept_back,
            {job: self._first(job) for job in managed},
            {
                job: min((c.after for c in costs if c.move.job == job and c.seen), default=-1)
                for job in managed
            },
            sum(1 for one in started if one.job not in managed and one.at_s > backlog_from),
            len(self._newcomers),
            time.time() - began,
        )  # fmt: skip

    def _first(self, job: str) -> int:
        return next((o.priority for o in self._looks[job] if o.state == "RUNNING"), -1)
