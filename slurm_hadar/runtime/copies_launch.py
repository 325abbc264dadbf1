"""Start copies on the nodes of this job, and start them again when the step breaks.

``exec python -m slurm_hadar.runtime.copies_launch -- python train.py`` in a batch script.

One task per node under ``srun --mpi=pmi2 --kill-on-bad-exit=1``. Around each task stands a guard: a
copy that dies ends with exit code 0 for Slurm, so the others go on without it; the death of rank 0,
which keeps the parameters, ends the step at once, and it begins again from the checkpoint.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.job_side import Exchange
from slurm_hadar.runtime.attempts import SUPERSEDED
from slurm_hadar.runtime.without_gpus import GAVE_NONE, WAIT_S, another_start, given_none

TRACKER_LOST = 75
WITHOUT_SOME = 76
"""Exit code of rank 0's guard when all work is done but some copies did not come to the end."""
LEFT_ON_TERM = 128 + 15
MARK = "HADAR_COPIES_MARK"
ENDED = "HADAR_COPIES_ENDED"
"""Environment variable: name of the socket to which the guard of rank 0 sends its exit code. It is
in the abstract namespace, so no file stays where all are killed."""
_TRIES = 3
_SHORT_S = 60.0
"""A step that lasted longer made progress: the tries are counted anew."""
_KILL_S = 10.0
_MPI_FAILED = 15
"""Exit code of MPICH when it could not begin."""
_NO_STEP = 78
"""Exit code that stands here for srun's when Slurm refused or could not start the step."""
_PAUSE_S = 2.0
_MPI = {"MPIR_CVAR_CH4_NETMOD": "ofi"}
"""Environment of the step, where the user set no other. MPICH 5.0's other way through the network,
ucx, hands Slurm an address with whatever lies behind it in memory; where that makes a line of more
than 1,024 bytes, Slurm cuts it and the start fails or hangs (seen with Slurm 22.05.8)."""
_MODULE = "slurm_hadar.runtime.copies_launch"


def srun_argv(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The ``srun`` that starts one guarded task on each node of the allocation.

    Raises UsageError outside of a job.
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if not nodes.isdecimal():
        raise UsageError("copies are launched inside a job's batch script; submit it with hbatch")
    # srun does not take this over from sbatch by itself since Slurm 22.05.
    cpus = environment.get("SLURM_CPUS_PER_TASK", "")
    # The allocation may have another number of tasks after a requeue: all is said anew.
    return [
        "srun",
        "--mpi=pmi2",
        "--kill-on-bad-exit=1",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        *([f"--cpus-per-task={cpus}"] if cpus.isdecimal() else []),
        *(sys.executable, "-m", _MODULE, "--guard", "--"),
        *command,
    ]


def supervise(command: Sequence[str]) -> int:
    """Run the step until the work is done; its exit code for the batch script."""
    argv = srun_argv(command, os.environ)
    # What the submission said of tasks holds for its own size only.
    stale = ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    kept = {key: value for key, value in os.environ.items() if key not in stale}
    environment = {**_MPI, **kept, "SLURM_EXIT_ERROR": str(_NO_STEP)}
    asked = _Asked()
    name = f"hadar-copies-{secrets.token_hex(16)}"
    environment[ENDED] = name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ended:
        ended.bind(f"\0{name}")
        return _until_done(argv, environment, asked, ended)


def _until_done(
    argv: Sequence[str], environment: Mapping[str, str], asked: "_Asked", ended: socket.socket
) -> int:
    failures = 0
    if _began_without_gpus(asked):
        return LEFT_ON_TERM
    while True:
        began = time.monotonic()
        _forget_codes(ended)
        code = _run(argv, environment, asked)
        if asked.leave:
            return LEFT_ON_TERM
        if code in (0, WITHOUT_SOME):
            return 0
        foreign = code == SUPERSEDED and _ended_otherwise(ended)
        if 0 < code < 128 and code not in (TRACKER_LOST, _MPI_FAILED, _NO_STEP) and not foreign:
            # The program's own error, or a later attempt: to try again would fail again.
            return code
        failures = 1 if time.monotonic() - began > _SHORT_S else failures + 1
        if failures > _TRIES:
            if code == _NO_STEP and _requeued(asked):
                return LEFT_ON_TERM
            _say(f"the step broke {failures} times in a row (last exit code {code}); giving up")
            return code if code > 0 else 128 - code
        _say(f"the step broke (exit code {code}); going on from the checkpoint")
        if code == _NO_STEP:
            asked.wait(_PAUSE_S)


def _forget_codes(ended: socket.socket) -> None:
    """Those of the steps before."""
    ended.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ended.recv(16)


def _ended_otherwise(ended: socket.socket) -> bool:
    """Whether the guard of rank 0 left another exit code than the one that srun reports.

    Steps of two attempts of a job have one name. When a node that Slurm had lost answers again,
    the end of the old step there counts as that of the new one, which Slurm then ends: srun has the
    old one's 77 (seen with 22.05.8). Without a word of the guard srun is believed: an attempt that
    is really superseded must not begin again, or it would supersede the later one.
    """
    ended.settimeout(_KILL_S)
    with contextlib.suppress(OSError, ValueError):
        return int(ended.recv(16)) != SUPERSEDED
    return False


def _requeued(asked: "_Asked") -> bool:
    """Ask Slurm for another start where it takes no step of this one, though the attempt before
    trained; True when it then ends this attempt.

    When a node goes down while its job is being requeued, Slurm 22.05.8 loses the job's GPUs and
    refuses the steps of the next attempt.
    """
    exchange, why = Exchange.from_env(_say), "Slurm takes no step of this attempt"
    if exchange is None or asked.leave:
        return False
    if not another_start(exchange, why, _say, at_first=False):
        return False
    asked.wait(WAIT_S)
    return asked.leave


def _began_without_gpus(asked: "_Asked") -> bool:
    """Like :func:`_requeued` where this node's GPUs are missing; the other nodes' are not seen."""
    exchange = Exchange.from_env(_say)
    if exchange is None or asked.leave or not given_none(exchange):
        return False
    if not another_start(exchange, GAVE_NONE, _say, at_first=True):
        return False
    asked.wait(WAIT_S)
    return True


def guard(command: Sequence[str]) -> int:
    """Run one copy; the exit code that Slurm should see of it.

    0 for a copy that died: the others go on. TRACKER_LOST passes, since then no process is left to
    end the step.
    """
    rank = os.environ.get("SLURM_PROCID", "0")
    for number in (signal.SIGTERM, signal.SIGUSR2):
        # The copy gets them too, and this process must not end before it.
        signal.signal(number, _ignore)
    # Made by the copy, and only when it is needed: a guard that is killed leaves nothing behind.
    mark = Path(tempfile.gettempdir()) / f"hadar-copies-{secrets.token_hex(16)}"
    environment = {**_network(os.environ), **os.environ, MARK: str(mark)}
    # The launcher of MPI talks to the copy through an open file that this process inherited.
    child = subprocess.Popen(command, env=environment, close_fds=False, preexec_fn=_deaf)
    code = child.wait()
    code = code if code >= 0 else 128 - code
    marked = mark.exists()
    mark.unlink(missing_ok=True)
    if rank == "0":
        code = WITHOUT_SOME if code == 0 and marked else code
        _send_code(code)
        return code
    if code and code != LEFT_ON_TERM:
        _say(f"copy {rank} ended with exit code {code}; the others go on without it")
    return code if code == TRACKER_LOST else 0


def _send_code(code: int) -> None:
    """Tell the launcher on this node, which may hear another one from Slurm."""
    name = os.environ.get(ENDED)
    if name and code:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.setblocking(False)
            end.sendto(str(code).encode(), f"\0{name}")


def _network(environment: Mapping[str, str]) -> dict[str, str]:
    """Where MPI listens: on loopback alone when all of Slurm is there, as in a sandbox."""
    if not environment.get("SLURM_LAUNCH_NODE_IPADDR", "").startswith("127."):
        return {}
    return {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}


class _Asked:
    """Whether TERM came, and to whom it is passed on."""

    def __init__(self) -> None:
        self.leave = False
        self.child: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._note)
        signal.signal(signal.SIGUSR2, _ignore)

    def wait(self, seconds: float) -> None:
        """Until TERM came, at most so long."""
        end = time.monotonic() + seconds
        while not self.leave and time.monotonic() < end:
            time.sleep(0.2)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.leave = True
        if self.child is not None:
            with contextlib.suppress(OSError):
                self.child.send_signal(signal.SIGTERM)


def _run(argv: Sequence[str], environment: Mapping[str, str], asked: _Asked) -> int:
    if asked.leave:
        return LEFT_ON_TERM
    asked.child = subprocess.Popen(argv, env=dict(environment))
    try:
        return asked.child.wait()
    finally:
        asked.child = None


def _deaf() -> None:
    """The wish to save may come before the training listens: it must not end it."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def _say(line: str) -> None:
    print(f"hadar: {line}", file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """``[--guard] -- COMMAND ...``; returns the exit code."""
    given = list(sys.argv[1:] if words is None else words)
    what: Callable[[Sequence[str]], int] = supervise
    if given[:1] == ["--guard"]:
        what, given = guard, given[1:]
    if given[:1] == ["--"]:
        given = given[1:]
    if not given:
        _say("say what to start: python -m slurm_hadar.runtime.copies_launch -- python train.py")
        return 2
    try:
        return what(given)
    except (UsageError, OSError) as error:
        _say(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
