"""Whose processes are a sandbox's, and that they end with all that they began."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.sandbox import processes
from slurm_hadar.sandbox.places import SandboxPaths

_BEGINS_OTHERS = """
import os, sys, time
for _ in range(400):
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)
    time.sleep(0.001)
time.sleep(300)
"""


def test_what_begins_others_as_it_is_killed_leaves_none_behind():
    mark = f"hadar-test-{os.getpid()}"
    top = subprocess.Popen([sys.executable, "-c", _BEGINS_OTHERS, mark])
    try:
        assert processes.wait_until(lambda: len(_marked(mark)) > 20, 60)
        processes.kill_trees([top.pid])
        assert processes.wait_until(lambda: not _marked(mark), 10)
    finally:
        top.kill()
        top.wait()
        processes.send(_marked(mark), signal.SIGKILL)


def _marked(mark):
    """Live processes with this word in their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        pid = int(path.parent.name)
        if mark.encode() in words and processes.is_alive(pid):
            found.append(pid)
    return found


def test_strangers_and_the_dead_are_not_ours(tmp_path):
    places = SandboxPaths(tmp_path, tmp_path / "run")
    pid_file = tmp_path / "pid"
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={"SLURM_CONF": str(places.slurm_conf)},
    )
    try:
        pid_file.write_text(f"{stranger.pid}\n")
        assert processes.is_alive(stranger.pid)
        assert processes.pid_of(pid_file, places) is None
        assert stranger.pid in processes.descendants([os.getpid()])
    finally:
        stranger.kill()
        # Not reaped yet: a zombie counts as ended.
        assert processes.wait_until(lambda: not processes.is_alive(stranger.pid), 60)
        stranger.wait()
    pid_file.write_text("nonsense")
    assert processes.pid_of(pid_file, places) is None
    assert processes.pid_of(Path("/nowhere/pid"), places) is None


@pytest.mark.parametrize(
    ("name", "run", "known"),
    [
        ("munged", "box/run", True),
        ("munged", "/tmp/hadar-short", True),
        ("munged", "elsewhere", False),
        ("other", "box/run", False),
    ],
)
def test_a_sandbox_without_its_record_is_known_by_its_munged(tmp_path, name, run, known):
    folder, run = tmp_path / "box", tmp_path / run
    program = tmp_path / name
    program.write_text("#!/bin/sh\nread -r _\n")
    program.chmod(0o755)
    words = [f"--socket={run}/munge.sock", f"--key-file={folder}/munge/key"]
    with subprocess.Popen([program, *words], stdin=subprocess.PIPE) as daemon:
        comm = Path(f"/proc/{daemon.pid}/comm")
        assert processes.wait_until(lambda: comm.read_text().strip() == name, 60)
        found = processes.without_record(folder)
        assert found == (SandboxPaths(folder, run) if known else None)
        assert processes.without_record(tmp_path) is None
        daemon.communicate(b"\n")
    assert processes.without_record(folder) is None
