"""The launcher and the guard around each copy, without Slurm: exit codes and what they mean."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.files import write_json
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.runtime import copies_launch

MODULE = [sys.executable, "-m", "slurm_hadar.runtime.copies_launch"]


def guarded(rank: int, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MODULE, "--guard", "--", sys.executable, "-c", program],
        env={**os.environ, "SLURM_PROCID": str(rank)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("rank", "program", "code"),
    [
        (0, "raise SystemExit(0)", 0),
        (0, "raise SystemExit(3)", 3),
        (0, "raise SystemExit(143)", 143),
        (0, "import os; os.kill(os.getpid(), 9)", 137),
        (0, "import os; open(os.environ['HADAR_COPIES_MARK'], 'w')", copies_launch.WITHOUT_SOME),
        (1, "raise SystemExit(3)", 0),
        (1, "import os; os.kill(os.getpid(), 9)", 0),
        (1, f"raise SystemExit({copies_launch.TRACKER_LOST})", copies_launch.TRACKER_LOST),
    ],
)
def test_what_slurm_sees_of_a_copy(rank, program, code):
    done = guarded(rank, program)
    assert done.returncode == code
    assert ("the others go on without it" in done.stderr) == (rank == 1)


def test_the_wish_to_save_does_not_end_a_copy_that_does_not_listen_yet():
    done = guarded(0, "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); print('alive')")
    assert done.returncode == 0 and done.stdout == "alive\n"


def fake_srun(folder, lines: str) -> dict[str, str]:
    """A stand-in for Slurm's program, which is not what is tested here."""
    program = folder / "srun"
    program.write_text(f"#!/bin/bash\necho try >> {folder}/tries\n{lines}\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NUM_NODES": "3"}


@pytest.mark.parametrize(
    ("lines", "code", "tries"),
    [
        ("exit 0", 0, 1),
        ("exit 76", 0, 1),
        ("exit 2", 2, 1),
        ("kill -9 $$", 137, 4),
        ("[ $(wc -l < $(dirname $0)/tries) = 2 ] || exit 137", 0, 2),
        ("[ $(wc -l < $(dirname $0)/tries) = 2 ] || exit 75", 0, 2),
    ],
)
def test_a_step_that_broke_begins_again_but_not_for_ever(tmp_path, lines, code, tries):
    done = subprocess.run(
        [*MODULE, "--", "train"],
        env=fake_srun(tmp_path, lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert len((tmp_path / "tries").read_text().splitlines()) == tries


@pytest.mark.parametrize(("left", "tries"), [("143", 2), ("77", 1), ("", 1)])
def test_the_end_of_a_hidden_attempt_is_not_that_of_this_one(tmp_path, left, tries):
    """Slurm hands srun the 77 of another attempt's step, which has the same name."""
    sent = (
        f"{sys.executable} -c 'from slurm_hadar.runtime import copies_launch as one; "
        f"one._send_code({left or 0})'"
    )
    second = "[ $(wc -l < $(dirname $0)/tries) = 2 ] && exit 0"
    environment = fake_srun(tmp_path, f"{second}\n{sent}\nexit 77")
    program = "import sys; from slurm_hadar.runtime import copies_launch as one; one._KILL_S = 0.5"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(one.main(['--', 'train']))"],
        env={**environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (0 if tries == 2 else 77), done.stderr
    assert len((tmp_path / "tries").read_text().splitlines()) == tries
    assert not list(tmp_path.glob("hadar-copies-*"))


def test_the_code_of_an_earlier_step_is_not_taken_for_that_of_this_one(tmp_path):
    """The first step breaks, the second is really superseded and its guard was killed."""
    first = "[ $(wc -l < $(dirname $0)/tries) = 1 ] || exit 77"
    send = "from slurm_hadar.runtime import copies_launch as one; one._send_code(137)"
    environment = fake_srun(tmp_path, f"{first}\n{sys.executable} -c '{send}'\nexit 137")
    program = "import sys; from slurm_hadar.runtime import copies_launch as one; one._KILL_S = 0.5"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(one.main(['--', 'train']))"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 77, done.stderr
    assert len((tmp_path / "tries").read_text().splitlines()) == 2


@pytest.mark.parametrize(("rank", "sent"), [(0, b"143"), (1, None)])
def test_the_guard_of_rank_0_sends_its_exit_code(monkeypatch, rank, sent):
    name = f"hadar-copies-test-{os.getpid()}"
    monkeypatch.setenv("HADAR_COPIES_ENDED", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as launcher:
        launcher.bind(f"\0{name}")
        launcher.setblocking(False)
        guarded(rank, "raise SystemExit(143)")
        try:
            found = launcher.recv(16)
        except BlockingIOError:
            found = None
    assert found == sent


def test_a_guard_whose_launcher_was_killed_ends_as_ever(monkeypatch):
    monkeypatch.setenv("HADAR_COPIES_ENDED", "hadar-copies-gone")
    done = guarded(0, "raise SystemExit(143)")
    assert done.returncode == 143 and "Error" not in done.stderr


@pytest.mark.parametrize(("before", "asks"), [(None, False), (0, False), (1, True)])
def test_slurm_is_asked_to_requeue_where_it_takes_no_step_of_a_training(tmp_path, before, asks):
    """``before``: the attempt that last reported its progress; this one is the third."""
    environment = fake_srun(tmp_path, "exit $SLURM_EXIT_ERROR")
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\necho $* > {tmp_path}/asked\nkill $PPID\n")
    (tmp_path / "scontrol").chmod(0o755)
    if before is not None:
        progress = Progress("7", 1.0, before, "n", 1, True, 1.0, "m", 5, 1.0, 1.0, 8, 1)
        write_json(tmp_path / f"progress.7.{'a' * 16}.json", asdict(progress))
    environment |= {
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "2",
        "HADAR_EXCHANGE": str(tmp_path),
    }
    done = subprocess.run(
        [*MODULE, "--", "train"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert len((tmp_path / "tries").read_text().splitlines()) == 4
    assert (tmp_path / "asked").exists() == asks
    if asks:
        assert (tmp_path / "asked").read_text() == "requeue Incomplete 7\n"
        assert done.returncode == copies_launch.LEFT_ON_TERM
    else:
        assert "giving up" in done.stderr and done.returncode == 78


def test_term_reaches_the_step_and_nothing_begins_again(tmp_path):
    lines = "trap 'exit 137' TERM\ntouch $(dirname $0)/up\nwhile :; do sleep 0.05; done"
    process = subprocess.Popen([*MODULE, "--", "train"], env=fake_srun(tmp_path, lines))
    until = time.monotonic() + 60
    while not (tmp_path / "up").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=60) == copies_launch.LEFT_ON_TERM
    assert len((tmp_path / "tries").read_text().splitlines()) == 1


def test_the_step_takes_the_allocation_as_it_is_now():
    environment = {"SLURM_JOB_NUM_NODES": "5", "SLURM_NTASKS": "2"}
    argv = copies_launch.srun_argv(["python", "train.py", "--lr", "0.1"], environment)
    assert argv[:2] == ["srun", "--mpi=pmi2"]
    assert {"--kill-on-bad-exit=1", "--nodes=5", "--ntasks=5", "--ntasks-per-node=1"} <= {*argv}
    assert argv[-4:] == ["python", "train.py", "--lr", "0.1"]
    assert not any("cpus" in word for word in argv)
    more = copies_launch.srun_argv(["x"], {**environment, "SLURM_CPUS_PER_TASK": "4"})
    assert "--cpus-per-task=4" in more
    with pytest.raises(UsageError, match="inside a job"):
        copies_launch.srun_argv(["x"], {})


def test_nothing_to_start_is_said_in_one_sentence(capsys):
    assert copies_launch.main(["--"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
