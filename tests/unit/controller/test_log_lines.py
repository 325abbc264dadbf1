"""The controller's log: whole lines, nobody's names, bounded files."""

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

import pytest
from hand_made import CONFIG, NOW, config, dictate, job, look, observation, running
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar import config as configuration
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.plan_diff import MoveBudget, PlanDiff, diff
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import event_log
from slurm_hadar.controller.presentation.log_file import EventLog, SharedFile, open_log
from slurm_hadar.controller.presentation.privacy import Privacy
from slurm_hadar.controller.report import TickReport
from slurm_hadar.domain.steering import Steering

EVIL = 'SECRET"\n{"event": "action", "job": "1"}\r\u2028\u202e\x00' + "x" * 5000


class Kept:
    """Lines in memory; ``full``: how many more it takes."""

    name = "in memory"

    def __init__(self, full=None):
        self.lines, self.full = [], full

    def write(self, line):
        if self.full is not None and len(self.lines) >= self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        assert line.isascii() and len(line) <= 4001
        assert line.endswith(b"\n") and len(line.splitlines()) == 1
        self.lines.append(json.loads(line))

    def events(self):
        return [(line["event"], line.get("job", "")) for line in self.lines]


def log_of(sink, people="ids", **site):
    settings = config(f'[log]\npeople = "{people}"\n')
    return EventLog(sink, Privacy(settings.model_copy(update=site)))


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "state")
    yield opened
    opened.close()


def hostile(job_):
    names = {
        "name": EVIL,
        "comment": EVIL,
        "workdir": EVIL,
        "user": "SECRETann",
        "account": "SECRET",
    }
    return replace(job_, **names, declaration=replace(job_.declaration, model="SECRET" * 30))


def report(*jobs, **more):
    shown = observation(list(jobs))
    view = look(shown)
    plan = dictate(view.view, {})
    means = diff(view, plan, shown, CONFIG, MoveBudget(10))
    return TickReport(shown, view, plan, more.pop("diff", means), True, **more)


def written(store, said, people="ids"):
    kept = Kept()
    event_log.write(log_of(kept, people), store, said)
    return kept.lines


@settings(max_examples=60, deadline=None)
@given(
    fields=st.dictionaries(
        st.text(max_size=100),
        st.recursive(
            st.text(max_size=3000) | st.integers() | st.floats() | st.booleans() | st.none(),
            lambda inner: st.lists(inner, max_size=80) | st.dictionaries(st.text(), inner),
            max_leaves=30,
        ),
        max_size=12,
    )
)
def test_whatever_stands_in_a_line_it_is_one_bounded_line(fields):
    line = event_log.line("action", {"job": "12", **fields}, NOW)
    assert line.isascii() and len(line) <= 4000 and len(line.splitlines()) == 1
    found = json.loads(line)
    assert found["time"] == "1970-01-12T13:46:40.000+00:00" and found["event"] == "action"


@pytest.mark.parametrize("people", ["none", "ids", "names"])
def test_who_it_is_about_is_reported_up_to_the_level_and_no_further(store, people):
    shown = hostile(job("1"))
    why = "partition gpu does not admit account SECRET; groups of SECRETann; 'SECRET' is no word"
    store.decisions.record([Decision("1", NOW, "not steered", why)])
    details = {"gpus": {"k80": 1}, "reason": why, "from": {"k1": {"v100": 1}}}
    entry = store.begin("1", "move", "asked", NOW, details)
    store.end(entry, f"refused: {why}", NOW + 2)
    said = (f"job 9: {'SECRET'!r} is odd",)
    lines = written(store, report(shown, notices=said if people != "names" else ()), people)
    assert [line["event"] for line in lines] == ["decision", "action", "tick"]
    text = json.dumps(lines)
    assert ("SECRET" in text) == (people == "names")
    for line in lines[:2]:
        assert (line.get("uid") == 1000) == (people != "none")
        assert ("user" in line) == ("name" in line) == (people == "names")
        assert len(line.get("name", "")) <= 64
        assert "xxxxx" not in line.get("reason", "") and "does not admit" in line["reason"]


def test_a_line_is_written_once_and_later_when_more_is_known(store):
    entry = store.begin("7", "move", "asked", NOW, {"gpus": {"v100": 1}, "rate_before": 50.0})
    store.decisions.record([Decision("7", NOW, "1 x v100", "ends in 8 min")])
    first = written(store, report())
    assert [line["event"] for line in first] == ["decision", "action", "tick"]
    assert first[1]["state"] == "asked" and first[1]["rate_before"] == 50.0
    store.decisions.record([Decision("7", NOW + 60, "1 x v100", "ends in 7 min")])
    assert [line["event"] for line in written(store, report())] == ["tick"]
    # A controller died between these and its log: the next one writes them.
    store.advance(entry, "requeued", NOW + 3)
    store.end(entry, "moved", NOW + 5)
    store.decisions.record([Decision("7", NOW + 120, "waits", "no place")])
    decision, action, _ = written(store, report())
    assert decision["decision"] == "waits"
    assert (action["state"], action["outcome"]) == ("answered", "moved")
    assert action["steps_after_s"] == {"requeued": 3.0} and action["outcome_after_s"] == 5.0


def test_a_hint_is_reported_with_what_it_changed(store):
    fields = {"Partition": "v100,k80", "Features": "/home/SECRET"}
    entry = store.begin("1", "hint", "sent", NOW, {"gpus": {}, "fields": fields, "reason": "best"})
    store.end(entry, "done", NOW)
    action, _ = written(store, report(job("1")))
    assert (action["kind"], action["reason"], action["outcome"]) == ("hint", "best", "done")
    assert action["fields"] == {"Partition": "v100,k80", "Features": "..."}
    assert "to" not in action


def test_a_tick_counts_what_it_saw_and_did(store):
    sent = PlanDiff(tuple(Action(Kind.HINT, job(i), {}, Steering(), "") for i in ("2", "3")))
    more = {"queries": {"jobs": 1}, "read_s": 0.1234, "diff": sent}
    observation = running("1", {"k1": {"k80": 1}}), job("2")
    (tick,) = written(store, report(*observation, refused=frozenset({"3"}), **more))
    assert (tick["running"], tick["waiting"], tick["changes_sent"]) == (1, 1, 1)
    assert tick["queries"] == {"jobs": 1} and tick["read_s"] == 0.123


# -- the file ----------------------------------------------------------------------------------


def log_to(path, **more):
    return open_log(CONFIG.model_copy(update={"log": configuration.Log(file=path, **more)}))


def files(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_turned_over_by_size_and_only_some_are_kept(tmp_path):
    log = log_to(tmp_path / "h.log", max_mb=0.001, files=2)
    for number in range(100):
        assert log.write(f"{number:03d}" + "x" * 96)
    assert files(tmp_path) == ["h.log", "h.log.1", "h.log.2"]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in files(tmp_path))
    lines = [x for n in reversed(files(tmp_path)) for x in (tmp_path / n).read_text().split()]
    assert [int(line[:3]) for line in lines] == list(range(70, 100))
    assert (tmp_path / "h.log").stat().st_mode & 0o137 == 0
    # Whoever may read the log must not be able to stop it.
    assert (tmp_path / "h.log.lock").stat().st_mode & 0o077 == 0


WRITER = """
import sys
from pathlib import Path
from slurm_hadar import config
from slurm_hadar.controller.presentation.log_file import open_log
settings = config.Log(file=Path(sys.argv[1]), max_mb=0.004, files=50)
log = open_log(config.Config(log=settings))
print("ready", flush=True)
sys.stdin.readline()
for number in range(400):
    while not log.write(sys.argv[2] + str(number) + "x" * 60):
        pass
"""


def test_two_processes_lose_and_break_no_line(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "h.log"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in "ab"
    ]
    for one in writers:
        assert one.stdout.readline() == b"ready\n"
    for one in writers:
        one.stdin.write(b"\n")
        one.stdin.flush()
    for one in writers:
        one.communicate(timeout=60)
        assert one.returncode == 0
    lines = [line for name in files(tmp_path) for line in (tmp_path / name).read_text().split()]
    assert sorted(lines) == sorted(f"{n}{i}" + "x" * 60 for n in "ab" for i in range(400))
    assert len(files(tmp_path)) > 5


def test_a_line_waits_for_another_process_that_writes(tmp_path):
    log = log_to(tmp_path / "h.log")
    assert log.write("one")
    log._sink._patience_s = 60.0
    with (tmp_path / "h.log.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        late = threading.Thread(target=log.write, args=("two",))
        late.start()
        late.join(0.3)
        assert late.is_alive() and (tmp_path / "h.log").read_text() == "one\n"
    late.join(60)
    assert (tmp_path / "h.log").read_text() == "one\ntwo\n"


HOLDER = """
import fcntl, sys, time
lock = open(sys.argv[1])
fcntl.flock(lock, fcntl.LOCK_SH)
print("held", flush=True)
time.sleep(600)
"""


def test_a_tick_does_not_wait_for_somebody_who_never_lets_go(store, tmp_path, capsys):
    path = tmp_path / "h.log"
    log = log_to(path)
    entry = store.begin("1", "move", "asked", NOW, {"gpus": {"k80": 1}})
    store.end(entry, "moved", NOW)
    assert log.write("{}")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, f"{path}.lock"], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        began = time.monotonic()
        for _ in range(3):
            event_log.write(log, store, report())
        # 2 s for the first, and no more than a moment for each later one.
        assert 1.9 < time.monotonic() - began < 10
        assert path.read_text() == "{}\n"
        (said,) = capsys.readouterr().err.splitlines()
        assert "another process holds the lock" in said
    finally:
        holder.kill()
        holder.communicate()
    event_log.write(log, store, report())
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [line["event"] for line in lines] == ["fault", "action", "tick"]
    assert lines[0]["what"].endswith("3 lines of ticks and faults are missing")


def test_a_file_that_logrotate_took_away_is_begun_anew(tmp_path):
    log = log_to(tmp_path / "h.log")
    assert log.write("one")
    (tmp_path / "h.log").rename(tmp_path / "old")
    assert log.write("two")
    assert (tmp_path / "h.log").read_text() == "two\n"
    assert (tmp_path / "old").read_text() == "one\n"


def test_a_log_that_cannot_be_written_is_said_once_an_outage(tmp_path, capsys):
    (tmp_path / "elsewhere").touch()
    (tmp_path / "h.log").symlink_to(tmp_path / "elsewhere")
    log = log_to(tmp_path / "h.log")
    assert not log.write("one") and not log.write("two")
    (said,) = capsys.readouterr().err.splitlines()
    assert datetime.fromisoformat(said.partition(" the log ")[0]).tzinfo
    assert "cannot be written" in said and (tmp_path / "elsewhere").read_text() == ""
    (tmp_path / "h.log").unlink()
    assert log.write("three") and capsys.readouterr().err == ""
    (tmp_path / "h.log").unlink()
    (tmp_path / "h.log").mkdir()
    assert not log.write("four") and not log.write("five")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_pipe_in_its_place_stops_nobody(tmp_path):
    os.mkfifo(tmp_path / "h.log")
    log = log_to(tmp_path / "h.log")
    late = threading.Thread(target=log.write, args=("one",), daemon=True)
    late.start()
    late.join(20)
    assert not late.is_alive()


@contextmanager
def full_at(size):
    """As if the disk were full: files of this process end at this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_in_the_middle_of_a_line_leaves_whole_lines(tmp_path):
    sink = SharedFile(tmp_path / "h.log", 10**6, 1)
    sink.write(b"one\n")
    with full_at(7), pytest.raises(OSError) as full:
        sink.write(b"two, longer\n")
    assert full.value.errno == errno.EFBIG
    assert (tmp_path / "h.log").read_text() == "one\n"
    # And where the machine went down then.
    with (tmp_path / "h.log").open("a") as file:
        file.write("tw")
    sink.write(b"three\n")
    assert (tmp_path / "h.log").read_text() == "one\ntw\nthree\n"


def test_what_could_not_be_written_is_written_once_when_it_can_be(store, capsys):
    def done(job_):
        store.decisions.record([Decision(job_, NOW, "1 x k80", "by the test")])
        store.end(store.begin(job_, "move", "asked", NOW, {"gpus": {"k80": 1}}), "moved", NOW + 2)

    sink = Kept(full=4)
    log = log_of(sink)
    done("1")
    event_log.write(log, store, report())
    assert sink.events() == [("decision", "1"), ("action", "1"), ("tick", "")]
    done("2")
    done("3")
    # The disk is full after one of them, and stays so for two ticks and a fault.
    event_log.write(log, store, report())
    event_log.write(log, store, report())
    event_log.fault(log, "Slurm did not answer")
    assert len(capsys.readouterr().err.splitlines()) == 1
    sink.full = None
    event_log.write(log, store, report())
    event_log.write(log, store, report())
    assert sink.events()[3:] == [
        ("decision", "2"),
        ("fault", ""),
        ("decision", "3"),
        ("action", "2"),
        ("action", "3"),
        ("tick", ""),
        ("tick", ""),
    ]
    assert sink.lines[4]["what"].endswith("3 lines of ticks and faults are missing")
    # The next outage is one of its own, and so is what a next controller finds.
    done("4")
    sink.full = 0
    event_log.write(log, store, report())
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert ("action", "4") in [
        (line["event"], line.get("job")) for line in written(store, report())
    ]


STDERR = """
import json, os, resource, sys
from slurm_hadar import config
from slurm_hadar.controller.presentation.log_file import open_log
log = open_log(config.Config())
assert log.write("one")
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
assert not log.write("two, longer")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert log.write("two, longer")
"""


def test_stderr_on_a_full_disk_gets_a_line_whole_and_once_later(tmp_path):
    # To the same file as words, as a timer has it.
    with (tmp_path / "tick.log").open("ab") as kept:
        done = subprocess.run([sys.executable, "-c", STDERR], stderr=kept, timeout=60)
    lines = (tmp_path / "tick.log").read_text().splitlines()
    assert done.returncode == 0, lines
    assert lines[0] == "one" and lines.count("two, longer") == 1


def test_a_reader_that_is_gone_and_no_stderr_at_all_stop_nobody():
    code = STDERR.split("hard")[0].replace("assert log.write", "assert not log.write")
    read, write = os.pipe()
    os.close(read)
    assert subprocess.run([sys.executable, "-c", code], stderr=write, timeout=60).returncode == 0
    os.close(write)
    none = code.replace("assert not log.write", "assert log is None #")
    shell = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, none]
    assert subprocess.run(shell, timeout=60).returncode == 0


def test_no_lines_where_none_are_wanted(monkeypatch, capsys):
    off = configuration.Log(enabled=False)
    assert open_log(CONFIG.model_copy(update={"log": off})) is None
    # On a terminal the words are enough.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert open_log(CONFIG) is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    event_log.fault(open_log(CONFIG), "no answer from 'SECRET'")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["what"] == "no answer from '...'"
