"""Starting and stopping the daemons of one sandbox, and what runs of them, as data and as a few
lines for a person.
"""

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.sandbox import accounting, processes, programs
from slurm_hadar.sandbox.places import SandboxPaths
from slurm_hadar.sandbox.programs import Programs

_STEPS_S = 4.0
"""How long cancelled jobs have to end by themselves before their processes are killed."""
_STOP_S = 15.0
_UP = ("idle", "mixed", "allocated", "planned", "reserved", "completing")
"""A node has these states while it answers. Planned: the next job there is waited for."""
_FATAL = (b"fatal:", b"[ERROR] Aborting")
"""What Slurm's daemons and MariaDB write before they end at once."""


class Daemons:
    """The processes of a sandbox, found by their pid files."""

    def __init__(
        self,
        places: SandboxPaths,
        tools: Programs,
        nodes: Sequence[str],
        has_accounting: bool = False,
    ) -> None:
        """``nodes``: those that have a slurmd."""
        self._places = places
        self._tools = tools
        self._nodes = list(nodes)
        self._accounting = accounting.DAEMONS if has_accounting else ()
        conf = {"SLURM_CONF": str(places.slurm_conf)}
        self._env = programs.environment({**conf, "PATH": tools.path})

    def _pid_file(self, name: str) -> Path:
        return self._places.run / f"{name}.pid"

    def _pid(self, name: str) -> int | None:
        return processes.pid_of(self._pid_file(name), self._places)

    def _names(self) -> list[str]:
        return [
            "munged",
            *self._accounting,
            "slurmctld",
            *(f"slurmd.{node}" for node in self._nodes),
        ]

    def running(self) -> dict[str, bool]:
        """Each part -> whether it runs."""
        return {name: self._pid(name) is not None for name in self._names()}

    def start_munged(self, wait_s: float) -> None:
        """Start the private munged. Raises HadarError when its socket does not come."""
        munge, log = self._places.munge, self._places.log / "munged.log"
        argv: list[str | Path] = [
            self._tools.munged,
            "--force",
            f"--socket={self._places.munge_socket}",
            f"--key-file={munge / 'key'}",
            f"--log-file={log}",
            f"--pid-file={self._pid_file('munged')}",
            f"--seed-file={munge / 'seed'}",
            "--num-threads=4",
        ]
        programs.start(argv, self._env, self._places.log / "munged.out", wait_s)
        if not processes.wait_until(self._places.munge_socket.exists, wait_s):
            raise HadarError(f"munged made no socket within {wait_s:g} s\n{programs.tail(log)}")

    def start_accounting(self, user: str, wait_s: float) -> None:
        """Make an empty database, start MariaDB and slurmdbd on it. Raises HadarError."""
        found = accounting.find(self._tools)
        accounting.make_database(found, self._places, user, wait_s)
        self._launch("mariadbd", accounting.mariadbd_argv(found, self._places, user), wait_s)
        accounting.wait_for_socket(self._places, wait_s)
        more = accounting.environment(self._places)
        self._launch("slurmdbd", [found["slurmdbd"]], wait_s, more)
        sacctmgr: list[str | Path] = [self._tools.bin_dir / "sacctmgr", "-n", "show", "cluster"]

        def answers() -> bool:
            with contextlib.suppress(SlurmError):
                programs.run(sacctmgr, self._env)
                return True
            if self._pid("slurmdbd") is None:
                raise self._ended("slurmdbd")
            return False

        if not processes.wait_until(answers, wait_s):
            log = self._places.log / "slurmdbd.log"
            raise HadarError(f"slurmdbd does not answer within {wait_s:g} s\n{programs.tail(log)}")

    def start_slurmctld(self, wait_s: float) -> None:
        """Start slurmctld and wait until it answers. Raises HadarError when it does not."""
        self._launch("slurmctld", [self._tools.slurmctld], wait_s)
        ping: list[str | Path] = [self._tools.bin_dir / "scontrol", "ping"]

        def answers() -> bool:
            if self._pid("slurmctld") is None:
                raise self._ended("slurmctld")
            with contextlib.suppress(SlurmError):
                return " UP" in programs.run(ping, self._env)
            return False

        if not processes.wait_until(answers, wait_s):
            log = self._places.log / "slurmctld.log"
            raise HadarError(f"slurmctld does not answer within {wait_s:g} s\n{programs.tail(log)}")

    def start_slurmd(self, node: str, wait_s: float) -> None:
        """Start a node's slurmd. Raises HadarError when it ends again."""
        self._launch(f"slurmd.{node}", [self._tools.slurmd, "-N", node], wait_s)

    def _launch(
        self,
        name: str,
        argv: list[str | Path],
        wait_s: float,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if self._pid(name) is not None:
            return
        with contextlib.suppress(FileNotFoundError):
            self._pid_file(name).unlink()
        log = self._places.log / f"{name}.log"
        before = log.stat().st_size if log.exists() else 0
        out = self._places.log / f"{name}.out"
        try:
            programs.start(argv, {**self._env, **more}, out, wait_s)
        except HadarError as error:
            raise HadarError(f"{error}\n{programs.tail(log)}") from None

        def settled() -> bool:
            if _fatal(log, before):
                raise self._ended(name)
            return self._pid(name) is not None

        if not processes.wait_until(settled, wait_s):
            raise self._ended(name)

    def _ended(self, name: str) -> HadarError:
        log = self._places.log / f"{name}.log"
        return HadarError(f"{name} did not start or ended at once\n{programs.tail(log)}")

    def wait_idle(self, nodes: Sequence[str], wait_s: float) -> None:
        """Wait until all ``nodes`` are idle. Raises HadarError with the log of one that is not."""
        self._wait(nodes, ("idle",), wait_s)

    def wait_up(self, nodes: Sequence[str], wait_s: float) -> None:
        """Wait until all ``nodes`` can have jobs, or have some."""
        self._wait(nodes, _UP, wait_s)

    def _wait(self, nodes: Sequence[str], good: Sequence[str], wait_s: float) -> None:
        sinfo: list[str | Path] = [self._tools.bin_dir / "sinfo", "-h", "-N", "-o", "%N %T"]
        end = time.monotonic() + wait_s
        waiting = list(nodes)
        states: dict[str, str] = {}
        while waiting:
            with contextlib.suppress(SlurmError):
                lines = programs.run(sinfo, self._env).splitlines()
                states = dict(line.split() for line in lines)
                waiting = [node for node in nodes if states.get(node) not in good]
            for node in waiting:
                if self._pid(f"slurmd.{node}") is None:
                    raise self._ended(f"slurmd.{node}")
            if waiting and time.monotonic() > end:
                node = waiting[0]
                raise HadarError(
                    f"node {node} is {states.get(node)} after {wait_s:g} s\n"
                    + programs.tail(self._places.log / f"slurmd.{node}.log")
                    + "\n"
                    + programs.tail(self._places.log / "slurmctld.log")
                )
            if waiting:
                time.sleep(0.1)

    def kill_slurmd(self, node: str) -> None:
        """KILL a node's slurmd. Raises HadarError when it does not run."""
        pid = self._pid(f"slurmd.{node}")
        if pid is None:
            raise HadarError(f"no slurmd of node {node} runs")
        processes.send([pid], signal.SIGKILL)
        processes.wait_until(lambda: not processes.is_alive(pid), 5.0)

    def stop_slurmctld(self) -> None:
        """Stop slurmctld, by its own command if it answers."""
        # Not by its pid file, which a reconfigure may remove: since 23.11 it makes another process.
        pids = processes.ours(self._places, ("slurmctld",))
        if not pids:
            return
        with contextlib.suppress(SlurmError):
            scontrol = self._tools.bin_dir / "scontrol"
            programs.run([scontrol, "shutdown", "slurmctld"], self._env, 10.0)
            if processes.wait_until(lambda: not any(map(processes.is_alive, pids)), _STOP_S):
                return
        processes.end(pids, _STOP_S)

    def stop_all(self) -> None:
        """Cancel the jobs, wait for their steps, stop all daemons. KILL is the last resort."""
        self._end_jobs()
        # slurmd first: one that still has to report to a dead slurmctld takes ten seconds to end.
        pids = [self._pid(f"slurmd.{node}") for node in self._nodes]
        processes.end([pid for pid in pids if pid is not None], _STOP_S)
        self.stop_slurmctld()
        for name in reversed(self._accounting):
            pid = self._pid(name)
            processes.end([pid] if pid is not None else [], _STOP_S)
        munged = self._pid("munged")
        if munged is not None:
            processes.end([munged], _STOP_S)
        left = processes.ours(self._places)
        if left:
            below = processes.descendants(left)
            processes.end([*below, *left], 2.0)

    def _end_jobs(self) -> None:
        if self._pid("slurmctld") is not None:
            scancel = self._tools.bin_dir / "scancel"
            for state in ("PENDING", "RUNNING", "SUSPENDED"):
                with contextlib.suppress(SlurmError):
                    programs.run([scancel, "--quiet", f"--state={state}"], self._env, 60.0)

        def none_left() -> bool:
            return not processes.steps(self._places)

        # A step that cannot reach slurmctld would retry for hours, so it must end before.
        if not processes.wait_until(none_left, _STEPS_S):
            below = processes.descendants(processes.steps(self._places))
            processes.send(below, signal.SIGKILL)
            processes.wait_until(none_left, _STEPS_S)


def _fatal(log: Path, start: int) -> bool:
    try:
        with log.open("rb") as stream:
            stream.seek(start)
            said = stream.read()
            return any(word in said for word in _FATAL)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """What runs. ``nodes``: name -> Slurm's state; ``jobs``: state -> number; both empty when
    slurmctld does not answer."""

    folder: Path
    version: str
    daemons: Mapping[str, bool]
    """munged, slurmctld, slurmd of each started node -> whether it runs."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        """Whether all daemons run."""
        return bool(self.daemons) and all(self.daemons.values())

    def plain(self) -> dict[str, object]:
        """As plain data."""
        return {
            "folder": str(self.folder),
            "slurm": self.version,
            "running": self.is_running,
            "daemons": dict(self.daemons),
            "nodes": dict(self.nodes),
            "jobs": dict(self.jobs),
        }

    def __str__(self) -> str:
        """A few lines for a person."""
        if not any(self.daemons.values()):
            return f"The sandbox in {self.folder} is down."
        missing = [name for name, runs in self.daemons.items() if not runs]
        lines = [
            f"The sandbox in {self.folder} is {'up' if not missing else 'partly up'} "
            f"({self.version})."
        ]
        if missing:
            lines.append(f"not running: {', '.join(missing)}")
        if self.nodes:
            states = Counter(self.nodes.values())
            lines.append(
                "nodes: " + ", ".join(f"{number} {state}" for state, number in states.items())
            )
            lines.append(
                "jobs:  "
                + (", ".join(f"{number} {state}" for state, number in self.jobs.items()) or "none")
            )
        return "\n".join(lines)
