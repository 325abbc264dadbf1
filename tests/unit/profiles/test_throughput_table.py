import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles import convert_gavel
from slurm_hadar.profiles.table import Curve, Table, load, model_key, parse, shipped


def test_gavels_steps_become_samples_of_the_whole_job() -> None:
    curve = shipped().curves("ResNet-18")["v100"]
    assert curve.at(1, 64).rate == pytest.approx(24.093 * 64, rel=1e-3)
    assert curve.at(8, 8 * 64).rate == pytest.approx(255.829 * 64, rel=1e-4)


def test_names_are_matched_without_case_and_dashes() -> None:
    assert model_key("resnet18") == model_key("ResNet-18") == model_key("Res_Net_18")
    assert shipped().curves("resnet18").keys() == {"v100", "p100", "k80"}
    assert not shipped().curves("~resnet18")
    assert not shipped().curves("resnet")


def test_a_pair_that_gavel_marks_0_stays_0() -> None:
    curve = shipped().curves("ResNet-50")["k80"]
    assert curve.at(1, 128).rate > 0
    for gpus in (2, 3, 4, 6, 8, 16):
        assert curve.at(gpus, 128 * gpus).rate == 0
        assert curve.at(gpus, 100 * gpus).rate == 0
        assert curve.at(gpus, 64 * gpus).rate > 0


def test_the_table_is_neither_monotone_nor_ordered_by_type() -> None:
    lm = shipped().curves("LM")["v100"]
    rates = [lm.at(n, 5 * n).rate for n in (1, 2, 4, 8)]
    assert rates != sorted(rates)
    recommendation = shipped().curves("recommendation")
    assert recommendation["k80"].at(1, 512).rate > recommendation["v100"].at(1, 512).rate


def test_every_point_of_the_shipped_table_is_found_again() -> None:
    table = shipped()
    assert len(table.rows) == 3 * 83
    for model, kind, gpus, batch, rate, apart in table.rows:
        point = table.curves(model)[kind].at(gpus, batch * gpus)
        assert (point.rate, point.within) == (rate, True)
        if apart is not None:
            assert table.curves(model, spread=True)[kind].at(gpus, batch * gpus).rate == apart


@given(gpus=st.integers(1, 64), batch=st.one_of(st.none(), st.integers(1, 10_000)))
def test_lookups_between_points_stay_between_or_below_them(gpus: int, batch: int | None) -> None:
    for curves in (shipped().curves(m) for m in ("ResNet-18", "LM", "Transformer", "A3C")):
        for curve in curves.values():
            point = curve.at(gpus, batch)
            highest = max(curve.cells.values())
            largest = max(n for n, _ in curve.cells)
            assert 0 < point.rate <= highest * max(1.0, gpus / largest) * (1 + 1e-9)


@given(
    low=st.floats(1, 1e6),
    high=st.floats(1, 1e6),
    gpus=st.integers(2, 7),
)
def test_between_two_counts_the_rate_lies_between_theirs(
    low: float, high: float, gpus: int
) -> None:
    curve = Curve({(1, 32): low, (8, 32): high})
    point = curve.at(gpus, 32 * gpus)
    assert point.within
    assert min(low, high) * (1 - 1e-9) <= point.rate <= max(low, high) * (1 + 1e-9)


def test_beyond_the_table_scaling_is_cut_and_marked() -> None:
    curve = Curve({(1, 32): 100.0, (2, 32): 300.0})
    point = curve.at(4, 128)
    assert not point.within
    assert point.rate == pytest.approx(300 * 2**0.8)
    falling = Curve({(1, 32): 300.0, (2, 32): 100.0})
    assert falling.at(8, 256).rate == 100


def test_a_fixed_global_batch_is_split_over_the_gpus() -> None:
    curve = Curve({(1, 64): 100.0, (2, 64): 180.0, (2, 32): 150.0})
    assert curve.at(1, 64).rate == 100
    assert curve.at(2, 64).rate == 150
    assert curve.at(2, 1024).rate == 180
    assert curve.at(2, 32).rate == 75
    assert not curve.at(2, 32).within


def test_the_shipped_file_is_what_the_converter_writes() -> None:
    source = {
        "v100": {"('LM (batch size 5)', 2)": {"null": 185.7239}, "('A3C', 1)": {"null": 7.0}},
        "v100_unconsolidated": {"('LM (batch size 5)', 2)": {"null": 40.35}},
    }
    text = convert_gavel.text(convert_gavel.convert(source))
    assert json.loads(text)["rows"] == [
        ["A3C", "v100", 1, 1, 7.0, None],
        ["LM", "v100", 2, 5, 928.62, 201.75],
    ]
    assert parse(text, "t").source("lm") == "Gavel"
    with pytest.raises(ValueError, match="no job"):
        convert_gavel.convert({"v100": {"LM": {"null": 1.0}}})


def test_the_licence_travels_with_the_table() -> None:
    from importlib import resources

    text = (resources.files("slurm_hadar.profiles") / "data" / "gavel.LICENSE").read_text()
    assert "MIT License" in text
    assert "Stanford" in text


@pytest.mark.parametrize(
    "row",
    [
        ["m", "v100", 1, 1, 1.0],
        ["", "v100", 1, 1, 1.0, None],
        ["~", "v100", 1, 1, 1.0, None],
        ["m", "", 1, 1, 1.0, None],
        ["m", "v100", 0, 1, 1.0, None],
        ["m", "v100", True, 1, 1.0, None],
        ["m", "v100", 1, 1.5, 1.0, None],
        ["m", "v100", 1, 1, -1.0, None],
        ["m", "v100", 1, 1, float("nan"), None],
        ["m", "v100", 1, 1, float("inf"), None],
        ["m", "v100", 1, 1, "fast", None],
        ["m", "v100", 1, 1, 1.0, "x"],
    ],
)
def test_a_bad_row_is_named(row: list[object], tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps({"version": 1, "source": "ours", "rows": [row]}))
    with pytest.raises(UsageError, match="table ours: row"):
        load(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "rows": 3}'])
def test_a_file_that_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="throughput table"):
        load(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "absent.json")


def test_a_sites_own_table_lies_over_the_shipped_one() -> None:
    own = Table([["resnet18", "a100", 1, 64, 9000.0, None]], "ours")
    both = own.over(shipped())
    assert both.curves("ResNet-18").keys() == {"a100"}
    assert both.source("ResNet-18") == "ours"
    assert not both.curves("ResNet-18", spread=True)
    assert both.source("LM") == "Gavel"
