"""How far a user's declarations of work are believed."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest
from hand_made import NOW, job, running
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.profiling.users_work import FORGOTTEN_DAYS, DeclaredWork
from slurm_hadar.controller.snapshot.assumed_work import assumed_work
from slurm_hadar.controller.snapshot.work import JobWork
from slurm_hadar.domain.declaration import Declaration

DAY = 86400.0
CHECKPOINTED = Declaration(types=("any",), model="resnet18", samples=1, checkpoint="yes")


def work(declared, received, attained, done=0):
    """Of one job: samples, samples, GPU-seconds, samples."""
    declared, received, attained, done = (
        np.array([float(number)]) for number in (declared, received, attained, done)
    )
    rest = np.ones(1)
    return JobWork(
        declared=declared,
        done=done,
        received=received,
        attained=attained,
        total=rest,
        left=rest,
        least_left=rest,
        unknown=np.zeros(1, bool),
        estimated=np.zeros(1, bool),
        factor=rest,
        assumed=assumed_work([None], None),
    )


def one(id_="1", **more):
    return running(id_, {"k1": {"k80": 1}}, **{"declaration": CHECKPOINTED, **more})


@pytest.fixture
def known():
    return DeclaredWork(sqlite3.connect(":memory:", isolation_level=None))


def lived(known, declared, seconds, uid=1000, now=NOW, speed=10.0, every=60.0, id_="1", **more):
    """A job of ``declared`` samples ran for ``seconds`` on a GPU, with a tick ``every`` so many."""
    # What is kept of another job of this number is forgotten long since.
    known.tables.connection.execute("DELETE FROM least_declared")
    before = 0.0
    while before < seconds:
        attained = min(seconds, before + every)
        shown = work(declared, attained * speed, attained)
        known.learn([one(id_, uid=uid, **more)], shown, {id_: before}, now)
        before = attained


def test_who_takes_what_he_declares_or_less_is_believed(known):
    lived(known, declared=36_000, seconds=3600.0)
    lived(known, declared=36_000, seconds=600.0)
    assert known.trust_factors(NOW) == {}


@pytest.mark.parametrize("every", [7.0, 60.0, 3600.0])
def test_who_takes_more_is_believed_by_as_much_less(known, every):
    lived(known, declared=12_000, seconds=3600.0, every=every)
    assert known.trust_factors(NOW) == {1000: pytest.approx(3.0)}


def test_small_honest_jobs_do_not_hide_a_large_false_one(known):
    lived(known, declared=10, seconds=36_000.0)
    for _ in range(100):
        lived(known, declared=100, seconds=10.0)
    assert known.trust_factors(NOW)[1000] > 30.0
    # The one who really did much as he declared is believed again.
    lived(known, declared=360_000, seconds=36_000.0)
    assert known.trust_factors(NOW)[1000] == pytest.approx(2.0, rel=0.1)


def test_it_is_each_users_own_record_and_forgotten(known):
    lived(known, declared=100, seconds=100.0, uid=1000)
    lived(known, declared=1000, seconds=100.0, uid=1001)
    assert known.trust_factors(NOW) == {1000: pytest.approx(10.0)}
    assert known.trust_factors(NOW + (FORGOTTEN_DAYS - 1) * DAY) == {1000: pytest.approx(10.0)}
    assert known.trust_factors(NOW + FORGOTTEN_DAYS * DAY) == {}
    lived(known, declared=1000, seconds=100.0, uid=1001, now=NOW + FORGOTTEN_DAYS * DAY)
    rows = known.tables.connection.execute("SELECT DISTINCT uid FROM declared_work").fetchall()
    assert rows == [(1001,)]


def test_gpu_time_that_is_no_measure_of_the_work_does_not_count(known):
    again = replace(CHECKPOINTED, checkpoint="")
    lived(known, declared=10, seconds=600.0, declaration=again, restarts=1)
    assert known.trust_factors(NOW) == {}


@pytest.mark.parametrize("raised", [3_600_000, 0], ids=["to the truth", "to nothing"])
def test_a_declaration_that_is_raised_once_it_has_its_place_counts_as_it_was(known, raised):
    """It got its place by the small one: seen while it waited, or as it ran."""
    known.learn([job(declaration=CHECKPOINTED)], work(10, 0, 0), {}, NOW)
    known.learn([one()], work(raised, 36_000, 3600), {"1": 0.0}, NOW + 60)
    assert known.trust_factors(NOW + 60) == {1000: pytest.approx(1000.0)}


def test_another_model_of_unknown_speed_hides_nothing(known):
    known.learn([one()], work(6000, 600, 60), {"1": 0.0}, NOW)
    known.learn([one()], work(0, 0, 3600), {"1": 60.0}, NOW + 60)
    assert known.trust_factors(NOW + 60) == {1000: pytest.approx(6.0)}


def test_what_is_lowered_counts_as_it_is_now(known):
    """Who stops early may say so before."""
    known.learn([one()], work(36_000, 6000, 600), {"1": 0.0}, NOW)
    known.learn([one()], work(9000, 9000, 900), {"1": 600.0}, NOW + 60)
    assert known.trust_factors(NOW + 60) == {}


FORKED = replace(CHECKPOINTED, fork=(1, 2))


def test_of_copies_the_reported_samples_count(known):
    # 3,600 GPU-seconds of two copies, that did as much as one alone, or half more.
    for done in (18_000, 27_000):
        shown = work(done, 36_000, 3600, done)
        known.learn([one(declaration=FORKED)], shown, {"1": 0.0}, NOW)
        known.tables.connection.execute("DELETE FROM least_declared")
    assert known.trust_factors(NOW) == {}
    known.learn([one(declaration=FORKED)], work(9000, 36_000, 3600, 27_000), {"1": 0.0}, NOW)
    assert known.trust_factors(NOW)[1000] > 1.2


def test_copies_that_report_nothing_did_as_much_as_one(known):
    known.learn([one(declaration=FORKED)], work(10, 36_000, 3600), {"1": 0.0}, NOW)
    assert known.trust_factors(NOW) == {1000: pytest.approx(1000.0)}


def test_the_least_is_kept_in_a_file_of_before_and_forgotten_with_the_job(tmp_path):
    store = Store.open(tmp_path / "state")
    DeclaredWork(store.connection)
    store.connection.execute("DROP TABLE IF EXISTS least_declared")
    store.connection.execute("INSERT INTO declared_work VALUES (1001, ?, 20, 10)", (NOW // DAY,))
    store.close()
    store = Store.open(tmp_path / "state")
    DeclaredWork(store.connection).learn([one()], work(10, 0, 0), {}, NOW)
    store.close()
    store = Store.open(tmp_path / "state")
    known = DeclaredWork(store.connection)
    known.learn([one()], work(3_600_000, 36_000, 3600), {"1": 0.0}, NOW)
    assert known.trust_factors(NOW) == {1000: pytest.approx(1000.0), 1001: pytest.approx(2.0)}
    later = NOW + 31 * DAY
    known.learn([job("2")], work(10, 0, 0), {}, later)
    rows = store.connection.execute("SELECT job FROM least_declared").fetchall()
    store.close()
    assert rows == [("2",)]


def test_what_nobody_can_measure_does_not_count(known):
    known.learn([job()], work(0, 0, 0), {}, NOW)
    known.learn([one()], work(0, 10, 600), {}, NOW)
    known.learn([one()], work(10, 0, 600), {}, NOW)
    assert known.trust_factors(NOW) == {}


@given(
    declared=st.floats(1, 1e9),
    seconds=st.floats(1, 1e6),
    speed=st.floats(1e-3, 1e6),
    ticks=st.integers(1, 20),
)
def test_the_factor_is_time_taken_by_time_declared_however_many_ticks(
    declared, seconds, speed, ticks
):
    known = DeclaredWork(sqlite3.connect(":memory:", isolation_level=None))
    lived(known, declared, seconds, speed=speed, every=seconds / ticks)
    factor = known.trust_factors(NOW).get(1000, 1.0)
    assert factor == pytest.approx(min(1000.0, max(1.0, seconds * speed / declared)), rel=1e-3)
