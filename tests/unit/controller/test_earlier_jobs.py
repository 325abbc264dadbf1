"""What is assumed of a job that declares no work, from what earlier jobs of its user, name and
model were."""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import CONFIG, NOW, config, dictate, job, nodes, observation, running
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.journal.work_tables import EndedJob, EndedJobsTable
from slurm_hadar.controller.profiling import users_work
from slurm_hadar.controller.profiling.users_work import EarlierJobsLearner
from slurm_hadar.controller.snapshot.assumed_work import LEAST_JOBS, conditional_median
from slurm_hadar.controller.snapshot.work import explained
from slurm_hadar.controller.tick import Controller, _Mode
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.traffic import Traffic

DAY = 86400.0
SILENT = Declaration(types=("any",), checkpoint="yes")
NAMED = replace(SILENT, model="resnet18", batch=(64, 64))
K80 = {"k1": {"k80": 1}}


class Site:
    """A controller that is shown jobs, at times that a test says."""

    def __init__(self, store):
        self.now, self.number = NOW, 0
        cluster = SimpleNamespace(
            traffic=Traffic(lambda: self.now), queries=Counter(), read_config=lambda: {}
        )
        self.controller = Controller(
            config(), cluster, store, open_rates(CONFIG), 0, lambda: self.now
        )

    def look(self, *jobs, samples=None):
        """The snapshot of a tick; ``samples``: job -> what it reports."""
        reports = {id_: report(id_, done, self.now) for id_, done in (samples or {}).items()}
        shown = observation(jobs, nodes(k1=1), now=self.now, progress=reports)
        return self.controller._snapshot(shown, {}, _Mode(False))[1]

    def runs(self, seconds, end="COMPLETED", samples=None, every=600.0, **more):
        """A job of one GPU runs so long, with a tick every so many seconds, and ends."""
        self.number += 1
        id_, start, done = str(100 + self.number), self.now, 0.0
        mine = running(id_, K80, **{"declaration": SILENT, "start_s": start, **more})
        while done < seconds:
            done = min(seconds, done + every)
            self.now = start + done
            reports = {id_: int(samples * done / seconds)} if samples else None
            shown = self.look(mine, samples=reports)
        gone = replace(mine, state=JobState.FINISHED, slurm_state=end, end_s=self.now, gpus={})
        self.look(gone, samples={id_: samples} if samples else None)
        return shown

    def next(self, **more):
        """Samples that the next job counts as, and what the plan says of it."""
        mine = job("9", **{"declaration": SILENT, **more})
        shown = self.look(mine)
        assert not shown.view.jobs.end_known[0] or mine.declaration.total_samples
        plan = explained(dictate(shown.view, {}), shown.view.jobs.ids, shown.work)
        return float(shown.view.jobs.total[0]), plan.waiting["9"]


def report(id_, samples, now):
    return Progress(id_, now, 0, "k1", 1, False, now, "resnet18", samples, 0.0, 0.0, 64, 1)


@pytest.fixture
def store(tmp_path):
    with closing(Store.open(tmp_path / "state")) as opened:
        yield opened


@pytest.fixture
def site(store):
    return Site(store)


@given(st.lists(st.floats(1, 1e12), max_size=30), st.floats(0, 1e12), st.floats(0, 1e12))
def test_the_median_is_of_what_is_above_and_grows_with_what_is_done(amounts, done, later):
    above = [one for one in amounts if one > done]
    found = conditional_median(amounts, done)
    assert (found == 0.0) == (not above)
    if above:
        assert done < found <= max(above)
        assert (
            sum(one <= found for one in above)
            >= len(above) / 2
            <= sum(one >= found for one in above)
        )
        more = conditional_median(amounts, max(done, later))
        assert more == 0.0 or more >= found


def test_jobs_alike_tell_how_much_work_the_next_one_is(site):
    unknown, _ = site.next()
    for seconds in (600.0, 1200.0, 1800.0):
        site.runs(seconds)
    total, said = site.next()
    assert total < unknown
    assert "it declares no work: 0.333 GPU-hours in all are assumed" in said
    assert "the median of 3 earlier jobs of the same user, name and model" in said
    for other in (
        {"uid": 1001},
        {"name": "other"},
        {"declaration": replace(SILENT, model="resnet50")},
    ):
        assert "earlier" not in site.next(**other)[1]
    declared = site.next(declaration=replace(NAMED, samples=12_345))
    assert declared == (12_345.0, "not now")


def test_of_jobs_that_report_samples_these_count(site):
    for samples in (20_000, 30_000, 70_000):
        site.runs(600.0, samples=samples, declaration=NAMED)
    total, said = site.next(declaration=NAMED)
    assert total == 30_000.0 and "30,000 samples in all are assumed" in said
    mine = running("9", K80, declaration=NAMED, start_s=site.now)
    shown = site.look(mine, samples={"9": 30_000})
    assert (shown.view.jobs.total[0], shown.view.jobs.left[0]) == (70_000.0, 40_000.0)
    # Beyond all of them its length is unknown: as long again as it ran at the least.
    shown = site.look(mine, samples={"9": 900_000})
    assert shown.view.jobs.left[0] >= 900_000.0
    plan = explained(dictate(shown.view, {}), ("9",), shown.work)
    assert "more than all of 3 earlier jobs" in plan.waiting["9"]


def test_it_stays_a_job_of_unknown_work_for_what_protects_others(site):
    for _ in range(LEAST_JOBS):
        site.runs(600.0, samples=10**9, declaration=NAMED)
    shown = site.look(job("9", declaration=NAMED))
    assert shown.view.jobs.total[0] == 10**9
    assert not shown.view.jobs.end_known[0] and shown.view.jobs.prospects.work_unknown[0]
    # It is kept from no type, though it would not end in its time limit on any.
    assert (shown.view.jobs.rate[0] > 0).any(axis=1).all()


@pytest.mark.parametrize("end", ["CANCELLED by 1000", "FAILED", "TIMEOUT", "NODE_FAIL"])
def test_jobs_that_did_not_end_by_themselves_tell_nothing(site, end):
    unknown = site.next()
    for _ in range(5):
        site.runs(10.0, end=end)
    assert site.next() == unknown


def test_of_too_few_jobs_nothing_is_assumed(site):
    unknown = site.next()
    for _ in range(LEAST_JOBS - 1):
        site.runs(600.0)
    assert site.next() == unknown


@pytest.mark.parametrize("name", ["train", "other"])
def test_short_jobs_make_no_long_ones_look_short_again(site, name):
    """Five that complete after 10 s, then a long one, then another, under other names too."""
    unknown, _ = site.next(name=name)
    for _ in range(5):
        site.runs(10.0, every=10.0)
    assert site.next()[0] < unknown
    shown = site.runs(4 * 3600.0, end="CANCELLED by 1000", every=1800.0)
    assert shown.view.jobs.left[0] >= unknown
    for _ in range(5):
        site.runs(10.0, every=10.0, name=name)
    total, said = site.next(name=name)
    # A hundred times as much as those five say.
    assert total > unknown / 3
    assert "times that, as this user's jobs took longer" in said
    # What another user's jobs did is not in it, and what this one declares counts as it did.
    for _ in range(5):
        site.runs(10.0, every=10.0, name=name, uid=1001)
    assert site.next(name=name, uid=1001)[0] < unknown
    assert site.next(declaration=replace(NAMED, samples=100)) == (100.0, "not now")


def test_a_user_whose_jobs_differ_little_is_believed(site):
    for seconds in (3000.0, 3600.0, 4200.0, 3600.0, 3300.0, 3900.0):
        site.runs(seconds)
    factor = site.controller.learning.assumed_work.trust_factors(site.now).get(1000, 1.0)
    assert factor < 1.1


def test_they_are_forgotten_after_90_days_and_stand_in_the_file(site, store):
    for _ in range(LEAST_JOBS):
        site.runs(600.0)
    site.now += 89 * DAY
    assert "earlier" in Site(store).next()[1] and "earlier" in site.next()[1]
    site.now += 2 * DAY
    assert "earlier" not in site.next()[1]
    site.runs(600.0)
    (count,) = store.connection.execute("SELECT COUNT(*) FROM ended_job").fetchone()
    assert count == 1


def finished(number, **more):
    return job(
        str(number),
        JobState.FINISHED,
        **{"slurm_state": "COMPLETED", "end_s": NOW + number, **more},
    )


def test_only_so_many_are_kept_of_a_kind_of_a_user_and_of_all(store, monkeypatch):
    monkeypatch.setattr(users_work, "MOST_OF_USER", 30)
    monkeypatch.setattr(users_work, "MOST", 40)
    ended = [finished(number, uid=1000 + number % 2) for number in range(100)]
    ended += [finished(number, name=f"n{number}") for number in range(100, 200)]
    known = EarlierJobsLearner(store.connection)
    for _ in range(2):
        known.learn(observation(ended), {one.id: 60.0 for one in ended})
        rows = list(EndedJobsTable(store.connection).rows(0.0))
        # The last ones.
        assert {int(row.job) for row in rows if row.uid == 1000} == set(range(170, 200))
        assert len(rows) == 40
        assert all(len(one.gpu_s) <= users_work.MOST_ALIKE for one in known.of(NOW).values())
    before = store.connection.total_changes
    known.learn(observation(ended), {one.id: 60.0 for one in ended})
    assert store.connection.total_changes == before


def test_a_job_of_a_partition_that_opts_jobs_in_counts_too(store):
    known = EarlierJobsLearner(store.connection)
    ended = [finished(number, declaration=None) for number in (1, 2)]
    known.learn(observation(ended), {"1": 60.0})
    assert list(known.of(NOW)) == [(1000, "train", "")]


def test_no_name_and_no_cell_of_the_file_ends_a_tick(store):
    known = EarlierJobsLearner(store.connection)
    odd = finished(1, name="a\ud800'; DROP TABLE ended_job; --" + "x" * 999)
    known.learn(observation([odd]), {"1": 60.0})
    assert len(known.of(NOW)) == 1
    store.connection.execute("UPDATE ended_job SET samples='x', gpu_s=9e999, name=x'ff'")
    assert all(not one.gpu_s for one in EarlierJobsLearner(store.connection).of(NOW).values())
    store.connection.execute("UPDATE ended_job SET uid='x'")
    assert not EarlierJobsLearner(store.connection).of(NOW)


def test_the_file_of_an_earlier_release_gets_the_tables_and_goes_back(tmp_path):
    tables = ("ended_job", "assumed_work", "least_assumed")
    with closing(Store.open(tmp_path / "state")) as store:
        Site(store)
        for table in tables:
            store.connection.execute(f"DROP TABLE {table}")
    with closing(Store.open(tmp_path / "state")) as store:
        site = Site(store)
        for _ in range(LEAST_JOBS):
            site.runs(600.0)
        assert "earlier" in site.next()[1]
    # The release before opens the file: it knows the same schema and no table of these.
    connection = sqlite3.connect(tmp_path / "state" / "hadar.sqlite")
    assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    connection.close()


def test_a_row_is_read_as_it_was_written(store):
    row = EndedJob("1", 1000, "train", "", 5.0, 6.0, NOW)
    table = EndedJobsTable(store.connection)
    table.change([row], [], 0.0)
    assert list(table.rows(0.0)) == [row]
