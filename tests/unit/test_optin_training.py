"""The training of the opt-in benchmark reports the restart that it measured."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_hadar.exchange import progress
from slurm_hadar.exchange.progress import Progress

TRAINING = Path(__file__).parents[2] / "benchmarks" / "optin" / "training.py"
RESTART_S, AWAY_S = 0.3, 0.5


@contextlib.contextmanager
def attempt(folder: Path, restarts: int, samples: int) -> "Iterator[subprocess.Popen[bytes]]":
    pace = folder / "true_rates.json"
    pace.write_text(
        json.dumps({"nodes": {"n1": ["v100", 1]}, "rates": {"lm": {"v100": {"1": 10.0}}}})
    )
    environment = {
        **os.environ,
        "HADAR_TRUE_RATES": str(pace),
        "HADAR_EXCHANGE": str(folder),
        "HADAR_PROGRESS_S": "0.1",
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": str(restarts),
        "SLURMD_NODENAME": "n1",
    }
    saved = str(folder / "saved")
    process = subprocess.Popen(
        [sys.executable, TRAINING, "lm", "20", str(samples), str(RESTART_S), saved],
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def report(folder: Path, wanted: Callable[[Progress], bool]) -> Progress:
    for _ in range(200):
        found = progress.read_progress(folder, "7", os.getuid())
        if found is not None and wanted(found):
            return found
        time.sleep(0.05)
    raise AssertionError("the report did not come within 10 s")


def test_an_attempt_reports_how_long_there_was_no_training(tmp_path: Path) -> None:
    with attempt(tmp_path, 0, samples=10_000) as first:
        assert report(tmp_path, lambda it: it.samples > 0).restart_s is None
        first.terminate()
        assert first.wait(10) == 0
    stopped = time.time()
    time.sleep(AWAY_S)
    with attempt(tmp_path, 1, samples=8) as second:
        found = report(tmp_path, lambda it: it.finished and it.restarts == 1)
        assert second.wait(10) == 0
    assert found.restart_s is not None
    # The time away counts, and not the reload alone.
    assert RESTART_S + AWAY_S <= found.restart_s <= time.time() - stopped + 0.5
