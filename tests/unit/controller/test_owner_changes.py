"""What a job's owner declares while the job is being moved: the move goes nowhere else."""

import os
from dataclasses import replace

import pytest
from hand_made import NOW, config, job, nodes, running

from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.exchange.progress import Ack, Progress

TO_P100 = {
    "gpus": {"p100": 1},
    "nodes": {"p1": {"p100": 1}},
    "moves": 1,
    "was": {"Partition": "v100,p100,k80"},
    "wrote": {"Partition": "p100,v100,k80"},
    "save": "abc",
    "restarts": 0,
    "fields": {"Partition": "p100,v100,k80"},
}
LIST = ("v100", "p100", "k80")
ACK = Ack("abc", NOW - 1, 1)
SAVED = Progress("1", NOW - 1, 0, "k1", 1, False, NOW, "m", 1, 1.0, 60.0, 64, 1, ack=ACK)


class Slurm:
    """It takes every request."""

    def __init__(self):
        self.sent, self.requeued = [], []

    def read_jobs(self, ids):
        return []

    def read_mail_types(self, ids):
        return {}

    def requeue(self, ids):
        self.requeued += ids
        return [None for _ in ids]

    def apply(self, updates):
        self.sent += [dict(update.fields) for update in updates]
        return [None for _ in updates]


@pytest.fixture
def context(tmp_path):
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nexchange_dir = "{tmp_path}/exchange"\n')
    store = Store.open(tmp_path / "state")
    shown = {one.name: one for one in nodes()}
    yield ActionContext(Slurm(), store, site, shown, clock=lambda: NOW)
    store.close()


def declared(**more):
    return Declaration(**{"types": ("any",), "checkpoint": "yes", **more})


def advanced(context, shown, details=TO_P100, requeued=False, progress=SAVED):
    """The outcome of a move of the job so far, and what the operator reads."""
    entry = context.store.begin("1", "move", "asked", NOW - 12, details)
    if requeued:
        context.store.advance(entry, "requeued", NOW - 10.5)
    said = advance(context, {"1": shown}, {"1": progress} if progress else {}, NOW).said
    return context.store.history("1")[0].outcome, said


NARROWED = [
    (declared(types=("k80",)), "types=k80 meanwhile, without p100"),
    (declared(types=("k80", "v100")), "types=k80,v100 meanwhile, without p100"),
    (declared(gpu_mem=20 * 1024), "gpu_mem=20G meanwhile, more than p100 has"),
    (declared(gpus=(2, 4)), "gpus=2-4 meanwhile, without 1"),
]


@pytest.mark.parametrize(
    ("now", "says"),
    [
        *NARROWED,
        (declared(pin=True), "pin=yes meanwhile"),
        (declared(checkpoint=""), "checkpoint=no meanwhile"),
    ],
)
def test_a_job_that_has_saved_is_not_requeued_for_what_its_owner_excludes_now(context, now, says):
    here = running("1", {"k1": {"k80": 1}}, declaration=now)
    outcome, said = advanced(context, here)
    assert outcome == f"its owner declared {says}; it stays" and outcome in said[0]
    assert not context.cluster.requeued and not context.cluster.sent
    # Its training goes on.
    plan = read_plan(context.config.site.exchange_dir, "1", (os.getuid(),))
    assert plan.save == "" and plan.gpus == {"k80": 1}


FORKED = {
    **TO_P100,
    "gpus": {"p100": 2},
    "nodes": {"p1": {"p100": 1}, "p2": {"p100": 1}},
    "copies": 2,
    "shares": [0.5, 0.5],
}


@pytest.mark.parametrize(
    ("details", "now", "says"),
    [
        (FORKED, declared(fork=(1, 4)), ""),
        (FORKED, declared(), "fork=1 meanwhile, not 2 copies"),
        (FORKED, declared(fork=(3, 4)), "fork=3-4 meanwhile, not 2 copies"),
        ({**FORKED, "copies": 1}, declared(gpus=(1, 2)), "nodes=1 meanwhile, fewer than 2"),
    ],
)
def test_fewer_copies_or_nodes_than_the_move_has_end_it(context, details, now, says):
    here = running("1", {"k1": {"k80": 1}}, declaration=now)
    outcome, _ = advanced(context, here, details)
    assert (outcome or "") == (f"its owner declared {says}; it stays" if says else "")
    assert context.cluster.requeued == ([] if says else ["1"])


@pytest.mark.parametrize(
    "now", [declared(), declared(types=("k80", "p100")), declared(gpus=(1, 2)), declared(model="x")]
)
def test_a_change_that_still_accepts_the_target_lets_the_move_go_on(context, now):
    here = running("1", {"k1": {"k80": 1}}, declaration=now)
    assert advanced(context, here)[0] is None and context.cluster.requeued == ["1"]
    waits = job("1", restarts=1, submit_s=NOW, partitions=LIST, declaration=now)
    advance(context, {"1": waits}, {}, NOW + 2)
    assert context.cluster.sent == [{"Partition": "p100,v100,k80", "StartTime": "now"}]
    assert context.store.history("1")[0].outcome == "moved"


def test_a_job_that_has_its_signal_leaves_anyway(context):
    now = declared(types=("k80",), checkpoint="signal")
    here = running("1", {"k1": {"k80": 1}}, declaration=now)
    asked = {**TO_P100, "habit": "signal"}
    assert advanced(context, here, asked, progress=None)[0] is None
    context.store.end(context.store.open_entries()[0].id, "it has ended", NOW)
    # One that paused after it had saved does not.
    assert "it stays" in advanced(context, here, asked)[0]


def requeued(**more):
    return job("1", restarts=1, submit_s=NOW - 10, **{"partitions": LIST, **more})


@pytest.mark.parametrize(
    ("now", "says", "sent"),
    [
        (*NARROWED[0], {"Partition": "k80"}),
        (*NARROWED[1], {"Partition": "v100,k80"}),
        (*NARROWED[2], {}),
        (*NARROWED[3], {}),
    ],
)
def test_a_requeued_job_gets_its_own_list_without_what_its_owner_excludes(context, now, says, sent):
    outcome, said = advanced(context, requeued(declaration=now), requeued=True)
    assert context.cluster.sent == [{**sent, "StartTime": "now"}]
    assert outcome == f"its owner declared {says}"
    assert said == (f"job 1: {outcome}, and Slurm starts it",)
    assert read_plan(context.config.site.exchange_dir, "1", (os.getuid(),)) is None
    kept = decode(context.store.steerings(["1"]).get("1", "")) or Steering()
    assert kept.moves == 1 and not kept.gpus
    # The owner may open it again.
    assert kept.was == ({"Partition": "v100,p100,k80"} if sent else {}) and kept.wrote == sent


def test_what_an_earlier_move_wrote_is_taken_back_with_it(context):
    was, wrote = {"Partition": "v100,p100,k80"}, {"Partition": "k80,v100,p100"}
    was, wrote = was | {"TresPerNode": "gpu:1"}, wrote | {"TresPerNode": "gpu:2"}
    context.store.keep_steering("1", merge("", Steering(was=was, wrote=wrote)))
    now = declared(types=("k80",), gpus=(1, 2))
    shown = requeued(partitions=("k80", "v100", "p100"), declaration=now)
    shown = replace(shown, request=replace(shown.request, per_node={"": 2}))
    advanced(context, shown, requeued=True)
    assert context.cluster.sent == [
        {"Partition": "k80", "TresPerNode": "gpu:1", "StartTime": "now"}
    ]


def test_where_the_type_is_a_feature_the_accepted_ones_are_written(context):
    now, to = declared(types=("k80", "v100")), {"was": {"Features": ""}, "wrote": {}, "fields": {}}
    shown = requeued(partitions=("gpu",), declaration=now)
    advanced(context, shown, {**TO_P100, **to}, requeued=True)
    assert context.cluster.sent == [{"Features": "v100|k80", "StartTime": "now"}]


@pytest.mark.parametrize("was", [{}, {"Partition": "p100,k80"}])
def test_a_list_of_hbatchs_without_an_accepted_type_is_written_anew(context, was):
    groups = context.config.partitions.model_copy(update={"groups": {"gpu": list(LIST)}})
    site = context.config.model_copy(update={"partitions": groups})
    wrote = dict.fromkeys(was, "k80,p100")
    context.store.keep_steering("1", merge("", Steering(was=was, wrote=wrote)))
    now = declared(types=("v100",), partitions=("gpu",))
    shown = requeued(partitions=("k80", "p100"), declaration=now)
    advanced(replace(context, config=site), shown, requeued=True)
    assert context.cluster.sent == [{"Partition": "v100", "StartTime": "now"}]
    kept = decode(context.store.steerings(["1"])["1"])
    assert kept.was == kept.wrote == {"Partition": "v100"}


def test_an_owners_own_list_stays_where_it_has_no_accepted_type(context):
    now = declared(types=("v100",))
    shown = requeued(partitions=("p100", "k80"), declaration=now)
    advanced(context, shown, requeued=True)
    assert context.cluster.sent == [{"StartTime": "now"}]


def test_what_its_owner_changed_by_hand_stays_so(context):
    stood = {"stood": {"Features": "", "Partition": "v100,p100,k80"}}
    now = declared(types=("k80",))
    shown = requeued(partitions=("gpu",), declaration=now)
    outcome, _ = advanced(context, shown, {**TO_P100, **stood}, requeued=True)
    assert "types=k80" in outcome
    assert "Partition" not in context.cluster.sent[0]


def test_a_pin_of_a_job_that_waits_already_is_for_where_it_will_run(context):
    assert advanced(context, requeued(declaration=declared(pin=True)), requeued=True)[0] == "moved"


def test_one_that_is_leaving_is_waited_for(context):
    now = declared(types=("k80",))
    assert advanced(context, job("1", JobState.COMPLETING, declaration=now))[0] is None
