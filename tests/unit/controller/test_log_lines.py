"""The controller's log: whole lines, nobody's names, bounded files."""

import fcntl
import json
import logging
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import CONFIG, NOW, dictate, job, look, running, seen
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar import config as configuration
from slurm_hadar.controller.acts.actions import Action, Intent, Kind, intent
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.report import Report
from slurm_hadar.controller.words import record
from slurm_hadar.controller.words.log_file import SharedFile, close_log, open_log
from slurm_hadar.domain.steering import Steering

EVIL = 'SECRET"\n{"event": "action", "job": "1"}\r\u2028\u202e\x00' + "x" * 5000


class Kept(logging.Handler):
    """Lines in memory."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


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
    shown = seen(list(jobs))
    view = look(shown)
    plan = dictate(view.view, {})
    means = intent(view, plan, shown, CONFIG, 10)
    return Report(shown, view, plan, more.pop("intent", means), True, **more)


def written(store, said, people="ids"):
    kept, logger = Kept(), logging.Logger("test")
    logger.addHandler(kept)
    record.write(logger, store, said, people)
    for line in kept.lines:
        assert line.isascii() and len(line) <= 4000 and len(line.splitlines()) == 1
    return [json.loads(line) for line in kept.lines]


@settings(max_examples=200, deadline=None)
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
    line = record.line("action", {"job": "12", **fields}, NOW)
    assert line.isascii() and len(line) <= 4000 and len(line.splitlines()) == 1
    found = json.loads(line)
    assert found["time"] == "1970-01-12T13:46:40.000+00:00" and found["event"] == "action"


@pytest.mark.parametrize("people", ["none", "ids", "names"])
def test_who_it_is_about_is_told_up_to_the_level_and_no_further(store, people):
    shown = hostile(job("1"))
    why = "partition gpu does not admit account SECRET; groups of SECRETann; 'SECRET' is no word"
    store.decide([Decision("1", NOW, "left to Slurm", why)])
    details = {"gpus": {"k80": 1}, "reason": why, "from": {"k1": {"v100": 1}}}
    entry = store.begin("1", "move", "asked", NOW, details)
    store.end(entry, f"refused: {why}", NOW + 2)
    said = (f"job 9: {'SECRET'!r} is odd",)
    lines = written(store, report(shown, said=said if people != "names" else ()), people)
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
    store.decide([Decision("7", NOW, "1 x v100", "ends in 8 min")])
    first = written(store, report())
    assert [line["event"] for line in first] == ["decision", "action", "tick"]
    assert first[1]["state"] == "asked" and first[1]["rate_before"] == 50.0
    store.decide([Decision("7", NOW + 60, "1 x v100", "ends in 7 min")])
    assert [line["event"] for line in written(store, report())] == ["tick"]
    # A controller died between these and its log: the next one writes them.
    store.advance(entry, "requeued", NOW + 3)
    store.end(entry, "moved", NOW + 5)
    store.decide([Decision("7", NOW + 120, "waits", "no place")])
    decision, action, _ = written(store, report())
    assert decision["decision"] == "waits"
    assert (action["state"], action["outcome"]) == ("answered", "moved")
    assert action["steps_after_s"] == {"requeued": 3.0} and action["outcome_after_s"] == 5.0


def test_a_tick_counts_what_it_saw_and_did(store):
    sent = Intent(tuple(Action(Kind.LET_GO, job(i), {}, Steering(), "") for i in ("2", "3")))
    more = {"queries": {"jobs": 1}, "read_s": 0.1234, "intent": sent}
    seen = running("1", {"k1": {"k80": 1}}), job("2")
    (tick,) = written(store, report(*seen, refused=frozenset({"3"}), **more))
    assert (tick["running"], tick["waiting"], tick["changes_sent"]) == (1, 1, 1)
    assert tick["queries"] == {"jobs": 1} and tick["read_s"] == 0.123


# -- the file ----------------------------------------------------------------------------------


def log_to(path, **more):
    return open_log(configuration.Log(file=path, **more))


def files(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_turned_over_by_size_and_only_some_are_kept(tmp_path):
    log = log_to(tmp_path / "h.log", max_mb=0.001, files=2)
    for number in range(100):
        log.info("%s", f"{number:03d}" + "x" * 96)
    close_log(log)
    assert files(tmp_path) == ["h.log", "h.log.1", "h.log.2"]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in files(tmp_path))
    assert (tmp_path / "h.log").read_text().splitlines()[-1].startswith("099")
    assert (tmp_path / "h.log").stat().st_mode & 0o137 == 0


WRITER = """
import logging, sys
from pathlib import Path
from slurm_hadar import config
from slurm_hadar.controller.words.log_file import open_log
log = open_log(config.Log(file=Path(sys.argv[1]), max_mb=0.004, files=50))
print("ready", flush=True)
sys.stdin.readline()
for number in range(400):
    log.info("%s", sys.argv[2] + str(number) + "x" * 60)
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
    log.info("one")
    with (tmp_path / "h.log.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        late = threading.Thread(target=log.info, args=("two",))
        late.start()
        late.join(0.3)
        assert late.is_alive() and (tmp_path / "h.log").read_text() == "one\n"
    late.join(60)
    close_log(log)
    assert (tmp_path / "h.log").read_text() == "one\ntwo\n"


def test_a_file_that_logrotate_took_away_is_begun_anew(tmp_path):
    log = log_to(tmp_path / "h.log")
    log.info("one")
    (tmp_path / "h.log").rename(tmp_path / "old")
    log.info("two")
    close_log(log)
    assert (tmp_path / "h.log").read_text() == "two\n"
    assert (tmp_path / "old").read_text() == "one\n"


def test_a_log_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path, capsys):
    (tmp_path / "elsewhere").touch()
    (tmp_path / "h.log").symlink_to(tmp_path / "elsewhere")
    log = log_to(tmp_path / "h.log")
    log.info("one")
    log.info("two")
    gone = log_to(tmp_path / "none" / "h.log")
    gone.info("one")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all("cannot be written" in line for line in said)
    assert (tmp_path / "elsewhere").read_text() == ""


def test_a_full_disk_is_no_failure_of_a_tick(tmp_path, capsys):
    handler = SharedFile(tmp_path / "h.log", 10**6, 1)
    handler._open = lambda: Path("/dev/full").open("w")  # noqa: SIM115
    handler.emit(logging.makeLogRecord({"msg": "x"}))
    assert "No space left" in capsys.readouterr().err


def test_no_lines_where_none_are_wanted(monkeypatch, capsys):
    assert open_log(configuration.Log(enabled=False)) is None
    # On a terminal the words are enough.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert open_log(configuration.Log()) is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    record.fault(open_log(configuration.Log()), "no answer from 'SECRET'", "ids")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["what"] == "no answer from '...'"
