"""What a tick comes to, in words and plain data."""

import json
from dataclasses import replace

import test_backfill as idle
from hand_made import CONFIG, dictate, job, look, ordinary, running, seen

from slurm_hadar.controller.acts.actions import Intent, MoveBudget, intent
from slurm_hadar.controller.report import Report
from slurm_hadar.controller.words.telling import (
    backfill_lines,
    backfill_summary,
    plan_lines,
    summary,
    tick_lines,
)
from slurm_hadar.domain.declaration import Declaration


def report(jobs, want, acted=True, **more):
    shown = seen(jobs)
    view = look(shown)
    plan = dictate(view.view, want)
    means = intent(view, plan, shown, CONFIG, MoveBudget(10))
    return Report(shown, view, plan, means, acted, **more)


def a_bit_of_everything(**more):
    jobs = [
        job("1"),
        job("2", eligible_s=1_000_010.0),
        running("3", {"k1": {"k80": 1}}),
        running("4", {"k2": {"k80": 1}}),
        job("5", required_nodes=("v1",)),
        ordinary("6"),
        running("7", {"p1": {"p100": 1}}, declaration=Declaration(types=("any",), pin=True)),
    ]
    want = {"1": {"v100": 1}, "3": {"v100": 1}, "4": {"k80": 1}, "7": {"v100": 1}}
    return report(jobs, want, **more)


def test_the_log_of_a_tick_says_what_was_done_and_counts_the_rest():
    lines = tick_lines(a_bit_of_everything(said=("job 8: moved",)))
    assert lines[0] == "job 8: moved"
    assert "start job 1 on 1 x v100" in lines and "move job 3 to 1 x v100" in lines
    assert "leave job 5 to Slurm" in lines and "1 waiting jobs: lease renewed" in lines
    assert lines[-1].startswith("tick: 3 running, 2 waiting, 1 left to Slurm; 4 changes sent;")


def test_a_tick_that_only_watched_claims_nothing():
    (line,) = tick_lines(a_bit_of_everything(acted=False))
    assert line.startswith("tick: ")


def test_a_plan_says_of_every_managed_job_what_and_why():
    lines = plan_lines(a_bit_of_everything())
    assert "would start job 1 on 1 x v100: dictated" in lines
    assert "would let job 2 wait: not now" in lines
    assert "job 4 stays as it is (1 x k80): dictated" in lines
    assert "job 7 not now: it may not be moved now" in lines
    assert "job 5 is left to Slurm: it names its nodes itself" in lines
    assert not any("job 6" in line for line in lines)
    assert plan_lines(report([], {})) == ["No managed job: nothing to do."]


def test_the_summary_is_plain_data():
    found = json.loads(json.dumps(summary(a_bit_of_everything())))
    assert found["changes_sent"] == 4 and found["acted"] is True
    assert {a["job"]: a["kind"] for a in found["actions"]} == {
        "1": "start",
        "2": "wait",
        "3": "move",
        "5": "let go",
    }
    assert found["left_to_slurm"]["5"] == "it names its nodes itself"


def test_a_hostile_name_stays_data():
    name = 'x"; $(rm -rf /)\n[bold]\u202e' * 50
    hostile = replace(job("1"), name=name, comment=name)
    lines = plan_lines(report([hostile], {"1": {"k80": 1}}))
    assert lines[0] == "would start job 1 on 1 x k80: dictated"


def on_idle_nodes():
    """A training that starts, one that stays, one that waits, one left to Slurm, a job to come."""
    jobs = [
        idle.trainer("1"),
        idle.on("2", "v1", declaration=replace(idle.TRAINS, nodes=(1, 1))),
        idle.trainer("3", declaration=replace(idle.TRAINS, types=("v100",), gpu_mem=64_000)),
        idle.trainer("4", declaration=replace(idle.TRAINS, checkpoint=False)),
        ordinary("9", partitions=("gpu",), features="k80"),
    ]
    found = idle.look(jobs, idle.nodes(**idle.used("v1")))
    result = idle.decide(found)
    empty = report([], {})
    means = Intent(result.actions, result.deferred)
    return replace(empty, seen=found, intent=means, backfill=result)


def test_of_idle_nodes_it_is_said_who_gets_them_and_why():
    lines = backfill_lines(on_idle_nodes())
    first = "idle nodes: 1 train, 2 free, 1 left to others; trainings: 1 running, 2 waiting"
    assert lines[0] == first
    assert any(line.startswith("would start job 1 on ") for line in lines)
    assert any(line.startswith("job 2 stays as it is (1 x v100 on v1)") for line in lines)
    assert any(line.startswith("job 3 waits: ") for line in lines)
    assert any("job 4" in line and "checkpoint=yes" in line for line in lines)
    assert "k1 is idle, but pending job 9 is about to start there" in lines
    whole = plan_lines(on_idle_nodes())
    assert sum("job 1 " in line for line in whole) == 1 and lines[0] in whole
    plain = json.loads(json.dumps(backfill_summary(on_idle_nodes())))
    assert {row["job"]: len(row["nodes"]) for row in plain["trainings"]} == {"1": 2, "2": 1, "3": 0}
    assert plain["left_to_others"].keys() == {"k1"} and "4" in plain["left_to_slurm"]
