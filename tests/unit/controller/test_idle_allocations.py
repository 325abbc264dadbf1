"""GPUs held idle are offered to jobs that wait: after the owner was notified, and only then."""

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import NOW, RATES, config, dictate, job, node, observation, ordinary, running
from hypothesis import given
from hypothesis import strategies as st
from looking import Looking

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.destinations import preemption
from slurm_hadar.controller.alerts import conditions
from slurm_hadar.controller.alerts.conditions import AlertMemory
from slurm_hadar.controller.journal.notified_owners import FILE, first_notified
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import tick_text
from slurm_hadar.domain import declaration
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import GpuRequest
from slurm_hadar.profiles.gpu_sampling import GpuUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.slurm.traffic import Traffic

H = 3600.0
ON = "[alerts]\nenabled = true\nheld_idle_s = 3600\npreempt_held_idle_s = 1800\n"
ONE = {"v1": {"v100": 1}}


def declared(*keys):
    return declaration.parse(["types=any", *keys], "test")


def idle(id_="1", where=ONE, keys=("checkpoint=yes",), start_s=NOW - 5 * H, **more):
    return running(id_, where, declaration=declared(*keys), start_s=start_s, **more)


def samples(id_="1", host="v1", idle_s=600.0):
    use = GpuUse("G", "P", 600.0, 0.0, None, None, 50.0, 600.0 - idle_s, idle_s, 0.0)
    return {id_: [NodeUse(id_, host, 1, NOW - 10, False, (use,))]}


def tell(folder, *notified, looked_s=NOW - 60):
    first = {f"{user}|held_idle|{id_}": at_s for user, id_, at_s in notified}
    (folder / FILE).write_text(json.dumps({"first": first, "looked_s": looked_s, "idle": {}}))


LONG_AGO = ("ann", "1", NOW - 1801)


@pytest.fixture
def tick(tmp_path):
    """What a tick would send to offer GPUs, and what it says on job 1."""
    folder = tmp_path / "state"

    def run(jobs, gpus=None, notified=(LONG_AGO,), site=ON, asked_s=None, moves=20, **more):
        with closing(Store.open(folder)) as store:
            tell(folder, *notified, **more)
            if asked_s is not None:
                entry = store.begin("1", "move", "asked", asked_s, {"held_idle": 1.0})
                store.end(entry, "stopped", asked_s)
            cluster = SimpleNamespace(
                traffic=Traffic(lambda: NOW), queries=Counter(), read_config=lambda: {}
            )

            def stays(view, memory):
                want = {j.id: {"v100": j.gpu_count} for j in jobs if j.nodes}
                return dictate(view, {i: w for i, w in want.items() if i in view.jobs.ids}), memory

            state = f'[site]\nstate_dir = "{folder}"\n'
            settings = config(state + site)
            guards = settings.guards.model_copy(update={"max_moves_per_tick": moves})
            settings = settings.model_copy(update={"guards": guards})
            found = Looking(settings, cluster, store, RATES, 0, lambda: NOW, decide=stays)
            gpus = samples() if gpus is None else gpus
            there = [node("v1", gpus_used={"v100": 2})]
            found.shown = observation(jobs, there, steering={}, gpus=gpus)
            plan = found.plan()
            said = plan.plan.placements.get("1")
            reason = said.reason if said else plan.plan.waiting.get("1", "")
            return [one.job.id for one in plan.diff.of(Kind.STOP_IDLE)], reason, plan

    return run


WAITS = ordinary("9", request=GpuRequest(per_node={"v100": 1}))
"""Wants a v100, and none is free."""


def test_a_job_makes_way_when_its_owner_knew_for_long_and_another_waits(tick):
    asked, reason, plan = tick([idle(), WAITS])
    assert asked == ["1"] and "it makes way now: its GPUs are idle" in reason
    assert any("stop job 1, whose GPUs are idle" in one for one in tick_text.format_plan(plan))
    # Nobody waits for what it has.
    asked, reason, _ = tick([idle(), replace(WAITS, request=GpuRequest(per_node={"k80": 1}))])
    assert asked == [] and "makes way as soon as a job waits" in reason
    asked, reason, _ = tick([idle(), WAITS], notified=[("ann", "1", NOW - 600)])
    assert asked == [] and "its owner has known since" in reason and "from" in reason


@pytest.mark.parametrize(
    ("changes", "more", "says"),
    [
        ({}, {"notified": ()}, ""),
        ({}, {"notified": [("bob", "1", NOW - 9999)]}, ""),
        ({"start_s": NOW - 1000}, {}, ""),
        ({}, {"gpus": samples(idle_s=0.0)}, ""),
        ({}, {"gpus": {}}, ""),
        ({}, {"site": ""}, ""),
        ({}, {"looked_s": NOW - 1801}, ""),
        ({}, {"looked_s": NOW + 60}, ""),
        ({}, {"asked_s": NOW - 86_000}, "from"),
        ({}, {"moves": 0}, "as soon as"),
        ({"keys": ()}, {}, "it declares no checkpoint"),
        ({"keys": ("checkpoint=yes", "pin=yes")}, {}, "it is pinned"),
        ({"keys": ("checkpoint=restart", "lose=10")}, {}, "would cost more work"),
        ({"requeue": False}, {}, "--no-requeue"),
    ],
)
def test_it_stays_otherwise(tick, changes, more, says):
    asked, reason, _ = tick([idle(**changes), WAITS], **more)
    assert asked == [] and says in reason and ("has known since" in reason) == bool(says)


def test_it_is_asked_once_a_day(tick):
    assert tick([idle(), WAITS], asked_s=NOW - 86_401)[0] == ["1"]
    waits = job("1", declaration=declared("checkpoint=yes"), restarts=1)
    assert "to make way, as its GPUs were idle" in tick([waits, WAITS], asked_s=NOW - 600)[1]


def test_no_more_jobs_make_way_than_are_needed(tick):
    """The one whose owner has known for longest goes first."""
    jobs = [idle("1"), idle("2", user="eve", uid=7), WAITS]
    gpus = {**samples(), **samples("2")}
    notified = [LONG_AGO, ("eve", "2", NOW - 9000)]
    assert tick(jobs, gpus, notified)[0] == ["2"]
    both = replace(WAITS, request=GpuRequest(per_node={"v100": 2}))
    assert tick([*jobs[:2], both], gpus, notified)[0] == ["2", "1"]


@given(
    held=st.lists(st.integers(1, 2), min_size=1, max_size=4),
    wanted=st.lists(st.integers(1, 2), max_size=4),
    most=st.integers(0, 4),
)
def test_none_of_those_that_make_way_is_stopped_for_nothing(held, wanted, most):
    there = [node(f"v{n}", gpus_used={"v100": 2}) for n in range(1, len(held) + 1)]
    jobs = [idle(str(n), {f"v{n}": {"v100": k}}) for n, k in enumerate(held, 1)]
    waiting = [
        ordinary(str(10 + n), request=GpuRequest(per_node={"v100": k}))
        for n, k in enumerate(wanted)
    ]
    found = preemption.sufficient_preemptions(jobs, most, observation([*jobs, *waiting], there))
    assert len(found) <= min(most, len(wanted))
    room = sorted((sum(one.gpus[one.nodes[0]].values()) for one in found), reverse=True)
    for stopped in range(len(found)):
        assert room[stopped] >= min(wanted)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"first": 1, "looked_s": 1}', "[" * 9999,
     '{"first": {"ann|held_idle|1": "x", "|": 3, "ann": 1}, "looked_s": 999990}',
     '{"first": {}, "looked_s": "now"}'],
)  # fmt: skip
def test_a_file_that_cannot_be_read_means_that_no_owner_was_notified(tmp_path, text):
    assert first_notified(tmp_path, "held_idle", NOW) == {}
    (tmp_path / FILE).write_text(text)
    assert first_notified(tmp_path, "held_idle", NOW) == {}


def test_the_message_says_what_follows_and_how_to_keep_the_job():
    site = config(ON).alerts

    def text(keys, settings=site):
        memory = AlertMemory(idle={"1": NOW - 2 * H})
        shown = observation([idle(keys=keys)], gpus=samples())
        found = conditions.of_jobs(shown, memory, settings)
        (alert,) = [one for one in found if one.kind == "held_idle"]
        return alert.text

    assert "asked to save and is requeued when other jobs wait" in text(("checkpoint=yes",))
    assert "hadar pin 1" in text(("checkpoint=yes",))
    assert "requeued" not in text(()) + text(("checkpoint=yes", "pin=yes"))
    off = site.model_copy(update={"preempt_held_idle_s": 0.0})
    assert "requeued" not in text(("checkpoint=yes",), off)


def test_when_an_alert_was_first_sent_is_kept_while_it_lasts():
    site, memory = config(ON).alerts, AlertMemory()
    alert = conditions.Alert("held_idle", "idle", "1", "ann")
    for hours in (0, 25):
        assert conditions.due([alert], memory, NOW + hours * H, site)
        conditions.mark_sent("ann", [alert], memory, NOW + hours * H)
    assert memory.first == {"ann|held_idle|1": NOW}
    conditions.due([], memory, NOW + 26 * H, site)
    assert memory.first == {} and memory.looked_s == NOW + 26 * H


@pytest.mark.parametrize("missing", ["enabled = false", "owners = false", "held_idle_s = 0"])
def test_the_owner_has_to_know(missing):
    key = missing.partition(" ")[0]
    lines = [line for line in ON.splitlines() if not line.startswith(f"{key} ")]
    with pytest.raises(UsageError, match="the owner has to know first"):
        config("\n".join([*lines, missing, ""]))
