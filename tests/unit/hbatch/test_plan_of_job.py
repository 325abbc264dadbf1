"""The plan of a job that is not submitted: what it would ask, and how it is printed."""

import json
import math
import os
import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar import config
from slurm_hadar.cli.plan_of_job import format_plan, print_json, print_text
from slurm_hadar.cli.sbatch_parser import read_argv
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.snapshot.resource_request import resource_request
from slurm_hadar.controller.submit_plan.hypothetical_job import (
    Asked,
    copy_of_store,
    count_option,
    job_of,
)
from slurm_hadar.controller.submit_plan.plan import PlanRow, SubmitPlan, counts_shown
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.expected_start import Start, start_of

NOW = 1_000_000.0
PARTITIONS = {
    "gpu": Partition("gpu", default=True, max_time_s=7200.0, default_time_s=600.0),
    "long": Partition("long"),
}


def job(*argv, declaration=None):
    held = dict(read_argv(argv).options)
    asked = Asked(held, declaration, "/home/ada/train.sh", 1000, "ada")
    return job_of(asked, PARTITIONS, NOW, 7)


def test_what_is_not_said_is_as_slurm_fills_it_in():
    found = job()
    assert found.partitions == ("gpu",) and found.time_limit_s == 600.0
    assert (found.node_count, found.tasks, found.cpus, found.name) == (1, 1, 1, "train.sh")
    assert found.priority == 7 and found.eligible_s == NOW and found.requeue
    assert job("-plong").time_limit_s == math.inf
    assert job("-pnowhere").time_limit_s == math.inf


@pytest.mark.parametrize(
    ("argv", "form", "gpus"),
    [
        (["--gres=gpu:2"], "per_node", {UNTYPED: 2}),
        (["--gres=foo:1,gpu:v100:2"], "per_node", {"v100": 2}),
        (["-G3"], "per_job", {UNTYPED: 3}),
        (["--gpus-per-node=k80:1"], "per_node", {"k80": 1}),
        (["--gpus-per-task=2"], "per_task", {UNTYPED: 2}),
        (["--gres=foo:1"], "per_node", {}),
        (["-Gv100:x:y:z"], "per_job", {}),
    ],
)
def test_gpus_in_each_of_slurms_ways_of_counting(argv, form, gpus):
    request = job(*argv).request
    assert getattr(request, form) == gpus
    assert sum(map(len, (request.per_node, request.per_job, request.per_task))) == len(gpus)


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["-t", "1-0"], "time_limit_s", 86400.0),
        (["-N2-4"], "node_count", 2),
        (["-n8", "--ntasks-per-node=4"], "node_count", 2),
        (["-n4", "-c2"], "cpus", 8),
        (["-G4", "--cpus-per-gpu=3"], "cpus", 12),
        (["--mem=4G"], "mem_per_node_mb", 4096),
        (["--mem-per-cpu=500"], "mem_per_cpu_mb", 500),
        (["--gres=gpu:2", "--mem-per-gpu=1G"], "mem_per_node_mb", 2048),
        (["-wv[1-2]"], "required_nodes", ("v1", "v2")),
        (["-xk1"], "excluded_nodes", ("k1",)),
        (["-H"], "held", True),
        (["--no-requeue"], "requeue", False),
        (["--exclusive"], "exclusive", True),
        (["--exclusive"], "whole_nodes", True),
        (["--exclusive=user"], "whole_nodes", False),
        (["-Jmine"], "name", "mine"),
        (["--wrap=true"], "name", "wrap"),
        (["-plong,gpu"], "partitions", ("long", "gpu")),
    ],
)
def test_options_become_what_slurm_would_show(argv, field, value):
    assert getattr(job(*argv), field) == value


def test_a_begin_time_is_the_users_own():
    assert job("--begin=now+100").eligible_s > NOW
    assert job().eligible_s == NOW


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["--gres=foo:2,gpu:1"], "--gres=foo:2,gpu:4"),
        (["-G1"], "--gpus=4"),
        (["--gpus-per-node=1"], "--gpus-per-node=4"),
        (["--gpus-per-task=1"], None),
    ],
)
def test_another_count_is_asked_in_the_submits_own_way(argv, option):
    assert count_option(dict(read_argv(argv).options), 4) == option


@pytest.mark.parametrize(
    ("possible", "most_nodes", "chosen", "shown"),
    [
        ([1, 2, 3, 4], 1, 2, [1, 2]),
        ([1, 2, 3, 4], 4, 2, [1, 2, 4]),
        ([1, 2, 3, 4], 4, 0, [1, 4]),
        # Slurm says why not.
        ([3, 4], 1, 0, [3]),
        ([], 1, 2, []),
    ],
)
def test_the_table_has_numbers_of_gpus_that_a_node_of_two_has_and_the_planned_one(
    possible, most_nodes, chosen, shown
):
    one = replace(
        job("--gres=gpu:1"), declaration=Declaration(gpus=(1, 4), types=("any",), checkpoint="yes")
    )
    request: Any = resource_request(one, Steering())
    want = replace(request, most_nodes=most_nodes)
    assert want.counts == (1, 2, 3, 4)
    assert counts_shown(possible, want, 2, chosen) == shown


def script(folder, text):
    path = folder / "sbatch"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_slurms_answer_is_read_and_its_refusal_reported(tmp_path):
    says = "sbatch: Job 7 to start at 2026-11-21T18:20:00 using 2 processors on nodes v[1-2]"
    says += " in partition gpu"
    found = start_of(script(tmp_path, f'echo "{says}" >&2; cat'), (), os.environ, b"x")
    assert (found.nodes, found.partition, found.code, found.refused) == ("v[1-2]", "gpu", 0, "")
    assert found.start_s > 1.7e9
    bad = script(tmp_path, 'echo "sbatch: error: no" >&2; echo \'Try "x"\' >&2; exit 3')
    found = start_of(bad, (), os.environ, None)
    assert (found.code, found.refused, found.start_s) == (3, "no", 0.0)


def site(tmp_path):
    return config.parse(f'[site]\nstate_dir = "{tmp_path}/state"\n', "here")


def test_the_controllers_file_is_copied_and_never_written(tmp_path):
    with copy_of_store(site(tmp_path)) as (store, copied):
        assert not copied and store.open_entries() == []
    assert not (tmp_path / "state").exists()
    own = Store.open(tmp_path / "state")
    own.keep_policy_state("hadar", {"x": 1})
    before = (tmp_path / "state" / "hadar.sqlite").read_bytes()
    with copy_of_store(site(tmp_path)) as (store, copied):
        assert copied and store.policy_state("hadar") == {"x": 1}
        store.keep_policy_state("hadar", {"x": 2})
    assert own.policy_state("hadar") == {"x": 1}
    own.close()
    assert (tmp_path / "state" / "hadar.sqlite").read_bytes()[:16] == before[:16]


def test_a_damaged_file_of_the_controller_does_not_stop_a_plan(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "hadar.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(tmp_path / "state" / "hadar.sqlite").execute("SELECT * FROM x")
    with copy_of_store(site(tmp_path)) as (store, copied):
        assert not copied and store.open_entries() == []


def row(**changes):
    fields: dict[str, Any] = {
        "gpu_type": "v100", "gpus": 1, "start": Start(NOW, "v1", "gpu"), "samples_per_s": 10.0,
        "source": "table", "takes_s": 60.0, "finish_s": NOW + 60, "in_limit": True,
        "chosen": False,
    }  # fmt: skip
    return PlanRow(**fields | changes)


def plan(*rows, **changes):
    fields: dict[str, Any] = {
        "words": ["sbatch", "a b.sh"], "managed": True, "why": "", "controller_active": True,
        "alone": Start(NOW, "v1", "gpu"), "now_s": NOW, "interval_s": 60.0, "rows": rows,
        "gpus": {"v100": 1}, "nodes": ("v1",), "reason": "1 x v100 on v1: it is fastest",
    }  # fmt: skip
    return SubmitPlan(**fields | changes)


def test_the_text_names_the_place_once_and_what_is_unknown():
    lines = format_plan(plan(row()))
    assert "asks     sbatch 'a b.sh'" in lines
    assert "policy   1 x v100 on v1: it is fastest" in lines
    assert "policy   1 x v100 on v1: soon" in format_plan(plan(reason="soon"))
    assert any("no: alone" in line for line in format_plan(plan(managed=False, why="alone")))


def test_the_text_says_that_slurm_starts_it_and_who_looks_at_it():
    assert any("Slurm starts it" in line and "1 min" in line for line in format_plan(plan()))
    (line,) = [
        line for line in format_plan(plan(controller_active=False)) if line.startswith("managed")
    ]
    assert "no controller" in line and "ordinary job" in line


@pytest.mark.parametrize("active", [True, False])
def test_a_job_that_slurm_would_refuse_is_not_said_to_start(active):
    lines = format_plan(plan(controller_active=active, alone=Start(refused="no such node")))
    assert "managed  it would be, if Slurm accepted it" in lines
    assert "Slurm    would refuse it: no such node" in lines


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "now"),
        ({"takes_s": None}, "at the latest"),
        ({"in_limit": False}, "cut by its time limit"),
        ({"start": Start(refused="no such node")}, "no such node"),
        ({"samples_per_s": None, "takes_s": None, "finish_s": None}, "unknown  unknown"),
        ({"chosen": True}, "(policy)"),
    ],
)
def test_the_table(changes, says, capsys):
    print_text(plan(row(**changes)))
    assert says in capsys.readouterr().out


def test_the_json_has_units_and_null_for_what_is_not_known(capsys):
    unknown = row(samples_per_s=None, takes_s=None, finish_s=None, start=Start(refused="no"))
    print_json(plan(unknown, reason="", managed=False))
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["policy"] is None and result["submitted"] is False
    (one,) = result["types"]
    assert one["start_s"] is one["finish_s"] is one["takes_s"] is one["samples_per_s"] is None
    assert one["refused"] == "no"
