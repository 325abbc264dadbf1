"""The watcher of checkpoints that a training writes by itself."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.job_side import Exchange
from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.runtime import found_files
from slurm_hadar.runtime.found_files import TooMuch
from slurm_hadar.runtime.scalar_files import ScalarFileProgress
from slurm_hadar.runtime.watch import LinePattern, LogProgress, Newest, path_of, watch

T0 = 1_000_000.0


def put(path, text="x", at=T0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (at, at))


def looks(newest, *times):
    """What the looks at these times tell, s after the first."""
    return [saved and saved.time - T0 for saved in (newest.look(T0 + t, t) for t in times)]


def test_a_file_that_was_there_counts_from_its_own_time(tmp_path):
    put(tmp_path / "a.pt", at=T0 - 500)
    assert looks(Newest(tmp_path / "a.pt"), 0, 2, 4) == [None, None, -500]


def test_a_checkpoint_that_is_renamed_into_its_place_is_reported_once_it_is_stable(tmp_path):
    newest = Newest(tmp_path / "a.pt")
    assert looks(newest, 0, 10) == [None, None]
    put(tmp_path / "new", at=T0 + 11)
    (tmp_path / "new").rename(tmp_path / "a.pt")
    assert looks(newest, 12, 14, 16) == [None, None, 10]
    put(tmp_path / "new", "y", at=T0 + 30)
    (tmp_path / "new").rename(tmp_path / "a.pt")
    assert looks(newest, 31, 34) == [None, 16]


def test_one_that_is_written_slowly_is_not_reported_before_its_end_and_counts_from_its_begin(
    tmp_path,
):
    newest = Newest(tmp_path / "a.pt")
    looks(newest, 0)
    for second in range(1, 10):
        put(tmp_path / "a.pt", "x" * second, at=T0 + second)
        assert looks(newest, second) == [None]
    assert looks(newest, 11, 12) == [None, 0]
    assert newest.saved.seconds == 9


def test_an_empty_file_is_no_checkpoint(tmp_path):
    put(tmp_path / "a.pt", "")
    assert looks(Newest(tmp_path / "a.pt"), 0, 5, 10) == [None] * 3


@pytest.mark.parametrize("name", ["run/ck-*", "run"])
def test_folders_and_globs_and_the_removal_of_old_ones(tmp_path, name):
    put(tmp_path / "run/ck-1/deep/model.bin", at=T0 - 50)
    newest = Newest(tmp_path / name)
    assert looks(newest, 0, 4) == [None, -50]
    put(tmp_path / "run/ck-2/model.bin", at=T0 + 5)
    assert looks(newest, 6, 10) == [None, 4]
    (tmp_path / "run/ck-1/deep/model.bin").unlink()
    assert looks(newest, 12, 16) == [None, 4]


def test_when_one_was_whole_last_stays_known_while_the_next_is_written(tmp_path):
    newest = Newest(tmp_path / "a.pt")
    assert newest.whole_s is None
    put(tmp_path / "a.pt", at=T0)
    looks(newest, 0, 4)
    put(tmp_path / "a.pt", "more", at=T0 + 5)
    assert looks(newest, 6) == [None] and newest.whole_s == T0 + 4


def test_what_does_not_match_says_nothing(tmp_path):
    put(tmp_path / ".ck-1.tmp", at=T0)
    put(tmp_path / "log", at=T0)
    assert looks(Newest(tmp_path / "ck-*"), 0, 5) == [None, None]


def test_a_huge_folder_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(found_files, "MOST", 5)
    for number in range(6):
        put(tmp_path / f"{number}")
    with pytest.raises(TooMuch):
        Newest(tmp_path).look(T0, 0)


@pytest.mark.parametrize("too_much", ["progress", "checkpoint"])
def test_where_one_is_given_up_the_other_is_watched(tmp_path, monkeypatch, capsys, too_much):
    monkeypatch.setattr(found_files, "MOST", 5)
    for number in range(6):
        put(tmp_path / "many" / f"events.out.tfevents.{number}")
    put(tmp_path / "a.pt", at=time.time() - 60)
    (tmp_path / "out").touch()
    shown: LogProgress | ScalarFileProgress
    shown, path = LogProgress(LinePattern("step={step*1}"), tmp_path / "out"), tmp_path / "many"
    if too_much == "progress":
        declared = f"tensorboard:{tmp_path}/many{{step*1}}"
        shown, path = ScalarFileProgress(declared, tmp_path / "many"), tmp_path / "a.pt"
    (tmp_path / "exchange").mkdir()
    monkeypatch.setenv("HADAR_EXCHANGE", str(tmp_path / "exchange"))
    monkeypatch.setenv("HADAR_PROGRESS_S", "0.05")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    end = time.monotonic() + 30

    def reported():
        return read_progress(tmp_path / "exchange", "7", os.getuid())

    def waits():
        with (tmp_path / "out").open("a") as out:
            out.write("step=3\n")
        found = reported()
        known = found and (found.checkpoint if too_much == "progress" else found.samples)
        return not known and time.monotonic() < end

    watch(Exchange.from_env(print), path, waits, shown, look_s=0.1)
    assert (reported().checkpoint is not None) is (too_much == "progress")
    assert reported().samples == (0 if too_much == "progress" else 3)
    assert capsys.readouterr().err.count("hadar: more than") == 1


def test_which_path_is_watched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = {"SLURM_JOB_ID": "12;x", "HADAR_CHECKPOINT": "watch:/a/%j/b*", "SLURM_ARRAY_TASK_ID": "3"}
    assert path_of([], job) == Path("/a/12/b*")
    assert path_of(["c_%a.pt"], job) == tmp_path / "c_3.pt"
    for words, env in (([], {}), ([], {"HADAR_CHECKPOINT": "yes"}), (["a b"], {})):
        with pytest.raises(UsageError):
            path_of(words, env)


def test_the_program_reports_as_the_jobs_user_and_ends_with_its_parent(tmp_path):
    (tmp_path / "exchange").mkdir()
    put(tmp_path / "a.pt", at=time.time())
    env = {
        **os.environ,
        "HADAR_EXCHANGE": str(tmp_path / "exchange"),
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": "2",
        "HADAR_PROGRESS_S": "0.2",
    }
    line = f"{sys.executable} -m slurm_hadar.runtime.watch {tmp_path}/a.pt & echo $!; read x"
    with subprocess.Popen(
        ["bash", "-c", line], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        watcher = int(shell.stdout.readline())
        end = time.monotonic() + 60
        report = None
        while report is None or report.checkpoint is None:
            assert time.monotonic() < end
            report = read_progress(tmp_path / "exchange", "7", os.getuid())
            time.sleep(0.1)
        assert report.restarts == 2 and report.rate == 0
        shell.communicate("\n")
    while Path(f"/proc/{watcher}").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_program_ends_where_its_parent_had_ended_before_it_began(tmp_path):
    (tmp_path / "exchange").mkdir()
    env = {**os.environ, "HADAR_EXCHANGE": str(tmp_path / "exchange"), "SLURM_JOB_ID": "7"}
    line = (
        f"(sleep 1; exec {sys.executable} -m slurm_hadar.runtime.watch {tmp_path}/a.pt) & echo $!"
    )
    started = subprocess.run(
        ["bash", "-c", line],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watcher = Path(f"/proc/{int(started.stdout)}")
    end = time.monotonic() + 60
    while watcher.exists():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("pattern", "line", "samples"),
    [
        ("{samples}", "seen 12800 of 5e6", 12800),
        ("{samples}", "v1.25 3", 1),
        ("step={step*64}/", "epoch 3 step=100/1000 loss 0.1", 6400),
        ("Epoch*{epoch*50}*loss", "Epoch no. 4 step 7, loss nan", 200),
        ("Epoch*{epoch*50}*loss", "Epoch no. 4 step 7", None),
        ("step:{step*2}", "step: 5", None),
        ("a*a*{samples}", "a" * 4000, None),
        ("{samples}", "1e99", None),
    ],
)
def test_what_a_line_of_the_log_says(pattern, line, samples):
    assert LinePattern(pattern).samples(line) == samples


def test_a_log_is_followed_from_where_it_was_and_only_a_file(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("slurm_hadar.runtime.meter.time.monotonic", lambda: clock[0])
    log = tmp_path / "log"
    log.write_text("step=900\n")
    read = LogProgress(LinePattern("step={step*10}"), log)

    def after(seconds, text, how="a"):
        clock[0] += seconds
        with log.open(how) as stream:
            stream.write(text)
        read.look()
        return read.samples, read.rate[0]

    assert after(0, "") == (0, 0.0)
    assert after(2, "step=100\nstep=1") == (1000, 0.0)
    assert after(2, "20\rstep=140\r") == (1400, 200.0)
    assert after(2, "nothing\n") == (1400, 200.0)
    assert after(2, "x" * (3 << 20) + "\nstep=220\n") == (2200, 200.0)
    # It began again from a checkpoint: what it had is not trained once more in no time.
    assert after(2, "step=50\n") == (500, 0.0)
    assert after(2, "step=60\n", "w") == (600, 50.0)
    os.mkfifo(tmp_path / "pipe")
    read = LogProgress(LinePattern("{samples}"), tmp_path / "pipe")
    read.look()
    assert read.samples == 0


def test_progress_alone_is_reported_from_the_output_of_the_script(tmp_path):
    (tmp_path / "exchange").mkdir()
    env = {
        **os.environ,
        "HADAR_EXCHANGE": str(tmp_path / "exchange"),
        "SLURM_JOB_ID": "7",
        "HADAR_PROGRESS_S": "0.2",
        "HADAR_PROGRESS": "step={step*64}",
    }
    line = (
        f"{sys.executable} -m slurm_hadar.runtime.watch & "
        "for i in $(seq 1 9999); do echo step=$i; sleep 0.3; done"
    )
    end, report = time.monotonic() + 60, None
    with (
        (tmp_path / "out").open("w") as out,
        subprocess.Popen(["bash", "-c", line], env=env, stdout=out) as shell,
    ):
        while report is None or not report.rate:
            assert time.monotonic() < end
            report = read_progress(tmp_path / "exchange", "7", os.getuid())
            time.sleep(0.1)
        shell.kill()
    assert report.samples > 0 and report.samples % 64 == 0 and report.checkpoint is None
    assert 0 < report.rate < 64 / 0.1
    while Path(f"/proc/{report.pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_it_says_what_is_missing():
    done = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.runtime.watch"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "declare checkpoint=watch:PATH" in done.stderr
