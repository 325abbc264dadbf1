"""Controllers that are killed or stopped while two managed jobs exchange their priorities.

A site with an accounting database and an operator's controller. All GPUs are in use; a long
training of a user's waits before a job that takes no part, and a short one of the same user's
behind it. The policy wants the short one first, so these two exchange their places by Nice.
"""

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.child import GAVE_UP, WANT
from benchmarks.faults.controllers import OTHER_HOST, age_heartbeat, is_stopped
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.scene import ROOT
from benchmarks.faults.trial import Touch
from benchmarks.optin.site import EQUAL, HADAR, USERS, Site, site
from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.layout import Layout, NodeGroup, PartitionSpec
from slurm_hadar.sandbox.options import Settings
from slurm_hadar.slurm.cluster import open_cluster

EXCHANGE_THENS = {
    "kill": ("again", "retired", "changed", "held", "started"),
    "stall": ("changed", "taken over"),
}
"""What comes after a kill: another tick; ``hadar retire``; before another tick the Nice of the long
job is changed, or its owner holds it, or a GPU is freed. What comes while a controller is stopped:
the Nice of the long job is changed; a controller on another host takes over."""
LONG, BETWEEN, SHORT = "long", "between", "short"
NICES = {LONG: 0, BETWEEN: 100, SHORT: 200}
"""What their owners ask for."""
CHANGED = 7
"""The Nice that is set from outside."""
_OWNER, _OTHER = tuple(user for user, account in USERS.items() if account == "phys")
_TRAINING = """#!/bin/sh
#HADAR gpus=1 types=any model=resnet50 batch=64 samples={}
exec sleep 600
"""
_SAMPLES = {LONG: 500_000, SHORT: 50_000}
_PLAIN = "#!/bin/sh\nexec sleep 600\n"
_LAYOUT = Layout((NodeGroup("v", 1, "v100", 2),), (PartitionSpec("v100", ("v",), default=True),))
_SENT = "controller/actuation/apply.py send_hints journal UPDATE journal SET #1"
"""The point after Slurm has the new Nices."""
_SCONTROL = "controller/actuation/apply.py send_hints slurm scontrol #1"
"""The point before Slurm has them."""
_LAST_LOOK = "confirm_exchange.py unchanged_since_observed"
_TICKS = 3
_LOOKS = 3
"""So many times one statement counts as a point of its own."""
_KEEPS = "controller/tick.py _whole_pass"
"""Who keeps which jobs have the places of others."""
_LONGEST_S = 240.0


@dataclass(frozen=True)
class ExchangeCase:
    """``at``: name of the touch before which the first tick is killed or, with ``how`` "stall",
    stopped, "": nowhere; ``then``: one of EXCHANGE_THENS of it."""

    at: str = ""
    how: str = "kill"
    then: str = "again"
    plant: str = ""
    """A planted fault (:mod:`benchmarks.faults.planted`)."""

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.how} at {self.at}, then {self.then}"


EXCHANGE_PLANTS = (
    ExchangeCase(then="retired", plant="retire forgets"),
    ExchangeCase(_SENT, "kill", "retired", plant="hold meanwhile"),
)
"""Trials that must break a promise."""


@dataclass
class ExchangeFound:
    """What a trial came to. ``died``: killed or stopped at its point; ``exchanged``: a tick did
    exchange the places; ``wrong``: sentences, empty where all held."""

    died: bool = False
    exchanged: bool = False
    touches: list[Touch] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class ExchangeTrials:
    """Trials on one site, one after another. ``folder``: may be read by all users."""

    def __init__(self, place: Site, folder: Path) -> None:
        self._site, self._folder = place, folder
        self._config = configuration.load(place.box.config_path)
        self._cluster = open_cluster(self._config.slurm)
        self._who = pwd.getpwnam(HADAR)
        self._number = 0
        self._ids: dict[str, str] = {}
        self._log = folder
        self._found = ExchangeFound()

    def run(self, case: ExchangeCase) -> ExchangeFound:
        """One trial. Raises HadarError where the jobs cannot be brought into their places."""
        at, then, stall = case.at, case.then, case.how == "stall"
        self._found = ExchangeFound()
        try:
            self._begin()
            host = OTHER_HOST if then == "taken over" else None
            wish = dict(NICES)
            if stall:
                self._stalled(at, then, wish)
            else:
                died = self._tick("first", at, plant=case.plant)
                self._found.died = died == -signal.SIGKILL
                self._look("when the controller has died")
            self._found.touches = _touches(self._log / "first")
            if not stall:
                self._after_a_kill(then, wish)
            if then != "retired":
                self._tick("again", ticks=_TICKS, host=host)
                self._look("after another tick")
            self._tick("retire", host=host, plant=case.plant)
            self._is_as_asked(wish)
        finally:
            self._end()
        return self._found

    def _after_a_kill(self, then: str, wish: dict[str, int]) -> None:
        if then == "changed":
            self._change(wish)
        elif then == "held":
            self._as_owner("hold")
            self._tick("held", ticks=_TICKS)
            if not self._jobs()[LONG].held:
                self._say("the job that its owner held is not held any more")
            self._as_owner("release")
        elif then == "started":
            waiting = len(self._waiting())
            self._cluster.cancel([self._ids["used0"]])
            self._until(lambda: len(self._waiting()) < waiting, "a job starts")

    def _stalled(self, at: str, then: str, wish: dict[str, int]) -> None:
        first = self._start("first", ["--at", at, "--stop"])
        try:
            os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self._found.died = is_stopped(first.pid)
            if self._found.died:
                if then == "changed":
                    self._change(wish)
                else:
                    age_heartbeat(self._config.site.exchange_dir)
                    self._tick("meanwhile", ticks=_TICKS, host=OTHER_HOST)
                    self._look("while it is stopped")
                first.send_signal(signal.SIGCONT)
            self._ended(first, (0, GAVE_UP))
        finally:
            if first.returncode is None:
                first.kill()
                first.communicate()

    def _change(self, wish: dict[str, int]) -> None:
        # As an admin: Slurm lets no owner lower it.
        self._site.box.run("scontrol", "update", f"JobId={self._ids[LONG]}", f"Nice={CHANGED}")
        wish[LONG] = CHANGED

    def _as_owner(self, word: str) -> None:
        done = self._site.run_as(_OWNER, [self._site.command("scontrol"), word, self._ids[LONG]])
        if done.returncode:
            raise HadarError(f"scontrol {word}: {done.stderr.strip()}")

    def _begin(self) -> None:
        self._number += 1
        self._log = self._folder / f"x{self._number}"
        self._log.mkdir()
        os.chown(self._log, self._who.pw_uid, self._who.pw_gid)
        words = ["-p", "v100", "-o", "/dev/null", "--gres=gpu:1", "-t60"]
        for name in ("used0", "used1"):
            self._ids[name] = self._cluster.submit(_PLAIN, words)
        self._until(lambda: self._runs("used0") and self._runs("used1"), "all GPUs are in use")
        for name in NICES:
            argv = ["sbatch" if name == BETWEEN else "hbatch", "--parsable", *words]
            text = _TRAINING.format(_SAMPLES[name]) if name in _SAMPLES else _PLAIN
            path = self._log / f"{name}.sh"
            path.write_text(text)
            argv = [self._site.command(argv[0]), *argv[1:], f"--nice={NICES[name]}", str(path)]
            done = self._site.run_as(_OTHER if name == BETWEEN else _OWNER, argv)
            if done.returncode:
                raise HadarError(f"{name} was not submitted: {done.stderr.strip()}")
            self._ids[name] = done.stdout.strip().partition(";")[0]
        self._until(lambda: self._waiting() == [*NICES], "the jobs wait in their order")
        plan = {self._ids[SHORT]: {"gpus": {"v100": 1}}}
        (self._log / WANT).write_text(json.dumps([plan]))

    def _end(self) -> None:
        self._cluster.cancel(list(self._ids.values()))
        for kind in ("plan", "steer", "heartbeat"):
            for file in self._config.site.exchange_dir.glob(f"{kind}.*json"):
                file.unlink(missing_ok=True)
        run = self._site.box.run
        self._until(lambda: not run("squeue", "-h").strip(), "all jobs are gone")

    def _jobs(self) -> dict[str, Job]:
        shown = {job.id: job for job in self._cluster.read_jobs(list(self._ids.values()))}
        return {name: shown[id_] for name, id_ in self._ids.items() if id_ in shown}

    def _runs(self, name: str) -> bool:
        return self._jobs()[name].state is JobState.RUNNING

    def _waiting(self) -> list[str]:
        """Those of the three that wait, in Slurm's order."""
        jobs = {name: job for name, job in self._jobs().items() if name in NICES}
        waiting = [name for name, job in jobs.items() if job.state is JobState.PENDING]
        return sorted(waiting, key=lambda name: (-jobs[name].priority, jobs[name].raw_id))

    def _look(self, when: str) -> None:
        jobs, line = self._jobs(), self._waiting()
        self._found.exchanged |= line[:2] == [SHORT, BETWEEN]
        if BETWEEN in line:
            ahead = [
                n for n in (LONG, SHORT) if n not in line or line.index(n) < line.index(BETWEEN)
            ]
            if len(ahead) > 1:
                self._say(f"{when}: the unmanaged job has two ahead of it where one was")
        if jobs[BETWEEN].nice != NICES[BETWEEN] or jobs[BETWEEN].comment:
            self._say(f"{when}: the unmanaged job was touched")
        for name in line:
            if jobs[name].held:
                self._say(f"{when}: the {name} job is held ({jobs[name].reason})")

    def _is_as_asked(self, wish: Mapping[str, int]) -> None:
        """After ``hadar retire``."""
        for name, job in self._jobs().items():
            if name in wish and job.nice != wish[name]:
                self._say(f"retired: the {name} job has Nice {job.nice}, asked was {wish[name]}")
            if name in wish and job.state is JobState.PENDING and job.held:
                self._say(f"retired: the {name} job is held ({job.reason})")

    def _tick(
        self, log: str, at: str = "", ticks: int = 1, host: str | None = None, plant: str = ""
    ) -> int:
        """Ticks of a controller or, of the log ``retire``, ``hadar retire``; the exit status."""
        retires = log == "retire"
        words = ["--retire"] if retires else ["--ticks", str(ticks)]
        words += ["--at", at] if at else []
        planted = bool(plant) and (FAULTS[plant].where == "retire") == retires
        words += ["--plant", plant] if planted else []
        died = (-signal.SIGKILL,) if at else ()
        return self._ended(self._start(log, words, host), (0, *died))

    def _start(
        self, log: str, words: Sequence[str], host: str | None = None
    ) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", "benchmarks.faults.child", str(self._log)]
        argv += ["--log", str(self._log / log), *words, *(["--host", host] if host else [])]
        env = {**self._site.env(HADAR), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        if host is not None:
            env["HADAR_CONFIG"] = str(self._config_of(host))
        return subprocess.Popen(
            argv, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            user=self._who.pw_uid, group=self._who.pw_gid, extra_groups=[self._who.pw_gid],
        )  # fmt: skip

    def _config_of(self, host: str) -> Path:
        """The configuration of a controller on another host, with a state folder of its own."""
        path, state = self._log / f"{host}.toml", self._log / host
        if not path.exists():
            state.mkdir(mode=0o700)
            os.chown(state, self._who.pw_uid, self._who.pw_gid)
            text = self._site.box.config_path.read_text()
            path.write_text(text.replace(str(self._config.site.state_dir), str(state)))
        return path

    def _ended(self, process: "subprocess.Popen[str]", codes: Sequence[int]) -> int:
        try:
            _, err = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise HadarError(f"the controller did not end within {_LONGEST_S:g} s") from None
        if process.returncode not in codes:
            raise HadarError(f"the controller failed: {err.strip()[-300:]}")
        return process.returncode

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        if not processes.wait_until(holds, _LONGEST_S, 0.3):
            raise HadarError(f"not within {_LONGEST_S:g} s: {what}")

    def _say(self, sentence: str) -> None:
        if sentence not in self._found.wrong:
            self._found.wrong.append(sentence)


def exchange_points(touches: Sequence[Touch]) -> list[Touch]:
    """The points from where the exchange is kept to the end of the tick: what comes before
    is in the other trials."""
    first = next(
        (n for n, one in enumerate(touches) if one.place.endswith("apply.py send_hints")), None
    )
    if first is None:
        raise HadarError("the tick exchanged no places")
    kept = [n for n, one in enumerate(touches[:first]) if one.place == _KEEPS]
    return [one for one in touches[kept[-1] if kept else first :] if one.times <= _LOOKS]


def promised(point: Touch, points: Sequence[Touch], then: str) -> bool:
    """Whether the promises hold for what comes while a controller stands at this point. Between its
    last look at the Nices and the update Slurm has no way to update only what is unchanged."""
    names = [one.name for one in points]
    looked = next((n for n, one in enumerate(points) if one.place.endswith(_LAST_LOOK)), 0)
    sent = names.index(_SCONTROL) if _SCONTROL in names else len(names)
    return then != "changed" or not looked < names.index(point.name) <= sent


def _touches(log: Path) -> list[Touch]:
    return [Touch(*json.loads(line)) for line in log.read_text().splitlines()]


@contextmanager
def exchange_site(folder: Path) -> Iterator[ExchangeTrials]:
    """A site in ``folder`` for trials, down at the end."""
    settings: Settings = {
        "queue": {"exchange": "association"},
        "controller": {"interval_s": 10.0},
    }
    with site(folder, EQUAL, layout=_LAYOUT, settings=settings) as place:
        yield ExchangeTrials(place, folder)
