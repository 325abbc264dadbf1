"""A list of partitions that a job's owner writes (scontrol): it stays, and the job moves in it."""

from dataclasses import replace
from typing import Any

import pytest
from hand_made import NOW, RATES, config, decide, hinted, job, look, observation, only, running

from slurm_hadar.controller.actuation import repair
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.entry_details import action_details, move_details, steering_of
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.presentation.speeds import rate_rows
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering, decode, merge

SITE = config('[site]\nrights = "operator"\n[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
HBATCHS = ("p100", "v100", "k80")
ALL = Declaration(
    types=("any",), checkpoint="yes", model="ResNet-50", partitions=("gpu",), listed=HBATCHS
)
TYPED = ("k80", "v100", "p100")


def waits(names=TYPED, **more):
    return job(partitions=names, declaration=ALL, time_limit_s=1e9, **more)


def on_k80(**more):
    usual = {"partitions": ("k80",), "declaration": ALL, "time_limit_s": 1e9}
    return running("1", {"k1": {"k80": 1}}, **{**usual, **more})


def believed(known, one):
    found = steering_store.without_foreign({"1": known} if known else {}, {"1": one}, SITE, (), NOW)
    return found.get("1", Steering())


@pytest.mark.parametrize(
    "known", [None, Steering(time=NOW - 9, was={"Partition": "p100,v100,k80"},
                             wrote={"Partition": "v100,p100,k80"})]
)  # fmt: skip
@pytest.mark.parametrize("typed", [TYPED, ("k80", "v100"), ("k80",)])
def test_what_the_owner_writes_is_remembered_as_it_waits(known, typed):
    ours = believed(known, waits(typed))
    assert ours.foreign == ("Partition",) and ours.listed == typed
    assert decode(merge("", ours)) == ours
    assert (
        hinted(decide(observation([waits(typed)], steering={"1": ours}), {"1": {"v100": 1}}, SITE))
        == {}
    )
    # Another one later, and what Slurm makes of it at a requeue.
    assert believed(ours, waits(("v100", "k80"))).listed == ("v100", "k80")
    assert believed(ours, waits((*typed[1:], typed[0]), restarts=1)).listed == typed


def test_hbatchs_own_list_is_no_owners():
    assert believed(None, waits(HBATCHS)) == Steering()
    # Slurm has put the one first in which it ran.
    assert believed(None, waits(TYPED, restarts=1)) == Steering()
    theirs = believed(None, waits())
    # As hadar set writes it.
    assert believed(theirs, waits(HBATCHS)).foreign == ("Partition",)


def test_it_is_kept_for_the_time_that_the_job_runs(tmp_path):
    (tmp_path / "exchange").mkdir()
    store = Store.open(tmp_path / "state")
    own = config(f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n')
    context = ActionContext(None, store, own, clock=lambda: NOW)
    for typed in (TYPED, ("k80", "v100")):
        ours = believed(Steering(foreign=("Partition",)), waits(typed))
        repair.keep_owners_changes(context, observation([waits(typed)], steering={"1": ours}))
        assert decode(store.steerings(["1"])["1"]).listed == typed
        assert believed(ours, on_k80()) == ours
    store.close()


def test_a_running_job_moves_among_the_partitions_of_its_owners_list(tmp_path):
    ours = believed(None, waits())
    shown = observation([on_k80()], steering={"1": ours})
    action = only(decide(shown, {"1": {"v100": 1}}, SITE), Kind.MOVE)
    assert action.fields == {"Partition": "v100,k80,p100"}
    assert action.steering.was == {"Partition": "k80,v100,p100"}
    # The journal brings both back, and knows what the requeue shows.
    store = Store.open(tmp_path)
    details: dict[str, Any] = {**action_details(action), **move_details(action, ours, store)}
    store.close()
    assert details["stood"]["Partition"] == "k80,v100,p100"
    moved = steering_of(details, NOW)
    assert (moved.foreign, moved.listed) == (("Partition",), TYPED)
    # It waits again some time later: in its owner's order.
    again = waits(("v100", "k80", "p100"), restarts=2, submit_s=NOW - 5)
    late = replace(moved, time=NOW - 900, gpus={})
    assert believed(late, again) == late
    found = decide(observation([again], steering={"1": late}), {"1": {"p100": 1}}, SITE)
    assert hinted(found) == {"1": {"Partition": "k80,v100,p100"}}
    # And it moves a second time.
    there = replace(on_k80(), gpus={"v1": {"v100": 1}}, nodes=("v1",), partitions=("v100",))
    shown = observation([there], steering={"1": late})
    action = only(decide(shown, {"1": {"p100": 1}}, SITE), Kind.MOVE)
    assert action.fields == {"Partition": "p100,k80,v100"}


def test_a_running_job_moves_to_no_partition_that_its_owner_left_out():
    ours = believed(None, waits(("k80", "v100")))
    shown = observation([on_k80()], steering={"1": ours})
    rows = rate_rows("1", shown, look(shown, SITE), RATES, SITE)
    (p100,) = (row.source for row in rows if row.gpu_type == "p100")
    assert "; not used: its owner chose the partitions k80,v100 (scontrol); once it" in p100
    # Where no tick saw it wait, its list is not known.
    unknown = Steering(foreign=("Partition",))
    shown = observation([on_k80()], steering={"1": unknown})
    assert look(shown, SITE).schedulable["1"].request.partitions == ("k80",)


@pytest.mark.parametrize("state", ["waits", "runs"])
def test_the_reason_says_that_it_is_its_owners_list(state):
    one = waits(("k80",)) if state == "waits" else on_k80()
    ours = believed(None, waits(("k80",)))
    shown = observation([one], steering={"1": ours})
    rows = rate_rows("1", shown, look(shown, SITE), RATES, SITE)
    found = {row.gpu_type: row.source.partition("; not used: ")[2] for row in rows}
    when = "" if state == "waits" else "once it waits again, "
    why = (
        f"its owner chose the partition k80 (scontrol); {when}scontrol update JobId=1 "
        "Partition=p100,v100,k80 opens others"
    )
    assert found == {"v100": why, "p100": why, "k80": ""}
