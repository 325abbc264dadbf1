"""A program that is started as a fork is what ``subprocess`` would have started."""

import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from forks import Forks

LOCALE = "C.UTF-8"
SHOWS = """
import json, os, signal, sys
print(json.dumps({
    "words": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "read": sys.stdin.read(),
    "users": os.getresuid(), "groups": [os.getresgid(), os.getgroups()], "path": sys.path,
    "isolated": sys.flags.isolated, "umask": os.umask(0), "name": __name__,
    "streams": [(one.errors, one.encoding) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": [str(signal.getsignal(one)) for one in (2, 10, 13, 15, 17)],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "open": sorted(map(int, os.listdir("/proc/self/fd"))),
}))
print("said", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program():
    """Other users can read it, unlike what is in pytest's folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "shows.py")
        path.write_text(SHOWS)
        yield path


@pytest.mark.parametrize("user", [None, "backup"])
def test_a_fork_is_what_a_start_of_the_program_is(program, user):
    if user and os.getuid():
        pytest.skip("only root can act as other users")
    who = pwd.getpwnam(user) if user else None
    identity: dict[str, Any] = (
        {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": [who.pw_gid]} if who else {}
    )
    env = {"LC_ALL": LOCALE, "A": "b"}
    with Forks("json", "signal", isolated=True, locale=LOCALE) as forks:
        for code in (0, 3):
            words = [str(code), "\udce9 x"]
            started = subprocess.run(
                [sys.executable, "-I", str(program), *words],
                env=env,
                cwd="/",
                input=b"given",
                capture_output=True,
                **identity,
            )
            forked = forks.start(program, words, env, "/", user=user, text=b"given")
            out, err = forked.communicate(60)
            assert (out.decode(), err) == (started.stdout.decode(), started.stderr)
            assert forked.returncode == started.returncode == code
