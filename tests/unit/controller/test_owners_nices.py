"""Who has a Nice of ours gets its owner's back, managed or not, held or not, requeued or not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hand_made import NOW, config, job, observation, running

from slurm_hadar.cli import jobs as commands
from slurm_hadar.controller import retire
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput, restored
from slurm_hadar.controller.actuation.pending.owners_nices import given_back
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.observer import Observer
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, merge
from slurm_hadar.slurm.interface import Update

AGED = Steering(
    was={"Nice": "0", "Partition": "gpu"},
    wrote={"Nice": "-1528", "Partition": "v100,k80"},
    age_lost=True,
    time=NOW - 60,
)
MOVED = replace(AGED, age_lost=False, moves=1)
WAITS = job("1", nice=-1528)
RUNS = running("1", {"v1": {"v100": 1}}, nice=-1528)
HELD = {"held": True, "priority": 0}
OUT = {"declaration": None}


def nices(one, ours=AGED, ages=True, **more):
    shown = observation([one], steering={"1": ours}, priority_returns=ages)
    return [dict(action.fields) for action in given_back(shown, **{"refused": {}, **more})]


@pytest.mark.parametrize(
    "one",
    [
        replace(WAITS, **HELD),
        replace(WAITS, **HELD, restarts=1),
        replace(WAITS, **OUT),
        replace(WAITS, **OUT, restarts=1),
        replace(WAITS, **OUT, **HELD),
        replace(RUNS, **OUT),
        replace(RUNS, **OUT, restarts=1),
    ],
)
def test_a_nice_that_is_left_is_its_owners_again(one):
    shown = observation([one], steering={"1": AGED}, priority_returns=True)
    (action,) = given_back(shown, {})
    assert dict(action.fields) == {"Nice": "0"}
    assert action.steering.was == {"Partition": "gpu"}
    assert action.steering.wrote == {"Partition": "v100,k80"}
    # Nothing twice, and nothing where its owner has set another one since.
    assert nices(replace(one, nice=0), action.steering) == []
    theirs = replace(one, nice=-7)
    ours = steering_store.without_foreign({"1": AGED}, {"1": theirs}, config(), (), NOW)
    assert nices(theirs, ours["1"]) == []
    assert nices(one, refused={"1": Refusals(3, NOW - 1)}) == []


def test_a_managed_job_gets_it_with_its_other_hints():
    assert nices(WAITS) == [] and nices(RUNS) == []
    assert nices(RUNS, excluded={"1": "its partition gives whole nodes"}) == [{"Nice": "0"}]
    requeued = replace(WAITS, restarts=1, partitions=("v100", "k80"))
    (action,) = restored(
        ["1"], {}, HintInput(observation([requeued], steering={"1": AGED}), config())
    )
    assert dict(action.fields) == {"Nice": "0"}


def test_a_moved_job_keeps_it_until_it_runs():
    for more in ({}, HELD, OUT, {**HELD, **OUT}):
        assert nices(replace(WAITS, restarts=1, **more), MOVED) == []
        found = restored(
            ["1"],
            {},
            HintInput(
                observation([replace(WAITS, restarts=1, **more)], steering={"1": MOVED}), config()
            ),
        )
        assert all("Nice" not in action.fields for action in found)
    assert nices(replace(RUNS, restarts=1, **OUT), MOVED) == [{"Nice": "0"}]


def test_a_job_that_is_held_keeps_its_place_in_an_exchange():
    assert nices(replace(WAITS, **HELD), exchanged={"1": "-1528"}) == []
    assert nices(replace(WAITS, **HELD, **OUT), exchanged={}) == [{"Nice": "0"}]


def test_where_a_nice_would_release_it_a_held_job_keeps_it():
    for more in (HELD, {**HELD, **OUT}):
        assert nices(replace(WAITS, **more), ages=False) == []
    assert nices(replace(WAITS, **OUT), ages=False) == [{"Nice": "0"}]


def test_a_tick_knows_of_the_nice_of_jobs_that_are_not_managed_any_more(tmp_path, monkeypatch):
    store = Store.open(tmp_path)
    for id_, ours in (("1", AGED), ("2", Steering(was={"Partition": "gpu"})), ("3", AGED)):
        store.keep_steering(id_, merge("", ours))
    assert sorted(store.changed("Nice")) == ["1", "3"]
    out = replace(WAITS, **OUT)
    cluster = SimpleNamespace(
        read_jobs=lambda *_: [out, replace(out, id="2", raw_id=2)],
        read_nodes=lambda: list(observation([]).nodes.values()),
        read_partitions=lambda: list(observation([]).partitions.values()),
        read_reservations=list,
        read_config=lambda: {"PriorityType": "priority/multifactor"},
        read_associations=list,
        slurm_version=(22, 5, 8),
        notes=[],
    )
    site = config(f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}"\n')
    observer = Observer(site, cluster, store, 0, racks=False)
    monkeypatch.setattr(observer.rules, "read", lambda _: None)
    shown = observer.observe(NOW)
    assert set(shown.steering) == {"1"}
    assert [dict(a.fields) for a in given_back(shown, {})] == [{"Nice": "0"}]
    store.close()


@pytest.mark.parametrize("more", [{}, HELD, {"restarts": 1}])
@pytest.mark.parametrize("ages", [True, False])
@pytest.mark.parametrize("managed", [True, False])
def test_retire_gives_it_back(monkeypatch, more, ages, managed):
    one = replace(WAITS, **more) if managed else replace(WAITS, **more, **OUT)
    shown = observation([one], steering={"1": AGED}, priority_returns=ages)
    controller: Any = SimpleNamespace(
        config=config(),
        rules=SimpleNamespace(begin_tick=lambda _: None, requeue_delay_s=121.0),
        observe=lambda: shown,
        store=SimpleNamespace(open_entries=list),
        cluster=SimpleNamespace(read_mail_types=dict),
    )
    meant = retire.retire(controller, NOW, only_show=True).meant
    goes = ages or "held" not in more
    assert ("Nice" in meant.get("1", {})) is goes
    if not managed:
        assert meant == ({"1": {"Nice": "0"}} if goes else {})


@pytest.mark.parametrize("kind", ["multifactor", "basic"])
@pytest.mark.parametrize("held", [True, False])
def test_optout_releases_no_job(monkeypatch, kind, held):
    sent: list[Update]
    one, sent = replace(WAITS, **(HELD if held else {})), []
    slurm = SimpleNamespace(
        read_jobs=lambda *_, **__: [one],
        read_config=lambda: {"PriorityType": f"priority/{kind}"},
        slurm_version=(22, 5, 8),
        notes=[],
        apply=lambda changes: list(map(sent.append, changes)),
    )
    monkeypatch.setattr(commands, "load_to_ask", lambda _: config())
    monkeypatch.setattr(commands, "cluster_of", lambda _: slurm)
    monkeypatch.setattr(commands, "keep_ages", lambda *_: None)
    monkeypatch.setattr(commands, "_steering", lambda *_: AGED)
    commands.optout("1")
    assert sent[0].fields["Partition"] == "gpu" and one.state is JobState.PENDING
    assert ("Nice" in sent[0].fields) is (kind == "multifactor" or not held)
