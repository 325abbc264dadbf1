"""The controllers of a trial: processes that tick, die, are stopped, or retire."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.faults import scene
from benchmarks.faults.child import GAVE_UP, REFUSED, WANT
from benchmarks.faults.scene import ALL, ASKED
from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.placement import Placement
from slurm_hadar.exchange.heartbeat import NAME as HEARTBEAT
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.sandbox.cluster import Sandbox

OTHER_HOST = "another"
_OLD_S = 200.0
_LONGEST_S = 180.0
_Process = subprocess.Popen[str]


class Controllers:
    """All of one trial. ``ids``: name -> job id; ``env``: their environment; ``say`` is called with
    each broken promise."""

    def __init__(
        self,
        box: Sandbox,
        folder: Path,
        ids: Mapping[str, str],
        env: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._box, self._folder, self._ids, self._say = box, folder, ids, say
        self._env = dict(env)
        self._site = configuration.load(box.config_path).site
        self.states = [self._site.state_dir]
        """State folders of all that took part."""

    def beat(self) -> None:
        """Let a controller be alive."""
        write_heartbeat(self._site.exchange_dir, "act", 5.0)

    def want(self, *plans: Mapping[str, Placement]) -> None:
        """What the policy answers from now on, tick by tick."""
        named = [
            {
                self._ids[name]: {"gpus": dict(one.gpus), "batch": one.batch}
                for name, one in p.items()
            }
            for p in plans
        ]
        (self._folder / WANT).write_text(json.dumps(named))

    def dying_tick(self, at: str, plant: str | None = None) -> bool:
        """A tick in which the controller is killed at ``at``; whether it came there. "": it is not
        killed."""
        process = self._start("touches", ["--at", at, *_planted(plant)])
        return self._ended(process, dies=bool(at)) < 0

    def more_ticks(self, log: str, plant: str | None = None, host: str | None = None) -> Path:
        """Some ticks until all is placed; the file with what each left the jobs that wait.

        ``host``: of another controller than the first, with a state folder of its own.
        """
        self.want(ASKED, ASKED, ALL)
        decided = self._folder / f"{log}.decided"
        words = ["--ticks", "3", "--decided", str(decided), *_planted(plant)]
        self._ended(self._start(log, words, host))
        return decided

    def retire(self, plant: str | None = None) -> None:
        """``hadar retire``."""
        self._ended(self._start("retire", ["--retire", *_planted(plant)]))

    def stalled_tick(self, at: str, host: str | None) -> bool:
        """A tick in which the controller is stopped at ``at`` and continued after all times that a
        controller waits; whether it came there. ``host``: of the one that takes over; None: another
        one on the same state folder is refused."""
        first = self._start("touches", ["--at", at, "--stop"])
        try:
            # Waited for without reaping it: a stopped child stays a child.
            os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if not is_stopped(first.pid):
                self._ended(first)
                return False
            time.sleep(scene.STALL_S)
            if host is None:
                self._is_refused()
            else:
                age_heartbeat(self._site.exchange_dir)
                self.more_ticks("meanwhile", host=host)
            first.send_signal(signal.SIGCONT)
            self._ended(first, GAVE_UP)
        finally:
            if first.returncode is None:
                first.kill()
                first.communicate()
        return True

    def _start(self, log: str, words: Sequence[str], host: str | None = None) -> _Process:
        argv = [sys.executable, "-m", "benchmarks.faults.child", str(self._folder)]
        argv += ["--log", f"{self._folder}/{log}", *words, *(["--host", host] if host else [])]
        env = self._env
        if host is not None:
            env = {**env, "HADAR_CONFIG": str(self._config_of(host))}
        return subprocess.Popen(
            argv, env=env, cwd=scene.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _config_of(self, host: str) -> Path:
        """The configuration of a controller on another host."""
        path, state = self._folder / f"{host}.toml", self._folder / host
        if not path.exists():
            text = self._box.config_path.read_text()
            here = str(self._site.state_dir)
            if here not in text:
                raise HadarError(f"no {here} in {self._box.config_path}")
            path.write_text(text.replace(here, str(state)))
            self.states.append(state)
        return path

    def _ended(self, process: _Process, expected: int = 0, *, dies: bool = False) -> int:
        """Exit status of a controller, 0 or ``expected``. ``dies``: whether it may have been
        killed."""
        try:
            _, err = process.communicate(timeout=_LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise HadarError(f"the controller did not end within {_LONGEST_S:g} s") from None
        code = process.returncode
        if code not in (0, expected) and not (dies and code < 0):
            raise HadarError(f"the controller failed: {err.strip()[-300:]}")
        return code

    def _is_refused(self) -> None:
        """Another controller on the same state folder ends at once and says why."""
        second = self._start("meanwhile", [])
        _, err = second.communicate(timeout=_LONGEST_S)
        if second.returncode != REFUSED or "another hadar is running" not in err:
            self._say(f"a second controller on one state folder was not refused: {err[-300:]}")


def age_heartbeat(exchange_dir: Path) -> None:
    """The last heartbeat is too old to count; to wait for that would take 40 s more."""
    path = exchange_dir / HEARTBEAT
    beat = json.loads(path.read_text())
    path.write_text(json.dumps({**beat, "time": beat["time"] - _OLD_S}))


def _planted(plant: str | None) -> list[str]:
    return ["--plant", plant] if plant else []


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt"
