"""The controller's own file."""

import multiprocessing
import os
import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from missing import needs_root

from slurm_hadar.controller.journal import store_file
from slurm_hadar.controller.journal.entry import NOT_MEANT, NOT_STARTED, Decision
from slurm_hadar.controller.journal.placement_tables import StayTable, StoredStay
from slurm_hadar.controller.journal.store import VERSION, DamagedStateFile, Store, make_private
from slurm_hadar.controller.journal.store_file import transaction
from slurm_hadar.controller.journal.work_tables import (
    DeclaredWorkTables,
    EndedJob,
    EndedJobsTable,
    LeastDeclared,
)
from slurm_hadar.domain.errors import HadarError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
PLAIN_MAP = st.dictionaries(st.text(), PLAIN, max_size=4)


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "state")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    opened = Store.open(tmp_path_factory.mktemp("shared") / "state")
    yield opened
    opened.close()


@settings(max_examples=50, deadline=None)
@given(details=PLAIN_MAP, job=st.text(min_size=1), outcome=st.text())
def test_an_entry_comes_back_as_it_was_written(shared, details, job, outcome):
    number = shared.begin(job, "move", "asked", 5.0, details)
    (entry,) = [e for e in shared.open_entries() if e.id == number]
    assert (entry.job, entry.kind, entry.phase, entry.details) == (job, "move", "asked", details)
    shared.advance(number, "requeued", 6.0)
    shared.end(number, outcome, 7.0)
    newest = shared.history(job)[0]
    assert (newest.phase, newest.outcome, newest.changed_s) == ("requeued", outcome, 7.0)
    assert number not in [e.id for e in shared.open_entries()]


@settings(max_examples=50, deadline=None)
@given(state=PLAIN_MAP, name=st.text(min_size=1))
def test_a_policys_memory_comes_back_as_it_was_kept(shared, state, name):
    shared.keep_policy_state(name, state)
    assert shared.policy_state(name) == state


@settings(max_examples=50, deadline=None)
@given(job=st.text(min_size=1), where=st.text(), reason=st.text(), text=st.text())
def test_decisions_and_steering_come_back(shared, job, where, reason, text):
    shared.decisions.record([Decision(job, 1.0, "old", ""), Decision(job, 2.0, where, reason)])
    shared.keep_steering(job, text)
    assert shared.decisions.last()[job] == Decision(job, 2.0, where, reason)
    assert shared.steerings([job])[job] == text


def test_everything_survives_closing(tmp_path):
    first = Store.open(tmp_path)
    first.begin("1", "move", "asked", 1.0, {"save": "abc"})
    first.close()
    again = Store.open(tmp_path)
    assert [entry.details for entry in again.open_entries()] == [{"save": "abc"}]
    assert again.connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
    again.close()


def test_gpu_seconds_are_counted_from_the_start_and_once(store):
    assert store.serve({"1": (2, 100.0)}, 150.0).now == {"1": 100.0}
    assert store.serve({"1": (2, 100.0)}, 160.0) == ({"1": 100.0}, {"1": 120.0})
    # It was moved: nothing is counted for the time between.
    assert store.serve({"1": (4, 200.0)}, 210.0).now == {"1": 160.0}
    assert store.serve({}, 300.0).now == {"1": 160.0}


def test_a_clock_that_goes_back_takes_nothing_away(store):
    store.serve({"1": (1, 100.0)}, 200.0)
    assert store.serve({"1": (1, 100.0)}, 150.0).now == {"1": 100.0}
    assert store.serve({"1": (1, 100.0)}, 200.0).now == {"1": 100.0}


def test_moves_are_counted_and_timed(store):
    store.begin("1", "move", "asked", 10.0, {})
    store.end(store.begin("1", "move", "asked", 20.0, {}), "moved", 25.0)
    store.begin("2", "hint", "sent", 20.0, {})
    assert store.counts_since("move", 15.0) == {"1": 1}
    assert store.counts_since("move", 0.0) == {"1": 2}
    assert store.last_times("move") == {"1": 25.0}
    assert store.last_time("1", "move") == 25.0 and store.last_time("9", "move") == 0.0


def test_unanswered_wishes_count_from_the_last_move_on(store):
    outcomes = ("the job did not save within 9 s", "moved", "the job did not save within 8 s", "x")
    for outcome in outcomes:
        store.end(store.begin("1", "move", "asked", 10.0, {}), outcome, 25.0)
    store.end(store.begin("2", "move", "asked", 20.0, {}), "moved", 25.0)
    store.begin("3", "move", "asked", 20.0, {})
    assert store.counts_after("move", "the job did not save", "moved") == {"1": 1}
    assert store.counts_since("move", 15.0) == {"2": 1, "3": 1}


def test_moves_in_a_row_that_came_to_nothing_are_counted(store):
    def moved(job, shown):
        number = store.begin(job, "move", "asked", 1.0, {})
        store.end(number, "moved", 2.0)
        store.connection.execute("UPDATE journal SET shown=? WHERE id=?", (shown, number))

    moved("1", "runs on 1 x k80 on k1")
    moved("1", f"runs on 1 x v100 on v1, {NOT_MEANT}")
    moved("1", f"Slurm shows it as sent, but {NOT_STARTED}")
    moved("2", f"runs on 1 x v100 on v1, {NOT_MEANT}")
    moved("2", "runs on 1 x k80 on k1")
    store.begin("3", "move", "asked", 1.0, {})
    assert store.counts_in_vain("move") == {"1": 2}
    assert store.all_in_vain("move") == {"1": 2, "2": 1}


def test_what_is_closed_and_old_is_forgotten_and_what_is_open_is_not(store):
    store.end(store.begin("1", "move", "asked", 1.0, {}), "moved", 2.0)
    store.begin("2", "move", "asked", 1.0, {})
    store.decisions.record([Decision("1", 1.0, "", ""), Decision("3", 100.0, "", "")])
    store.serve({"1": (1, 0.0)}, 1.0)
    store.keep_steering("1", "gone")
    store.keep_steering("3", "kept")
    store.forget(50.0)
    assert store.history("1") == [] and [e.job for e in store.open_entries()] == ["2"]
    assert list(store.decisions.last()) == ["3"] and store.serve({}, 60.0).now == {}
    assert store.steerings(["1", "3"]) == {"3": "kept"}


def test_all_or_nothing(store):
    with pytest.raises(ZeroDivisionError), store.transaction():
        store.begin("1", "move", "asked", 1.0, {})
        _ = 1 / 0
    assert store.open_entries() == []


BIG = "x" * 3000
ROWS = range(40)
WRITES = {
    "statements": lambda state, n: state.serve({f"{BIG}{i}.{n}": (1, 0.0) for i in ROWS}, 5.0),
    "decisions": lambda state, n: state.decisions.record(
        [Decision(f"{i}.{n}", 1.0, BIG, BIG) for i in ROWS]
    ),
    "declared work": lambda state, n: DeclaredWorkTables(state.connection).keep_least(
        [(f"{BIG}{i}.{n}", LeastDeclared(1.0, 1.0)) for i in ROWS], 5.0, 0.0
    ),
    "ended jobs": lambda state, n: EndedJobsTable(state.connection).change(
        [EndedJob(f"{i}.{n}", 1, BIG, BIG, 1.0, 1.0, 9.0) for i in ROWS], [], 0.0
    ),
    "places": lambda state, n: StayTable(state.connection).keep(
        [StoredStay(f"{i}.{n}", 1.0, BIG, 1, BIG, "a", {"v100": 1}) for i in ROWS], (1.0, n), 0.0
    ),
}
TABLES = ("attained", "decision", "least_declared", "ended_job", "stay")


def rows_in(path):
    with closing(sqlite3.connect(path)) as other:
        return sum(other.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in TABLES)


@pytest.mark.parametrize("what", WRITES)
def test_a_full_disk_leaves_no_transaction_open_and_nothing_half_written(tmp_path, store, what):
    path, link = tmp_path / "state" / "hadar.sqlite", store.connection
    for table in (DeclaredWorkTables, EndedJobsTable, StayTable):
        table(link)
    pages = link.execute("PRAGMA page_count").fetchone()[0]
    link.execute(f"PRAGMA max_page_count={pages + 9}")
    for n in (1.0, 2.0, 3.0):
        with pytest.raises(HadarError, match="disk is full"), store.readable_errors():
            WRITES[what](store, n)
        assert not link.in_transaction and rows_in(path) == 0
    link.execute("PRAGMA max_page_count=100000")
    with store.readable_errors():
        WRITES[what](store, 4.0)
    assert not link.in_transaction and rows_in(path) in (len(ROWS), 2 * len(ROWS))


@pytest.mark.parametrize(
    ("what", "table"),
    [("statements", "attained"), ("decisions", "decision"), ("declared work", "least_declared"),
     ("ended jobs", "ended_job"), ("places", "stay")],
)  # fmt: skip
def test_a_statement_that_fails_undoes_its_transaction(tmp_path, store, what, table):
    link = store.connection
    for tables in (DeclaredWorkTables, EndedJobsTable, StayTable):
        tables(link)
    # The last of many: those before it were carried out.
    link.execute(
        f"CREATE TRIGGER full AFTER INSERT ON {table} WHEN (SELECT COUNT(*) FROM {table}) = 40"
        " BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    for n in (1.0, 2.0):
        with pytest.raises(HadarError, match="no room"), store.readable_errors():
            WRITES[what](store, n)
        assert not link.in_transaction
    assert rows_in(tmp_path / "state" / "hadar.sqlite") == 0
    link.execute("DROP TRIGGER full")
    WRITES[what](store, 3.0)
    with store.transaction():
        store.begin("1", "move", "asked", 1.0, {})
    assert rows_in(tmp_path / "state" / "hadar.sqlite") in (len(ROWS), 2 * len(ROWS))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_of_python_undoes_a_transaction(store, error):
    with pytest.raises(error), store.transaction():
        store.begin("1", "move", "asked", 1.0, {})
        raise error
    assert not store.connection.in_transaction and store.open_entries() == []


def test_a_commit_that_fails_undoes_its_transaction(store):
    """SQLite itself leaves it open then, as it does where another process is in the way."""
    link = store.connection
    link.execute("PRAGMA foreign_keys=ON")
    link.execute("CREATE TABLE one (id INTEGER PRIMARY KEY)")
    link.execute("CREATE TABLE two (one INTEGER REFERENCES one DEFERRABLE INITIALLY DEFERRED)")
    for _ in range(2):
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"), store.transaction():
            store.begin("1", "move", "asked", 1.0, {})
            link.execute("INSERT INTO two VALUES (7)")
        assert not link.in_transaction and store.open_entries() == []
    with store.transaction():
        store.begin("1", "move", "asked", 1.0, {})
    assert len(store.open_entries()) == 1


def test_a_transaction_that_cannot_begin_undoes_no_other(tmp_path, store):
    link = store.connection
    link.execute("PRAGMA busy_timeout=50")
    with closing(sqlite3.connect(tmp_path / "state" / "hadar.sqlite", isolation_level=None)) as two:
        with transaction(two):
            with pytest.raises(sqlite3.OperationalError, match="locked"), store.transaction():
                pytest.fail("it has begun")
            assert not link.in_transaction
        with store.transaction():
            store.begin("1", "move", "asked", 1.0, {})
            with pytest.raises(sqlite3.OperationalError, match="within"), store.transaction():
                pytest.fail("it has begun")
    assert len(store.open_entries()) == 1


def test_a_transaction_that_sqlite_has_undone_reports_the_first_error(store):
    """On a full disk it may undo the whole transaction, of which ROLLBACK knows nothing."""
    with pytest.raises(sqlite3.OperationalError, match="disk is full"), store.transaction():
        store.connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")
    assert not store.connection.in_transaction


def damaged_page(path):
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)


def no_table(path):
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE journal")
    connection.close()


def half_an_entry(path):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE journal SET details='{\"gpus\": '")
    connection.commit()
    connection.close()


def no_schema_of_ours(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=-5000")
    connection.close()


DAMAGES = [
    lambda path: path.write_bytes(b"garbage" * 1000),
    lambda path: path.write_bytes(b"\0" * 5000),
    damaged_page,
    no_table,
    half_an_entry,
    no_schema_of_ours,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_said_so_and_put_aside_by_who_may(tmp_path, damage):
    folder = tmp_path / "state"
    path = folder / "hadar.sqlite"
    first = Store.open(folder)
    first.begin("7", "move", "asked", 5.0, {"gpus": {"v100": 1}})
    first.close()
    damage(path)
    as_it_was = path.read_bytes()
    # Somebody who only looks must not take the file from under a controller.
    with pytest.raises(HadarError, match="is damaged"):
        Store.open(folder)
    assert path.read_bytes() == as_it_was
    again = Store.open(folder, repair=True)
    assert again.open_entries() == []
    (note,) = again.notes
    (aside,) = folder.glob("*.damaged-*")
    assert str(aside) in note and aside.read_bytes() == as_it_was
    again.close()
    healthy = Store.open(folder, repair=True)
    # Kept until it is reported, and not only until the file is opened.
    assert healthy.notes == (note,)
    healthy.opening_reported()
    healthy.close()
    healthy = Store.open(folder, repair=True)
    assert healthy.notes == () and len(list(folder.glob("*.damaged-*"))) == 1
    healthy.close()


def test_of_damaged_files_the_newest_three_are_kept(tmp_path):
    folder = tmp_path / "state"
    Store.open(folder).close()
    old = [f"hadar.sqlite.damaged-2026110{day}T120000" for day in range(1, 5)]
    for name in old:
        for end in ("", "-wal", "-shm"):
            (folder / f"{name}{end}").write_bytes(b"garbage")
    (folder / "hadar.sqlite").write_bytes(b"garbage" * 1000)
    store = Store.open(folder, repair=True)
    (note,) = store.notes
    store.close()
    kept = {one.name for one in folder.glob("*.damaged-*") if not one.name.endswith(("wal", "shm"))}
    assert {*old[2:]} < kept and len(kept) == 3
    assert not [one for one in folder.iterdir() if one.name.startswith((old[0], old[1]))]
    assert note.endswith(f". Older copies were removed: {old[0]}, {old[1]}")
    # None beyond these is removed.
    (folder / old[3]).unlink()
    (folder / "hadar.sqlite").write_bytes(b"garbage" * 1000)
    store = Store.open(folder, repair=True)
    store.close()
    assert (folder / old[2]).exists()


def _open_once(path, begin, answers):
    begin.wait()
    try:
        store_file.open_file(path).close()
        answers.put("")
    except HadarError as error:
        answers.put(str(error))


def test_a_new_file_is_opened_by_several_programs_at_once(tmp_path):
    spawn = multiprocessing.get_context("fork")
    for number in range(5):
        begin, answers = spawn.Barrier(4), spawn.Queue()
        path = tmp_path / f"{number}.sqlite"
        openers = [spawn.Process(target=_open_once, args=(path, begin, answers)) for _ in range(4)]
        for opener in openers:
            opener.start()
        assert [answers.get(timeout=30) for _ in openers] == [""] * 4
        for opener in openers:
            opener.join()


def test_a_file_of_the_first_release_is_brought_up_to_date(tmp_path):
    make_private(tmp_path / "state")
    path = tmp_path / "state" / "hadar.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(store_file._FIRST)
    connection.execute("PRAGMA user_version=1")
    connection.execute("INSERT INTO journal VALUES (1, '7', 'move', 'asked', 5, 5, '{}', NULL)")
    connection.commit()
    connection.close()
    opened = Store.open(tmp_path / "state")
    assert [entry.job for entry in opened.open_entries()] == ["7"]
    assert opened.connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    indexes = {row[1] for row in opened.connection.execute("PRAGMA index_list(journal)")}
    assert "journal_kind" in indexes
    opened.close()


@pytest.mark.parametrize("version", range(1, VERSION))
def test_what_an_older_release_wrote_is_carried_on(tmp_path, version):
    make_private(tmp_path / "state")
    connection = sqlite3.connect(tmp_path / "state" / "hadar.sqlite")
    for change in store_file._CHANGES[:version]:
        connection.executescript(change)
    connection.execute(f"PRAGMA user_version={version}")
    columns = "(id, job, kind, phase, opened_s, changed_s, details, outcome)"
    for row in [
        (1, "7", "move", "asked", 5, 5, "{}", None),
        (2, "8", "start", "sent", 5, 6, "{}", "done"),
    ]:
        connection.execute(f"INSERT INTO journal {columns} VALUES (?,?,?,?,?,?,?,?)", row)
    connection.execute("INSERT INTO decision VALUES ('7', 5, '1 x k80', 'why')")
    connection.commit()
    connection.close()
    opened = Store.open(tmp_path / "state")
    (entry,) = opened.open_entries()
    assert entry.shown is None and entry.steps == () and entry.effect is None
    # What was over before is not reported as if it were news.
    assert opened.history("8")[0].shown == "" and opened.unlogged(9) == ({}, [])
    opened.advance(entry.id, "requeued", 7.5)
    opened.end(entry.id, "moved", 8.0)
    assert opened.history("7")[0].steps == (("requeued", 7.5),)
    opened.decisions.record(
        [Decision("7", 9.0, "1 x k80", "why"), Decision("8", 9.0, "waits", "x")]
    )
    assert opened.decisions.of("7") == [] and len(opened.decisions.of("8")) == 1
    opened.close()


def test_a_file_that_is_taken_away_is_not_written_any_longer(tmp_path):
    store = Store.open(tmp_path / "state")
    assert store.new
    with store.readable_errors():
        store.begin("1", "hint", "sent", 1.0, {})
    for path in (tmp_path / "state").glob("hadar.sqlite*"):
        path.unlink()
    with pytest.raises(DamagedStateFile, match="was removed"), store.readable_errors():
        pass
    store.close()
    again = Store.open(tmp_path / "state", repair=True)
    assert again.new and again.open_entries() == []
    again.close()
    known = Store.open(tmp_path / "state")
    assert known.new, "the process that opened it may have ended before it could report it"
    known.opening_reported()
    assert not known.new
    known.close()


def test_decisions_that_differ_in_figures_only_are_one(store):
    for number in range(20):
        store.decisions.record(
            [Decision("1", float(number), "1 x k80", f"ends in {20 - number} min")]
        )
    assert [d.time_s for d in store.decisions.of("1")] == [0.0]
    assert store.decisions.last()["1"].reason == "ends in 1 min"
    for number in range(500):
        store.decisions.record(
            [Decision("1", 100.0 + number, ("waits", "1 x k80")[number % 2], "")]
        )
    assert len(store.decisions.of("1")) == 200 and store.decisions.of("1")[-1].time_s == 599.0


def test_a_full_disk_is_one_clear_sentence(store):
    pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
    store.connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(HadarError, match="its disk is full") as caught, store.readable_errors():
        for _ in range(200):
            store.begin("7", "move", "asked", 5.0, {"reason": "x" * 1000})
    assert not isinstance(caught.value, DamagedStateFile)


def test_a_file_of_a_newer_release_is_not_touched(tmp_path):
    Store.open(tmp_path).close()
    path = tmp_path / "hadar.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={VERSION + 1}")
    connection.close()
    with pytest.raises(HadarError, match="newer"):
        Store.open(tmp_path)


def test_the_folder_must_be_ours_alone(tmp_path):
    folder = tmp_path / "state"
    Store.open(folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "hadar.sqlite").stat().st_mode & 0o777 == 0o600
    folder.chmod(0o755)
    with pytest.raises(HadarError, match="chmod 700"):
        Store.open(folder)
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(HadarError, match="is a symbolic link"):
        make_private(link)
    (tmp_path / "file").touch()
    for below in (tmp_path / "file" / "state", tmp_path / "file"):
        with pytest.raises(HadarError, match="a file is in its place or above it"):
            make_private(below)


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    needs_root("it gives a folder to another user")
    folder = Path(tmp_path / "theirs")
    folder.mkdir(0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(HadarError, match="does not belong"):
        Store.open(folder)


def test_a_months_jobs_cost_a_tick_nothing(store):
    """Memory and time of a tick go with the jobs that Slurm shows, not with those that ended."""
    decisions = [Decision(str(job), 100.0, "2 v100", "pays by 1.3") for job in range(20_000)]
    store.decisions.record(decisions)
    store.serve({one.job: (2, 50.0) for one in decisions}, 100.0)
    now = [replace(one, time_s=200.0) for one in decisions[:40]]
    running, shown = {"7": (2, 50.0)}, {one.job for one in now}
    tracemalloc.start()
    try:
        store.decisions.record(now)
        attained = store.serve(running, 200.0, shown).now
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 300_000
    assert attained == {job: 300.0 if job == "7" else 100.0 for job in shown}
    assert store.serve({}, 300.0, ["new"]).now == {}
    assert len(store.decisions.of("7")) == 1 and store.decisions.last()["7"].time_s == 200.0
