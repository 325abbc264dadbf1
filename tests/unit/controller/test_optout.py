"""``hadar optout`` and ``hadar retire``: what they say of a job that runs."""

import json
import os
import shlex
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import CONFIG, config, job, running
from typer.testing import CliRunner

from slurm_hadar.cli import jobs
from slurm_hadar.cli.jobs import optout, pin
from slurm_hadar.cli.main import app
from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.controller.retire import requeue_text
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError, UnknownJobError, UsageError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.slurm.interface import Update
from slurm_hadar.slurm.updates import update_arguments

WAS = {"Partition": "gpu", "TresPerNode": "gpu:1"}
STEERED = Steering(was={**WAS, "Nice": "0"}, wrote={"Partition": "v100,p100"})


@pytest.mark.parametrize("version", [(22, 5, 8), (24, 11, 5)])
def test_what_a_requeue_of_a_running_job_would_show_is_said_with_its_cure(version):
    runs = running("1", {"v1": {"v100": 2}}, partitions=("v100",))
    command = requeue_text(runs, STEERED, CONFIG, version).rpartition(": scontrol ")[2]
    sent = update_arguments(Update("1", WAS), version)
    assert shlex.split(command) == ["update", *sent] and "Gres=gpu:1" in sent
    assert requeue_text(runs, Steering(), CONFIG, version) == ""
    # One that waits has its own request again.
    assert requeue_text(job("1", partitions=("v100", "p100")), STEERED, CONFIG, version) == ""


def test_a_request_that_slurm_is_not_given_has_no_command_after_an_optout():
    runs = running("1", {"v1": {"v100": 2}})
    text = requeue_text(runs, Steering(was={"Features": "a\nb"}), CONFIG, (24, 11, 5))
    assert "; no command restores it: " in text and "\n" not in text


def test_the_json_has_the_undo_command_that_the_text_has(monkeypatch):
    declared = Declaration(types=("v100",), checkpoint="watch:/x/ck-*", lose=60.0)
    sent: list[Update]
    waits, sent = job("7", declaration=declared), []
    slurm = SimpleNamespace(
        read_jobs=lambda *_, **__: [waits],
        slurm_version=(24, 11, 5),
        notes=[],
        apply=lambda changes: list(map(sent.append, changes)),
    )
    monkeypatch.setattr(jobs, "load_to_ask", lambda _: config())
    monkeypatch.setattr(jobs, "cluster_of", lambda _: slurm)
    monkeypatch.setattr(jobs, "_steering", lambda *_: None)

    def undo(command):
        found = json.loads(CliRunner().invoke(app, [command, "7", "--json"]).stdout)
        text = CliRunner().invoke(app, [command, "7"]).stdout
        assert text.endswith(f"undo with: {found['result']['undo']}\n")
        return shlex.split(found["result"]["undo"])

    assert undo("pin") == ["hadar", "set", "7", "pin=no"]
    typed = undo("optout")
    assert typed[:4] == ["hadar", "set", "7", "off=no"]
    assert "checkpoint=watch:/x/ck-*" in typed and "types=v100" in typed
    assert sent


def test_the_undo_of_an_array_knows_what_its_tasks_declared(monkeypatch):
    """Also where the first was opted out before, and so says nothing of it any more."""
    tasks = [
        replace(job("7_1", declaration=Declaration(off=True), array_job_id=7), raw_id=8),
        job("7_2", declaration=Declaration(types=("v100",)), array_job_id=7),
    ]
    slurm = SimpleNamespace(
        read_jobs=lambda *_, **__: tasks, slurm_version=(24, 11, 5), notes=[],
        apply=lambda changes: [None for _ in changes],
    )  # fmt: skip
    monkeypatch.setattr(jobs, "load_to_ask", lambda _: config())
    monkeypatch.setattr(jobs, "cluster_of", lambda _: slurm)
    monkeypatch.setattr(jobs, "_steering", lambda *_: None)
    said = CliRunner().invoke(app, ["optout", "7"]).stdout
    assert said.endswith("undo with: hadar set 7 off=no types=v100\n")


@pytest.fixture
def one_job(monkeypatch):
    """Set what Slurm shows of the one job; returns the updates that were sent."""

    def show(shown, site=None, settings=None):
        sent: list[Update] = []
        slurm = SimpleNamespace(
            read_jobs=lambda *_, **__: [shown],
            slurm_version=(24, 11, 5),
            notes=[],
            read_config=lambda: settings or {},
            read_nodes=lambda: [Node("v1", {"v100": 4}), Node("k1", {"k80": 8})],
            read_partitions=list,
            apply=lambda changes: list(map(sent.append, changes)),
        )
        monkeypatch.setattr(jobs, "load_to_ask", lambda _: site or config())
        monkeypatch.setattr(jobs, "cluster_of", lambda _: slurm)
        monkeypatch.setattr(jobs, "_steering", lambda *_: None)
        return sent

    return show


def test_a_second_optout_changes_nothing_and_names_no_undo(one_job, monkeypatch):
    declared = Declaration(off=True, partitions=("gpu",))
    sent = one_job(job("7", declaration=declared))
    done = CliRunner().invoke(app, ["optout", "7"])
    assert (done.exit_code, done.stdout, sent) == (0, "job 7 is opted out already\n", [])
    assert "undo" not in json.loads(CliRunner().invoke(app, ["optout", "7", "--json"]).stdout)
    # What the first one could not restore, the second one does.
    monkeypatch.setattr(jobs, "_steering", lambda *_: Steering(was={"Partition": "gpu,k80"}))
    done = CliRunner().invoke(app, ["optout", "7"])
    assert done.stdout == "job 7 is opted out already\n"
    assert sent[0].fields["Partition"] == "gpu,k80"
    # With off=yes alone the controller's changes, and the rest of the declaration, are left.
    sent = one_job(job("7", declaration=replace(declared, types=("v100",))))
    done = CliRunner().invoke(app, ["optout", "7"])
    assert sent and done.stdout.endswith("undo with: hadar set 7 off=no types=v100\n")


@pytest.mark.parametrize("declared", [None, Declaration(off=True)])
def test_a_job_that_is_not_managed_is_not_pinned(one_job, declared):
    sent = one_job(job("7", declaration=declared))
    # The same exit code as of hadar explain.
    with pytest.raises(UsageError, match="job 7 is not managed, so nothing moves it"):
        pin("7")
    assert not sent


@pytest.mark.parametrize("command", ["pin", "optout"])
def test_a_job_with_a_broken_declaration_is_refused_as_by_explain(one_job, command):
    broken = job("7", declaration=None, declaration_error="unknown key nosuchkey")
    sent = one_job(broken)
    with pytest.raises(UsageError) as explained:
        job_explanation.ensure_managed(broken)
    assert not one_job(broken)
    done = CliRunner().invoke(app, [command, "7"])
    assert isinstance(done.exception, UsageError) and not sent
    assert str(done.exception) == str(explained.value)


def test_a_job_of_an_opt_in_partition_is_pinned(one_job, capsys):
    site = config()
    open_ = site.partitions.model_copy(update={"opt_in": ("gpu",)})
    sent = one_job(
        job("7", declaration=None, partitions=("gpu",)),
        site.model_copy(update={"partitions": open_}),
    )
    pin("7")
    assert "pin=yes" in sent[0].fields["Comment"] and not capsys.readouterr().err


@pytest.mark.parametrize(
    ("declared", "words", "says"),
    [
        (None, ["gpus=2"], "job 7: it declared nothing before and is a managed job from now on"),
        (None, ["off=yes"], ""),
        (Declaration(types=("v100",)), ["model=lm"], ""),
    ],
)
def test_set_says_that_it_makes_a_job_a_managed_one(one_job, capsys, declared, words, says):
    one_job(job("7", declaration=declared))
    jobs._change("7", None, words)
    said = capsys.readouterr().err
    assert says in said and bool(says) == bool(said)


@pytest.mark.parametrize(
    ("shown", "partitions"),
    [
        (job("7", declaration=None, features="fast", partitions=("a", "b")), ("a", "b")),
        # Slurm shows the one in which it runs.
        (running("7", {"v1": {"v100": 1}}, declaration=None, features="fast"), ()),
    ],
)
def test_what_its_owner_asked_for_is_recorded_with_the_first_declaration(
    one_job, shown, partitions
):
    """Else its own constraint would pass for one of hbatch, written for the types, and go."""
    sent = one_job(shown)
    jobs._change("7", None, ["types=v100,k80"])
    found = declaration.decode(sent[0].fields["Comment"])
    assert (found.constraint, found.partitions, found.listed) == ("fast", partitions, ())
    jobs._change("7", None, ["off=yes"])
    assert declaration.decode(sent[1].fields["Comment"]).constraint == "fast"


ANEW = "job 7: a move writes its output file anew"


@pytest.mark.parametrize(
    ("declared", "words", "says"),
    [
        (None, ["checkpoint=yes"], True),
        (None, ["checkpoint=watch:/ck", "lose=9"], True),
        (Declaration(types=("v100",)), ["checkpoint=restart", "lose=9"], True),
        # hbatch has added --open-mode=append.
        (Declaration(checkpoint="yes"), ["checkpoint=signal"], False),
        (None, ["checkpoint=yes", "pin=yes"], False),
        (None, ["types=v100"], False),
    ],
)
def test_set_says_that_a_move_truncates_what_the_job_printed(
    one_job, capsys, declared, words, says
):
    one_job(job("7", declaration=declared))
    jobs._change("7", None, words)
    assert (ANEW in capsys.readouterr().err) is says


@pytest.mark.parametrize(
    ("settings", "says"),
    [({}, True), ({"JobFileAppend": "0"}, True), ({"JobFileAppend": "1"}, False)],
)
def test_where_the_site_appends_there_is_nothing_to_say(one_job, capsys, settings, says):
    one_job(job("7", declaration=None), settings=settings)
    jobs._change("7", None, ["checkpoint=yes"])
    assert (ANEW in capsys.readouterr().err) is says


@pytest.mark.parametrize("command", [pin, optout])
def test_a_command_on_a_job_that_does_not_wait_or_run_is_an_error(monkeypatch, command):
    slurm = SimpleNamespace(read_jobs=lambda *_, **__: [], slurm_version=(24, 11, 5), notes=[])
    monkeypatch.setattr(jobs, "load_to_ask", lambda _: config())
    monkeypatch.setattr(jobs, "cluster_of", lambda _: slurm)
    with pytest.raises(UnknownJobError, match="no waiting or running job 7"):
        command("7")


@pytest.mark.parametrize("interval_s", [None, 7.0])
def test_a_job_that_has_left_to_be_moved_is_said_to_come_back(monkeypatch, tmp_path, interval_s):
    """Between its end with its exit code and its requeue Slurm shows it as failed."""
    left = job(
        "7", state=JobState.FINISHED, slurm_state="FAILED", exit_code=85, end_s=time.time() - 3,
        declaration=Declaration(checkpoint="signal", checkpoint_exit_code=85),
    )  # fmt: skip
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    if interval_s:
        write_heartbeat(tmp_path, "act", interval_s)
    slurm = SimpleNamespace(read_jobs=lambda *_, **__: [left], slurm_version=(24, 11, 5), notes=[])
    monkeypatch.setattr(jobs, "load_to_ask", lambda _: site)
    monkeypatch.setattr(jobs, "cluster_of", lambda _: slurm)
    monkeypatch.setattr(jobs, "controllers_uid", lambda _: os.getuid())
    for words in (["optout", "7"], ["pin", "7"], ["set", "7", "types=p100"]):
        error = CliRunner().invoke(app, words).exception
        assert isinstance(error, HadarError) and error.exit_code == 1
        assert "job 7 ended with its checkpoint_exit_code 85 3 s ago" in str(error)
        assert str(error).endswith(f"repeat the command in {interval_s or 60:.0f} s")
    # One that failed otherwise does not come back.
    left = replace(left, exit_code=1)
    error = CliRunner().invoke(app, ["optout", "7"]).exception
    assert isinstance(error, UnknownJobError)


@pytest.mark.parametrize(("checkpoint", "leaves"), [("signal", True), ("yes", False)])
def test_a_job_that_may_have_its_signal_already_leaves_all_the_same(one_job, checkpoint, leaves):
    declared = Declaration(types=("v100",), checkpoint=checkpoint)
    one_job(running("7", {"v1": {"v100": 1}}, declaration=declared))
    for command in ("pin", "optout"):
        text = CliRunner().invoke(app, [command, "7"]).stdout
        assert ("sent it its signal already" in text) is leaves
        assert "once it runs" not in text


@pytest.mark.parametrize(
    ("checkpoint", "words", "leaves"),
    [
        ("signal", ["types=k80"], True),
        ("signal", ["gpu-mem=9G"], True),
        ("signal", ["samples=5"], False),
        ("yes", ["types=k80"], False),
        ("yes", ["types=k80", "checkpoint=signal"], False),
    ],
)
def test_set_says_that_a_job_leaves_on_a_signal_that_it_has(one_job, checkpoint, words, leaves):
    declared = Declaration(types=("v100",), checkpoint=checkpoint)
    one_job(running("7", {"v1": {"v100": 1}}, declaration=declared))
    done = CliRunner().invoke(app, ["set", "7", *words])
    assert done.exit_code == 0 and ("sent it its signal already" in done.stderr) is leaves


@pytest.mark.parametrize("declared", [None, Declaration(model="lm")])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["types=h100"], "types=h100 is declared, and this site has "),
        (["gpus=40"], "gpus=40 is declared, and the cluster has 12 GPUs"),
        (["gpus=9", "types=k80"], "the cluster has 8 GPUs of type k80"),
        (["gpus=12"], ""),
        (["types=h100,k80"], ""),
    ],
)
def test_set_refuses_what_the_site_does_not_have(one_job, declared, words, says):
    """Also of a job of plain sbatch, which declared nothing."""
    sent = one_job(job("7", declaration=declared))
    done = CliRunner().invoke(app, ["set", "7", *words])
    assert (done.exit_code == 0) == (not says) == bool(sent)
    assert says in str(done.exception or "")
