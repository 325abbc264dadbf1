"""What a job's owner declares while the job is being moved: the move goes nowhere else."""

import os
from dataclasses import replace
from typing import Any

import pytest
from hand_made import NOW, as_cluster, config, job, nodes, observation, running

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, ask_to_save
from slurm_hadar.controller.actuation.pending.hint_updates import recorded
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.exchange.progress import Ack, Progress
from slurm_hadar.slurm.traffic import Traffic

TO_P100: dict[str, Any] = {
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
        self.sent, self.requeued, self.shown = [], [], []
        self.traffic = Traffic()

    def read_jobs(self, ids):
        return [one for one in self.shown if one.id in ids]

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
    yield ActionContext(as_cluster(Slurm()), store, site, shown, clock=lambda: NOW)
    store.close()


def declared(**more):
    return Declaration(**{"types": ("any",), "checkpoint": "yes", **more})


def advanced(context, shown, details=TO_P100, requeued=False, progress=SAVED):
    """The outcome of a move of the job so far, and what the operator reads."""
    entry = context.store.begin("1", "move", "asked", NOW - 12, details)
    if requeued:
        context.store.advance(entry, "requeued", NOW - 10.5)
    said = advance(context, {"1": shown}, {"1": progress} if progress else {}, NOW).messages
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
    return job("1", **{"restarts": 1, "submit_s": NOW - 10, "partitions": LIST, **more})


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


def powered_down(context, *names):
    """The same, with each node in the partition of its type."""
    shown = {
        name: replace(one, partitions=("gpu", *one.gpus), asleep=name in names)
        for name, one in context.nodes.items()
    }
    return replace(context, nodes=shown)


@pytest.mark.parametrize(
    ("asleep", "partitions", "sent"),
    [
        (("p1", "p2"), LIST, {"Partition": "v100,k80,p100"}),
        (("p1", "p2"), ("v100", "k80", "p100"), {}),
        (("p1", "p2", "v1", "v2", "k1", "k2"), LIST, {}),
        # The other node of its type is awake, and Slurm takes that one first.
        (("p1",), LIST, {}),
    ],
)
def test_a_requeued_job_does_not_wait_for_a_node_that_was_powered_down_since(
    context, asleep, partitions, sent
):
    """A job that had left its GPU by itself waited for the boot beside that GPU, which was free."""
    there = powered_down(context, *asleep)
    shown = requeued(declaration=declared(), partitions=partitions)
    to = {**TO_P100, "was": {}, "wrote": {}}
    outcome, said = advanced(there, shown, to, requeued=True)
    assert context.cluster.sent == [{**sent, "StartTime": "now"}]
    assert outcome == "node p1, where it was to go, was powered down meanwhile"
    assert said == (f"job 1: {outcome}, and Slurm starts it",)
    kept = decode(context.store.steerings(["1"]).get("1", "")) or Steering()
    assert not kept.gpus and kept.wrote == sent
    assert kept.was == ({"Partition": ",".join(partitions)} if sent else {})


def test_where_the_type_is_a_feature_it_may_start_on_any_then(context):
    to = {"was": {"Features": ""}, "wrote": {}, "fields": {"Features": "p100"}}
    shown = requeued(partitions=("gpu",), declaration=declared())
    there = powered_down(context, "p1", "p2")
    advanced(there, shown, {**TO_P100, **to}, requeued=True)
    assert context.cluster.sent == [{"StartTime": "now"}]


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


def test_one_that_is_opted_out_while_it_leaves_does_not_wait_for_slurms_begin_time(delayed):
    """Slurm sets it when the job has left its nodes."""
    out = declared(off=True)
    leaving = job("1", JobState.COMPLETING, declaration=out, restarts=1, submit_s=NOW - 10)
    assert advanced(delayed, leaving, requeued=True) == (None, ())
    (entry,) = delayed.store.open_entries()
    waits = requeued(declaration=out, eligible_s=NOW - 10 + 121)
    advance(delayed, {"1": waits}, {}, NOW)
    assert delayed.store.open_entries() == [] and entry.job == "1"
    assert delayed.cluster.sent == [{"StartTime": "now"}]


def test_one_that_is_held_while_it_leaves_starts_at_once_when_it_is_released(delayed):
    held = requeued(declaration=declared(), held=True, eligible_s=NOW - 10 + 121)
    outcome, _ = advanced(delayed, held, requeued=True)
    assert outcome == "it was held while it moved; its owner or an admin decides"
    assert delayed.cluster.sent == [{"StartTime": "now"}]
    # Not where its owner set a time.
    delayed.cluster.sent.clear()
    advanced(delayed, replace(held, **LATER), requeued=True)
    assert delayed.cluster.sent == []


# -- the list of partitions, where no tick wrote it ----------------------------------------------

HBATCHS = ("k80", "v100", "p100")
OF_GPU = declared(partitions=("gpu",), listed=HBATCHS)
OF_AN_EARLIER_RELEASE = replace(OF_GPU, listed=())


@pytest.fixture
def grouped(context):
    groups = context.config.partitions.model_copy(update={"groups": {"gpu": list(LIST)}})
    return replace(context, config=context.config.model_copy(update={"partitions": groups}))


def moved_to_p100(context, declaration, typed, known=None):
    """How a move of a job of hbatch's, which runs on k80, ends where the job comes back in the
    partitions ``typed``; the names of the fields that are its owner's then."""
    here = running("1", {"k1": {"k80": 1}}, partitions=("k80",), declaration=declaration)
    if known:
        context.keep(here, known)
    fields = TO_P100["fields"]
    ours = Steering(gpus={"p100": 1}, time=NOW, was={"Partition": "gpu"}, wrote=fields)
    ask_to_save(context, Action(Kind.MOVE, here, fields, ours, "why"), False, NOW - 12)
    (entry,) = context.store.open_entries()
    context.store.advance(entry.id, "requeued", NOW - 10.5)
    back = {"restarts": 1, "submit_s": NOW - 10, "declaration": declaration, "partitions": typed}
    advance(context, {"1": job("1", **back)}, {}, NOW)
    kept = decode(context.store.steerings(["1"])["1"])
    return context.store.history("1")[0].outcome, kept.foreign


@pytest.mark.parametrize(
    ("declaration", "typed", "theirs"),
    [
        (OF_GPU, HBATCHS, False),
        # Its order says nothing.
        (OF_GPU, LIST, False),
        # Also where it names the type that the job leaves.
        (OF_GPU, ("k80",), True),
        (OF_GPU, ("p100", "k80"), True),
        (OF_GPU, ("gpu",), True),
        (OF_GPU, (*HBATCHS, "other"), True),
        # hbatch leaves slow types out.
        (replace(OF_GPU, listed=("k80", "v100")), ("v100", "k80"), False),
        (OF_AN_EARLIER_RELEASE, LIST, False),
        (OF_AN_EARLIER_RELEASE, ("gpu",), False),
        (OF_AN_EARLIER_RELEASE, ("k80",), True),
    ],
)
def test_a_list_that_is_not_the_one_of_the_submit_is_its_owners(
    grouped, declaration, typed, theirs
):
    """Of a job that runs Slurm does not show it; its requeue brings it back."""
    outcome, foreign = moved_to_p100(grouped, declaration, typed)
    sent = {} if theirs else {"Partition": TO_P100["fields"]["Partition"]}
    assert grouped.cluster.sent == [{**sent, "StartTime": "now"}]
    assert foreign == (("Partition",) if theirs else ())
    says = "Partition was changed while it moved, and stays so" if theirs else "moved"
    assert outcome == says


def test_partitions_of_its_owner_come_with_the_types_that_he_accepts(grouped):
    some = replace(OF_GPU, types=("p100", "k80"), listed=("k80", "p100"))
    outcome, foreign = moved_to_p100(grouped, some, ("gpu",))
    assert grouped.cluster.sent == [{"Features": "p100|k80", "StartTime": "now"}]
    assert outcome == "Partition was changed while it moved, and stays so"
    assert foreign == ("Partition",)
    ours = decode(grouped.store.steerings(["1"])["1"])
    assert (ours.was["Features"], ours.wrote["Features"]) == ("", "p100|k80")


@pytest.mark.parametrize("typed", [("k80", "p100"), ("k80", "v100"), HBATCHS])
def test_an_update_without_an_answer_leaves_unknown_which_list_it_had(grouped, typed):
    unsure = Steering(wrote={"Partition": "k80,p100"}, unsure={"Partition": "k80,v100"})
    assert moved_to_p100(grouped, OF_GPU, typed, unsure) == ("moved", ())


def waits(typed, declaration=OF_GPU, **more):
    return job("1", **{"partitions": typed, "declaration": declaration, **more})


@pytest.mark.parametrize(
    ("one", "theirs"),
    [
        (waits(HBATCHS), False),
        # The same ones in another order, and as Slurm shows it once it ran.
        (waits(LIST), True),
        (waits(LIST, restarts=1), False),
        (waits(("k80",)), True),
        (waits(("gpu",)), True),
        (waits(("k80",), restarts=1), True),
        (waits(("gpu",), OF_AN_EARLIER_RELEASE), False),
        (waits(LIST, OF_AN_EARLIER_RELEASE), False),
        (waits(("k80",), OF_AN_EARLIER_RELEASE), True),
        # It is not recorded what it was submitted with.
        (waits(("k80",), declared()), False),
        # Slurm shows the one in which it runs.
        (waits(("k80",), state=JobState.RUNNING), False),
    ],
)
def test_a_waiting_job_that_no_tick_steered_keeps_its_owners_list(grouped, one, theirs):
    found = steering_store.without_foreign({}, {"1": one}, grouped.config, (), NOW)
    ours = Steering(foreign=("Partition",), listed=one.partitions)
    assert found == ({"1": ours} if theirs else {})
    assert steering_store.without_foreign({}, {"1": one}, grouped.config, {"1"}, NOW) == {}


def test_the_partition_that_a_tick_restored_is_not_taken_for_the_owners_change(grouped):
    """Deep in the queue the group stands in place of hbatch's list, with features of the types."""
    fields = {"Partition": "gpu", "Features": "v100|k80"}
    ours = recorded(waits(HBATCHS), fields, Steering(), observation([]))
    assert ours.was["Partition"] and ours.wrote["Partition"] == "gpu"
    for names, theirs in ((("gpu",), False), (("p100",), True)):
        back = waits(names, features="")
        assert (
            "Partition" in steering_store.changed_by_others(back, ours, grouped.config, NOW)
        ) is theirs


# -- the begin time ------------------------------------------------------------------------------

LATER = {"eligible_s": NOW + 1800, "start_s": NOW + 1800}
THEN = "its begin time was changed while it moved, and stays so"


@pytest.fixture
def delayed(context):
    return replace(context, requeue_delay_s=121.0)


def test_a_begin_time_that_its_owner_sets_meanwhile_stays(delayed):
    outcome, said = advanced(delayed, requeued(declaration=declared(), **LATER), requeued=True)
    assert delayed.cluster.sent == [] and delayed.store.open_entries() == []
    assert outcome == THEN and said == (f"job 1: {THEN}, and Slurm starts it then",)
    assert read_plan(delayed.config.site.exchange_dir, "1", (os.getuid(),)) is None
    kept = decode(delayed.store.steerings(["1"])["1"])
    # The move wrote nothing, so nothing is to be given back.
    assert kept.moves == 1 and not (kept.gpus or kept.was or kept.wrote or kept.foreign)


def test_it_stays_beside_another_change_of_its_owner(delayed):
    stood = {"stood": {"Features": "", "Partition": "v100,p100,k80"}}
    shown = requeued(declaration=declared(), partitions=("k80",), **LATER)
    outcome, _ = advanced(delayed, shown, {**TO_P100, **stood}, requeued=True)
    assert outcome == "Partition and its begin time were changed while it moved, and stay so"
    assert delayed.cluster.sent == []
    assert decode(delayed.store.steerings(["1"])["1"]).foreign == ("Partition",)


def test_what_its_owner_excludes_is_left_out_at_that_time_too(delayed):
    now = declared(types=("k80",))
    outcome, _ = advanced(delayed, requeued(declaration=now, **LATER), requeued=True)
    assert delayed.cluster.sent == [{"Partition": "k80"}]
    assert outcome == f"its owner declared types=k80 meanwhile, without p100; {THEN}"


@pytest.mark.parametrize(
    "more",
    [
        {"eligible_s": NOW - 10 + 121},
        {"eligible_s": NOW - 10 + 125},
        # The controller's own, before an update that was not answered.
        {"submit_s": NOW - 119, "eligible_s": NOW + 59},
        # The clock was set back by an hour since.
        {"submit_s": NOW + 3600, "eligible_s": NOW + 3721},
    ],
)
def test_slurms_own_begin_time_is_taken_away(delayed, more):
    shown = requeued(declaration=declared(), **more)
    assert advanced(delayed, shown, requeued=True)[0] == "moved"
    assert delayed.cluster.sent[0]["StartTime"].startswith("now")


def test_where_slurms_delay_is_not_known_no_begin_time_is_its_owners(context):
    shown = requeued(declaration=declared(), **LATER)
    assert advanced(context, shown, requeued=True)[0] == "moved"


def test_a_job_that_came_back_at_its_time_limit_keeps_it_too(delayed):
    chained = {**TO_P100, "gpus": {}, "nodes": {}, "fields": {}, chaining.DETAIL: {}}
    outcome, _ = advanced(delayed, requeued(declaration=declared(), **LATER), chained, True)
    assert outcome == THEN and delayed.cluster.sent == []


def test_a_stop_leaves_the_begin_time_as_it_is(delayed):
    stop = {**TO_P100, "gpus": {}, "nodes": {}, "fields": {}}
    outcome, _ = advanced(delayed, requeued(declaration=declared(), **LATER), stop, True)
    assert outcome == "stopped"
    assert delayed.cluster.sent == [{"StartTime": f"uts{NOW + 1800:.0f}"}]
