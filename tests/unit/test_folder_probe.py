"""A folder that never answers holds nobody up."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hung_folder import gone, hung

from slurm_hadar import folder_probe
from slurm_hadar.exchange.job_side import Exchange
from slurm_hadar.folder_probe import Unanswered, asked, ensure_answers
from slurm_hadar.plugins import programs

LONG_S = 60
"""What a loaded machine may take for what ends after one timeout; the folder never answers."""


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """No process of this user has been left without an answer by another test."""
    monkeypatch.setattr(folder_probe, "_silent", {})
    monkeypatch.setattr(folder_probe, "_answered", {})


def test_what_a_child_found_comes_back(tmp_path):
    assert asked(str(tmp_path), lambda: b"x" * 200_000) == b"x" * 200_000
    ensure_answers(str(tmp_path))
    ensure_answers(str(tmp_path / "none"))

    def refused():
        raise PermissionError(1, "not for you")

    with pytest.raises(OSError, match="not for you"):
        asked(str(tmp_path), refused)


def test_a_folder_that_hangs_is_left_after_one_timeout_and_then_alone(tmp_path):
    with hung(tmp_path / "x") as folder:
        began = time.monotonic()
        with pytest.raises(Unanswered):
            asked(str(folder), lambda: str(Path(folder).stat()).encode(), 1.0)
        assert time.monotonic() - began < LONG_S
        looked: list[bytes] = []
        for again in (lambda: ensure_answers(str(folder)), lambda: asked(str(folder), looked.pop)):
            with pytest.raises(Unanswered):
                again()
        # Nor does another process of this user look.
        folder_probe._silent.clear()
        with pytest.raises(Unanswered):
            asked(str(folder), looked.pop)


def test_a_look_leaves_nothing_and_removes_a_mark_that_is_too_old(tmp_path, monkeypatch):
    own = tmp_path / "own"

    def path(folder, make=False):
        if make:
            own.mkdir(mode=0o700)
        return str(own / "mark")

    monkeypatch.setattr(folder_probe, "_mark_path", path)
    assert asked(str(tmp_path), lambda: b"it answers") == b"it answers"
    assert not own.exists()
    folder_probe._mark(str(tmp_path))
    with pytest.raises(Unanswered):
        asked(str(tmp_path), lambda: b"")
    os.utime(own / "mark", (0, 0))
    assert asked(str(tmp_path), lambda: b"it answers") == b"it answers"
    assert not own.exists()


def program(name, folder):
    path = folder / name
    python = Path(sys.executable)
    path.write_text(programs.program(name, python, folder / "x", os.getuid(), ("open", "free")))
    return path


@pytest.mark.parametrize("name", programs.NAMES)
@pytest.mark.parametrize("managed", [True, False])
def test_the_programs_of_a_node_end_beside_a_hung_folder(tmp_path, name, managed):
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GPUS": "0"}
    if managed:
        env |= {"HADAR_SIGNAL": "USR2", "SLURM_JOB_COMMENT": "[hadar1 types=any]"}
    path = program(name, tmp_path)
    with hung(tmp_path / "x"):
        done = subprocess.run(["sh", path], env=env, capture_output=True, timeout=LONG_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_unmanaged_job_does_not_even_begin_to_look(tmp_path):
    path = program("task_prolog", tmp_path)
    program_text = path.read_text()
    cases: tuple[tuple[dict[str, str], bool], ...] = (
        ({}, False),
        ({"SLURM_JOB_PARTITION": "gpu"}, False),
        ({"HADAR_EXCHANGE": "/x"}, True),
        ({"SLURM_JOB_PARTITION": "free"}, True),
        ({"SLURM_JOB_PARTITION": "open"}, True),
        ({"SLURM_JOB_PARTITION": "ope"}, False),
    )
    for number, (env, looks) in enumerate(cases):
        # A file for each: what runs in the background may touch it late.
        looked = tmp_path / f"looked{number}"
        path.write_text(program_text.replace("timeout ", f"touch {looked}; timeout "))
        subprocess.run(["sh", path], env={"SLURM_JOB_ID": "7", **env}, timeout=LONG_S, check=True)
        assert looked.exists() == looks, env


def test_ticks_end_with_a_sentence_and_the_daemon_at_a_signal(tmp_path):
    me = "root"
    (tmp_path / "slurm.conf").write_text(f"SlurmctldHost=here(127.0.0.1)\nSlurmUser={me}\n")
    (tmp_path / "hadar.toml").write_text(
        f'[site]\nrights = "sandbox"\nmode = "act"\nstate_dir = "{tmp_path}/state"\n'
        f'exchange_dir = "{tmp_path}/x"\n[slurm]\nconf = "{tmp_path}/slurm.conf"\n'
    )
    hadar = [Path(sys.executable).parent / "hadar"]
    config = ["--config", tmp_path / "hadar.toml"]
    with hung(tmp_path / "x"):
        done = subprocess.run(
            [*hadar, "tick", *config], capture_output=True, text=True, timeout=LONG_S
        )
        assert done.returncode == 1 and "no answer" in done.stderr, done.stdout + done.stderr
        with subprocess.Popen(
            [*hadar, "run", *config], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            for line in process.stdout:
                if "no answer" in line:
                    break
            process.send_signal(signal.SIGTERM)
            assert process.wait(LONG_S) == 0


def test_a_training_goes_on_where_the_server_of_its_exchange_folder_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HADAR_EXCHANGE", str(tmp_path / "x"))
    said: list[str] = []
    with gone(tmp_path / "x"):
        with pytest.raises(OSError, match="not connected"):
            (tmp_path / "x").stat()
        assert Exchange.from_env(said.append) is None
    assert len(said) == 1 and "going on without the controller" in said[0]
