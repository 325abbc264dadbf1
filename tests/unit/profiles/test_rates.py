import sqlite3
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar import config
from slurm_hadar.exchange.progress import FASTEST, SLOWEST
from slurm_hadar.profiles import rate_blocks
from slurm_hadar.profiles.measured import MOST_ROWS_PER_USER, MeasuredStore, RateSample
from slurm_hadar.profiles.measured_correction import SURE_S
from slurm_hadar.profiles.rates import Rates, open_rates
from slurm_hadar.profiles.recent_cache import Recent
from slurm_hadar.profiles.user_corrections import OTHERS_MOST

TYPES = ("v100", "p100", "k80", "a100")
COUNTS = (1, 2, 3, 4, 8)


def test_shapes_and_marks() -> None:
    rate, known = Rates().rates((None, "resnet18", 64), TYPES, COUNTS)
    assert rate.shape == known.shape == (4, 5)
    assert rate.dtype == np.float64 and known.dtype == np.bool_
    assert (rate > 0).all()
    assert known[:3, 0].all() and not known[3].any()


def test_a_measured_pair_is_what_was_measured() -> None:
    rates = Rates()
    assert rates.record(RateSample("ResNet-18", "p100", 2, 64, 1234.0, 60))
    rate, known = rates.rates((None, "resnet18", 64), TYPES, COUNTS)
    assert rate[1, 1] == pytest.approx(1234) and known[1, 1]
    assert rates.source((None, "resnet18", 64), ("p100", 2)) == "measured (1 run, 60 s)"


@settings(deadline=None)
@given(factor=st.floats(0.01, 100), kind=st.sampled_from(TYPES[:3]), gpus=st.sampled_from(COUNTS))
def test_one_measurement_scales_all_pairs_of_the_model(factor: float, kind: str, gpus: int) -> None:
    rates = Rates()
    before, _ = rates.rates((None, "lm", 40), TYPES, COUNTS)
    other, _ = rates.rates((None, "resnet50", 64), TYPES, COUNTS)
    place = TYPES.index(kind), COUNTS.index(gpus)
    assert rates.record(RateSample("lm", kind, gpus, 40, before[place] * factor, 100))
    after, _ = rates.rates((None, "lm", 40), TYPES, COUNTS)
    np.testing.assert_allclose(after, before * factor)
    np.testing.assert_array_equal(rates.rates((None, "resnet50", 64), TYPES, COUNTS)[0], other)


def test_the_factor_of_other_types_is_the_geometric_mean() -> None:
    rates = Rates()
    before, _ = rates.rates((None, "lm", 40), TYPES, COUNTS)
    rates.record(RateSample("lm", "v100", 1, 40, before[0, 0] * 2, 100))
    rates.record(RateSample("lm", "k80", 1, 40, before[2, 0] * 0.5, 100))
    after, _ = rates.rates((None, "lm", 40), TYPES, COUNTS)
    np.testing.assert_allclose(after, before * np.array([[2], [1], [0.5], [1]]))


@pytest.mark.parametrize("uid", [0, 7])
@pytest.mark.parametrize("longer", [True, False])
def test_short_runs_do_not_change_the_order_of_the_types(uid: int, longer: bool) -> None:
    """A busy moment after a move made the fastest type look slower than the slowest."""
    rates = Rates()
    before, _ = rates.rates((None, "ResNet-18", 64), TYPES[:3], (1,))
    long_s = SURE_S if longer else SURE_S - 1
    for kind, rate, seconds in (("k80", 512.0, long_s), ("p100", 408.0, 9), ("v100", 290.0, 10)):
        rates.record(RateSample("ResNet-18", kind, 1, 64, rate, seconds, uid=3))
    for asked in (3, uid or None):
        after, known = rates.rates((asked, "ResNet-18", 64), TYPES[:3], (1,))
        assert after[0, 0] > after[1, 0] > after[2, 0] and known.all()
        if longer:
            np.testing.assert_allclose(after, before * 512.0 / before[2, 0])
    said = rates.source((3, "ResNet-18", 64), ("v100", 1))
    assert said == "table (Gavel), measured for 10 s only"
    # What was measured long enough counts, whatever a table says.
    rates.record(RateSample("ResNet-18", "v100", 1, 64, 290.0, SURE_S, uid=3))
    after, _ = rates.rates((3, "ResNet-18", 64), TYPES[:3], (1,))
    assert after[0, 0] == pytest.approx(290)
    assert rates.source((3, "ResNet-18", 64), ("v100", 1)).endswith("its owner (2 runs, 30 s)")


def test_between_measured_counts_the_ratio_is_interpolated() -> None:
    rates = Rates()
    before, _ = rates.rates((None, "lm", 40), TYPES, (1, 2, 4, 8))
    rates.record(RateSample("lm", "v100", 1, 40, before[0, 0], 100))
    rates.record(RateSample("lm", "v100", 4, 40, before[0, 2] * 4, 100))
    after, _ = rates.rates((None, "lm", 40), TYPES, (1, 2, 4, 8))
    np.testing.assert_allclose(after[0] / before[0], [1, 2, 4, 4])


def test_other_batches_are_corrected_too() -> None:
    rates = Rates()
    before, _ = rates.rates((None, "lm", 80), TYPES, (1,))
    at_40, _ = rates.rates((None, "lm", 40), TYPES, (1,))
    rates.record(RateSample("lm", "v100", 1, 40, at_40[0, 0] * 1.2, 100))
    np.testing.assert_allclose(rates.rates((None, "lm", 80), TYPES, (1,))[0], before * 1.2)


def test_a_ratio_of_the_same_batch_comes_before_those_of_others() -> None:
    rates = Rates()
    at_2048, _ = rates.rates((None, "recommendation", 2048), TYPES[:3], (1,))
    rates.record(RateSample("recommendation", "p100", 1, 64, 39_995.0, 60, uid=3))
    rates.record(RateSample("recommendation", "k80", 1, 2048, at_2048[2, 0] * 1.1, 60, uid=3))
    mine, _ = rates.rates((3, "recommendation", 2048), TYPES[:3], (1,))
    np.testing.assert_allclose(mine, at_2048 * 1.1)


def test_without_a_batch_any_measured_batch_serves() -> None:
    rates = Rates()
    rates.record(RateSample("own", "v100", 1, 64, 100.0, 30))
    rates.record(RateSample("own", "v100", 1, 128, 200.0, 90))
    rate, known = rates.rates((None, "own", None), ("v100",), (1,))
    assert rate[0, 0] == pytest.approx(175) and known[0, 0]
    assert rates.source((None, "own", None), ("v100", 1)) == "measured (2 runs, 120 s)"


def test_without_a_batch_a_reported_one_is_set_against_the_tables_row_of_that_batch() -> None:
    """A training that reports batch 64, below the table's least, was 12 times as fast as the table
    carried on to 64: of types not measured the table's middle batch counted 12 times."""
    rates = Rates()
    at_64, _ = rates.rates((None, "recommendation", 64), TYPES[:3], (1,))
    usual, _ = rates.rates((None, "recommendation", None), TYPES[:3], (1,))
    rates.record(RateSample("recommendation", "k80", 1, 64, 23_800.0, 60, uid=3))
    mine, _ = rates.rates((3, "recommendation", None), TYPES[:3], (1,))
    np.testing.assert_allclose(mine, at_64 * 23_800 / at_64[2, 0])
    rates.record(RateSample("recommendation", "p100", 1, 64, 39_995.0, 60, uid=3))
    mine, known = rates.rates((3, "recommendation", None), TYPES[:3], (1,))
    assert mine[0, 0] == pytest.approx(19_000, rel=0.1) and known[:, 0].tolist() == [
        False,
        True,
        True,
    ]
    assert rates.source((3, "recommendation", None), ("v100", 1)) == (
        "estimated beyond the table (Gavel), corrected by what its owner's runs measured"
    )
    # A stranger's batch is none of another user's: there the table's middle batch stays.
    theirs, _ = rates.rates((7, "recommendation", None), TYPES[:3], (1,))
    np.testing.assert_allclose(theirs[1:, 0], [39_995, 23_800])
    # What was not measured is shifted as its neighbour in speed is.
    assert theirs[0, 0] == pytest.approx(usual[0, 0] * theirs[2, 0] / usual[2, 0])


def test_without_a_batch_the_reported_one_grows_with_the_gpus() -> None:
    rates = Rates()
    of_16, _ = rates.rates((None, "resnet18", 16), TYPES, (1,))
    of_64, _ = rates.rates((None, "resnet18", 64), TYPES, (4,))
    rates.record(RateSample("resnet18", "k80", 1, 16, of_16[2, 0] * 3, 60, uid=3))
    mine, _ = rates.rates((3, "resnet18", None), TYPES, (1, 4))
    np.testing.assert_allclose(mine, np.hstack([of_16, of_64]) * 3)


@pytest.mark.parametrize("batch", [1, 64, 10**6])
def test_a_strangers_batch_changes_no_order_of_types(batch: int) -> None:
    rates = Rates()
    rates.record(RateSample("recommendation", "k80", 1, batch, 23_800.0, 60, uid=3))
    theirs, _ = rates.rates((7, "recommendation", None), TYPES[:3], (1,))
    assert theirs[1, 0] > theirs[2, 0] > theirs[0, 0] > 15_000
    # Nor for a user who measured another batch.
    rates.record(RateSample("recommendation", "k80", 1, 2048, 21_384.0, 60, uid=7))
    theirs, _ = rates.rates((7, "recommendation", None), TYPES[:3], (1,))
    np.testing.assert_allclose(theirs[:, 0], [15_298, 33_990, 21_384], rtol=0.05)


def test_an_unknown_model_becomes_real_by_one_measurement() -> None:
    rates = Rates()
    assert not rates.anchored("own")
    rate, known = rates.rates((None, "own", 64), TYPES, COUNTS)
    assert (rate > 0).all() and not known.any()
    rates.record(RateSample("own", "v100", 1, 64, rate[0, 0] * 7, 100))
    after, known = rates.rates((None, "own", 64), TYPES, COUNTS)
    np.testing.assert_allclose(after, rate * 7)
    assert known.sum() == 1 and known[0, 0]
    assert rates.anchored("own") and rates.anchored("resnet18")


def test_a_users_own_measurement_comes_before_that_of_others() -> None:
    rates = Rates()
    before, _ = rates.rates((None, "resnet18", 64), ("v100",), (1,))
    rates.record(RateSample("resnet18", "v100", 1, 64, before[0, 0] * 1e-3, 100, uid=1001))
    mine, _ = rates.rates((1001, "resnet18", 64), ("v100",), (1,))
    theirs, _ = rates.rates((1002, "resnet18", 64), ("v100",), (1,))
    assert mine[0, 0] == pytest.approx(before[0, 0] * 1e-3)
    assert theirs[0, 0] == pytest.approx(before[0, 0] / OTHERS_MOST)
    rates.record(RateSample("resnet18", "v100", 1, 64, before[0, 0] * 1.1, 100, uid=1002))
    theirs, _ = rates.rates((1002, "resnet18", 64), ("v100",), (1,))
    assert theirs[0, 0] == pytest.approx(before[0, 0] * 1.1)
    own = "measured in runs of its owner (1 run, 100 s)"
    assert rates.source((1002, "resnet18", 64), ("v100", 1)) == own
    assert rates.source((7, "resnet18", 64), ("v100", 1)) == (
        "table (Gavel), corrected within bounds by what other users measured (2 runs, 200 s)"
    )


def test_several_users_are_one_vote_each() -> None:
    rates = Rates()
    before, _ = rates.rates((None, "lm", 40), ("v100",), (1,))
    for uid, factor, seconds in ((1, 1.1, 1.0), (2, 1.2, 1.0), (3, 4.9, 1e6)):
        rates.record(RateSample("lm", "v100", 1, 40, before[0, 0] * factor, seconds, uid=uid))
    seen, _ = rates.rates((4, "lm", 40), ("v100",), (1,))
    assert seen[0, 0] == pytest.approx(before[0, 0] * 1.2)


def test_a_pair_that_cannot_run_stays_0_until_it_ran() -> None:
    rates = Rates()
    rates.record(RateSample("resnet50", "v100", 1, 128, 400.0, 60))
    assert rates.rates((None, "resnet50", 256), ("k80",), (2,))[0][0, 0] == 0
    rates.record(RateSample("resnet50", "k80", 2, 256, 50.0, 60))
    assert rates.rates((None, "resnet50", 256), ("k80",), (2,))[0][0, 0] == 50


@given(
    st.lists(
        st.tuples(st.floats(1, 1e5), st.floats(0.1, 1e5)),
        min_size=1,
        max_size=20,
    )
)
def test_the_mean_lies_among_the_measurements(windows: list[tuple[float, float]]) -> None:
    store = MeasuredStore()
    for rate, seconds in windows:
        assert store.record(RateSample("m", "v100", 1, 64, rate, seconds))
    (found,) = store.of("m")
    seen = [rate for rate, _ in windows]
    assert min(seen) * (1 - 1e-9) <= found.samples_per_s <= max(seen) * (1 + 1e-9)
    assert found.seconds == pytest.approx(sum(seconds for _, seconds in windows))


def test_newer_seconds_count_more_and_windows_of_one_attempt_are_one_run() -> None:
    store = MeasuredStore()
    for _ in range(100):
        store.record(RateSample("m", "v100", 1, 64, 100.0, 60, run="12/0"))
    for _ in range(100):
        store.record(RateSample("m", "v100", 1, 64, 200.0, 60, run="12/1"))
    (found,) = store.of("m")
    assert found.samples_per_s > 185
    assert found.runs == 2


@pytest.mark.parametrize(
    ("gpus", "batch", "rate", "seconds"),
    [
        (0, 1, 1.0, 1.0),
        (1, -1, 1.0, 1.0),
        (1, 10**20, 1.0, 1.0),
        (1, 1, 0.0, 1.0),
        (1, 1, -5.0, 1.0),
        (1, 1, float("nan"), 1.0),
        (1, 1, float("inf"), 1.0),
        (1, 1, 1.0, 0.0),
        (1, 1, 1.0, float("nan")),
    ],
)
def test_figures_that_cannot_be_are_left_out(
    gpus: int, batch: int, rate: float, seconds: float
) -> None:
    store = MeasuredStore()
    assert not store.record(RateSample("m", "v100", gpus, batch, rate, seconds))
    assert not list(store.of("m"))


def test_one_user_cannot_fill_the_file_and_his_latest_models_are_known() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    store = MeasuredStore(connection)
    store.record(RateSample("others", "v100", 1, 1, 1.0, 1.0, uid=6))
    for i in range(MOST_ROWS_PER_USER + 100):
        assert store.record(RateSample(f"m{i}", "v100", 1, 1, 1.0, 1.0, uid=5))
        # The first one is run again and again.
        assert i % 500 or store.record(RateSample("m0", "v100", 1, 1, 1.0, 1.0, uid=5))
    for found in (store, MeasuredStore(connection)):
        known = [i for i in range(MOST_ROWS_PER_USER + 100) if list(found.of(f"m{i}"))]
        assert known == [0, *range(101, MOST_ROWS_PER_USER + 100)]
        assert list(found.of("others"))


@pytest.mark.parametrize("isolation", [None, "DEFERRED"])
def test_measurements_outlive_the_process(
    tmp_path: Path, isolation: Literal["DEFERRED"] | None
) -> None:
    path = tmp_path / "hadar.sqlite"
    for second in (False, True):
        connection = sqlite3.connect(path, isolation_level=isolation)
        rates = open_rates(config.parse("", "t"), connection)
        if second:
            assert rates.rates((9, "lm", 40), ("v100",), (1,))[0][0, 0] == pytest.approx(777)
        else:
            rates.record(RateSample("lm", "v100", 1, 40, 777.0, 30, uid=9))
        connection.close()


def test_a_commit_that_fails_leaves_no_transaction_open(tmp_path: Path) -> None:
    class FullDisk(sqlite3.Connection):
        full = False

        def commit(self) -> None:
            if self.full:
                raise sqlite3.OperationalError("database or disk is full")
            super().commit()

    connection = sqlite3.connect(tmp_path / "hadar.sqlite", factory=FullDisk)
    store = MeasuredStore(connection)
    connection.full = True
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.record(RateSample("m", "v100", 1, 1, 1.0, 1.0))
    assert not connection.in_transaction
    connection.close()


def test_a_callers_transaction_stays_the_callers(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "hadar.sqlite", isolation_level=None)
    store = MeasuredStore(connection)
    connection.execute("BEGIN IMMEDIATE")
    store.record(RateSample("m", "v100", 1, 1, 1.0, 1.0))
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT COUNT(*) FROM throughput").fetchone()[0] == 0
    connection.close()


def test_a_sites_types_and_tables(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"version":1,"source":"ours","rows":[["bert","big",1,8,140.0,null]]}')
    text = f'[profiles]\ntables=["{own}"]\n[gpu_types.big]\ntflops=300\n[gpu_types.volta]\n'
    rates = open_rates(config.parse(text + 'profile="v100"\n', "t"))
    assert rates.source((None, "bert", 8), ("big", 1)) == "table (ours)"
    assert rates.source((None, "lm", 20), ("volta", 1)) == "table (Gavel)"
    assert rates.source((None, "lm", 20), ("big", 1)).startswith("estimated from v100")
    assert rates.source((None, "own", 20), ("big", 1)).startswith(
        "estimated from the GPU's specification"
    )
    rates.record(RateSample("bert", "big", 1, 8, 100.0, 10))
    assert rates.source((None, "bert", 16), ("big", 2)).endswith("corrected by what was measured")


def test_many_jobs_at_once() -> None:
    rates = Rates()
    rates.record(RateSample("lm", "v100", 1, 40, 900.0, 30, uid=3))
    models = ("resnet18", "resnet50", "lm", "transformer", "recommendation", "cyclegan", "own", "x")
    keys = [
        (uid, model, batch) for uid in (1, 2, 3, 4) for model in models for batch in (16, 40, None)
    ]
    jobs = [keys[i % len(keys)] for i in range(5000)]
    start = time.process_time()
    rate, known = rates.rates_for(jobs, TYPES, COUNTS)
    cold = time.process_time() - start
    assert rate.shape == known.shape == (5000, 4, 5)
    for i in (0, 7, 95, 4999):
        uid, model, batch = jobs[i]
        one = rates.rates((uid, model, batch), TYPES, COUNTS)
        np.testing.assert_array_equal(rate[i], one[0])
        np.testing.assert_array_equal(known[i], one[1])
    start = time.process_time()
    rates.rates_for(jobs, TYPES, COUNTS)
    warm = time.process_time() - start
    print(f"cold {cold * 1e3:.1f} ms, warm {warm * 1e3:.1f} ms")
    assert cold < 1.0
    assert rates.rates_for([], TYPES, COUNTS)[0].shape == (0, 4, 5)


def remembered(rates: Rates) -> list[int]:
    return [len(value) for value in vars(rates._blocks).values() if isinstance(value, Recent)]


def test_models_that_nobody_asks_for_any_more_are_forgotten() -> None:
    """Jobs without a declared model are known by their names: there is no end of these."""
    rates = Rates()
    rates.record(RateSample("own", "v100", 1, 8, 100.0, 60, uid=3))
    before = rates.rates((3, "own", 8), TYPES, COUNTS)[0]
    for number in range(200):
        rates.rates((number % 5, f"~job{number}", 8), TYPES, COUNTS)
        rates.rates((3, "own", 8), TYPES, COUNTS)
        rates.forget_unused()
    assert 0 < max(remembered(rates)) <= 4
    rates.record(RateSample("own", "v100", 1, 8, 300.0, 60, uid=3))
    assert rates.rates((3, "own", 8), TYPES, COUNTS)[0][0, 0] > before[0, 0]


def test_a_great_many_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_blocks, "_MOST_CACHED", 20)
    rates = Rates()
    for number in range(200):
        found = rates.rates((number % 5, f"~job{number}", 8), TYPES, COUNTS)[0]
        np.testing.assert_array_equal(rates.rates((3, "x", 8), TYPES, COUNTS)[0], found)
    assert max(remembered(rates)) <= 40


@pytest.mark.parametrize(
    ("rate", "seconds"), [(5e-324, 60), (1e-7, 60), (1e10, 60), (0.1, 5e-324), (1.0, 2e-4)]
)
def test_figures_that_cannot_be_are_not_kept(rate: float, seconds: float) -> None:
    rates = Rates()
    assert not rates.record(RateSample("resnet18", "k80", 1, 64, rate, seconds))
    assert not list(rates.store.of("resnet18"))


@given(
    st.lists(
        st.tuples(
            st.floats(SLOWEST, FASTEST) | st.sampled_from([SLOWEST, FASTEST]),
            st.floats(1e-3, 1e9),
            st.integers(1, 3),
            st.sampled_from(COUNTS),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_whatever_is_kept_gives_finite_rates(samples: list[tuple[float, float, int, int]]) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    rates = Rates(store=MeasuredStore(connection))
    for rate, seconds, uid, gpus in samples:
        assert rates.record(RateSample("resnet18", "k80", gpus, 64, rate, seconds, uid=uid))
    kept = list(rates.store.of("resnet18"))
    assert all(SLOWEST <= row.samples_per_s <= FASTEST for row in kept)
    assert sorted(kept, key=str) == sorted(MeasuredStore(connection).of("resnet18"), key=str)
    for uid in (None, 1, 2, 9):
        found, _ = rates.rates((uid, "resnet18", 64), TYPES, COUNTS)
        assert (found > 0).all() and np.isfinite(found).all()
