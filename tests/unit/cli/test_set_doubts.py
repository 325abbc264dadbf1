"""``hadar set`` says what of its words has no effect."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from slurm_hadar import config as configuration
from slurm_hadar.cli import jobs
from slurm_hadar.cli.count_doubts import of_job
from slurm_hadar.cli.main import app
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.resource_request import resource_request
from slurm_hadar.domain.declaration import Declaration, parse
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import GpuRequest, Job, JobState
from slurm_hadar.domain.node import Node, Partition
from slurm_hadar.domain.steering import Steering
from slurm_hadar.reports.status import ControllerState


@pytest.mark.parametrize(
    ("words", "before", "says"),
    [
        (["lose=5"], Declaration(), "job 7: lose=5 has no effect without checkpoint=restart"),
        (["lose=5"], Declaration(checkpoint="watch:/x"), ""),
        (["signal=USR1"], Declaration(), "job 7: signal=USR1 has no effect"),
        (["checkpoint=signal"], Declaration(batch=(8, 64)), "batch=8:64 has no effect"),
        (["pin=yes"], Declaration(batch=(8, 64), checkpoint="signal"), ""),
        (["samples=5"], Declaration(off=True), "it is opted out, so this has no effect; opt it"),
        (["off=no"], Declaration(off=True), ""),
    ],
)
def test_what_has_no_effect_is_said_in_one_line(monkeypatch, words, before, says):
    found = parse(words, "here", before)
    tasks = [replace(shown(declaration=found), id=id_) for id_ in ("7_1", "7_2")]
    monkeypatch.setattr(jobs, "_change", lambda *_: tasks)
    done = CliRunner().invoke(app, ["set", "7", *words])
    assert done.exit_code == 0 and done.stdout == f"job 7: {words[0]}\n"
    assert done.stderr.count("\n") == bool(says) and says in done.stderr


NODES = {"v1": Node("v1", {"v100": 2}, cpus=8), "v2": Node("v2", {"v100": 2}, cpus=8)}
PER_NODE = {"request": GpuRequest(per_node={"": 2})}
ALONE = {**PER_NODE, "exclusive": True, "whole_nodes": True}


def shown(**more):
    usual = {"partitions": ("gpu",), **PER_NODE}
    return Job("7", 7, 1, "ann", "x", JobState.PENDING, "PENDING", **{**usual, **more})


def said(words, **more):
    """Of a job that declares these words, in a partition of two nodes with two GPUs each."""
    one = shown(declaration=parse(words, "here"), **more)
    seen = Observation(1.0, {"7": one}, NODES, {"gpu": Partition("gpu", tuple(NODES))})
    return of_job(one, resource_request(one, Steering()), seen)


def test_the_most_that_a_job_gets_of_a_wide_range_is_said():
    found = said(("gpus=1-64", "checkpoint=yes"))
    assert found.startswith("of gpus=1-64 the job gets at most 2: no node that it may have")
    assert said(("gpus=1-2", "checkpoint=yes")) == ""


@pytest.mark.parametrize(
    ("counts", "more", "says"),
    [
        ("4,8", {}, "no node that the job may have has more than 2 GPUs"),
        ("4-8", {}, "more than 2 GPUs"),
        ("1,2", {}, ""),
        ("2", {}, ""),
        ("4,8", {"node_count": 2}, "on 2 nodes the job keeps the GPUs of its request"),
        ("9", {"node_count": 2}, "on 2 nodes the job keeps the GPUs of its request"),
        ("4", {"node_count": 2}, ""),
        ("1", {"request": GpuRequest(per_node={"v100": 2})}, "names a GPU type"),
        ("9 nodes=1-2", {"request": GpuRequest(per_job={"": 2})}, "no 2 nodes that the job may"),
        ("4 nodes=1-2", {"request": GpuRequest(per_job={"": 4})}, ""),
        ("1,2", {"request": GpuRequest(per_node={"v100": 2})}, "names a GPU type"),
        ("1,2", {"request": GpuRequest(per_task={"": 2})}, "counts GPUs by task"),
        ("1,2", {"request": GpuRequest()}, "it asks for no GPU"),
        ("2,3", ALONE, ""),
        ("4,8", ALONE, "declare gpus= with the GPUs of whole nodes"),
        ("4,8", {**ALONE, "node_count": 2}, ""),
    ],
)
def test_counts_that_a_job_cannot_get_are_said(counts, more, says):
    found = said((*f"gpus={counts}".split(), "checkpoint=yes"), **more)
    begins = f"gpus={counts.split()[0]} has no effect: " if says else ""
    assert says in found and found.startswith(begins)
    assert bool(found) == bool(says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gpus=1",), "its request is for 2 and stays so until a move gives it gpus=1"),
        (("gpus=1-2",), ""),
        (("gpus=1", "pin=yes"), "only a move changes the 2 of the request, and it is pinned"),
        (("gpus=1-2", "pin=yes"), ""),
    ],
)
def test_a_request_for_a_number_that_is_not_declared_stays_until_a_move(words, says):
    found = said((*words, "checkpoint=yes"))
    assert says in found and bool(says) == bool(found)


def test_a_job_that_runs_with_a_number_that_is_not_declared_keeps_it_until_a_move():
    runs = {"state": JobState.RUNNING, "nodes": ("v1",), "gpus": {"v1": {"v100": 2}}}
    one = replace(shown(declaration=parse(("gpus=1", "checkpoint=yes"), "here")), **runs)
    seen = Observation(1.0, {"7": one}, NODES, {"gpu": Partition("gpu", tuple(NODES))})
    found = of_job(one, resource_request(one, Steering()), seen)
    assert found == "it runs with 2 until a move gives it gpus=1"


def test_a_job_that_never_moves_keeps_its_request():
    assert "declares no checkpoint" in said(("gpus=1,2",))
    assert said(("gpus=2",)) == "" and said(("gpus=1,2", "off=yes")) == ""


def test_set_says_it_and_changes_the_declaration_all_the_same(monkeypatch, tmp_path):
    one = shown(declaration=parse(("gpus=4,8", "checkpoint=yes"), "here"))

    class Cluster:
        notes = ()

        def read_jobs(self, ids, tasks_per_array):
            return [one]

        def read_nodes(self):
            return list(NODES.values())

        def read_partitions(self):
            return [Partition("gpu", tuple(NODES))]

    conf = tmp_path / "hadar.toml"
    conf.write_text(f'[site]\nstate_dir = "{tmp_path}"\nexchange_dir = "{tmp_path}"\n')
    monkeypatch.setattr(jobs, "_change", lambda *_: [one])
    monkeypatch.setattr(jobs, "_steering", lambda *_: None)
    monkeypatch.setattr(jobs, "cluster_of", lambda _: Cluster())
    words = ["set", "--config", str(conf), "7", "gpus=4,8"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and done.stdout == "job 7: gpus=4,8\n", done.stderr
    assert done.stderr.startswith("hadar: job 7: gpus=4,8 has no effect: no node")

    # A mistake in a table that it does not need stops it as little.
    conf.write_text(conf.read_text() + "[rollout]\npercent = 'x'\n")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "rollout.percent" in done.stderr
    conf.write_text(conf.read_text().partition("[rollout]")[0])

    def silent(*_):
        raise SlurmError("no answer")

    monkeypatch.setattr(Cluster, "read_nodes", silent)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and done.stdout == "job 7: gpus=4,8\n" and not done.stderr


@pytest.mark.parametrize(
    ("controller", "checkpoint", "says"),
    [
        (ControllerState("acts"), "yes", False),
        (ControllerState("acts"), "", True),
        (ControllerState("acts", stop_file="/stop"), "yes", True),
        (ControllerState("acts", doubt="its process has ended"), "yes", True),
        (ControllerState("observes"), "yes", True),
        (ControllerState("silent"), "yes", True),
    ],
)
def test_a_list_that_leaves_a_type_out_is_said_where_no_controller_moves_the_job_there(
    monkeypatch, controller, checkpoint, says
):
    declared = Declaration(types=("k80",), partitions=("gpu",), checkpoint=checkpoint)
    one = shown(declaration=declared, partitions=("k80",))
    one = replace(one, state=JobState.RUNNING, nodes=("k1",))
    slurm = SimpleNamespace(
        read_jobs=lambda *_, **__: [one], notes=[], apply=lambda sent: [None for _ in sent]
    )
    site = configuration.parse(
        '[partitions.groups]\ngpu = ["k80", "v100"]\n'
        "[gpu_types.k80]\nmemory_gb = 12\n[gpu_types.v100]\nmemory_gb = 16\n",
        "test",
    )
    monkeypatch.setattr(jobs, "load_to_ask", lambda _: site)
    monkeypatch.setattr(jobs, "cluster_of", lambda _: slurm)
    monkeypatch.setattr(jobs, "_steering", lambda *_: None)
    monkeypatch.setattr(jobs, "controller_of", lambda _: controller)
    done = CliRunner().invoke(app, ["set", "7", "types=k80,v100"])
    assert done.stdout == "job 7: types=k80,v100\n"
    words = "its list of partitions stays k80, without v100; once it waits again run: "
    assert (words in done.stderr) == says == bool(done.stderr)
