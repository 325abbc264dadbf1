import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.profiles import specs
from slurm_hadar.profiles.estimate import Estimator
from slurm_hadar.profiles.table import Table, shipped


@pytest.mark.parametrize(
    ("name", "key", "memory"),
    [
        ("a100", "a100", 40),
        ("nvidia_a100-sxm4-80gb", "a100", 80),
        ("tesla_v100-sxm2-32gb", "v100", 32),
        ("NVIDIA_GeForce_RTX_3090", "rtx3090", 24),
        ("nvidia_h100_80gb_hbm3", "h100", 80),
        ("l40s", "l40s", 48),
        ("nvidia_rtx_6000_ada_generation", "rtx6000ada", 48),
        ("a1000", "", 0),
        ("gpu", "", 0),
        ("", "", 0),
    ],
)
def test_slurms_names_of_types_are_understood(name: str, key: str, memory: float) -> None:
    assert specs.canonical(name) == key
    spec = specs.lookup(name)
    assert (spec.memory_gb if spec else 0) == memory


def test_a_mig_slice_counts_as_its_part() -> None:
    whole, part = specs.lookup("a100"), specs.lookup("a100_3g.20gb")
    assert whole is not None and part is not None
    assert part.tflops == pytest.approx(whole.tflops * 3 / 7)
    assert part.memory_gb == 20


def test_a_type_that_the_table_lacks_is_estimated_from_the_nearest() -> None:
    cell = Estimator(shipped()).cell("resnet18", "a100", 1, 64)
    v100 = Estimator(shipped()).cell("resnet18", "v100", 1, 64)
    assert v100.known and not cell.known
    assert 2 < cell.rate / v100.rate < 6
    assert cell.how.startswith("estimated from v100")


def test_a_slice_of_a_type_of_the_table_is_not_the_whole() -> None:
    table = Table([["m", "a100", 1, 64, 1000.0, None]], "ours")
    whole = Estimator(table).cell("m", "nvidia_a100-sxm4-40gb", 1, 64)
    part = Estimator(table).cell("m", "a100_1g.5gb", 1, 64)
    assert (whole.rate, whole.known) == (1000, True)
    assert 0 < part.rate < 500 and not part.known


def test_the_sites_own_figures_stand() -> None:
    table = shipped()
    shipped_says = Estimator(table).cell("lm", "odd", 1, 20)
    fast = Estimator(table, tflops={"odd": 500.0}).cell("lm", "odd", 1, 20)
    assert fast.rate > shipped_says.rate > 0
    named = Estimator(table, profile={"odd": "V100"}).cell("lm", "odd", 1, 20)
    assert named == Estimator(table).cell("lm", "v100", 1, 20)


def test_what_cannot_run_on_the_nearest_type_is_taken_from_the_next() -> None:
    table = Table([["m", "k80", 1, 64, 0.0, None], ["m", "v100", 1, 64, 100.0, None]], "ours")
    assert Estimator(table).cell("m", "m60", 1, 64).rate > 0
    none = Table([["m", "k80", 1, 64, 0.0, None]], "ours")
    assert Estimator(none).cell("m", "m60", 1, 64).rate == 0


def test_spread_rates_are_the_tables_second_tier() -> None:
    estimator = Estimator(shipped())
    close = estimator.cell("lm", "v100", 8, 8 * 20)
    apart = estimator.cell("lm", "v100", 8, 8 * 20, spread=True)
    assert apart.known and apart.rate < close.rate / 5
    missing = estimator.cell("resnet50", "k80", 4, 4 * 64, spread=True)
    assert missing.rate > 0
    assert estimator.cell("resnet50", "k80", 4, 4 * 128, spread=True).rate == 0


@given(
    model=st.text(max_size=20),
    kind=st.one_of(st.sampled_from(sorted(specs.SPECS)), st.text(max_size=20)),
    gpus=st.integers(1, 1000),
    batch=st.one_of(st.none(), st.integers(1, 10**9)),
)
def test_an_unknown_model_is_guessed_above_0_and_marked(
    model: str, kind: str, gpus: int, batch: int | None
) -> None:
    estimator = Estimator(Table((), "none"))
    cell = estimator.cell(model, kind, gpus, batch)
    assert 0 < cell.rate < float("inf")
    assert not cell.known
    assert not estimator.anchored(model)
    assert estimator.cell(model, kind, 2 * gpus, batch).rate < 2 * cell.rate
