import socket

import pytest

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.sandbox import ports, programs


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
