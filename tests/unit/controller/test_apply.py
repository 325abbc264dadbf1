"""Hints to waiting jobs: one batch, in the journal, and whose a field is when Slurm refuses it."""

import os
from dataclasses import replace

import pytest
from hand_made import NOW, as_cluster, config, job

from slurm_hadar.controller.actuation import apply
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, send_hints
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.actuation.repair import with_unsent
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.exchange.plan_file import JobPlan, read_plan, write_plan

LIST = "v100,p100,k80"
OURS = Steering(time=NOW, was={"Partition": "gpu"}, wrote={"Partition": LIST})
BEFORE = Steering(time=NOW - 60, was={"Partition": "gpu"}, wrote={"Partition": "k80,v100,p100"})
REFUSED = SlurmError("scontrol update: Invalid partition name specified")
NO_ANSWER = SlurmError("scontrol gave no answer within 30 s", retry=True)


class Cluster:
    """A cluster that answers each update with one of ``errors``."""

    def __init__(self, *errors):
        self.errors, self.batches = list(errors), []

    def apply(self, updates):
        self.batches.append(list(updates))
        return [self.errors.pop(0) for _ in updates]


@pytest.fixture
def context(tmp_path):
    (tmp_path / "exchange").mkdir()
    store = Store.open(tmp_path / "state")
    site = config(f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n')
    yield ActionContext(None, store, site)
    store.close()


def hint(id_="1"):
    return Action(Kind.HINT, job(id_), {"Partition": LIST}, OURS, "its order of preference")


def sent(context, *errors, ids=("1",), now=NOW):
    cluster = Cluster(*errors)
    context = ActionContext(as_cluster(cluster), context.store, context.config)
    return send_hints(context, [hint(id_) for id_ in ids], now), cluster


def known(context, id_="1"):
    text = context.store.steerings([id_]).get(id_)
    return decode(text) if text is not None else None


def test_hints_go_in_one_batch_and_change_nothing_but_what_they_say(context):
    said, cluster = sent(context, None, None, ids=("1", "2"))
    (batch,) = cluster.batches
    assert [(one.job_id, dict(one.fields)) for one in batch] == [
        ("1", {"Partition": LIST}),
        ("2", {"Partition": LIST}),
    ]
    assert said.messages == () and not said.refused
    assert context.store.history("1")[0].outcome == "done" and not context.store.open_entries()
    assert known(context) == OURS
    assert sent(context, ids=())[1].batches == []


def test_a_hint_leaves_the_plan_that_a_job_has(context):
    """It says where a job may start, not what it gets there."""
    folder = context.config.site.exchange_dir
    sent(context, None)
    assert read_plan(folder, "1", {os.getuid()}) is None
    write_plan(folder, JobPlan("1", gpus={"k80": 4}, batch=64, save="abc"))
    before = read_plan(folder, "1", {os.getuid()})
    sent(context, REFUSED)
    assert read_plan(folder, "1", {os.getuid()}) == before


def test_the_plan_file_which_all_may_read_says_nothing_of_others(context):
    place = "number 6 of 16 in the policy's queue, in the order of gain per price"
    reason = f"1 x k80 on k1; {place}; not job 7"
    assert context.write_plan(job("1"), JobPlan("1", gpus={"k80": 1}, reason=reason)) is None
    found = read_plan(context.config.site.exchange_dir, "1", {os.getuid()})
    assert found.reason == (
        "1 x k80 on k1; in the policy's queue, in the order of gain per price; not another job"
    )


def test_what_slurm_refused_is_not_taken_for_ours(context):
    said, _ = sent(context, REFUSED)
    assert said.refused == {"1"}
    assert said.messages == (f"job 1: hint refused: {REFUSED}",)
    assert known(context) == Steering()
    context.store.keep_steering("1", merge("", BEFORE))
    sent(context, REFUSED)
    assert known(context) == BEFORE


def test_what_slurm_may_have_taken_can_still_be_given_back(context):
    """Whether the update came through is not known, so neither value is a stranger's."""
    said, _ = sent(context, NO_ANSWER)
    assert said.refused == {"1"}
    found = known(context)
    assert found.was == {"Partition": "gpu"} == found.unsure and found.wrote == {"Partition": LIST}
    assert found.time == 0, "a begin time of an earlier release is ours still"


def test_a_controller_that_dies_while_it_keeps_hints_has_sent_none(context, monkeypatch):
    """Else its record says that it wrote what Slurm does not show, so that somebody else did."""
    keep, calls = steering_store.keep, []

    def dies(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        keep(*args)

    monkeypatch.setattr(steering_store, "keep", dies)
    with pytest.raises(KeyboardInterrupt):
        sent(context, ids=("1", "2", "3"))
    jobs = {id_: job(id_) for id_ in ("1", "2", "3")}
    kept = {id_: ours for id_ in jobs if (ours := known(context, id_)) is not None}
    assert kept == {"1": OURS, "2": OURS}, "the test can fail"
    found = with_unsent(kept, jobs, context.store.open_entries())
    assert not any(ours.wrote or ours.time for ours in found.values())


def test_what_was_to_be_given_back_can_be_given_back_later(context):
    """A hint that restores the owner's list, and that Slurm did not answer, forgets nothing."""
    context.store.keep_steering("1", merge("", BEFORE))
    context.store.keep_steering("2", merge("", replace(BEFORE, leased=True)))
    back = replace(hint(), fields={"Partition": "gpu"}, steering=Steering(time=NOW))
    working = replace(context, cluster=Cluster(NO_ANSWER))
    assert send_hints(working, [back], NOW).refused == {"1"}
    found = known(context)
    assert found.was == found.wrote == {"Partition": "gpu"} and found.unsure == BEFORE.wrote
    working = replace(context, cluster=Cluster(NO_ANSWER))
    send_hints(working, [replace(back, job=job("2"))], NOW)
    assert known(context, "2").leased, "its begin time is taken away at the next tick"


def test_a_hint_for_a_job_that_has_begun_is_no_refusal(context):
    said, _ = sent(context, SlurmError("Job is no longer pending execution for job 1"))
    assert said.messages == () and said.refused == {"1"}
    assert context.store.history("1")[0].outcome == "not needed: it had begun"
    assert apply.refusals(context.store) == {}


@pytest.mark.parametrize(
    "words",
    [
        "Requested partition configuration not available now for job 1",
        "Requested node configuration is not available for job 1",
    ],
)
def test_a_list_that_slurm_takes_although_it_complains_can_still_be_given_back(context, words):
    """Slurm 22.05 and 24.11 change the job all the same."""
    said, _ = sent(context, SlurmError(f"scontrol update: {words}"))
    assert said.refused == {"1"}
    # Either value may be there now, and neither is another author's.
    assert known(context).was == known(context).unsure == {"Partition": "gpu"}
    assert known(context).wrote == {"Partition": "v100,p100,k80"}
    assert apply.refusals(context.store) == {"1": Refusals(1, NOW)}


def test_each_list_in_which_a_job_fitted_nowhere_counts_as_refused(context):
    """Slurm took each of them, so that they would begin anew otherwise."""
    for number in (1, 2, 3):
        at = NOW + 1000 * number
        sent(context, None, now=at)
        unfit = replace(job(), reason="PartitionConfig")
        back = Action(Kind.HINT, unfit, {"Partition": "gpu"}, Steering(time=at), "")
        send_hints(replace(context, cluster=Cluster(None)), [back], at + 60)
        assert apply.refusals(context.store) == {"1": Refusals(number, at + 60)}
    sent(context, None, now=NOW + 5000)
    assert apply.refusals(context.store)["1"] == Refusals(3, NOW + 3060)
    # Slurm held it, and it was released.
    entry = context.store.begin("1", apply.UNDO, "sent", NOW + 6000, {})
    context.store.end(entry, apply.UNDONE, NOW + 6000)
    assert apply.refusals(context.store)["1"] == Refusals(3, NOW + 6000)


def test_refusals_are_remembered_until_slurm_takes_a_hint(context):
    for at in (NOW, NOW + 60):
        sent(context, REFUSED, None, ids=("1", "2"), now=at)
    assert apply.refusals(context.store) == {"1": Refusals(2, NOW + 60)}
    # Slurm was away: that is no refusal.
    sent(context, NO_ANSWER, now=NOW + 180)
    assert apply.refusals(context.store)["1"] == Refusals(2, NOW + 180)
    sent(context, None, now=NOW + 420)
    assert apply.refusals(context.store) == {}
    sent(context, REFUSED, now=NOW + 480)
    assert apply.refusals(context.store) == {"1": Refusals(1, NOW + 480)}


def test_another_error_is_tried_again_as_soon_as_the_first_one_was(context):
    """It says that what kept the job until now is over; each has its own pauses, also in turn."""
    closed = SlurmError("scontrol update: Access/permission denied")
    at, number = NOW, {REFUSED: 0, closed: 0}
    for error in (REFUSED, REFUSED, REFUSED, closed, REFUSED, closed):
        at, number[error] = at + 3600, number[error] + 1
        sent(context, error, now=at)
        assert apply.refusals(context.store) == {"1": Refusals(number[error], at)}
    sent(context, None, now=at + 3600)
    sent(context, closed, now=at + 7200)
    assert apply.refusals(context.store) == {"1": Refusals(1, at + 7200)}


def test_what_slurm_refused_of_a_held_job_is_forgotten_once_it_is_released(context):
    """Slurm may take it now, and another job may have its place until then."""
    held = replace(hint(), job=job(held=True, priority=0))
    for at in (NOW, NOW + 60):
        send_hints(replace(context, cluster=Cluster(REFUSED)), [held], at)
    said = context.store.history("1")[0].outcome
    assert said.startswith("refused while it was held: scontrol update: Invalid partition")
    assert apply.refusals(context.store, ["1"]) == {"1": Refusals(2, NOW + 60)}
    assert apply.refusals(context.store, ["2"]) == {}
    # Nor does what was refused before it was held count then.
    sent(context, REFUSED, now=NOW + 120)
    assert apply.refusals(context.store) == {"1": Refusals(1, NOW + 120)}
    sent(context, None, now=NOW + 180)
    assert apply.refusals(context.store, ["1"]) == apply.refusals(context.store) == {}


def test_waiting_tasks_of_an_array_stay_in_one_record(context):
    """Slurm changes the whole record, whatever part of it was looked at."""
    tasks = [
        replace(hint(f"7_{n}"), job=job(f"7_{n}", array_job_id=7, array_tasks="0-1,9"))
        for n in (0, 1)
    ]
    other = replace(tasks[1], job=replace(tasks[1].job, id="7_9"), fields={"Partition": "k80"})
    cluster = Cluster(None, None, None)
    working = replace(context, cluster=cluster)
    send_hints(working, [*tasks, other, hint("8")], NOW)
    assert [one.job_id for one in cluster.batches[0]] == ["7_[0-1,9]", "7_9", "8"]
    assert all(known(context, id_) == OURS for id_ in ("7_0", "7_1", "7"))
    assert [context.store.history(id_)[0].outcome for id_ in ("7_0", "7_1")] == ["done"] * 2
    # Tasks that are not looked at are in Slurm as they were.
    working = replace(context, cluster=Cluster(REFUSED))
    context.store.keep_steering("7", merge("", BEFORE))
    assert send_hints(working, tasks, NOW).refused == {"7_0", "7_1"}
    assert known(context, "7") == BEFORE


def test_a_job_of_a_sandbox_says_of_itself_what_was_done_to_it(context):
    sandbox = config('[site]\nrights = "sandbox"\n')
    cluster = Cluster(None)
    send_hints(ActionContext(as_cluster(cluster), context.store, sandbox), [hint()], NOW)
    ((update,),) = cluster.batches
    assert decode(update.fields["AdminComment"]) == OURS and known(context) is None


def test_an_update_that_puts_a_list_right_is_not_called_refused(context):
    """Slurm took it. The list before counts as a refusal, so that it does not come back at once."""
    unfit = replace(hint(), job=job(reason="BadConstraints"))
    send_hints(replace(context, cluster=Cluster(None)), [unfit], NOW)
    (entry,) = context.store.history("1")
    assert entry.outcome == (
        "taken; the job fitted nowhere in a partition that it had before: BadConstraints"
    )
    assert apply.refusals(context.store) == {"1": Refusals(1, NOW)}
