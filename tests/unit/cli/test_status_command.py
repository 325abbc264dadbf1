"""``hadar status``: which jobs it shows, in which order, and how."""

import errno
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from slurm_hadar import config
from slurm_hadar.cli import common, doctor, job_filter, status
from slurm_hadar.cli.controller_of import controller_of
from slurm_hadar.cli.job_filter import choice
from slurm_hadar.cli.main import app
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.service.published import Published
from slurm_hadar.controller.service.server import UserServer
from slurm_hadar.domain.errors import HadarError, SlurmError, UnknownJobError, UsageError
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.reports import status as report
from slurm_hadar.reports.status import (
    CONTROLLER,
    SLURM,
    STATE_FILE,
    ControllerState,
    GpuCounts,
    Overview,
    summary,
)
from slurm_hadar.reports.text import StatusRow

ROWS = [
    StatusRow("84_2", "ann", "b", "RUNNING", {"v100": 1}, "v1", {}, 0.5, account="ml", raw_id=86,
              array=84),
    StatusRow("9", "bob", "a", "PENDING", planned={"k80": 2}, account="phys", raw_id=9),
    StatusRow("100", "ann", "c", "PENDING", account="phys", raw_id=100, reason="word " * 40),
]  # fmt: skip


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Runs it as an operator, or as another user where ``own`` says whom."""
    site = tmp_path / "hadar.toml"
    site.write_text(f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\n')
    gpus = [GpuCounts("v100", 1, 1, 0), GpuCounts("k80", 2, 0, 2)]
    acts = ControllerState("acts", "h", 990.0)
    counts = {"RUNNING": 1, "PENDING": 2}
    found = Overview(1000.0, CONTROLLER, acts, gpus=gpus, managed=counts, rows=ROWS)

    def run(*words, own="", fails=""):
        monkeypatch.setattr(status, "is_controllers_user", lambda _: not own)
        monkeypatch.setattr(status, "asked", lambda *_: found)
        monkeypatch.setattr(status, "_own", lambda _: found)
        monkeypatch.setattr(status, "me", lambda: own)
        monkeypatch.setattr(os, "getuid", lambda: 1234)
        monkeypatch.setattr(status, "load_to_ask", lambda _: config.load(site))
        done = CliRunner().invoke(app, ["status", *words])
        if fails:
            assert isinstance(done.exception, HadarError) and fails in str(done.exception)
            if isinstance(done.exception, UsageError):
                assert done.exception.exit_code == 2
            return ""
        assert done.exit_code == 0, done.output
        return done.output

    return run


@pytest.mark.parametrize(
    ("caller", "controller", "as_whom"),
    [(0, 65534, "nobody"), (0, 0, ""), (1234, 65534, ""), (0, 64999, "#64999")],
)
def test_without_a_controller_root_reads_as_whom_to_ask(
    tmp_path, monkeypatch, caller, controller, as_whom
):
    site = config.parse(f'[site]\nstate_dir = "{tmp_path}"\n', "here")
    slurms = Overview(1000.0, SLURM, ControllerState("never seen"))

    def refused(*_):
        raise UnknownJobError("Slurm shows no job 7 of yours")

    monkeypatch.setattr(common, "controllers_uid", lambda _: controller)
    monkeypatch.setattr(status, "is_controllers_user", lambda _: False)
    monkeypatch.setattr(status, "asked", lambda *_: None)
    monkeypatch.setattr(status, "widen_own", lambda _: None)
    monkeypatch.setattr(
        "slurm_hadar.controller.presentation.without_controller.status", lambda *_: slurms
    )
    monkeypatch.setattr("slurm_hadar.controller.presentation.without_controller.explain", refused)
    monkeypatch.setattr(os, "getuid", lambda: caller)
    lines = summary(status.overview_of(site, live=True), 1001.0)
    with pytest.raises(UnknownJobError) as caught:
        status.explanation(site, "7")
    for said, command in ((str(lines[-1]), "hadar status"), (str(caught.value), "hadar explain 7")):
        if as_whom:
            assert f"run: sudo -u {as_whom} {command}" in said
        else:
            assert "sudo" not in said


def test_a_running_controller_is_asked_where_the_file_has_a_mistake(shown, monkeypatch):
    site = config.parse("[rollout]\npercent = 'x'\n", "here", config.TO_ASK)
    shown("--json")
    monkeypatch.setattr(status, "_own", None)
    assert [row.id for row in status.overview_of(site, live=False).rows] == ["84_2", "9", "100"]
    monkeypatch.setattr(status, "reader_of", None)
    answer: object = status.asked(site, "explain", None)
    assert status.explanation(site, "9") is answer


def test_the_controllers_user_sees_why_its_ticks_fail(tmp_path, monkeypatch):
    """Its own look at Slurm and at the state file works, and the heartbeat is fresh."""
    site = config.parse(
        f'[site]\nstate_dir = "{tmp_path}"\nexchange_dir = "{tmp_path}"\nrights = "user"\n', "here"
    )
    write_heartbeat(tmp_path, "act", 10.0)
    kept: dict[str, dict[str, object]] = {}
    controller = SimpleNamespace(
        observe=lambda: Observation(time.time(), {}, {}, {}),
        store=SimpleNamespace(
            decisions=SimpleNamespace(last=lambda _: {}),
            moves_since=lambda _: [],
            all_in_vain=lambda _: {},
            policy_state=lambda name: kept.get(name, {}),
        ),
        learning=SimpleNamespace(declared_work=SimpleNamespace(trust_factors=lambda _: {})),
    )
    monkeypatch.setattr(status, "is_controllers_user", lambda _: True)
    monkeypatch.setattr(status, "reader_of", lambda _: nullcontext(controller))
    monkeypatch.setattr(status, "widen_own", lambda _: None)
    running = Published(site, os.getuid())
    running.fault("the state file cannot be used now: its disk is full", "general")
    assert not status.overview_of(site, live=False).controller.fault
    with UserServer(site.status_socket, running.answer, running.close):
        found = status.overview_of(site, live=False)
    assert found.source == STATE_FILE and found.controller.state == "acts"
    lines = [str(line) for line in summary(found, time.time())]
    assert "Fault       the state file cannot be used now: its disk is full" in lines

    def older(*_):
        raise UsageError("the controller knows no such question")

    monkeypatch.setattr("slurm_hadar.controller.service.client.ask", older)
    assert not status.overview_of(site, live=False).controller.fault

    # Under a timer no process is left that could answer.
    monkeypatch.setattr(status, "place_cause", lambda folder: f"the disk of {folder} is full")
    assert "is full" in status.overview_of(site, live=False).controller.fault
    kept["fault"] = {"what": "the heartbeat cannot be written", "time_s": time.time()}
    fault = status.overview_of(site, live=False).controller.fault
    assert fault.endswith(" failed: the heartbeat cannot be written")
    heard = []
    report = SimpleNamespace(state="RUNNING")

    def of_controller(*given):
        heard.append(given)
        return report

    monkeypatch.setattr(
        "slurm_hadar.controller.presentation.job_report.of_controller", of_controller
    )
    doctor._report(site, "7")
    assert heard == [(controller, "7", fault)], "hadar doctor says the same"


def test_jobs_that_are_counted_and_not_shown_are_named_as_what_they_are(shown, monkeypatch):
    monkeypatch.setattr(job_filter, "require_users", lambda _: None)
    counted = "Jobs        1 RUNNING, 2 PENDING"
    others = shown(own="eve")
    assert counted in others
    assert others.endswith(
        "\nNo managed jobs of yours to show. Those counted above are other users' "
        "(hadar status --user all).\n"
    )
    for words in (("--state", "R", "--type", "k80"), ("--user", "eve")):
        for own in ("", "bob"):
            said = shown(*words, own=own)
            assert said.endswith("show: none of those counted above is as asked for.\n")


def ids(output):
    return [row["id"] for row in json.loads(output)["result"]["rows"]]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), ["9", "84_2", "100"]),
        (("--user", "ann"), ["84_2", "100"]),
        (("--user", "ann,bob"), ["9", "84_2", "100"]),
        (("--account", "ml"), ["84_2"]),
        (("--state", "PD"), ["9", "100"]),
        (("--state", "running,pd"), ["9", "84_2", "100"]),
        (("--type", "k80"), ["9"]),
        (("--type", "v100,k80", "--sort", "-job"), ["84_2", "9"]),
        (("--sort", "name"), ["9", "84_2", "100"]),
        (("--sort", "-done"), ["84_2", "9", "100"]),
        (("84",), ["84_2"]),
        (("86", "100"), ["84_2", "100"]),
        (("84_2", "--user", "bob"), []),
        (("--user", "root"), []),
    ],
)
def test_jobs_are_chosen_and_ordered(shown, words, found):
    assert ids(shown("--json", *words)) == found


def test_a_user_sees_their_own_jobs_and_others_when_asked_for(shown):
    assert ids(shown("--json", own="bob")) == ["9"]
    assert ids(shown("--json", "--user", "all", own="bob")) == ["9", "84_2", "100"]
    assert ids(shown("--json", "84", own="bob")) == ["84_2"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sort", "colour"), "--sort takes one of"),
        (("--state", "DONE"), "--state takes"),
        (("--watch", "1"), "between 2 and"),
        (("--watch", "nan"), "between 2 and"),
        (("--watch", "5", "--json"), "leave out --json"),
        (("12;id",), "no job id"),
        (("999",), "no managed job 999"),
        (("84", "999", "--json"), "no managed job 999"),
        (("--type", "h100"), "no node has GPUs of type h100; there are k80, v100"),
        (("--user", "no-such-user"), "no user no-such-user"),
        (("--watch", "5", "999"), "no managed job 999"),
    ],
)
def test_a_mistake_is_one_sentence(shown, words, says):
    shown(*words, fails=says)


@pytest.mark.parametrize(
    ("types", "fails"), [("h100", "no node has GPUs of type h100"), ("t4", "")]
)
def test_without_the_nodes_types_are_those_of_the_configuration(types, fails):
    site = config.parse("[gpu_types.t4]\n", "site")
    hidden = Overview(1000.0, CONTROLLER, ControllerState("acts"), rows=ROWS)
    chosen = choice("", "", "", types, "job")
    if fails:
        with pytest.raises(HadarError, match=fails):
            chosen.require_known(hidden, site)
    else:
        chosen.require_known(hidden, site)


def test_an_account_that_slurm_does_not_know_is_one_sentence(tmp_path, capsys):
    manager = tmp_path / "sacctmgr"
    manager.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho phys\necho idle\n')
    manager.chmod(0o755)
    site = config.parse(f'[slurm]\nbin_dir = "{tmp_path}"\n', "site")
    found = Overview(1000.0, CONTROLLER, ControllerState("acts"), rows=ROWS)

    def check(accounts):
        choice("", accounts, "", "", "job").require_known(found, site)

    # Accounts with jobs are known without a question.
    check("phys,ml")
    assert not (tmp_path / "asked").exists()
    check("idle")
    for name in ("typo", "$(reboot)", "-i delete", 'a"b'):
        with pytest.raises(HadarError, match="shows you no account"):
            check(name)
    assert "delete" not in (tmp_path / "asked").read_text()
    # Without a database of accounts an account is any word.
    manager.write_text("#!/bin/sh\nexit 1\n")
    assert not capsys.readouterr().err
    check("typo")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "account typo; whether Slurm has it is not known" in said


@pytest.fixture
def heard(tmp_path):
    """A site where this host's controller, of a process that has ended, ticked a moment ago."""
    site = tmp_path / "hadar.toml"
    site.write_text(
        f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\nrights = "user"\n'
        f'[guards]\nstop_file = "{tmp_path}/stop"\n[status]\nsocket = "{tmp_path}/hadar.sock"\n'
    )
    for name in ("s", "x"):
        (tmp_path / name).mkdir()
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    write_heartbeat(tmp_path / "x", "act", 60.0)
    path = tmp_path / "x" / "heartbeat.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": int(dead.stdout)}))
    return config.load(site)


def test_a_controller_that_was_killed_is_called_in_question_at_once(heard, tmp_path):
    # As under a timer, which has no socket.
    assert controller_of(heard).state == "acts" and not controller_of(heard).doubt
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "hadar.sock"))
        listener.listen()
        assert not controller_of(heard).doubt
    found = controller_of(heard)
    assert "on this host has ended and nothing listens at" in found.doubt
    assert any(found.doubt in line.plain for line in report.controller_summary(found, 0.0))
    write_heartbeat(tmp_path / "x", "act", 60.0)
    assert not controller_of(heard).doubt, "it runs"


def test_the_stop_file_is_named(heard, tmp_path):
    assert not controller_of(heard).stop_file
    (tmp_path / "stop").touch()
    lines = [line.plain for line in report.controller_summary(controller_of(heard), 0.0)]
    assert lines[1].strip() == f"the stop file {tmp_path}/stop exists: nothing is changed"


def test_a_stop_file_in_a_folder_that_is_closed_to_the_caller_is_said(heard, tmp_path, monkeypatch):
    def closed(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        # Root enters every folder.
        patch.setattr(type(heard.guards.stop_file), "stat", closed)
        found = controller_of(heard)
    lines = [line.plain.strip() for line in report.controller_summary(found, 0.0)]
    assert lines[1].startswith(f"the stop file {tmp_path}/stop cannot be looked for by this user")
    assert "Permission denied" in lines[1] and not found.stop_file
    assert not controller_of(heard).stop_file_unseen


def test_the_controller_is_shown_where_slurm_does_not_answer(heard, monkeypatch):
    def silent(_):
        raise SlurmError("squeue: Unable to contact slurm controller", retry=True)

    monkeypatch.setattr(status, "_own", silent)
    monkeypatch.setattr(status, "load_to_ask", lambda _: heard)
    done = CliRunner().invoke(app, ["status"])
    assert isinstance(done.exception, SlurmError)
    assert "acts on" in done.output and "last tick" in done.output


def test_why_tells_all_of_the_reason(shown):
    assert " ".join(shown("--why", "100").split()).count("word") == 40


def test_it_is_shown_again_until_ctrl_c(shown, monkeypatch):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    assert shown("--watch", "5").count("Controller  ") == 3 and waits == [5, 5, 5]


def test_the_pager_gets_words_and_no_shell(tmp_path, monkeypatch):
    file = tmp_path / "paged"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAGER", f"tee {file} $(touch shell)")
    assert status._paged("a line\n")
    assert file.read_text() == "a line\n" and not (tmp_path / "shell").exists()
    monkeypatch.setenv("PAGER", "/no/such/pager")
    assert not status._paged("x")
    monkeypatch.setenv("PAGER", "cat")
    assert not status._paged("x")


def test_a_reader_that_needs_no_more_is_no_failure(tmp_path):
    program = (
        "import sys; from rich.text import Text; from slurm_hadar.cli import main as m\n"
        "from slurm_hadar.reports import text\n"
        "def many():\n"
        "    console = text.console()\n"
        "    for _ in range(20000): console.print(Text('x' * 100))\n"
        "def plain():\n"
        "    for _ in range(20000): m.typer.echo('x' * 100)\n"
        "m.app.command()(many); m.app.command()(plain); m.main()\n"
    )
    for command in ("many", "plain"):
        with subprocess.Popen(
            [sys.executable, "-c", program, command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            assert child.stdout.readline().startswith(b"xxx")
            child.stdout.close()
            assert child.stderr.read() == b"" and child.wait(60) == 0, command
