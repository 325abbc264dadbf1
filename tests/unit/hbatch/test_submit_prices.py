"""The prices that a submit reads."""

import json
import os
import pwd
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.cli import submit_prices
from slurm_hadar.cli.wrapper_site import WrapperSite, fresh_file
from slurm_hadar.exchange.prices import PriceList, mark, write_prices
from slurm_hadar.solvers.prices import DualPrice

HALF = {"least": 0.1, "most": 1.0, "price": 0.3, "gpus": 20, "free": 10, "wait_s": {"1": 0.0}}
NONE_FREE = {**HALF, "free": 0}


def site_at(folder):
    return WrapperSite(
        {
            "mode": "act",
            "exchange_dir": str(folder),
            "controller_uid": os.getuid(),
            "opt_in": [],
            "default_types": "",
            "sbatch": "sbatch",
            "types": {},
        }
    )


def today(site, now, *args):
    return submit_prices.today(fresh_file(site, "prices.json", now), *args)


def read(folder, draw=0.0, later=0.0):
    return today(site_at(folder), time.time() + later, True, lambda: draw).prices


def test_a_price_rises_with_what_is_in_use(tmp_path):
    write_prices(tmp_path, PriceList({"v100": HALF, "k80": NONE_FREE}, 0, 60.0))
    found = read(tmp_path)
    assert found == {"v100": pytest.approx(0.1 * 10**0.5), "k80": pytest.approx(1.0)}


def test_the_default_partition_is_published(tmp_path):
    write_prices(tmp_path, PriceList({}, 0, 60.0, default="gpu"))
    assert today(site_at(tmp_path), time.time(), True).default == "gpu"
    write_prices(tmp_path, PriceList({"v100": HALF}, 0, 60.0))
    assert today(site_at(tmp_path), time.time(), True).default == ""


def test_partitions_whose_nodes_are_asleep_are_published(tmp_path):
    write_prices(tmp_path, PriceList({}, 0, 60.0, asleep=["v100"]))
    assert today(site_at(tmp_path), time.time(), True).asleep == {"v100"}
    for wrong in ("v100", 5, None, {"v100": 1}):
        published = {"types": {}, "arriving": 0, "asleep": wrong}
        assert submit_prices.today(published, True).asleep == frozenset()


def test_where_many_come_each_counts_some_of_them(tmp_path):
    write_prices(tmp_path, PriceList({"v100": HALF}, 10, 60.0))
    found = [read(tmp_path, draw)["v100"] for draw in (0.0, 0.5, 1.0)]
    assert found == [pytest.approx(0.1 * 10**share) for share in (0.5, 0.75, 1.0)]
    # However few came lately, a quarter of the free ones may be asked for at once.
    write_prices(tmp_path, PriceList({"v100": HALF}, 0, 60.0))
    assert read(tmp_path, 1.0)["v100"] == pytest.approx(0.1 * 10**0.625)


@pytest.mark.parametrize(("free", "least", "most"), [((20, 20), 100, 200), ((30, 10), 200, 285)])
def test_submits_between_two_ticks_spread_though_none_came_lately(tmp_path, free, least, most):
    """300 of them read one file; to each both types are worth the same. The first type gets about
    its part of the free GPUs: 150 and 250 of them (its chances are 1/2 and 5/6)."""
    types = {
        kind: {"least": 0.1, "most": 1.0, "price": 0.1, "gpus": number, "free": number}
        for kind, number in zip(("v100", "a100"), free, strict=True)
    }
    write_prices(tmp_path, PriceList(types, 0, 60.0))
    site, now = site_at(tmp_path), time.time()
    found = [today(site, now, True).prices for _ in range(300)]
    first = sum(prices["v100"] < prices["a100"] for prices in found)
    assert least < first < most


def test_a_job_that_never_moves_is_not_sent_to_a_slower_type_when_none_came_lately(tmp_path):
    """It would stay there. Where many come it counts some of them, as all do."""
    write_prices(tmp_path, PriceList({"v100": HALF}, 0, 60.0))
    site, now = site_at(tmp_path), time.time()
    assert today(site, now, False, lambda: 1.0).prices == read(tmp_path)
    write_prices(tmp_path, PriceList({"v100": HALF}, 10, 60.0))
    assert today(site, now, False, lambda: 1.0).prices == read(tmp_path, 1.0)


def test_the_draws_of_two_submits_differ(tmp_path):
    write_prices(tmp_path, PriceList({"v100": HALF}, 10, 60.0))
    site = site_at(tmp_path)
    assert len({today(site, time.time(), True).prices["v100"] for _ in range(20)}) > 10


@given(
    least=st.floats(1e-3, 1.0),
    times=st.floats(1.0, 1e3),
    gpus=st.integers(1, 1000),
    part=st.floats(0, 1),
)
def test_it_is_the_price_of_the_solvers(tmp_path_factory, least, times, gpus, part):
    folder = tmp_path_factory.mktemp("folder")
    used = int(part * gpus)
    one = {"least": least, "most": least * times, "gpus": gpus, "free": gpus - used}
    write_prices(folder, PriceList({"v100": one}, 0, 60.0))
    bounds = DualPrice(np.array([least]), np.array([least * times]))
    assert read(folder)["v100"] == pytest.approx(bounds.at(0, used, gpus))


@pytest.mark.parametrize("later", [211.0, -211.0])
def test_a_stale_file_has_no_price(tmp_path, later):
    write_prices(tmp_path, PriceList({"v100": HALF}, 0, 60.0))
    assert read(tmp_path) and not read(tmp_path, later=later)


def test_types_that_unmanaged_jobs_accept_are_named(tmp_path):
    types = {"v100": {**HALF, "shared": True}, "k80": {**HALF, "shared": False}, "p100": HALF}
    write_prices(tmp_path, PriceList(types, 0, 60.0))
    assert today(site_at(tmp_path), time.time(), True).shared == {"v100"}


def test_the_largest_nodes_of_a_partition_are_read(tmp_path):
    nodes = {"v100": [(2, 16, 64_000)], "k80": []}
    write_prices(tmp_path, PriceList({}, 0, 60.0, nodes))
    assert today(site_at(tmp_path), time.time(), True).nodes == nodes
    # As a controller of an earlier release writes it.
    path = tmp_path / "prices.json"
    old = {key: value for key, value in json.loads(path.read_text()).items() if key != "nodes"}
    path.write_text(json.dumps(old | {"types": {"v100": HALF}}))
    assert today(site_at(tmp_path), time.time(), True).nodes == {} and read(tmp_path)


def test_no_file_no_price(tmp_path):
    assert read(tmp_path) == {}
    assert read(tmp_path / "nowhere") == {}


@pytest.mark.timeout(20)
def test_what_somebody_else_laid_there_has_no_price(tmp_path):
    path = tmp_path / "prices.json"
    os.mkfifo(path)
    assert read(tmp_path) == {}
    path.unlink()
    write_prices(tmp_path, PriceList({"v100": HALF}, 0, 60.0))
    (tmp_path / "real").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(tmp_path / "real")
    assert read(tmp_path) == {}


def test_another_users_file_has_no_price(tmp_path):
    write_prices(tmp_path, PriceList({"v100": HALF}, 0, 60.0))
    site = site_at(tmp_path)
    site.controller_uid += 1
    assert today(site, time.time(), True).prices == {}


@pytest.mark.parametrize(
    "change",
    [
        {"types": []},
        {"types": {"v100": 7}},
        {"types": {"v100": {**HALF, "gpus": 0}}},
        {"types": {"v100": {**HALF, "free": 21}}},
        {"types": {"v100": {**HALF, "least": 0}}},
        {"types": {"v100": {**HALF, "least": 2}}},
        {"types": {"v100": {**HALF, "most": "1"}}},
        {"types": {"v100": {**HALF, "most": 1e308}}},
        {"types": {"v100": {**HALF, "least": 5e-324}}},
        {"nodes": []},
        {"nodes": {"v100": 7}},
        {"nodes": {"v100": [7]}},
        {"nodes": {"v100": [[2, 16]]}},
        {"nodes": {"v100": [[2, 16, "64"]]}},
        {"nodes": {"v100": [[2, -16, 64]]}},
        {"arriving": -1},
        {"arriving": None},
        {"version": 2},
        {"time": "now"},
        {"interval_s": None},
    ],
)
def test_a_damaged_file_has_no_price(tmp_path, change):
    path = tmp_path / "prices.json"
    write_prices(tmp_path, PriceList({"v100": HALF}, 0, 60.0))
    source = json.loads(path.read_text())
    assert read(tmp_path)
    path.write_text(json.dumps({**source, **change}))
    assert read(tmp_path) == {}
    path.write_text(json.dumps(source)[:-5])
    assert read(tmp_path) == {}


def test_the_partitions_in_which_jobs_stay_are_those_of_all_and_of_ones_own(tmp_path):
    mine = mark(pwd.getpwuid(os.getuid()).pw_name)
    kept = {"a": None, "b": [mine, 1], "c": [1], "d": []}
    write_prices(tmp_path, PriceList({}, 0, 60.0, kept=kept))
    assert today(site_at(tmp_path), time.time(), True).kept == {"a", "b"}
