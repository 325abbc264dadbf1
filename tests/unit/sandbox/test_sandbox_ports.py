import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox import ports, processes, programs
from slurm_hadar.sandbox.places import Places


def test_held_ports_are_taken_for_others_and_free_for_a_daemon():
    with ports.Ports(20) as held:
        assert len(set(held.numbers)) == 20
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", held.numbers[0]))
        with socket.socket() as daemon:
            daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            daemon.bind(("127.0.0.1", held.numbers[0]))
            daemon.listen()
            with socket.create_connection(("127.0.0.1", held.numbers[0]), 1):
                pass


def test_two_sandboxes_get_different_ports(monkeypatch):
    monkeypatch.setattr(ports, "_HIGHEST", ports._LOWEST + 60)
    with ports.Ports(15) as one, ports.Ports(15) as two:
        assert not set(one.numbers) & set(two.numbers)


def test_no_ports_left_is_said(monkeypatch):
    monkeypatch.setattr(ports, "_HIGHEST", ports._LOWEST + 3)
    with pytest.raises(HadarError, match="no 5 free ports"):
        ports.Ports(5)


def test_missing_programs_are_named_with_a_cure(tmp_path, monkeypatch):
    with pytest.raises(HadarError, match=rf"slurmctld under {tmp_path}; apt-get install"):
        programs.find(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "_SYSTEM_PATH", str(tmp_path))
    with pytest.raises(HadarError, match="on PATH; apt-get install"):
        programs.find()


def test_commands_get_a_clean_environment(monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "/elsewhere")
    monkeypatch.setenv("SBATCH_PARTITION", "x")
    monkeypatch.setenv("LD_PRELOAD", "")
    env = programs.environment({"A": "b"})
    assert env["A"] == "b" and env["LC_ALL"] == "C"
    assert not [key for key in env if key.startswith(("SLURM", "SBATCH", "LD_"))]


def test_a_failing_command_says_why():
    with pytest.raises(HadarError, match=r"sh failed \(exit 3\): because"):
        programs.run(["/bin/sh", "-c", "echo because >&2; exit 3"], {})
    with pytest.raises(HadarError, match="did not answer within"):
        programs.run(["/bin/sleep", "5"], {}, 0.1)


def test_strangers_and_the_dead_are_not_ours(tmp_path):
    places = Places(tmp_path, tmp_path / "run")
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
