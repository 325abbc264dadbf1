"""Tables of the rate by CPUs and memory, and optimistic profiling."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar import config as configuration
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.profiles import convert_synergy, cpu_table, optimistic
from slurm_hadar.profiles.cpu_table import CpuTable, cpu_trait_of, load, parse, shipped
from slurm_hadar.profiles.optimistic import DataSet, RateMeasurement
from slurm_hadar.profiles.optimistic_run import Trial
from slurm_hadar.profiles.rates import open_rates

DATA = Path(cpu_table.__file__).parent / "data"


def test_the_shipped_table_is_1_at_the_fair_share() -> None:
    models = {row[0] for row in shipped().rows}
    assert len(models) == 12
    for model, gpus in {(row[0], row[1]) for row in shipped().rows}:
        grid = shipped().grid(model, gpus)
        assert grid is not None
        assert grid.on(np.array([3.0]), np.array([62.5 * 1024]))[0, 0] == 1.0
    alexnet = shipped().grid("alexnet", 1)
    assert alexnet is not None and alexnet.rate.max() == 2.94
    assert "Microsoft" in (DATA / "synergy.LICENSE").read_text()
    assert json.loads((DATA / "synergy.json").read_text())["licence"].startswith("MIT")


def test_a_grid_of_fewer_gpus_serves_more() -> None:
    four, eight = shipped().grid("res18", 4), shipped().grid("res18", 8)
    assert four is eight and shipped().grid("res18", 3) is shipped().grid("res18", 2)
    assert shipped().grid("nobody", 1) is None


def test_between_points_is_interpolated_and_below_them_in_proportion() -> None:
    table = CpuTable([("m", 1, c, g, c * g) for c in (2, 4) for g in (1, 2)], "test")
    grid = table.grid("M", 1)
    assert grid is not None
    found = grid.on(np.array([1.0, 2.0, 3.0, 9.0]), np.array([512.0, 1536.0, 9999.0]))
    assert found.tolist() == [[0.5, 1.5, 2.0], [1.0, 3.0, 4.0], [1.5, 4.5, 6.0], [2.0, 6.0, 8.0]]


def test_the_trait_is_1_where_a_job_has_what_it_asks_for() -> None:
    two, many = np.array([2.0, 2.0]), np.array([64_000.0, 64_000.0])
    grids = [shipped().grid("alexnet", 1), None]
    trait = cpu_trait_of(grids, (two, many), (two / 2, many / 2), (two * 4, many * 2))
    assert trait.at(0, 2.0, 64_000.0) == pytest.approx(1.0)
    assert trait.at(0, 3.0, 64_000.0) == pytest.approx(1 / 0.66)
    assert (trait.factor[1] == 1.0).all() and trait.present_cpus.tolist() == [0.0, 0.0]
    assert (
        cpu_trait_of([None], (two[:1],) * 2, (two[:1],) * 2, (two[:1],) * 2).at(0, 5.0, 5.0) == 1.0
    )


def test_synergys_profiles_are_converted() -> None:
    models = {
        "net_1": {"tput": [[0.5] * 5] * 9},
        "net_2": {"tput": [[0.5] * 4] * 8 + [[0] * 4]},
    }
    rows = convert_synergy.convert(models)
    assert len(rows) == 9 * 5 + 8 * 4
    assert rows[0] == ("net", 1, 1, 20.83, 0.5) and rows[-1] == ("net", 2, 12, 250.0, 0.5)
    assert len(parse(cpu_table.text(rows, convert_synergy.HEAD), "x").rows) == len(rows)
    with pytest.raises(ValueError, match="no profile"):
        convert_synergy.convert({"net": {"tput": []}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ('{"rows": []}', "version"),
        ('{"version": 1, "rows": 3}', "no list"),
        ('{"version": 1, "rows": [["m", 1, 2, 3]]}', "is not model"),
        ('{"version": 1, "rows": [["m", 1, 2, 3, 0]]}', "above 0"),
        ('{"version": 1, "rows": [["m", 1.5, 2, 3, 1]]}', "whole"),
        ('{"version": 1, "rows": [["m",1,1,1,1],["m",1,2,2,1]]}', "no full grid"),
    ],
)
def test_a_wrong_table_is_reported(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text, "mine")


def test_the_sites_tables_are_laid_over_each_other(tmp_path: Path) -> None:
    for name, rate in (("a", 1.0), ("b", 2.0)):
        rows = [("net", 1, c, 1.0, rate) for c in (1, 2)]
        (tmp_path / name).write_text(cpu_table.text(rows, {"source": name}))
    site = f'[profiles]\ncpu_tables = ["{tmp_path}/a", "{tmp_path}/b"]\n'
    grid = open_rates(configuration.parse(site, "test")).cpus.grid("net", 1)
    assert grid is not None and grid.rate.max() == 2.0
    assert configuration.Config().profiles.cpu_tables == ()
    with pytest.raises(UsageError, match="cpu_tables"):
        load(tmp_path / "none")


def points_of(rate: dict[int, float], most: int) -> tuple[list[int], list[RateMeasurement]]:
    """(CPUs in the order of measuring, the points)."""
    order: list[int] = []

    def measure(cpus: int) -> RateMeasurement:
        order.append(cpus)
        return RateMeasurement(cpus, rate.get(cpus, float(cpus)), 60.0)

    return order, optimistic.profile(most, measure)


def test_flat_ends_are_skipped_and_steep_ones_are_walked() -> None:
    flat = dict.fromkeys(range(6, 25), 6.0)
    order, points = points_of(flat, 24)
    # 12 and 6 are as fast as 24, 3 is not; then one by one.
    assert order == [24, 12, 6, 3, 2, 1]
    assert [p.cpus for p in points] == [1, 2, 3, 6, 12, 24]
    assert optimistic.saved_min(points, 5) == (6.0, 24 * 5 - 6.0)
    assert points_of({}, 8)[0] == [8, 4, 3, 2, 1]
    assert points_of(dict.fromkeys(range(99), 1.0), 24)[0] == [24, 12, 6, 3, 1]
    assert points_of({}, 1)[0] == [1]


@given(st.integers(1, 64), st.lists(st.floats(0.01, 100.0), min_size=64, max_size=64))
def test_profiling_ends_and_never_repeats(most: int, rates: list[float]) -> None:
    order, points = points_of(dict(enumerate(rates, 1)), most)
    assert order == sorted(set(order), reverse=True) and order[0] == most and order[-1] >= 1
    assert len(points) == len(order)


def test_memory_follows_from_the_model() -> None:
    data = DataSet(1000, 1000e6, 10e6, lambda _: 1e9)
    # All cached: computing takes 10 s, reading 1 s. Half cached: 50.5 s from the disk.
    assert optimistic.with_memory(100.0, 1, 1.0, data) == pytest.approx(100.0)
    assert optimistic.with_memory(100.0, 1, 0.5, data) == pytest.approx(1000 / 50.5)
    rows = optimistic.rows("m", 2, [RateMeasurement(3, 100.0, 1.0)], 4.0, data)
    assert [row[:3] for row in rows] == [("m", 2, 3)] * 5
    assert [row[3] for row in rows] == [0.5, 1.0, 2.0, 3.0, 4.0]
    assert rows[0][4] == rows[-1][4] == 100.0
    assert optimistic.rows("m", 1, [RateMeasurement(3, 100.0, 1.0)], 4.0, None) == [
        ("m", 1, 3, 4.0, 100.0)
    ]


@pytest.mark.parametrize("pattern", ["(", "no group"])
def test_a_pattern_must_find_a_number(pattern: str) -> None:
    with pytest.raises(UsageError, match="--pattern"):
        Trial(("x",), 1, 1.0, 1.0, 1.0, pattern)
