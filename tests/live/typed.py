"""``hadar`` as people type it, each command a fork of a process that has imported it (see
``forks.py``): the imports take 0.6 s of its 0.8 s of CPU time.

For tests that say nothing about how it starts. ``test_cli.py`` and others start it as users do.
"""

import atexit
import subprocess
import sys
from functools import cache
from pathlib import Path

from forks import PIPE_BYTES, Forks

HADAR = Path(sys.executable).parent / "hadar"
LOCALE = "C.UTF-8"
_COMMANDS = ("main", "controller_commands", "doctor", "jobs", "retire", "site", "status")
"""Modules of :mod:`slurm_hadar.cli`; they import most of what their commands need."""
_LATE = ("slurm_hadar.policies.timetable.policy", "slurm_hadar.slurm.backend_choice")
"""What a tick imports only when it comes to it. Never ``pyslurm``, which takes its slurm.conf then.
"""


@cache
def _forks():
    """For all tests of this process of pytest."""
    modules = [*(f"slurm_hadar.cli.{name}" for name in _COMMANDS), *_LATE]
    modules.append(str(Path(__file__).with_name("probed_once.py")))
    forks = Forks(*modules, isolated=True, locale=LOCALE)
    atexit.register(forks.close)
    return forks


def can_fork(env, text):
    """Whether nothing in it would act on the start of its Python, which reads no PYTHONPATH."""
    loads = any(name.startswith("LD_") for name in env)
    return not loads and env.get("LC_ALL") == LOCALE and len(text) <= PIPE_BYTES


def ran(words, env, cwd, *, user=None, text=b""):
    """The command ``hadar WORDS``, as ``subprocess.run`` would tell of it, in bytes."""
    started = _forks().start(HADAR, words, env, cwd, user=user, text=text)
    out, err = started.communicate(120)
    return subprocess.CompletedProcess([str(HADAR), *words], started.returncode, out, err)


def hadar(env, *arguments, command="main"):
    """The same as our user, here, in text. ``command``: another module of :mod:`slurm_hadar.cli`,
    which starts as a process of its own."""
    if command == "main":
        done = ran(arguments, {**env, "LC_ALL": LOCALE}, Path.cwd())
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    else:
        argv = [sys.executable, "-m", f"slurm_hadar.cli.{command}", *arguments]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=90)
    assert "Traceback" not in done.stderr
    return done
