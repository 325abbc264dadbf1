"""What became of an action: seen to hold, and what a move cost and gained."""

from dataclasses import replace

import pytest
from hand_made import NOW, decide, job, look, observation, only, running

from slurm_hadar.controller.actuation import action_outcomes
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.journal.entry import is_in_vain
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.steering import Steering, merge
from slurm_hadar.exchange.progress import Progress

K80 = {"gpus": {"k80": 1}, "nodes": {"k1": {"k80": 1}}}
LATER = NOW + 60
SENT = merge("", Steering({"k80": 1}, time=NOW))


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "state")
    yield opened
    opened.close()


def done(store, kind="move", outcome="moved", **details):
    entry = store.begin("1", kind, "sent", NOW, {**K80, "restarts": 0, **details})
    store.end(entry, outcome, NOW)


def shown(store, *jobs, now=LATER, **more):
    action_outcomes.reconcile(store, observation(list(jobs), now=now, **more), 120.0)
    return store.history("1")[0].shown


def waits(**more):
    """A job that was requeued and sent on."""
    return job(restarts=1, admin_comment=SENT, eligible_s=NOW, **more)


def test_an_action_is_open_until_slurm_shows_it(store):
    done(store)
    assert shown(store, waits()) is None
    here = running("1", {"k1": {"k80": 1}}, restarts=1)
    assert shown(store, here) == "runs on 1 x k80 on k1"
    # It is closed now, whatever comes.
    there = running("1", {"v1": {"v100": 1}}, restarts=1)
    assert shown(store, there) == "runs on 1 x k80 on k1"


@pytest.mark.parametrize(
    ("job_", "says"),
    [
        (running("1", {"v1": {"v100": 1}}, restarts=1), "which was not meant"),
        (running("1", {"k1": {"k80": 1}}, restarts=2), "Slurm started it anew since"),
        (job(restarts=1), "decided anew"),
        (waits(state=JobState.FINISHED, slurm_state="FAILED"), "FAILED"),
    ],
)
def test_what_does_not_hold_is_said(store, job_, says):
    done(store)
    assert says in shown(store, job_)


@pytest.mark.parametrize(
    ("outcome", "gpus", "asked", "says"),
    [
        ("moved", 2, GpuRequest(per_node={UNTYPED: 2}), ": its owner asked for 2 GPUs meanwhile"),
        ("moved", 2, GpuRequest(per_job={UNTYPED: 2}), ": its owner asked for 2 GPUs meanwhile"),
        # Its request is as it was sent, or Slurm may not have had it.
        ("moved", 1, GpuRequest(per_node={UNTYPED: 1}), ""),
        ("moved", 2, GpuRequest(per_node={UNTYPED: 1}), ""),
        ("its placement could not be sent", 2, GpuRequest(per_node={UNTYPED: 2}), ""),
    ],
)
def test_a_number_of_gpus_that_its_owner_asked_for_meanwhile_is_named(
    store, outcome, gpus, asked, says
):
    done(store, outcome=outcome)
    one = running("1", {"v1": {"v100": gpus}}, restarts=1, request=asked)
    assert shown(store, one) == f"runs on {gpus} x v100 on v1, which was not meant{says}"


LEFT = {
    "stood": {"Features": "", "Partition": "v100,k80", "ReqNodeList": ""},
    "wrote": {"Partition": "k80,v100"},
}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"partitions": ("p100",)}, ": Partition=p100 was set meanwhile"),
        ({"partitions": ("v100",)}, ""),
        (
            {"partitions": ("v100",), "required_nodes": ("v1", "v2")},
            ": ReqNodeList=v[1-2] was set meanwhile",
        ),
        (
            {"partitions": ("p100",), "required_nodes": ("v1",)},
            ": Partition=p100 and ReqNodeList=v1 were set meanwhile",
        ),
    ],
)
def test_what_was_set_after_the_release_is_named(store, more, says):
    done(store, **LEFT)
    one = running("1", {"v1": {"v100": 1}}, restarts=1, **more)
    assert shown(store, one) == f"runs on 1 x v100 on v1, which was not meant{says}"
    assert is_in_vain(store.history("1")[0].shown)


def test_what_was_set_after_the_release_of_a_job_that_waits_is_named(store):
    done(store, **LEFT)
    assert shown(store, waits(partitions=("p100",)), now=NOW + 119) is None
    said = shown(store, waits(partitions=("p100",)), now=NOW + 125)
    assert said == "Slurm has not started it: Partition=p100 was set meanwhile"


def test_an_entry_that_does_not_say_how_the_request_stood_names_nothing(store):
    done(store)
    one = running("1", {"v1": {"v100": 1}}, restarts=1, partitions=("v100",))
    assert shown(store, one).endswith("which was not meant")


def test_a_move_that_slurm_cannot_carry_out_is_closed_after_a_while(store):
    done(store)
    assert shown(store, waits(), now=NOW + 119) is None
    # A job that waits has no nodes yet, by which a request per node would count.
    asked = GpuRequest(per_node={UNTYPED: 1})
    said = shown(store, waits(request=asked), now=NOW + 125)
    assert said == "Slurm shows it as sent, but has not started it"


@pytest.mark.parametrize("kind", ["move", "hint"])
def test_a_job_out_of_sight_is_unknown_for_long(store, kind):
    done(store, kind, "moved" if kind == "move" else "done")
    assert shown(store, now=NOW + 3000) is None
    assert "does not show the job" in shown(store, now=NOW + 4000)


def test_what_was_refused_has_nothing_to_show(store):
    done(store, "hint", "refused: Invalid partition")
    assert shown(store, job()) == ""


@pytest.mark.parametrize(("held", "says"), [(True, "held still"), (False, "not held any more")])
def test_a_release_is_looked_after(store, held, says):
    done(store, "release", "released after a failed launch")
    assert shown(store, job(held=held)) == says


def test_a_stop_holds_when_the_job_waits(store):
    entry = store.begin("1", "move", "asked", NOW, {"gpus": {}, "restarts": 0})
    store.end(entry, "stopped", NOW)
    sent = merge("", Steering(time=NOW))
    assert shown(store, job(restarts=1, admin_comment=sent)) == "waits in the queue"


LIST = {"fields": {"Partition": "v100,k80", "StartTime": "now"}, "gpus": {}, "nodes": {}}


@pytest.mark.parametrize(
    ("job_", "says"),
    [
        (job(partitions=("v100", "k80")), "Slurm shows it"),
        (job(partitions=("k80", "v100")), "Slurm shows other fields than sent"),
        # Of a job that runs it shows one partition only.
        (running("1", {"v1": {"v100": 1}}, partitions=("v100",)), "Slurm shows it"),
        (job(state=JobState.FINISHED, slurm_state="CANCELLED"), "the job has ended (CANCELLED)"),
    ],
)
def test_a_hint_holds_when_slurm_shows_what_was_sent(store, job_, says):
    done(store, "hint", "done", **LIST)
    assert shown(store, job_) == says


def reported(restarts, rate, restart_s=None, **more):
    return Progress("1", LATER, restarts, "k1", 1, True, NOW + 9, "m", 100, rate, 5.0, 8, 1,
                    restart_s=restart_s, **more)  # fmt: skip


def moved(store):
    entry = store.begin(
        "1", "move", "asked", NOW, {**K80, "restarts": 0, "rate_before": 50.0, "rate_expected": 110}
    )
    store.advance(entry, "requeued", NOW + 2)
    store.end(entry, "moved", NOW + 3)
    return running("1", {"k1": {"k80": 1}}, restarts=1)


def effect(store, job_, progress=None, now=LATER):
    found = {"1": progress} if progress else {}
    action_outcomes.reconcile(store, observation([job_], now=now, progress=found), 120.0)
    action_outcomes.reconcile(store, observation([job_], now=now, progress=found), 120.0)
    return store.history("1")[0].effect


def test_cost_and_gain_come_with_the_first_report_after_the_move(store):
    here = moved(store)
    assert effect(store, here) is None
    assert effect(store, here, reported(0, 50.0)) is None
    assert effect(store, here, reported(1, 0.0)) is None
    found = effect(store, here, reported(1, 100.0, restart_s=8.0))
    assert found == {
        "on": "1 x k80 on k1",
        "rate_before": 50.0,
        "rate_after": 100.0,
        "rate_expected": 110.0,
        "without_training_s": 8.0,
        "paid_back_after_s": 8.0,
    }
    words = action_outcomes.effect_text(store.history("1")[0])
    assert words.startswith("8 s without training, 50 -> 100 samples/s (expected 110)")
    # The first report counts, not a later one.
    assert effect(store, here, reported(1, 500.0)) == found


def test_a_job_that_does_not_measure_its_restart_is_timed_from_the_requeue(store):
    assert effect(store, moved(store), reported(1, 40.0))["without_training_s"] == 7.0
    assert "paid_back_after_s" not in store.history("1")[0].effect


def test_a_move_whose_job_went_on_elsewhere_is_not_measured(store):
    here = moved(store)
    assert effect(store, replace(here, restarts=2), reported(2, 100.0)) == {}


def test_a_move_that_was_not_carried_out_is_not_paid_back(store):
    moved(store)
    there = running("1", {"v1": {"v100": 1}}, restarts=1)
    found = effect(store, there, reported(1, 51.0, restart_s=8.0))
    assert found["without_training_s"] == 8.0 and "paid_back_after_s" not in found
    before = replace(store.history("1")[0], effect={**found, "paid_back_after_s": 400.0})
    assert action_outcomes.effect_text(before) == "8 s without training, 50 -> 51 samples/s"


def test_work_that_a_move_lost_is_part_of_its_cost(store):
    entry = store.begin(
        "1", "move", "asked", NOW,
        {**K80, "restarts": 0, "rate_before": 50.0, "lost_before": 300},
    )  # fmt: skip
    store.advance(entry, "requeued", NOW + 2)
    store.end(entry, "moved", NOW + 3)
    here = running("1", {"k1": {"k80": 1}}, restarts=1)
    found = effect(store, here, reported(1, 100.0, restart_s=8.0, lost=800))
    assert (found["lost_samples"], found["lost_s"]) == (500, 10.0)
    # 8 s at 50 samples/s and these 500, at 50 samples/s more than before.
    assert found["paid_back_after_s"] == 18.0
    words = action_outcomes.effect_text(store.history("1")[0])
    assert words.startswith("500 samples of work lost (10 s), 8 s without training")


def stopped(store, **details):
    known = {"gpus": {}, "restarts": 0, "rate_before": 50.0, "lost_before": 0, **details}
    entry = store.begin("1", "move", "asked", NOW, known)
    store.advance(entry, "requeued", NOW + 2)
    store.end(entry, "stopped", NOW + 3)


def test_a_stop_costs_the_wait_until_it_runs_again_and_the_work_that_was_not_saved(store):
    stopped(store)
    sent = merge("", Steering(time=NOW + 3))
    assert effect(store, job(restarts=1, admin_comment=sent)) is None
    assert store.history("1")[0].shown == "waits in the queue"
    here = running("1", {"k1": {"k80": 1}}, restarts=1, start_s=NOW + 302)
    assert effect(store, here, now=NOW + 305) is None
    report = reported(1, 100.0, restart_s=310.0, lost=200)
    assert effect(store, here, report, now=NOW + 320) == {
        "on": "1 x k80 on k1",
        "rate_before": 50.0,
        "rate_after": 100.0,
        "waited_s": 300.0,
        "lost_samples": 200,
        "lost_s": 4.0,
        "without_training_s": 310.0,
    }
    words = action_outcomes.effect_text(store.history("1")[0])
    assert words == (
        "waited 300 s for its next start, 200 samples of work lost (4 s), "
        "310 s without training, 50 -> 100 samples/s"
    )


@pytest.mark.parametrize(
    ("start", "end", "known", "says"),
    [
        (NOW + 302, NOW + 400, {"waited_s": 300.0}, "waited 300 s for its next start"),
        (
            NOW + 402,
            NOW + 402,
            {"waited_s": 400.0, "ended_waiting": True},
            "waited 400 s until it ended, without another start",
        ),
        (0.0, NOW + 400, {}, ""),
    ],
)
def test_of_a_stopped_job_that_has_ended_what_is_known_is_reported(store, start, end, known, says):
    stopped(store)
    over = job(restarts=1, state=JobState.FINISHED, start_s=start, end_s=end)
    assert effect(store, over, now=NOW + 500) == known
    assert action_outcomes.effect_text(store.history("1")[0]) == says


def test_a_stop_that_was_not_carried_out_costs_nothing(store):
    entry = store.begin("1", "move", "asked", NOW, {"gpus": {}, "restarts": 0})
    store.end(entry, "the job did not save within 120 s and stays where it is", NOW + 120)
    assert effect(store, running("1", {"k1": {"k80": 1}}), reported(0, 50.0)) == {}


def test_what_is_hoped_for_a_move_is_what_the_policy_saw(store):
    declared = Declaration(types=("any",), model="resnet18", checkpoint="yes")
    here = running("1", {"k1": {"k80": 1}}, declaration=declared)
    observed = observation([here])
    action = only(decide(observed, {"1": {"v100": 1}}), Kind.MOVE)
    view = look(observed)
    hopes = action_outcomes.expected_effect(view, action, reported(0, 30.0, lost=7))
    assert hopes["lost_before"] == 7
    kinds, jobs = view.view.types, view.view.jobs
    assert hopes["rate_before"] == 30.0
    assert hopes["rate_expected"] == jobs.rate[0, kinds.index("v100"), 0]
    assert hopes["rate_expected_here"] == jobs.rate[0, kinds.index("k80"), 0]
    assert hopes["cost_expected_s"] == jobs.restart_s[0]
    # A report of an earlier attempt says nothing of the present one.
    assert "rate_before" not in action_outcomes.expected_effect(view, action, reported(3, 30.0))
