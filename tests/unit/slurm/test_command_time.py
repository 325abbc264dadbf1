"""How long a command may take: a silent one ``timeout_s``, one that answers in parts longer."""

import os
import subprocess
import sys
import time

import pytest

from slurm_hadar.slurm import output

ENV = dict(os.environ)


def ran(script: str, timeout_s: float) -> tuple[int, str, float]:
    """Exit status, output and s."""
    parts: list[bytes] = []
    began = time.monotonic()
    code, _ = output.run(["sh", "-c", script], b"", ENV, timeout_s, parts.append)
    return code, b"".join(parts).decode(), time.monotonic() - began


def test_an_answer_that_comes_in_parts_may_take_longer_than_one_that_does_not_come() -> None:
    """As squeue's of 60,000 jobs on a busy machine."""
    code, said, took_s = ran("for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done", 2.0)
    assert (code, said) == (0, "1\n2\n3\n4\n5\n6\n") and took_s > 2.5


def test_a_command_that_works_in_silence_is_waited_for() -> None:
    """squeue prints the first byte of its JSON when it has made all of it."""
    script = f"""exec {sys.executable} -c 'import time
while time.process_time() < 3.2: pass
print("done")'"""
    code, said, _ = ran(script, 3.0)
    assert (code, said) == (0, "done\n")


def test_a_command_that_works_for_ever_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ran("while :; do :; done", 0.2)


def test_a_command_that_falls_silent_in_its_answer_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        ran("echo 1; exec sleep 60", 0.5)
    assert time.monotonic() - began < 30


def test_an_answer_without_an_end_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ran("while :; do echo 1; sleep 0.02; done", 0.2)


def test_complaints_are_no_answer() -> None:
    """Standard error is what a command that cannot reach slurmctld keeps printing."""
    with pytest.raises(subprocess.TimeoutExpired):
        ran("while :; do echo 1 >&2; sleep 0.02; done", 0.5)
