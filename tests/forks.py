"""Programs that start as forks of one process which has imported what all of them import: to import
PyTorch takes longer than what a small training does, and to import ``hadar`` longer than a tick.

``Forks("torch").start(program, arguments, env)`` is what ``subprocess.Popen([sys.executable,
program, *arguments], env=env, cwd=cwd, ...)`` with pipes is, as far as tests need it. So it is with
another user and with an input. ``isolated``: for programs whose Python is started with ``-I``.
"""

import atexit
import ctypes
import gc
import json
import os
import pwd
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path

REQUEST_BYTES = 1 << 20
PIPE_BYTES = 1 << 16
_PR_SET_DUMPABLE = 4


class Forked:
    """A program that was started. ``out``, ``err``: where it prints; ``end``: its process ID, then
    its exit code."""

    def __init__(self, out, err, end, mode="r"):
        self.stdout, self.stderr, self._end = (
            os.fdopen(out, mode),
            os.fdopen(err, mode),
            os.fdopen(end),
        )
        self.pid, self.returncode = int(self._end.readline()), None

    def poll(self, timeout=0.0):
        """Its exit code; None while it runs."""
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = int(self._end.readline())
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout):
        """All that it printed, once it has ended."""
        found = {}
        readers = [
            threading.Thread(target=lambda name=name, file=file: found.update({name: file.read()}))
            for name, file in (("out", self.stdout), ("err", self.stderr))
        ]
        for reader in readers:
            reader.start()
        if self.poll(timeout) is None:
            self.kill()
            raise subprocess.TimeoutExpired("a forked program", timeout)
        for reader in readers:
            reader.join()
        for file in (self.stdout, self.stderr, self._end):
            file.close()
        return found["out"], found["err"]


class Forks:
    """The process that imports ``modules``, by name or as a file, and starts programs. Ends with
    ``with``."""

    def __init__(self, *modules, isolated=False, locale=None):
        """``locale``: LC_ALL of the programs, which Python looks at once, when it starts."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._env = {"LC_ALL": locale} if locale else {}
        with theirs:
            options = ["-I"] if isolated else []
            self._process = subprocess.Popen(
                [sys.executable, *options, __file__, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", **self._env},
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()
        self._process.wait(60)

    def start(self, program, arguments, env, cwd=None, *, user=None, text=None):
        """``user``: by name, with his own group only. ``text``: bytes that it reads, no more than a
        pipe holds; what it prints is bytes then. None: our user, our stdin, text."""
        assert self._env.items() <= env.items(), f"the programs are started with {self._env}"
        pipes = [os.pipe() for _ in range(3)]
        ends = [end for _, end in pipes]
        if text is not None:
            assert len(text) <= PIPE_BYTES
            given, feed = os.pipe()
            os.write(feed, text)
            os.close(feed)
            ends.append(given)
        request = {
            "program": str(program),
            "arguments": list(map(str, arguments)),
            "env": env,
            "cwd": str(cwd or Path.cwd()),
            "user": user,
        }
        socket.send_fds(self._socket, [json.dumps(request).encode()], ends)
        for end in ends:
            os.close(end)
        out, err, done = (end for end, _ in pipes)
        return Forked(out, err, done, "r" if text is None else "rb")

    def close(self):
        """As at the end of ``with``."""
        self.__exit__()


def _next(requests):
    """The next program to be, in a process of its own; None: there is none."""
    while True:
        text, ends, _, _ = socket.recv_fds(requests, REQUEST_BYTES, 4)
        if not text:
            return None
        if not os.fork():
            break
        for end in ends:
            os.close(end)
    out, err, end, *given = ends
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        for one in (out, err, *given):
            os.close(one)
        os.write(end, f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(end, f"{code}\n".encode())
        os._exit(0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    if given:
        os.dup2(given[0], 0)
    for one in ends:
        os.close(one)
    return json.loads(text)


def _become(user):
    """Another user, with his own group only, as by ``subprocess`` and a start of Python: the kernel
    shows him his own process in /proc."""
    who = pwd.getpwnam(user)
    os.setgroups([who.pw_gid])
    os.setresgid(who.pw_gid, who.pw_gid, who.pw_gid)
    os.setresuid(who.pw_uid, who.pw_uid, who.pw_uid)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _run(program):
    """Run a program and end as Python would, but leave the memory to the kernel: to take apart all
    that is imported costs more CPU time than most of the programs."""
    code = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, int):
            code = left.code
        elif left.code:
            print(left.code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # As at the end of any Python.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main():
    # What is imported stays: no process looks through it for garbage, which would also copy it.
    gc.disable()
    first = sys.path[0]
    for name in sys.argv[2:]:
        if name.endswith(".py"):
            sys.path[0] = str(Path(name).parent)
        import_module(Path(name).stem if name.endswith(".py") else name)
    if sys.flags.isolated:
        sys.path[0] = first
    gc.freeze()
    gc.enable()
    # Nothing waits for the processes between this one and the programs.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    request = _next(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        os.chdir(request["cwd"])
        if request["user"]:
            _become(request["user"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = [request["program"], *request["arguments"]]
        if not sys.flags.isolated:
            sys.path[0] = str(Path(request["program"]).parent)
        _run(request["program"])


if __name__ == "__main__":
    main()
