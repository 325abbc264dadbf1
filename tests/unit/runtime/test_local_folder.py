"""Files on a node's own disk: kept in the checkpoint, and put back by the next attempt."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_training import outside_slurm

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import LocalFolder, Session

pytestmark = pytest.mark.usefixtures(outside_slurm.__name__)
PAGE = Path(__file__).parents[3] / "docs" / "environments.md"


def files(folder):
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def fill(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "tokens.bin").write_bytes(os.urandom(70_000))
    (folder / "log").write_text("one\n")
    (folder / "empty").touch()
    (folder / "run.sh").write_text("true")
    (folder / "run.sh").chmod(0o750)


def train(path, scratch, epochs=2):
    """A training that appends to a log in its scratch with each batch; ends with ``path`` saved."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(path, model=model, optimizer=optimizer, scratch=LocalFolder(scratch))
    for epoch in session.epochs(epochs):
        for number, x in enumerate(session.batches(torch.ones(4, 1, 2)), session.batch):
            with (scratch / "log").open("a") as log:
                print(epoch, number, file=log)
            model(x).sum().backward()
            optimizer.step()
            if (epoch, number) == (1, 1) and session.attempt == 1:
                os.kill(os.getpid(), signal.SIGTERM)


def test_what_was_on_the_node_is_there_again_on_the_next_one(tmp_path):
    scratch = tmp_path / "local"
    fill(scratch)
    (scratch / "link").symlink_to("/etc/passwd")
    os.mkfifo(scratch / "pipe")
    with pytest.raises(SystemExit) as left:
        train(tmp_path / "run.pt", scratch)
    assert left.value.code == 143
    before = files(scratch)
    assert before["log"].decode().splitlines()[-1] == "1 1"

    shutil.rmtree(scratch)
    resumed = Session(tmp_path / "run.pt", **parts(), scratch=LocalFolder(scratch))
    assert files(scratch) == before and resumed.samples == 6
    assert (scratch / "run.sh").stat().st_mode & 0o777 == 0o750
    train(tmp_path / "run.pt", scratch)
    wanted = ["one", *(f"{epoch} {number}" for epoch in range(2) for number in range(4))]
    assert (scratch / "log").read_text().splitlines() == wanted


def parts():
    model = torch.nn.Linear(2, 1)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def test_what_came_after_the_checkpoint_is_put_back_and_other_files_stay(tmp_path):
    folder = LocalFolder(tmp_path / "local")
    assert folder.state_dict() == {"files": {}, "rights": {}}
    fill(tmp_path / "local")
    kept, before = folder.state_dict(), files(tmp_path / "local")
    (tmp_path / "local" / "log").write_text("one\ntwo\n")
    (tmp_path / "local" / "staged").write_text("data")
    folder.load_state_dict(kept)
    assert files(tmp_path / "local") == {**before, "staged": b"data"}


def test_what_is_too_much_or_outside_is_refused(tmp_path):
    fill(tmp_path / "local")
    with pytest.raises(UsageError, match="too much for a checkpoint"):
        LocalFolder(tmp_path / "local", most_bytes=70_000).state_dict()
    LocalFolder(tmp_path / "local", most_bytes=70_008).state_dict()
    for name in ("../out", "/out", "a/../../out"):
        kept = {"files": {name: torch.zeros(1, dtype=torch.uint8)}, "rights": {name: 0o600}}
        with pytest.raises(UsageError, match="outside"):
            LocalFolder(tmp_path / "local").load_state_dict(kept)
    assert not (tmp_path / "out").exists()


TRAIN = """
import pathlib, signal, sys, time
saved, scratch = pathlib.Path("saved"), pathlib.Path(sys.argv[sys.argv.index("--scratch") + 1])
begun = int(saved.read_text()) if saved.exists() else 0
def save(*_):
    saved.write_text("5")
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
with (scratch / "log").open("a") as log:
    for step in range(begun, 5 if not begun else 10):
        print(step, file=log, flush=True)
if not begun:
    pathlib.Path("ready").touch()
    time.sleep(300)
pathlib.Path("log").write_text((scratch / "log").read_text())
"""


def test_the_script_of_the_page_keeps_scratch_before_it_requeues_itself(tmp_path):
    (script,) = re.findall(r"```bash\n([^`]*scratch=[^`]*)```", PAGE.read_text())
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "python").symlink_to(sys.executable)
    for name, line in (("scontrol", 'echo "$@" >> requeued'), ("sleep", "exit 0")):
        (bin_ / name).write_text(f"#!/bin/sh\n{line}\n")
        (bin_ / name).chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.sh").write_text(script)
    env = {
        "PATH": f"{bin_}:/usr/bin:/bin",
        "TMPDIR": str(tmp_path / "local"),
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }

    def attempt():
        return subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=env)

    with attempt() as first:
        end = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < end and first.poll() is None
            time.sleep(0.05)
        first.send_signal(signal.SIGUSR1)
        assert first.wait(60) != 0
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert (tmp_path / "scratch.7.tar").exists()
    # Another node.
    shutil.rmtree(tmp_path / "local")
    with attempt() as second:
        assert second.wait(60) == 0
    assert (tmp_path / "log").read_text().split() == [str(step) for step in range(10)]
    assert not (tmp_path / "local" / "7").exists() and not (tmp_path / "scratch.7.tar").exists()
