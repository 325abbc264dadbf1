"""A job that is requeued to a part of what it held: its nodes are reserved until it may start."""

from dataclasses import replace

import pytest
from hand_made import NOW, config, job, node, running

from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.running import node_reservations
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.steering import Steering, decode
from slurm_hadar.exchange.progress import Ack, Progress
from slurm_hadar.slurm.traffic import Traffic

PART = {
    "gpus": {"v100": 1},
    "nodes": {"v1": {"v100": 1}},
    "from": {"v1": {"v100": 2}},
    "priority": 500,
    "moves": 1,
    "save": "abc",
    "restarts": 0,
    "fields": {"TresPerNode": "gres/gpu:1"},
}
HERE = running("1", {"v1": {"v100": 2}})
OFF = Declaration(off=True)
REQUEUED = job("1", restarts=1, submit_s=NOW - 10, eligible_s=NOW + 111, priority=500)
OTHERS = [job("2", declaration=None, priority=900), running("3", {"v1": {"v100": 1}}, priority=999)]


class Slurm:
    """It answers each call by what the test says, and starts job 1 after so many looks."""

    def __init__(self, starts_after=1, others=OTHERS, of_size=0, **errors):
        self.others, self.of_size = others, of_size
        self.calls, self.errors, self.nice, self.left = [], errors, 0, starts_after
        self.traffic = Traffic()

    def _called(self, name, *words):
        self.calls.append((name, *words))
        if name in self.errors:
            raise self.errors[name]

    def reserve(self, name, nodes, seconds):
        self._called("reserve", name, tuple(nodes))
        self.reserved_s = seconds

    def unreserve(self, name):
        self._called("unreserve", name)

    def requeue(self, ids):
        self.calls.append(("requeue", *ids))
        return [self.errors.get("requeue") for _ in ids]

    def read_mail_types(self, numbers):
        return {}

    def apply(self, updates):
        for update in updates:
            self.nice = int(update.fields.get("Nice", self.nice))
            self.of_size = 0 if "TresPerNode" in update.fields else self.of_size
            self.calls.append(("update", dict(update.fields)))
        return [self.errors.get("update") for _ in updates]

    def read_jobs(self, ids=None):
        self._called("jobs")
        mine = replace(REQUEUED, priority=400 + self.of_size - self.nice, nice=self.nice)
        if ids is None:
            return [mine, *self.others]
        if self.named("update"):
            self.left -= 1
            mine = replace(mine, state=JobState.PENDING if self.left >= 0 else JobState.RUNNING)
        return [mine]

    def named(self, *names):
        return [call for call in self.calls if call[0] in names]


@pytest.fixture
def context(tmp_path, monkeypatch):
    monkeypatch.setattr(node_reservations, "_PAUSE_S", 0.0)
    (tmp_path / "exchange").mkdir()
    store = Store.open(tmp_path / "state")
    site = config(f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n')
    yield ActionContext(None, store, site, {"v1": node("v1")}, lambda: NOW, ages=True)
    store.close()


def acknowledged(context, slurm, details=PART):
    """The job has saved, and is to be requeued."""
    context.store.begin("1", "move", "asked", NOW - 1, details)
    ack = Progress("1", NOW, 0, "v1", 1, False, NOW, "", 1, 0.0, 0.0, 0, 0, ack=Ack("abc", NOW, 1))
    return advance(replace(context, cluster=slurm), {"1": HERE}, {"1": ack}, NOW).messages


RESERVED = {**PART, "reserved": True}


def waits(context, slurm, details=RESERVED, **more):
    """It has been requeued, and waits."""
    entry = context.store.begin("1", "move", "asked", NOW - 12, details)
    context.store.advance(entry, "requeued", NOW - 10.5)
    shown = replace(REQUEUED, **more)
    return advance(replace(context, cluster=slurm), {"1": shown}, {}, NOW).messages


def test_its_nodes_are_reserved_before_it_is_requeued(context):
    slurm = Slurm()
    acknowledged(context, slurm)
    assert slurm.named("reserve", "requeue", "unreserve") == [
        ("reserve", "hadar_1", ("v1",)),
        ("requeue", "1"),
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"node_count": 2},
        {"request": GpuRequest(per_job={UNTYPED: 3})},
        {"request": GpuRequest(per_task={UNTYPED: 1}), "tasks": 2},
    ],
    ids=["nodes", "GPUs on any nodes", "tasks on any nodes"],
)
def test_all_that_a_job_on_several_nodes_could_take_is_closed(context, more):
    wide = job("4", declaration=None, priority=950, **more)
    found = [
        node("v1", gpus_used={"v100": 2}),
        node("v2", gpus_used={"v100": 2}),
        node("v3", gpus_used={"v100": 1}),
        node("v4", gpus_used={"v100": 2}),
        node("v5", usable=False),
        node("k1", partitions=("k80",)),
    ]
    there = replace(context, nodes={one.name: one for one in found})
    details = {**PART, "from": {"v1": {"v100": 2}, "v2": {"v100": 2}}}
    slurm = Slurm(others=[*OTHERS, wide])
    acknowledged(there, slurm, details)
    assert slurm.named("reserve") == [("reserve", "hadar_1", ("v1", "v2", "v3"))]


def test_the_part_of_another_job_is_not_closed(context):
    found = {name: node(name) for name in ("v1", "v2", "v3")}
    slurm = Slurm(others=[job("4", declaration=None, priority=950, node_count=2)])
    for number, name in enumerate(("v1", "v2"), 1):
        details = {**PART, "nodes": {name: {"v100": 1}}, "from": {name: {"v100": 2}}}
        context.store.begin(str(number), "move", "asked", NOW - 1, details)
    moved = [(entry, running(entry.job, {})) for entry in context.store.open_entries()]
    node_reservations.reserve(replace(context, cluster=slurm, nodes=found), moved)
    assert slurm.named("reserve") == [
        ("reserve", "hadar_1", ("v1", "v3")),
        ("reserve", "hadar_2", ("v2", "v3")),
    ]


@pytest.mark.parametrize(
    "more",
    [{}, {"request": GpuRequest(per_job={UNTYPED: 1})}, {"request": GpuRequest()}],
    ids=["GPUs of a node", "a GPU", "no GPU"],
)
def test_jobs_on_one_node_leave_the_others_open(context, more):
    slurm = Slurm(others=[job("4", declaration=None, priority=950, **more)])
    found = {name: node(name) for name in ("v1", "v2", "v3")}
    details = {**PART, "from": {"v1": {"v100": 2}, "v2": {"v100": 2}}}
    acknowledged(replace(context, nodes=found), slurm, details)
    assert slurm.named("reserve") == [("reserve", "hadar_1", ("v1",))]


@pytest.mark.parametrize(("leaves_s", "seconds"), [(40.0, 60.0), (130.0, 150.0)])
def test_a_reservation_outlasts_what_a_job_takes_to_leave(context, leaves_s, seconds):
    moving = context.config.moving.model_copy(update={"after_return_s": leaves_s})
    slurm = Slurm()
    site = context.config.model_copy(update={"moving": moving})
    acknowledged(replace(context, config=site), slurm)
    assert slurm.reserved_s == seconds


@pytest.mark.parametrize(
    ("more", "rights"),
    [({"from": {"v2": {"v100": 2}}}, "operator"), ({"from": {"v1": {"v100": 0}}}, "operator"),
     ({}, "user")],
    ids=["to another node", "to more", "a researcher's own controller"],
)  # fmt: skip
def test_no_others_are(context, more, rights):
    site = context.config.site.model_copy(update={"rights": rights})
    own = replace(context, config=context.config.model_copy(update={"site": site}))
    slurm = Slurm()
    acknowledged(own, slurm, {**PART, **more})
    assert slurm.named("reserve", "requeue") == [("requeue", "1")]


def test_nothing_is_reserved_where_nobody_waits(context):
    slurm = Slurm(others=[job("2", priority=0, held=True), OTHERS[1]])
    acknowledged(context, slurm)
    assert slurm.named("reserve", "requeue") == [("requeue", "1")]
    (entry,) = context.store.open_entries()
    context.store.end(entry.id, "moved", NOW)
    waits(context, slurm, entry.details)
    assert not slurm.named("unreserve")
    (update,) = [fields for _, fields in slurm.named("update") if "TresPerNode" in fields]
    # As after any move.
    assert update["Nice"] == "-100"


def test_a_job_whose_nodes_slurm_does_not_reserve_stays(context):
    slurm = Slurm(reserve=SlurmError("Requested nodes are busy"))
    (said,) = acknowledged(context, slurm)
    assert "it stays where it is: Slurm does not keep its nodes for it: Requested nodes" in said
    assert not slurm.named("requeue") and not context.store.open_entries()


def test_without_an_answer_it_is_tried_again(context):
    slurm = Slurm(reserve=SlurmError("timed out", retry=True))
    assert not acknowledged(context, slurm)
    assert not slurm.named("requeue") and context.store.open_entries()[0].phase == "asked"


def test_one_of_which_no_answer_came_makes_room_for_the_next(context):
    slurm = Slurm(reserve=SlurmError("timed out", retry=True))
    acknowledged(context, slurm)
    (entry,) = context.store.open_entries()
    context.store.end(entry.id, "dropped", NOW)
    slurm = Slurm()
    acknowledged(context, slurm, entry.details)
    assert [name for name, *_ in slurm.named("unreserve", "reserve", "requeue")] == [
        "unreserve", "reserve", "requeue"
    ]  # fmt: skip


def test_one_of_which_no_answer_came_ends_with_its_move(context):
    slurm = Slurm(reserve=SlurmError("timed out", retry=True))
    acknowledged(context, slurm)
    advance(replace(context, cluster=slurm), {"1": replace(HERE, declaration=OFF)}, {}, NOW)
    assert not context.store.open_entries()
    assert slurm.named("unreserve") == [("unreserve", "hadar_1")]


def test_none_is_ended_where_none_was_made(context):
    """Others may wait by then, for whom it still goes first."""
    slurm = Slurm()
    waits(context, slurm, PART)
    assert [fields for _, fields in slurm.named("update")][-1]["Nice"] == "-501"
    assert not slurm.named("unreserve")


def test_the_reservation_ends_where_the_requeue_is_refused(context):
    slurm = Slurm(requeue=SlurmError("Job is not running"))
    acknowledged(context, slurm)
    assert slurm.named("unreserve") == [("unreserve", "hadar_1")]


def test_it_is_the_first_in_the_queue_when_its_nodes_are_open(context):
    slurm = Slurm()
    waits(context, slurm)
    names = [call[0] for call in slurm.calls]
    (update,) = [fields for _, fields in slurm.named("update") if "Nice" in fields]
    # One more than the first of those who wait, 900, where its own is 400 without its age.
    assert update["Nice"] == "-501" and update["TresPerNode"] == "gres/gpu:1"
    assert names.index("unreserve") > names.index("update")
    assert context.store.history("1")[0].outcome == "moved"
    kept = decode(context.store.steerings(["1"])["1"])
    assert kept.was["Nice"] == "0" and kept.wrote["Nice"] == "-501"


def test_it_is_the_first_although_its_priority_falls_with_its_size(context):
    slurm = Slurm(starts_after=3, of_size=50)
    waits(context, slurm)
    nices = [fields["Nice"] for _, fields in slurm.named("update") if "Nice" in fields]
    assert nices == ["-451", "-501"]
    names = [call[0] for call in slurm.calls]
    assert names.index("unreserve") > len(names) - names[::-1].index("update") - 1


def test_one_that_does_not_start_has_its_own_priority_again(context):
    slurm = Slurm(starts_after=100)
    waits(context, slurm)
    assert [fields for _, fields in slurm.named("update")][-1] == {"Nice": "-100"}
    assert decode(context.store.steerings(["1"])["1"]).wrote["Nice"] == "-100"


@pytest.mark.parametrize(
    "more",
    [{"held": True}, {}, {"state": JobState.FINISHED}, {"declaration": OFF}],
    ids=["held", "refused", "cancelled", "opted out"],
)
def test_the_reservation_ends_for_one_that_does_not_go_there(context, more):
    slurm = Slurm(**({} if more else {"update": SlurmError("Invalid")}))
    waits(context, slurm, **more)
    assert slurm.named("unreserve") == [("unreserve", "hadar_1")]


def test_a_job_that_is_held_meanwhile_waits_with_what_it_asked_for(context):
    grown = {"request": GpuRequest(per_node={UNTYPED: 2}), "held": True, "priority": 0}
    was, wrote = {"TresPerNode": "gres/gpu:1", "Nice": "0"}, {"TresPerNode": "gres/gpu:2"}
    context.keep(REQUEUED, Steering({"v100": 2}, time=NOW - 99, moves=1, was=was, wrote=wrote))
    slurm = Slurm()
    (said,) = waits(context, slurm, **grown)
    assert "held while it moved" in said
    assert [fields for _, fields in slurm.named("update")] == [{"TresPerNode": "gres/gpu:1"}]
    kept = decode(context.store.steerings(["1"])["1"])
    assert kept.wrote["TresPerNode"] == "gres/gpu:1" and not kept.gpus
