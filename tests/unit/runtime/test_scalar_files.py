"""How far a training is, from the files of the real TensorBoard and the real wandb."""

import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import found_files, scalar_files
from slurm_hadar.runtime.found_files import TooMuch
from slurm_hadar.runtime.scalar_files import EventFile, NoSuchFile, ScalarFileProgress, WandbFile
from slurm_hadar.runtime.watch import LogProgress, progress_of

WANDB = """
import wandb
settings = wandb.Settings(console="off", x_disable_stats=True)
for name in ("named", "plain"):
    run = wandb.init(project="p", mode="offline", dir=name, settings=settings)
    def log(row, step):
        run.log({**row, **({"trainer/global_step": step} if name == "named" else {})})
    for number in range(400):
        log({"loss": 1 / (number + 1), "text": "x" * 100}, number * 50)
    run.log({"table": "y" * 70_000})
    log({"loss": 0.0}, 20_050)
    run.finish()
"""


def in_pieces(file, data, sizes):
    """What a reader says of a file that grows by these sizes."""
    steps, size = [], 0
    for more in [*sizes, len(data)]:
        size = min(len(data), size + more)
        while True:
            at = file.at
            steps += file.steps(data[at:size])
            if file.at == at:
                break
    return steps


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file of the real SummaryWriter, with what people put into it."""
    writer = pytest.importorskip("torch.utils.tensorboard")
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("events")
    with writer.SummaryWriter(str(folder)) as log:
        for step in range(0, 3000, 10):
            log.add_scalar("train/loss", 1.0, step)
        log.add_text("note", "n" * 500, 7)
        log.add_histogram("weights", torch.randn(1000), 3000)
        log.add_image("picture", torch.rand(3, 64, 64), 3001)
        log.add_scalar("val/loss", 0.5, 3)
        log.add_scalar("odd", 0.5, -1)
    (path,) = folder.iterdir()
    return path.read_bytes()


def test_each_event_of_tensorboard_is_read_once_however_the_file_grows(written):
    wanted = [*range(0, 3000, 10), 7, 3000, 3001, 3]
    for sizes in ([], [1] * 50, [997] * 100, [len(written) - 1]):
        steps = in_pieces(EventFile(), written, sizes)
        assert [step for step in steps if 0 < step < 2**62] == wanted[1:], sizes


def test_the_rows_of_an_offline_wandb_run_are_read_once_however_it_grows(tmp_path):
    pytest.importorskip("wandb")
    for name in ("named", "plain"):
        (tmp_path / name).mkdir()
    env = {**os.environ, "WANDB_SILENT": "1"}
    command = [sys.executable, "-c", WANDB]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    for name, wanted in (
        ("named", [*range(0, 20_000, 50), 20_050]),
        ("plain", [*range(402)]),
    ):
        (path,) = (tmp_path / name).glob("wandb/offline-run-*/*.wandb")
        data = path.read_bytes()
        # Rows lie across its blocks.
        assert len(data) > 3 * 32768
        for sizes in ([], [3] * 50, [997] * 200, [len(data) - 1]):
            assert in_pieces(WandbFile(), data, sizes) == wanted
        # As the watcher finds it, from its folder.
        read = ScalarFileProgress("wandb:x{step*2}", tmp_path / name)
        path.rename(tmp_path / "aside")
        read.look()
        (tmp_path / "aside").rename(path)
        read.look()
        assert read.samples == 2 * wanted[-1]


@given(st.binary(max_size=300), st.booleans())
def test_what_is_no_such_file_is_left_alone(data, framed):
    for file, header in ((EventFile(), b""), (WandbFile(), b":W&B\xe1\xbe\x00")):
        try:
            for step in file.steps(header + data if framed else data):
                assert isinstance(step, int)
        except NoSuchFile:
            pass


def event(step, size=0):
    """A record as TensorBoard frames it, with ``size`` bytes behind the step."""
    number = b""
    while step > 0x7F:
        number, step = number + bytes([step & 0x7F | 0x80]), step >> 7
    body = b"\x09" + bytes(8) + b"\x10" + number + bytes([step]) + bytes(size)
    return struct.pack("<Q", len(body)) + bytes(4) + body + bytes(4)


def test_only_what_this_attempt_writes_counts_and_the_highest_step_of_all(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("slurm_hadar.runtime.meter.time.monotonic", lambda: clock[0])
    old = tmp_path / "run" / "events.out.tfevents.1"
    old.parent.mkdir()
    old.write_bytes(event(9000))
    read = ScalarFileProgress("tensorboard:x{step*10}", tmp_path)

    def after(seconds, name, *records):
        clock[0] += seconds
        with (tmp_path / name).open("ab") as stream:
            stream.write(b"".join(records))
        read.look()
        return read.samples, read.rate[0]

    assert after(0, "other", event(8000)) == (0, 0.0)
    assert after(2, "run/events.out.tfevents.2", event(100)) == (1000, 0.0)
    assert after(2, "run/events.out.tfevents.2", event(140), event(3)) == (1400, 200.0)
    # A validation in a file of its own, counted by epochs; and a record whose end is not there yet.
    assert after(2, "tfevents.val", event(4), event(500)[:20]) == (1400, 200.0)
    assert after(2, "run/events.out.tfevents.2", event(220, 5 << 20)) == (2200, 200.0)
    assert after(2, "tfevents.broken", b"\xff" * 100) == (2200, 200.0)
    assert after(2, "tfevents.broken", event(7000)) == (2200, 200.0)
    os.mkfifo(tmp_path / "tfevents.pipe")
    (tmp_path / "tfevents.away").symlink_to(tmp_path / "nothing")
    assert after(2, "run/events.out.tfevents.3", event(10**15 + 1), event(340)) == (3400, 200.0)


def test_a_look_reads_so_much_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(scalar_files, "_MOST_BYTES", 4000)
    read = ScalarFileProgress("tensorboard:x{samples}", tmp_path)
    read.look()
    records = [event(step) for step in range(1, 1001)]
    (tmp_path / "tfevents").write_bytes(b"".join(records))
    seen = [0]
    while seen[-1] < 1000:
        read.look()
        assert seen[-1] < read.samples <= seen[-1] + 4000 // len(records[0])
        seen.append(read.samples)
    monkeypatch.setattr(found_files, "MOST", 0)
    with pytest.raises(TooMuch):
        read.look()


def test_which_files_a_job_declares(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = {"SLURM_JOB_ID": "7", "HADAR_PROGRESS": "tensorboard:runs/%j{step*64}"}
    shown = progress_of(job, 1)
    shown.look()
    (tmp_path / "runs" / "7").mkdir(parents=True)
    (tmp_path / "runs" / "7" / "events.out.tfevents.1").write_bytes(event(5))
    shown.look()
    assert shown.samples == 5 * 64
    assert isinstance(progress_of({"HADAR_PROGRESS": "step={samples}"}, 1), LogProgress)
    assert progress_of({}, 1) is None
    with pytest.raises(UsageError, match="wandb:PATH"):
        progress_of({"HADAR_PROGRESS": "wandb:*{samples}"}, 1)
