"""A command that is asked to end leaves nothing running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

HADAR = str(Path(sys.executable).parent / "hadar")


def running_below(folder):
    """Processes whose command line names the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in words:
            found.append(words)
    return found


@pytest.mark.parametrize(
    ("words", "log", "number"),
    [
        (("demo", "--folder"), "typed/slurm/log/slurmctld.log", signal.SIGTERM),
        (("sandbox", "up"), "log/munged.log", signal.SIGHUP),
    ],
)
def test_nothing_is_left_of_a_sandbox(tmp_path, words, log, number):
    folder = tmp_path / "box"
    # Where the tests run under nohup, what is ignored there would be inherited.
    process = subprocess.Popen(
        [HADAR, *words, str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        end = time.monotonic() + 120
        while not (folder / log).exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate(timeout=120)[1]
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in said
    assert not running_below(folder)
