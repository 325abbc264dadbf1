"""A group that the site takes out of its configuration: waiting jobs go back to what was typed."""

from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import (
    NOW,
    RATES,
    after,
    config,
    decide,
    hinted,
    job,
    nodes,
    observation,
    ordinary,
    quiet_slurm,
)

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.pending import queue_head
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import observed, steering_store
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.slurm.waiting_age import AgePriority

WITH, WITHOUT = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'), config()
LIST = ("v100", "p100", "k80")
ALL = Declaration(model="resnet50", types=LIST, checkpoint="yes", partitions=("gpu",), listed=LIST)
TURNED = merge(
    "",
    Steering(
        time=NOW - 10,
        was={"Partition": "v100,p100,k80"},
        wrote={"Partition": "k80,v100,p100"},
    ),
)
"""Of a job whose list hbatch wrote and the controller has turned."""
OWN = merge(
    "",
    Steering(time=NOW - 10, was={"Partition": "gpu"}, wrote={"Partition": "v100,p100,k80"}),
)
"""Of one whose list the controller itself wrote."""


def waits(**more):
    return job(**{"declaration": ALL, "partitions": LIST, **more})


def hint(one, found=None, **more):
    shown = replace(observation([one], found), **more)
    return hinted(decide(shown, {}, WITHOUT)).get(one.id, {})


def partitions(**changed):
    """Those of the tests, some with other settings."""
    there = observation([]).partitions
    return {name: replace(one, **changed.get(name, {})) for name, one in there.items()}


@pytest.mark.parametrize(
    "one",
    [
        waits(),
        waits(partitions=("k80", "v100", "p100"), admin_comment=TURNED),
        waits(admin_comment=OWN),
        waits(admin_comment=OWN, declaration=replace(ALL, listed=())),
        # One that is not steered.
        waits(dependency="afterok:9(unfulfilled)", reason="Dependency"),
        waits(required_nodes=("v1",)),
    ],
)
def test_a_list_of_a_former_group_goes_back_to_what_its_owner_typed(one):
    shown = observation([one])
    kept = hinted(decide(shown, {}, WITH)).get(one.id, {})
    assert "gpu" not in kept.get("Partition", "")
    done = decide(shown, {}, WITHOUT)
    assert hinted(done)[one.id] == {"Partition": "gpu"}
    (action,) = done.of(Kind.HINT)
    assert action.reason.startswith("its list stands for a group that the site has no more")
    # Once, and it is no change by its owner.
    later = after(shown, done)
    left = steering_store.without_foreign(later.steering, later.jobs, WITHOUT, (), later.now)
    assert hinted(decide(replace(later, steering=left), {}, WITHOUT)) == {}
    assert "Partition" not in left[one.id].foreign


def test_it_returns_to_a_list_where_the_group_comes_back():
    shown = observation([waits()])
    later = after(shown, decide(shown, {}, WITHOUT))
    assert hinted(decide(later, {}, WITH))["1"] == {"Partition": "v100,p100,k80"}


def test_types_that_the_list_alone_said_are_said_by_features():
    some = replace(ALL, types=("v100", "p100"), listed=("v100", "p100"))
    one = waits(declaration=some, partitions=("v100", "p100"))
    assert hint(one) == {"Partition": "gpu", "Features": "v100|p100"}
    shown = observation([one])
    later = after(shown, decide(shown, {}, WITHOUT))
    assert hinted(decide(later, {}, WITHOUT)) == {}
    # Its owner's again beside a list.
    assert hinted(decide(later, {}, WITH))["1"] == {"Partition": "v100,p100", "Features": ""}


def test_where_they_cannot_be_said_the_list_stays():
    some = replace(ALL, types=("v100", "p100"), listed=("v100", "p100"))
    one = waits(declaration=some, partitions=("v100", "p100"), features="[v100*1&x*1]")
    assert "Partition" not in hint(one)


@pytest.mark.parametrize(
    ("one", "there"),
    [
        # It is its owner's.
        (waits(declaration=replace(ALL, partitions=LIST)), {}),
        (waits(declaration=replace(ALL, listed=("v100", "k80"))), {}),
        (waits(admin_comment=merge("", Steering(time=NOW, foreign=("Partition",)))), {}),
        (waits(declaration=None), {}),
        (waits(held=True, priority=0, reason="JobHeldUser"), {}),
        # A Comment opens no partition with other users or limits.
        (waits(), {"gpu": {"allow_accounts": ("few",)}}),
        (waits(), {"gpu": {"max_time_s": 60.0}}),
        (waits(), {"gpu": {"nodes": ("x1",)}}),
        (waits(own_partitions=frozenset({"gpu"})), {}),
        # Nor does one that starts no jobs help.
        (waits(), {"gpu": {"state": "DOWN"}}),
    ],
)
def test_other_lists_stay(one, there):
    assert hint(one, partitions=partitions(**there)).get("Partition", "") != "gpu"


def test_one_that_is_not_there_any_more_is_given_to_no_job():
    there = {name: one for name, one in partitions().items() if name != "gpu"}
    assert hint(waits(), partitions=there).get("Partition", "") != "gpu"


ENFORCED = AgePriority(weight=10_000, most_s=10_000.0, is_forgotten=True)


def test_no_job_changes_places_by_it():
    old = {"submit_s": NOW - 60, "eligible_s": NOW - 60, "priority": 1000}
    neighbour = ordinary("2", partitions=("v100",), priority=1001, reason="Resources")
    shown = replace(observation([waits(**old), neighbour]), age=ENFORCED)
    assert "Partition" not in hinted(decide(shown, {}, WITHOUT)).get("1", {})
    # Slurm would end it as it forgets a partition of its list.
    closed = replace(shown, partitions=partitions(k80={"state": "DOWN"}))
    assert hinted(decide(closed, {}, WITHOUT))["1"] == {"Partition": "gpu"}


def test_one_tick_takes_back_so_many():
    many = [waits(id_=str(number)) for number in range(1, queue_head.MOST_TAKEN_BACK + 4)]
    done = hinted(decide(observation(many, nodes()), {}, WITHOUT))
    back = [id_ for id_, fields in done.items() if fields.get("Partition") == "gpu"]
    assert len(back) == queue_head.MOST_TAKEN_BACK


@pytest.mark.parametrize("rights", ["sandbox", "operator"])
def test_a_job_that_declared_nothing_goes_back_too(tmp_path, monkeypatch, rights):
    """It opted in by the partition of the former group, which its list does not name."""
    (tmp_path / "exchange").mkdir()
    site = config(
        f'[site]\nrights = "{rights}"\nexchange_dir = "{tmp_path}/exchange"\n'
        '[partitions]\nopt_in = ["gpu"]\n'
    )
    one = waits(declaration=None, admin_comment=OWN if rights == "sandbox" else "")
    plain = waits(id_="2", declaration=None)
    monkeypatch.setattr(observed, "read", lambda *_: observation([one, plain], steering={}))
    with closing(Store.open(tmp_path / "state")) as store:
        if rights == "operator":
            steering_store.keep(site, store, "1", decode(OWN))
        shown = Controller(site, quiet_slurm(), store, RATES, 0, lambda: NOW).observe()
    assert shown.jobs["1"].by_partition and not shown.jobs["2"].managed
    assert hinted(decide(shown, {}, site)) == {"1": {"Partition": "gpu"}}
