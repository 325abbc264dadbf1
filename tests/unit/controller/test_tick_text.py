"""What a tick comes to, as lines of text and plain data."""

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import test_idle_training as idle
from hand_made import config, dictate, job, look, observation, ordinary, running

from slurm_hadar.cli import controller_commands
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.hints import hints
from slurm_hadar.controller.actuation.plan_diff import MoveBudget, PlanDiff, diff
from slurm_hadar.controller.presentation.tick_text import (
    backfill_summary,
    format_backfill,
    format_plan,
    format_tick,
    summary,
)
from slurm_hadar.controller.report import TickReport
from slurm_hadar.domain.declaration import Declaration

SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
LIST = Declaration(types=("v100", "p100", "k80"), model="resnet50", checkpoint="yes")


def report(jobs, want, acted=True, **more):
    shown = observation(jobs)
    view = look(shown, SITE)
    plan = dictate(view.view, want)
    moves = diff(view, plan, shown, SITE, MoveBudget(10))
    sent = (*hints(view, plan, HintInput(shown, SITE)), *moves.actions)
    return TickReport(shown, view, plan, PlanDiff(sent, moves.deferred), acted, **more)


def a_bit_of_everything(**more):
    jobs = [
        job("1", declaration=LIST),
        job("2", partitions=("v100",)),
        running("3", {"k1": {"k80": 1}}),
        running("4", {"k2": {"k80": 1}}),
        job("5", required_nodes=("v1",)),
        ordinary("6"),
        running("7", {"p1": {"p100": 1}}, declaration=Declaration(types=("any",), pin=True)),
    ]
    want = {"1": {"v100": 1}, "3": {"v100": 1}, "4": {"k80": 1}, "7": {"v100": 1}}
    return report(jobs, want, **more)


def test_the_log_of_a_tick_says_what_was_done_and_counts_the_rest():
    became = ("job 3: released, to start on 1 x v100",)
    lines = format_tick(a_bit_of_everything(notices=("job 8: moved",), outcomes=became))
    assert lines[:-1] == [
        "job 8: moved",
        "update job 1: Partition=v100,p100,k80",
        "move job 3 to 1 x v100",
        *became,
    ]
    assert lines[-1].startswith("tick: 3 running, 2 waiting, 1 not steered; 2 changes sent;")


def test_a_tick_that_only_watched_claims_nothing():
    (line,) = format_tick(a_bit_of_everything(acted=False))
    assert line.startswith("tick: ")


def test_a_plan_says_of_every_managed_job_what_and_why():
    lines = format_plan(a_bit_of_everything())
    would = "would update job 1: Partition=v100,p100,k80: its order of preference"
    assert would in lines and "would move job 3 to 1 x v100: dictated" in lines
    assert "job 2 waits: not now" in lines
    assert "job 4 stays as it is (1 x k80): dictated" in lines
    assert "job 7 not now: it cannot be moved now: it declares no checkpoint" in lines
    assert "job 5 is not steered: it names its nodes itself" in lines
    assert not any("job 6" in line for line in lines)
    assert format_plan(report([], {})) == ["No managed jobs."]


def test_the_summary_is_plain_data():
    found = json.loads(json.dumps(summary(a_bit_of_everything())))
    assert found["changes_sent"] == 2 and found["acted"] is True
    assert {a["job"]: a["kind"] for a in found["actions"]} == {"1": "hint", "3": "move"}
    assert found["actions"][0]["fields"] == {"Partition": "v100,p100,k80"}
    moved: Any = summary(a_bit_of_everything(outcomes=("job 3: moved",)))
    assert "job 3: moved" in moved["messages"]
    assert found["not_steered"]["5"] == "it names its nodes itself"


def test_a_hostile_name_stays_data():
    name = 'x"; $(rm -rf /)\n[bold]\u202e' * 50
    hostile = replace(job("1", declaration=LIST), name=name, comment=name)
    lines = format_plan(report([hostile], {}))
    assert lines[0].startswith("would update job 1: Partition=v100,p100,k80: ")
    assert not any("rm -rf" in line for line in lines)


def on_idle_nodes(*jobs, used):
    found = idle.look(jobs, idle.nodes(**idle.used(*used)))
    result = idle.decide(found)
    means = PlanDiff(result.actions, result.deferred)
    return replace(report([], {}), observation=found, diff=means, backfill=result)


def some_on_idle_nodes():
    """A training that waits for Slurm, one that stays, one that fits nowhere, one left to Slurm,
    and a job to come."""
    return on_idle_nodes(
        idle.trainer("1"),
        idle.on("2", "v1", declaration=replace(idle.TRAINS, nodes=(1, 1))),
        idle.trainer("3", declaration=replace(idle.TRAINS, types=("v100",), gpu_mem=64_000)),
        idle.trainer("4", declaration=replace(idle.TRAINS, checkpoint="")),
        ordinary("9", partitions=("gpu",), features="k80"),
        used=["v1"],
    )


def test_of_idle_nodes_it_is_said_who_gets_them_and_why():
    lines = format_backfill(some_on_idle_nodes())
    first = "idle nodes: 1 train, 2 free, 1 left to others; trainings: 1 running, 2 waiting"
    assert lines[0] == first
    assert any(line.startswith("job 1 waits, planned on 1 x p100 + 1 x v100 on ") for line in lines)
    assert any(line.startswith("job 2 stays as it is (1 x v100 on v1)") for line in lines)
    assert any(line.startswith("job 3 waits: ") for line in lines)
    assert any("job 4" in line and "checkpoint=yes" in line for line in lines)
    assert "k1 is idle, but pending job 9 is about to start there" in lines
    whole = format_plan(some_on_idle_nodes())
    assert sum("job 1 " in line for line in whole) == 1 and lines[0] in whole
    plain = json.loads(json.dumps(backfill_summary(some_on_idle_nodes())))
    assert {row["job"]: len(row["nodes"]) for row in plain["trainings"]} == {"1": 2, "2": 1, "3": 0}
    assert plain["left_to_others"].keys() == {"k1"} and "4" in plain["not_steered"]
    grows = format_backfill(on_idle_nodes(idle.started("1", "v1"), used=["v1"]))
    assert grows[1].startswith(
        "would move job 1 to 1 x k80 + 1 x p100 + 2 x v100 on k1,p1,v[1-2]: "
    )


def test_a_job_that_waits_where_it_is_best_is_not_said_to_run():
    grouped = job(declaration=LIST, partitions=("v100", "p100", "k80"))
    lines = format_plan(report([grouped], {"1": {"v100": 1}}))
    assert lines == ["job 1 waits, planned on 1 x v100: dictated"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_plan_says_that_nothing_is_sent_while_the_stop_file_exists(tmp_path, capsys, as_json):
    stop = tmp_path / "stop"
    site = SITE.model_copy(update={"guards": SITE.guards.model_copy(update={"stop_file": stop})})
    said = f"{stop} exists: nothing is sent until it is removed"
    for there in (False, True):
        if there:
            stop.touch()
        controller_commands._print_plan(
            site, "plan", {"messages": ["another"]}, ["would move job 1"], as_json
        )
        shown = capsys.readouterr().out
        if as_json:
            expected = [said] * there + ["another"]
            assert json.loads(shown)["result"]["messages"] == expected
        else:
            assert shown.splitlines() == [said] * there + ["would move job 1"]


@pytest.mark.parametrize("as_json", [False, True])
def test_what_idle_nodes_would_do_names_the_stop_file_too(tmp_path, capsys, monkeypatch, as_json):
    stop = tmp_path / "stop"
    stop.touch()
    guards = idle.SITE.guards.model_copy(update={"stop_file": stop})
    monkeypatch.setattr(
        controller_commands, "load", lambda _: idle.SITE.model_copy(update={"guards": guards})
    )
    reader = SimpleNamespace(plan=some_on_idle_nodes)
    monkeypatch.setattr(controller_commands, "reader_of", lambda _: contextlib.nullcontext(reader))
    controller_commands.backfill(as_json=as_json)
    shown = capsys.readouterr().out
    said = json.loads(shown)["result"]["messages"] if as_json else shown.splitlines()[:1]
    assert said == [f"{stop} exists: nothing is sent until it is removed"]
