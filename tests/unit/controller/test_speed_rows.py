"""Why `hadar explain` calls a GPU type unused."""

from dataclasses import replace

import hand_made
import pytest
from hand_made import RATES, config, job, look, observation, running

from slurm_hadar.controller.presentation.speeds import rate_rows
from slurm_hadar.controller.snapshot.chaining import ChainRecord
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import open_rates

SITE = config('[partitions]\nchain = ["gpu"]\n')
KNOWN = Declaration(
    types=("any",), checkpoint="yes", model="ResNet-50", batch=(64, 64), samples=2_000_000
)
IN_TIME = "the rest of its work does not fit in its time limit there"


def unused(one, past=None, site=SITE):
    """Type -> why one GPU of it is not used, of those with a reason."""
    shown = observation([one])
    rows = rate_rows(one.id, shown, look(shown, site, past), RATES, site)
    assert {row.gpu_type for row in rows} == {"v100", "p100", "k80"}
    found = {row.gpu_type: row.source.partition("; not used: ")[2] for row in rows if row.gpus == 1}
    return {kind: why for kind, why in found.items() if why}


def speed(kind):
    (rate,) = RATES.rates((None, "ResNet-50", 64), [kind], [1])[0][0]
    return rate


def test_nothing_is_said_of_types_that_are_usable():
    assert unused(job(declaration=KNOWN, time_limit_s=1e9)) == {}


def test_a_type_that_the_owner_excludes():
    one = job(declaration=replace(KNOWN, types=("v100", "p100")), time_limit_s=1e9)
    assert unused(one) == {"k80": "its owner excludes this type"}
    one = job(declaration=replace(KNOWN, gpu_mem=16 * 1024), time_limit_s=1e9)
    assert unused(one) == {"k80": "it has less memory than gpu_mem=16G"}


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (KNOWN, ""),
        (replace(KNOWN, types=("v100", "p100")), "its owner excludes this type"),
        (replace(KNOWN, gpu_mem=16 * 1024), "it has less memory than gpu_mem=16G"),
    ],
)
def test_where_a_job_runs_on_a_type_that_its_owner_excludes_since(declared, why):
    one = running("1", {"k1": {"k80": 1}}, declaration=declared, time_limit_s=1e9)
    shown = observation([one])
    rows = rate_rows("1", shown, look(shown, SITE), RATES, SITE)
    (here,) = (row for row in rows if row.here)
    assert here.source.partition("; still used, although ")[2] == why


@pytest.mark.parametrize("requeued", [False, True])
def test_a_job_that_moves_is_not_said_to_run_where_it_goes(requeued):
    one = running("1", {"k1": {"k80": 1}}, declaration=KNOWN, time_limit_s=1e9)
    if requeued:
        one = job("1", declaration=KNOWN, time_limit_s=1e9, restarts=1)
    shown = observation([one])
    goes = ControllerHistory(moving={"1": {"v1": {"v100": 1}}})
    rows = rate_rows("1", shown, look(shown, SITE, goes), RATES, SITE)
    assert [row.gpu_type for row in rows if row.here] == ([] if requeued else ["k80"])


def test_a_type_in_none_of_its_partitions():
    one = job(declaration=KNOWN, time_limit_s=1e9, partitions=("v100", "p100"))
    why = "its partitions, its constraint or a reservation leave it no node of this type"
    assert unused(one) == {"k80": why}


def test_a_type_that_its_list_of_partitions_omits_for_its_speed():
    site = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
    listed = replace(KNOWN, partitions=("gpu",))
    one = job(declaration=listed, time_limit_s=1e9, partitions=("v100", "p100"))
    times = f"{speed('v100') / speed('k80'):.0f}"
    why = (
        f"its list of partitions omits it, as it is {times} times slower there; "
        "a submit with types=k80,p100,v100 accepts it"
    )
    assert unused(one, site=site) == {"k80": why}
    narrow = replace(one, features="v100|p100")
    assert "a submit" not in unused(narrow, site=site)["k80"]
    # Without a group that has them, or with another type left out by its owner, it is not that.
    closed = "its partitions, its constraint or a reservation leave it no node of this type"
    assert unused(one) == {"k80": closed}
    one = job(declaration=listed, time_limit_s=1e9, partitions=("v100",))
    assert unused(one, site=site) == {"k80": why, "p100": closed}
    mine = replace(listed, partitions=("v100", "p100"))
    one = job(declaration=mine, time_limit_s=1e9, partitions=("v100", "p100"))
    assert unused(one, site=site) == {"k80": closed}


def test_a_type_that_a_table_left_out_and_that_measured_speeds_give_back(monkeypatch):
    rates = open_rates(SITE)
    monkeypatch.setattr(hand_made, "RATES", rates)
    for kind in ("v100", "k80"):
        assert rates.record(RateSample("ResNet-50", kind, 1, 64, 635.0, 600.0, uid=1000))
    site = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
    listed = replace(KNOWN, partitions=("gpu",), listed=("v100", "p100"))
    one = job(declaration=listed, time_limit_s=1e9, partitions=("v100", "p100"))
    assert unused(one, site=site) == {
        "k80": "its list of partitions omits it, as by a table it is far slower there; by measured "
        "speeds it is not, so an active controller adds it"
    }


def test_a_number_of_gpus_that_no_node_has():
    several = replace(KNOWN, gpus=(1, 4))
    one = job(declaration=several, time_limit_s=1e9)
    rows = rate_rows("1", shown := observation([one]), look(shown, SITE), RATES, SITE)
    found = {(row.gpu_type, row.gpus): row.source.partition("; not used: ")[2] for row in rows}
    too_many = {count for (_, count), why in found.items() if why}
    assert too_many == {3, 4} and set(found) == {(k, n) for k, _ in found for n in (1, 2, 3, 4)}
    assert found["k80", 4] == "no node that it may have has more than 2 GPUs of this type"
    # Over several nodes it may have them.
    spread = job(declaration=replace(several, nodes=(1, 4)), time_limit_s=1e9,
                 request=GpuRequest(per_job={UNTYPED: 1}))  # fmt: skip
    rows = rate_rows("1", shown := observation([spread]), look(shown, SITE), RATES, SITE)
    assert not [row.source for row in rows if "more than" in row.source]


@pytest.mark.parametrize("stays", [{"checkpoint": ""}, {"pin": True}])
def test_numbers_of_gpus_that_only_a_move_would_give_are_not_listed(stays):
    one = job(declaration=replace(KNOWN, gpus=(1, 4), **stays), time_limit_s=1e9)
    rows = rate_rows("1", shown := observation([one]), look(shown, SITE), RATES, SITE)
    assert {row.gpus for row in rows} == {1}


@pytest.mark.parametrize("requeues", [0, 5])
def test_a_type_too_slow_for_the_time_limit_and_the_requeues_that_are_left(requeues):
    assert speed("k80") < speed("p100") < speed("v100")
    seconds = KNOWN.samples / speed("v100") * 1.2 + 60
    declared = replace(KNOWN, max_requeues=requeues)
    one = job(declaration=declared, time_limit_s=seconds / (1 + requeues))
    more = ", its requeues counted" if requeues else ""
    assert unused(one) == {"p100": IN_TIME + more, "k80": IN_TIME + more}
    # The type that it has is in use, whatever its limit.
    on_k80 = running("1", {"k1": {"k80": 1}}, declaration=declared, time_limit_s=one.time_limit_s)
    assert unused(on_k80) == {"p100": IN_TIME + more}
    if requeues:
        spent = ControllerHistory(chains={"1": ChainRecord(requests=5, asked=0)})
        on_v100 = running("1", {"v1": {"v100": 1}}, declaration=declared, restarts=5,
                          time_limit_s=one.time_limit_s)  # fmt: skip
        # What is left fits in no limit: its owner goes on from its checkpoint, on any type.
        assert unused(on_v100, past=spent) == {}
