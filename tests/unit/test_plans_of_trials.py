"""The check on what a job reads: the plan that was decided for it, whole, and no old wish."""

import json
from dataclasses import replace

import pytest

from benchmarks.faults.plans import complaint
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.exchange.plan_file import JobPlan

RUNS = Job("7", 7, 0, "root", "j", JobState.RUNNING, "RUNNING", gpus={"k1": {"k80": 1}})
WAITS = replace(RUNS, state=JobState.PENDING, slurm_state="PENDING", gpus={})
TOLD = JobPlan("7", 1.0, {"k80": 1}, batch=16)
WISH = JobPlan("7", 1.0, {"v100": 1}, save="abc")


def entry(kind="move", outcome="moved", gpus=None, **more):
    details = {"gpus": gpus or {"k80": 1}, "batch": 16, "copies": 1, "shares": [], **more}
    details = json.loads(json.dumps(details))
    return Entry(1, "7", kind, "sent", 1.0, 1.0, details, outcome)


def move(outcome=None, **more):
    had = {"from": {"k1": {"k80": 1}}, "save": "abc", "restarts": 0}
    return entry("move", outcome, {"v100": 1}, **had, **more)


def test_what_was_decided_is_nothing_to_complain_of():
    assert complaint(None, RUNS, [entry()]) == ""
    assert complaint(TOLD, RUNS, [entry()]) == ""
    assert complaint(TOLD, WAITS, [entry()]) == ""
    assert complaint(WISH, RUNS, [move(), entry()]) == "", "it is asked to save"
    stays = replace(TOLD, batch=None)
    assert complaint(stays, RUNS, [move("the job did not save and stays where it is")]) == ""
    alone = move("it started by itself before it was placed")
    assert complaint(stays, replace(RUNS, restarts=1), [alone, entry()]) == ""
    assert "decided was {'v100': 1}" in complaint(replace(stays, gpus={"p100": 1}), RUNS, [alone])
    # Slurm started it elsewhere, and that was reported.
    elsewhere = replace(RUNS, gpus={"p1": {"p100": 1}}, restarts=1)
    assert complaint(replace(stays, gpus={"p100": 1}), elsewhere, [alone]) == ""
    over = replace(elsewhere, state=JobState.FINISHED, gpus={})
    assert complaint(replace(stays, gpus={"p100": 1}), over, [alone]) == ""
    assert "decided was" in complaint(replace(stays, gpus={"p100": 2}), over, [alone])
    sent_on = JobPlan("7", 1.0, {"v100": 1}, batch=16, restarts=1)
    there = replace(RUNS, gpus={"v1": {"v100": 1}}, restarts=1)
    assert complaint(sent_on, there, [move("moved"), entry()]) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": {"k80": 2}},
        {"gpus": {"v100": 1}},
        {"gpus": {}},
        {"batch": 12},
        {"batch": None},
        {"copies": 2},
        {"shares": (0.5, 0.5)},
        {"save": "abc"},
    ],
)
def test_every_part_of_a_plan_counts(change):
    plan = replace(TOLD, **change)
    wrong = complaint(plan, RUNS, [entry()])
    assert wrong.startswith("its plan speaks of") and "decided was {'k80': 1}, batch 16" in wrong


def test_a_plan_of_nobody_is_named():
    assert complaint(TOLD, RUNS, []).endswith("decided was none")
    assert complaint(TOLD, RUNS, [entry("hint"), entry("release")]).endswith("decided was none")


def test_an_action_that_was_cut_short_may_have_left_the_plan_before_it():
    for outcome in (None, "not seen to be carried out; the controller was interrupted"):
        later = entry(outcome=outcome, gpus={"v100": 1})
        assert complaint(TOLD, RUNS, [later, entry()]) == ""
    assert "decided was {'v100': 1}" in complaint(TOLD, RUNS, [entry(gpus={"v100": 1}), entry()])


def test_a_job_that_ended_before_it_was_asked_to_save_had_the_plan_before_it():
    ended = replace(RUNS, state=JobState.FINISHED, slurm_state="COMPLETED")
    never_asked = [move("the job has ended (COMPLETED)"), entry()]
    assert complaint(TOLD, ended, never_asked) == ""
    assert "decided was" in complaint(TOLD, replace(ended, restarts=1), never_asked)
    assert "decided was" in complaint(TOLD, ended, [move("moved"), entry()])
    assert "decided was" in complaint(replace(TOLD, batch=8), ended, never_asked)


def test_a_wish_to_save_that_is_over_is_one_for_the_next_attempt_only():
    given_up = [move("the signal was refused: no"), entry()]
    assert complaint(WISH, RUNS, given_up).startswith("its plan still asks it to save")
    assert complaint(WISH, WAITS, given_up) == ""
    assert complaint(WISH, replace(RUNS, restarts=1), given_up) == ""
    # Another attempt's number, or another move's word, is nobody's wish.
    for change in ({"restarts": 1}, {"save": "xyz"}):
        assert "asks it to save" in complaint(replace(WISH, **change), RUNS, [move(), entry()])


def test_a_job_runs_where_it_was_sent_unless_slurm_was_free_to_choose():
    elsewhere = replace(RUNS, gpus={"v1": {"v100": 1}})
    text = "it runs on {'v100': 1}, its plan speaks of {'k80': 1}"
    assert complaint(TOLD, elsewhere, [entry("release", "released"), entry()]) == text
    two = replace(RUNS, gpus={"k1": {"k80": 2}})
    assert complaint(TOLD, two, [entry()]).startswith("it runs on {'k80': 2}")
    for since in ("hint", "undo"):
        assert complaint(TOLD, elsewhere, [entry(since), entry()]) == ""
    assert complaint(TOLD, elsewhere, [entry(outcome="refused: no")]) == ""
    assert complaint(TOLD, elsewhere, [entry(fields={"Partition": "k80"})]) == text
    assert complaint(TOLD, elsewhere, [entry(fields={"Partition": "k80,v100"})]) == ""
