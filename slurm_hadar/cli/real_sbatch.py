"""The real sbatch: found, and become or run, so that all it says and returns is its own."""
# pathlib alone would cost a submit several milliseconds.
# ruff: noqa: PTH113, PTH117, PTH118, PTH121, PTH123

from __future__ import annotations

import os
import signal
import sys

from slurm_hadar.cli.batch_script import read_regular
from slurm_hadar.domain.errors import HadarError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from slurm_hadar.cli.sbatch_stderr import SbatchStderr

_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; sbatch must not."""
_OF_TERMINALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (*_OF_TERMINALS, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


def become_sbatch(program: str, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by sbatch with these arguments.

    Raises :class:`HadarError` where it cannot be run.
    """
    for number in _PYTHONS_OWN:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, ["sbatch", *words], without_pythons_traces(environment))
    except OSError as error:
        raise HadarError(f"{program} cannot be run: {error.strerror}") from None


def run_sbatch(
    program: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    meanwhile: Callable[[], None],
    messages: SbatchStderr | None = None,
) -> int:
    """Run sbatch with these arguments as a child, with this process's own input and output, and
    call ``meanwhile`` beside it. ``messages``: take its stderr; what they hold at its end is the
    caller's to show.

    Signals that this process gets go on to it, and a signal that ends it ends this process too.
    Returns its exit code. Raises :class:`HadarError` where it cannot be run.
    """
    # Blocked first, so that none is lost; sbatch starts with the mask that this process had.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    try:
        child = os.posix_spawn(
            program,
            ["sbatch", *words],
            without_pythons_traces(environment),
            setsigmask=before,
            setsigdef=_PYTHONS_OWN,
            file_actions=[(os.POSIX_SPAWN_DUP2, messages.writes, 2)] if messages else (),
        )
    except OSError as error:
        raise HadarError(f"{program} cannot be run: {error.strerror}") from None
    if messages:
        messages.begin()
    meanwhile()
    while True:
        got = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if got.si_signo != signal.SIGCHLD:
            # What a terminal sends comes from the kernel, and sbatch has it already.
            if got.si_code <= 0 or got.si_signo not in _OF_TERMINALS:
                os.kill(child, got.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if os.WIFSIGNALED(status):
        if messages:
            messages.end()
            messages.show()
        _end_by(os.WTERMSIG(status))
    return os.waitstatus_to_exitcode(status)


def _end_by(number: int) -> None:
    import resource

    # sbatch has left its own core, if any.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def find_sbatch(named: str, environment: Mapping[str, str]) -> str:
    """The real sbatch; never hbatch itself, nor a script that comes back to hbatch.

    ``named``: its path, or just ``sbatch``. Raises :class:`HadarError` where there is none.
    """
    passed = ""
    folders = environment.get("PATH", os.defpath).split(":")
    candidates = [named] if os.path.isabs(named) else []
    for candidate in (*candidates, *(os.path.join(one or ".", "sbatch") for one in folders)):
        if not _can_be_sbatch(candidate):
            continue
        if not comes_back(candidate, environment):
            return candidate
        passed = passed or candidate
    if passed:
        raise HadarError(
            f"{passed} calls hbatch, and there is no other sbatch on PATH; have it call Slurm's "
            "own sbatch by its whole path, or set slurm.bin_dir in the site's configuration"
        )
    raise HadarError("there is no sbatch on PATH; add the folder of Slurm's commands to it")


GUARD = "HADAR_WHO_IS_SBATCH"
"""In the environment of an sbatch that is only asked for its version: hbatch answers, and submits
nothing. No submit has it, so no job does."""
ANSWER = "hbatch of slurm-hadar"


def comes_back(program: str, environment: Mapping[str, str]) -> bool:
    """Whether an sbatch is a script that calls hbatch: it would do so without end."""
    if not _start(program).startswith(b"#!"):
        return False
    return ANSWER.encode() in _asked(program, {**environment, GUARD: "1"}, "--version", 5.0)[1]


def knows(program: str, option: str, environment: Mapping[str, str]) -> bool:
    """Whether sbatch's own help has an option; True where it cannot be asked."""
    code, said = _asked(program, environment, "--help", 20.0)
    return code != 0 or option.encode() in said


def _asked(
    program: str, environment: Mapping[str, str], question: str, timeout_s: float
) -> tuple[int, bytes]:
    """Exit code and stdout of an sbatch that submits nothing; -1 where it does not answer."""
    import subprocess

    try:
        with subprocess.Popen(
            [program, question],
            env=without_pythons_traces(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as running:
            try:
                said, _ = running.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                # With all that a script has started.
                os.killpg(running.pid, signal.SIGKILL)
                return -1, b""
    except OSError:
        return -1, b""
    return running.returncode, said


def _can_be_sbatch(path: str) -> bool:
    if not os.access(path, os.X_OK) or not os.path.isfile(path) or is_same(path, sys.argv[0]):
        return False
    start = _start(path)
    return not (start.startswith(b"#!") and b"slurm_hadar.cli.hbatch" in start)


def _start(path: str) -> bytes:
    """How a program's file begins; empty where it cannot be read."""
    try:
        return read_regular(path, 512)
    except OSError:
        return b""


def is_same(one: str, other: str) -> bool:
    """Whether two paths are one file, or equal where there is none."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other


def without_pythons_traces(environment: Mapping[str, str]) -> dict[str, str]:
    """Neither sbatch nor the job may notice that a Python came first and coerced the locale."""
    kept = dict(environment)
    if kept.get("LC_CTYPE") in _COERCED:
        with open("/proc/self/environ", "rb") as stream:
            if b"\0LC_CTYPE=" not in b"\0" + stream.read():
                del kept["LC_CTYPE"]
    return kept
