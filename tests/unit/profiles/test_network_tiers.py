"""What models lose by tier, out of measurements, a table or a guess."""

import sqlite3

import pytest

from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.network_tiers import GUESS, TierRates, nearest
from slurm_hadar.profiles.sizes import gradient_bytes

GROUP = (1000, "v100", 8, 64)


def measured(found: TierRates, rates: dict[int, float], group=GROUP, seconds=100.0) -> None:
    uid, kind, gpus, batch = group
    for tier, rate in rates.items():
        assert found.record(RateSample("BERT", kind, gpus, batch, rate, seconds, uid=uid), tier)


def test_nothing_known_is_a_guess_and_a_table_is_better() -> None:
    tiers = TierRates()
    assert tiers.factor("BERT", GROUP).tolist() == list(GUESS)
    assert tiers.factor("BERT", GROUP, table=0.4).tolist() == [1.0, 0.4, 0.4]
    assert tiers.factor("BERT", GROUP, table=1.3).tolist() == [1.0, 1.0, 1.0]


def test_measured_tiers_are_over_the_nearest_one() -> None:
    tiers = TierRates()
    measured(tiers, {0: 200.0, 1: 150.0, 2: 40.0})
    assert tiers.factor("bert", GROUP, table=0.9).tolist() == [1.0, 0.75, 0.2]
    assert tiers.rates("BERT", GROUP) == (200.0, 150.0, 40.0)
    # One measured tier says nothing about the others.
    other = TierRates()
    measured(other, {2: 40.0})
    assert other.factor("BERT", GROUP).tolist() == list(GUESS)
    assert nearest(other.rates("BERT", GROUP)) == 2
    assert nearest((0.0, 0.0, 0.0)) is None


def test_a_gap_is_filled_and_no_tier_is_better_than_a_nearer_one() -> None:
    tiers = TierRates()
    measured(tiers, {0: 200.0, 2: 100.0})
    assert tiers.factor("BERT", GROUP).tolist() == pytest.approx([1.0, 1 / 1.5, 0.5])
    big = (1000, "v100", 32, 64)
    measured(tiers, {1: 100.0}, big)
    measured(tiers, {2: 140.0}, big)
    assert tiers.factor("BERT", big).tolist() == [1.0, 1.0, 1.0]
    third = (1000, "v100", 4, 64)
    measured(tiers, {0: 100.0, 1: 50.0}, third, seconds=1e6)
    assert tiers.factor("BERT", third).tolist() == pytest.approx([1.0, 0.5, 1 / 3])


def test_own_measurements_come_before_those_of_others() -> None:
    tiers = TierRates()
    measured(tiers, {0: 100.0, 1: 90.0, 2: 80.0}, (1, "v100", 8, 64), seconds=1e6)
    assert tiers.factor("BERT", GROUP)[2] == 0.8
    measured(tiers, {0: 100.0, 1: 50.0, 2: 10.0}, (1000, "v100", 4, 64))
    assert tiers.factor("BERT", GROUP)[2] == pytest.approx(0.1)
    assert tiers.factor("another", GROUP).tolist() == list(GUESS)


def test_what_another_user_writes_cannot_spoil_a_model_for_all() -> None:
    tiers = TierRates()
    measured(tiers, {0: 1e9, 1: 1e-6, 2: 1e-6}, (1, "v100", 8, 64), seconds=1e8)
    assert tiers.factor("BERT", GROUP)[1:].tolist() == pytest.approx([0.95 / 5, 0.9 / 5])
    assert tiers.factor("BERT", GROUP, table=0.5)[1:].tolist() == pytest.approx([0.1, 0.1])
    # It is his own affair what he believes of his own.
    assert tiers.factor("BERT", (1, "v100", 8, 64))[1:].tolist() == [1e-3, 1e-3]


def test_they_outlive_the_process_beside_the_ordinary_ones() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    measured(TierRates(connection), {0: 200.0, 2: 100.0})
    assert TierRates(connection).rates("BERT", GROUP) == (200.0, 0.0, 100.0)
    assert not TierRates(connection).record(RateSample("BERT", "v100", 8, 64, -1.0, 10.0), 0)


def test_sizes_know_a_model_by_its_name_however_written() -> None:
    assert gradient_bytes("resnet50") == gradient_bytes("ResNet-50") == 4 * 25.6e6
    assert gradient_bytes("nobody's") == 0.0
