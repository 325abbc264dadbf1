"""The socket on which a running controller answers users: who sees what, and hostile clients."""

import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import CONFIG, NOW, config, dictate, job, look, observation, ordinary, running

from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.job_owners import StoredOwners
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.journal.store_file import StateFileError
from slurm_hadar.controller.profiling.gpu_use import GpuUseLearner
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.service import client, server
from slurm_hadar.controller.service.published import Published, general_fault
from slurm_hadar.controller.service.server import (
    MOST_PER_USER,
    Unchanged,
    UserServer,
    short_name,
)
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError, SlurmError, UnknownJobError, UsageError
from slurm_hadar.profiles.gpu_sampling import TrainingUse
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import open_rates

ME = os.getuid()
OTHER = 1001


def echo(uid, line):
    return json.dumps({"version": 1, "result": [uid, line.decode("latin-1")]}).encode()


def nothing():
    pass


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hadar.sock"


@pytest.fixture
def served(path):
    with UserServer(path, echo, nothing):
        yield path


def ask(path, believed=ME, **question):
    return client.ask(path, believed, question)


def test_who_asks_is_what_the_kernel_says(served):
    uid, line = ask(served, command="status", uid=0)
    assert uid == ME and json.loads(line) == {"command": "status", "uid": 0}


@pytest.mark.skipif(ME != 0, reason="the kernel lets only root start a program as another user")
def test_another_user_may_ask_and_is_known(served):
    for folder in (served.parent, *served.parent.parents):
        if folder.stat().st_uid == 0 and str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'x\\n'); print(s.recv(1000).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(served)], user=65534, group=65534, extra_groups=[],
        capture_output=True, text=True, timeout=30, cwd="/",
    )  # fmt: skip
    if "PermissionError" in done.stderr:
        pytest.skip(
            "Python or the temporary folder lies where another user has no access, as under /root"
        )
    assert json.loads(done.stdout)["result"][0] == 65534


def test_the_socket_is_open_to_all_and_is_gone_at_the_end(path):
    with UserServer(path, echo, nothing):
        assert stat.S_IMODE(path.lstat().st_mode) == 0o666
        assert ask(path, command="x") is not None
    assert not path.exists() and ask(path, command="x") is None


def test_what_a_controller_left_that_died_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with UserServer(path, echo, nothing):
        assert ask(path, command="x") is not None


def test_another_controllers_socket_and_other_files_stay(served, tmp_path):
    with pytest.raises(HadarError, match="another process"), UserServer(served, echo, nothing):
        pass
    assert ask(served, command="x") is not None
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(HadarError, match="is no socket"), UserServer(file, echo, nothing):
        pass
    assert file.read_text() == "mine"
    with pytest.raises(HadarError, match="cannot be made"):
        UserServer(tmp_path / "no" / "where", echo, nothing).__enter__()


def test_a_long_folder_is_no_obstacle(tmp_path):
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    with UserServer(folder / "hadar.sock", echo, nothing):
        assert ask(folder / "hadar.sock", command="x") is not None


def test_nobody_but_the_controllers_user_is_believed(served):
    assert ask(served, believed=ME + 1, command="x") is None


def connect(path):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(20)
    with short_name(path) as name:
        one.connect(name)
    return one


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 5000, b"x" * 100_000, b"\n", b"\xff\xfe\n", b"{" * 900 + b"\n", b""]
)
def test_garbage_ends_its_own_connection_only(served, garbage):
    with closing(connect(served)) as one:
        with suppress(OSError):
            one.sendall(garbage)
            one.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            one.recv(100)
    assert ask(served, command="x") is not None


def test_a_slow_client_is_let_go_and_keeps_nobody_waiting(served, monkeypatch):
    with closing(connect(served)) as slow:
        slow.sendall(b"{")
        began = time.monotonic()
        assert ask(served, command="x") is not None
        assert time.monotonic() - began < 1.0
        assert slow.recv(100) == b""
        assert time.monotonic() - began < 2 * server._REQUEST_S + 2


def test_a_client_that_takes_no_answer_is_let_go(path, monkeypatch):
    monkeypatch.setattr(server, "_REPLY_S", 0.5)
    big = UserServer(path, lambda *_: b"x" * 20_000_000, nothing)
    with big as one, closing(connect(path)) as deaf:
        deaf.sendall(b"?\n")
        end = time.monotonic() + 10
        time.sleep(0.3)
        assert one._clients
        while one._clients:
            assert time.monotonic() < end
            time.sleep(0.05)


def held_back(path, **question):
    """A connection that has asked, and gets its answer at the news or at the end of the time."""
    one = connect(path)
    one.sendall(json.dumps(question).encode() + b"\n")
    return one


def test_an_answer_that_is_known_is_held_back_until_there_are_news(path):
    said = ["old"]

    def answer(_, line):
        reply = f"{said[0]} {line.decode()}".encode()
        return Unchanged(reply) if said[0] == "old" and b"wait" in line else reply

    with UserServer(path, answer, nothing) as one, closing(held_back(path, about="wait")) as first:
        first.settimeout(0.5)
        with pytest.raises(TimeoutError):
            first.recv(100)
        # One for each user: a further one, and a wake without news, change nothing for the first.
        with closing(held_back(path, about="wait more")) as second:
            assert second.recv(100).startswith(b"old")
        one.wake()
        with pytest.raises(TimeoutError):
            first.recv(100)
        with closing(held_back(path, about="status")) as other:
            assert other.recv(100).startswith(b"old")
        said[0] = "new"
        one.wake()
        first.settimeout(20)
        assert first.recv(100).startswith(b"new")


def test_what_is_held_back_is_sent_at_the_end_of_its_time_and_given_up_with_its_client(
    path, monkeypatch
):
    monkeypatch.setattr(server, "HOLD_S", 1.0)
    with UserServer(path, lambda *_: Unchanged(b"same"), nothing) as one:
        with closing(held_back(path)) as patient:
            assert patient.recv(100) == b"same"
        monkeypatch.setattr(server, "HOLD_S", 600.0)
        # One that says more than its question, and one that goes away, give up their place.
        for end in (lambda gone: gone.sendall(b"more"), lambda gone: gone.close()):
            with closing(held_back(path)) as gone:
                until(lambda: any(client.held for client in one._clients.values()))
                end(gone)
                until(lambda: not one._clients)


def until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_one_user_has_no_more_than_so_many_connections(served):
    held = [connect(served) for _ in range(MOST_PER_USER + 3)]
    try:
        # Who has said nothing makes room at once, the first one first; the others may still ask.
        for first in held[:3]:
            first.settimeout(1)
            assert first.recv(10) == b""
        for later in held[3:]:
            later.sendall(b'{"ask": "status"}\n')
            later.settimeout(5)
            assert later.recv(10) != b""
    finally:
        for one in held:
            one.close()


def test_thousands_of_connections_leave_the_tick_its_time(served):
    """The thread rests four times as long as it works, whatever clients do."""
    child = os.fork()
    if child == 0:
        try:
            end = time.monotonic() + 3
            number = 0
            while time.monotonic() < end:
                with suppress(OSError), socket.socket(socket.AF_UNIX) as one:
                    one.setblocking(False)
                    one.connect(str(served))
                    one.send(b"garbage\n" * 10)
                    number += 1
            os._exit(0 if number > 2000 else 1)
        finally:
            os._exit(2)
    (thread,) = [one for one in threading.enumerate() if one.name == "answers"]
    clock = time.pthread_getcpuclockid(thread.ident)
    before = time.clock_gettime(clock)
    _, code = os.waitpid(child, 0)
    spent = time.clock_gettime(clock) - before
    assert os.waitstatus_to_exitcode(code) == 0
    assert spent < 0.4 * 3
    end = time.monotonic() + 10
    while ask(served, command="x") is None:
        assert time.monotonic() < end
    assert len(list(Path("/proc/self/fd").iterdir())) < 200


def test_waiting_is_no_work_of_which_the_thread_rests(path):
    def slow(_uid, _line):
        time.sleep(0.5)
        return b'{"version": 1, "result": 1}'

    with UserServer(path, slow, nothing):
        began = time.monotonic()
        assert ask(path, command="x") == ask(path, command="x") == 1
        # A rest of four times as long would be 3 s in all.
        assert 1.4 < time.monotonic() - began < 2.6


# -- what the controller publishes ---------------------------------------------------------------


def published(tmp_path, private=(), jobs=None, site=None, factor=2.5):
    site = site or config(f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\n')
    shown = observation(
        jobs
        or [
            running("1", {"v1": {"v100": 1}}),
            job("2", uid=OTHER, user="bob", name="secret", array_job_id=0),
            ordinary("3", uid=1002, user="eve"),
        ]
    )
    view = look(shown, CONFIG)
    plan = dictate(view.view, {"1": {"v100": 1}, "2": {"k80": 1}})
    report = TickReport(
        shown,
        view,
        plan,
        PlanDiff(()),
        True,
        private=frozenset(private),
        understated={OTHER: factor},
    )
    one = Published(site, 4242)
    one.publish(report)
    return one


def said(one, uid, command, job_=""):
    line = json.dumps({"version": 1, "command": command, "job": job_}).encode()
    return json.loads(one.answer(uid, line))


def test_each_user_sees_their_own_and_the_operator_all(tmp_path):
    one = published(tmp_path)
    mine = said(one, 1000, "explain", "1")["result"]
    assert mine["row"]["id"] == "1" and mine["reason"] == "" and mine["row"]["user"] == "ann"
    for uid in (0, 4242):
        assert said(one, uid, "explain", "2")["result"]["row"]["name"] == "secret"
        assert {row["id"] for row in said(one, uid, "status")["result"]["rows"]} == {"1", "2"}
    assert said(one, OTHER, "status")["result"]["trust"] == 2.5
    notes = said(one, OTHER, "explain", "2")["result"]["notes"]
    assert any("counts 2.5 times (declared work was off before)" in note for note in notes)
    assert said(one, OTHER, "doctor", "2")["result"]["id"] == "2"


def test_a_factor_that_makes_no_difference_is_not_said(tmp_path):
    notes = said(published(tmp_path, factor=1.03), OTHER, "explain", "2")["result"]["notes"]
    assert notes and not any("times" in note for note in notes)


def test_explain_shows_what_was_measured_since_its_last_answer_and_calls_no_type_unused(tmp_path):
    """Ticks of another thread write it. A speed that changes excludes nothing."""
    site = config(f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\n')
    declared = Declaration(types=("any",), checkpoint="yes", model="ResNet-18", batch=(16, 16))
    one = running("1", {"v1": {"v100": 1}}, declaration=declared)
    kept = published(tmp_path, jobs=[one], site=site)

    def rows():
        found = said(kept, 1000, "explain", "1")["result"]["rates"]
        return {row["gpu_type"]: row for row in found if row["gpus"] == 1}

    before = rows()
    assert {row["source"] for row in before.values()} == {"table (Gavel)"}
    with closing(Store.open(site.site.state_dir)) as store:
        learned = open_rates(site, store.connection)
        speed = before["k80"]["samples_per_s"] / 3
        learned.record(RateSample("ResNet-18", "k80", 1, 16, speed, 60.0, uid=1000, run="1.0"))
        shown = observation([one])
        view = take_snapshot(shown, site, learned, ControllerHistory())
    plan = dictate(view.view, {"1": {"v100": 1}})
    kept.publish(TickReport(shown, view, plan, PlanDiff(()), True))
    after = rows()
    assert after["k80"]["source"] == "measured by this job (1 run, 60 s)"
    assert after["k80"]["origin"] == "this_job" and before["k80"]["origin"] == "table"
    assert after["k80"]["samples_per_s"] == pytest.approx(speed)
    assert after["v100"]["samples_per_s"] < before["v100"]["samples_per_s"]
    assert after["v100"]["source"] == "table (Gavel), corrected by what its owner's runs measured"
    assert (after["v100"]["origin"], after["v100"]["corrected_by"]) == ("table", "owner")
    assert max(row["relative"] for row in after.values()) == 1
    kept.close()


def test_an_answer_says_what_the_tick_recorded(tmp_path):
    one = published(tmp_path, ())
    recorded = Decision("1", NOW, "waits", "as it stands in the journal")
    one.publish(replace(one._tick.report, decided=[recorded]))
    (row,) = (row for row in said(one, 1000, "status")["result"]["rows"] if row["id"] == "1")
    assert row["reason"].endswith(recorded.reason)
    one.close()


@pytest.mark.parametrize("private", [(), ("jobs", "nodes")])
@pytest.mark.parametrize("command", ["explain", "doctor"])
def test_of_anothers_job_nothing_is_shown_not_even_that_it_exists(tmp_path, private, command):
    one = published(tmp_path, private)
    refused, unknown = said(one, 1000, command, "2"), said(one, 1000, command, "77")
    assert refused["usage"] and "secret" not in json.dumps(refused)
    assert refused["error"].replace("job 2", "job 77") == unknown["error"]


def test_an_owner_reads_what_is_kept_of_a_job_that_slurm_forgot_and_no_one_else_does(tmp_path):
    one = published(tmp_path)
    with closing(Store.open(tmp_path / "s")) as store:
        store.begin("8", "hint", "sent", NOW - 9, {"fields": {"Partition": "v100"}})
        store.decisions.record([Decision("8", NOW - 9, "1 x v100", "secret")])
        StoredOwners(store.connection).note([job("8", uid=OTHER)], NOW)
    for uid in (OTHER, 0, 4242):
        found = said(one, uid, "doctor", "8")["result"]
        assert "not shown by Slurm" in found["state"] and len(found["events"]) == 2
        ended = said(one, uid, "explain", "8")
        assert ended["unknown_job"] and "hadar doctor 8 shows what is kept" in ended["error"]
    for command in ("explain", "doctor"):
        refused, unknown = said(one, 1000, command, "8"), said(one, 1000, command, "77")
        assert refused["error"].replace("job 8", "job 77") == unknown["error"]
    one.close()


def test_under_private_data_a_user_sees_no_job_of_others(tmp_path):
    answer = json.dumps(said(published(tmp_path, ("jobs", "nodes")), 1000, "status"))
    assert '"id": "1"' in answer
    assert not any(word in answer for word in ("bob", "secret", '"eve"', '"id": "2"'))


@pytest.mark.parametrize("private", [(), ("jobs",)])
def test_what_a_user_sees_does_not_hang_on_who_asked_before(tmp_path, private):
    def of(folder, users):
        folder.mkdir()
        one = published(folder, private)
        answers = [said(one, uid, "status")["result"]["rows"] for uid in users]
        return dict(zip(users, answers, strict=True))

    users = (0, OTHER, 1000, 1002)
    found = of(tmp_path / "first", users)
    assert found == of(tmp_path / "second", users[::-1])
    reasons = {uid: {row["id"]: row["reason"] for row in rows} for uid, rows in found.items()}
    assert reasons[0]["2"] == reasons[OTHER]["2"] != reasons[1000].get("2")


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"null", b'{"version": 2}', b'{"version": 1, "command": ["status"]}',
             b'{"version": 1, "command": "explain", "job": "1; rm -rf /"}', b"\xff", b"[" * 1000]
)  # fmt: skip
def test_a_question_without_sense_is_an_error_in_words(tmp_path, line):
    answer = json.loads(published(tmp_path).answer(1000, line))
    assert answer["version"] == 1 and answer["error"] and "Traceback" not in answer["error"]


def test_before_the_first_tick_and_after_a_failed_one_it_says_so(tmp_path):
    site = config(f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\n')
    fresh = Published(site, 4242)
    assert "first tick" in said(fresh, 1000, "status")["error"]
    one = published(tmp_path, site=site)
    assert said(one, 0, "status")["result"]["controller"]["fault"] == ""
    one.fault("squeue of /secret/path failed")
    assert "squeue" in said(one, 0, "status")["result"]["controller"]["fault"]
    assert said(one, 1000, "status")["result"]["controller"]["fault"] == "its latest tick failed"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (StateFileError("the state file /secret is full"), ": its state file could not be used"),
        (SlurmError("squeue of /secret"), ": Slurm refused a request or did not answer"),
        (HadarError("the heartbeat in /secret cannot be written"), ""),
        (ValueError("/secret"), ": internal error"),
    ],
)
def test_a_user_sees_why_in_general_and_the_operator_all(tmp_path, error, says):
    site = config(f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\n')
    one, first = published(tmp_path, site=site), Published(site, 4242)
    for uid in (0, 1000, 4242):
        assert said(one, uid, "fault")["result"] == {"fault": ""}
    for controller in (one, first):
        controller.fault(str(error), general_fault(error))
        for uid in (0, 4242):
            assert said(controller, uid, "fault")["result"] == {"fault": str(error)}
        assert said(controller, 1000, "fault")["result"] == {
            "fault": f"its latest tick failed{says}"
        }
    shown = said(one, 1000, "status")["result"]["controller"]["fault"]
    assert shown == f"its latest tick failed{says}"
    for uid, words in ((1000, f"its latest tick failed{says}"), (0, str(error))):
        found = [problem["what"] for problem in said(one, uid, "doctor", "1")["result"]["problems"]]
        assert f"moves wait until the controller's ticks succeed again: {words}" in found
    # Nor before any tick has come to an end.
    assert "/secret" not in said(first, 1000, "status")["error"]
    assert "/secret" in said(first, 0, "status")["error"]


def test_the_same_question_of_one_tick_is_answered_once(tmp_path):
    one = published(tmp_path)
    line = b'{"version": 1, "command": "status"}'
    assert one.answer(1000, line) is one.answer(1000, line)
    first = one.answer(1000, line)
    one.fault("x")
    assert one.answer(1000, line) is not first
    for number in range(100):
        one.answer(1000, line + b" " * number)
    assert len(one._answered) <= 32


def test_an_error_reaches_the_client_with_its_kind(tmp_path, path):
    one = published(tmp_path)
    with UserServer(path, lambda uid, line: one.answer(1000, line), one.close):
        for command in ("explain", "doctor"):
            with pytest.raises(UnknownJobError, match="no job 2 of yours"):
                client.ask(path, ME, {"version": 1, "command": command, "job": "2"})
        with pytest.raises(UsageError, match="no such question") as caught:
            client.ask(path, ME, {"version": 1, "command": "x"})
        assert type(caught.value) is UsageError
        assert client.ask(path, ME, {"version": 1, "command": "status"})["rows"]


@pytest.mark.parametrize("private", [(), ("jobs", "nodes")])
def test_a_user_gets_the_plan_of_their_own_jobs(tmp_path, private):
    one = published(tmp_path, private)
    mine = said(one, 1000, "plan")["result"]
    assert mine["text"] == ["job 1 stays as it is (1 x v100): dictated"]
    assert "secret" not in json.dumps(mine) and "job 2" not in json.dumps(mine)
    assert mine["summary"]["waiting"] == {} and mine["summary"]["queries"] == {}
    everything = " ".join(said(one, 0, "plan")["result"]["text"])
    assert "job 1 stays" in everything and "job 2" in everything
    assert said(one, 77, "plan")["result"]["text"] == ["No managed jobs."]


@pytest.mark.parametrize(
    ("level", "coordinates", "sees"),
    [
        ("None", "", {"1"}), ("Operator", "", {"1", "2", "3"}), ("None", "phys,sub", {"1", "2"}),
        ("Administrator", "", {"1", "2", "3"}),
    ],
)  # fmt: skip
def test_a_report_is_of_the_jobs_that_the_accounting_shows_to_the_user(
    tmp_path, level, coordinates, sees
):
    me_ = pwd.getpwuid(1)
    sacctmgr = tmp_path / "sacctmgr"
    sacctmgr.write_text(
        f"#!/bin/sh\necho $@ >> {tmp_path}/asked\n"
        f"echo '{me_.pw_name}x|Administrator|chem'\necho '{me_.pw_name}|{level}|{coordinates}'\n"
    )
    sacctmgr.chmod(0o755)
    site = config(
        f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\n'
        f'[slurm]\nbin_dir = "{tmp_path}"\n'
    )
    one = published(tmp_path, ("jobs",), site=site)
    learner = GpuUseLearner(Store.open(tmp_path / "s").connection)
    owners = [("1", me_.pw_uid, "bio"), ("2", OTHER, "phys"), ("3", 1002, "chem")]
    learner.owners.note([job(id_, uid=uid, account=a) for id_, uid, a in owners], 5e4)
    use = TrainingUse(0.0, 2, 0.5, None, None, 300.0, None, 0.25, 0.25, 600.0)
    for id_, _, _ in owners:
        learner.sampled.record([(id_, 5e4, use, 600.0)])

    def asks(uid, since_s=0.0, command="report"):
        line = json.dumps({"version": 1, "command": command, "since_s": since_s})
        return json.loads(one.answer(uid, line.encode()))

    found = asks(me_.pw_uid)["result"]
    assert {row["job"] for row in found["samples"]} == sees
    assert found["everything"] == (len(sees) == 3)
    again = asks(me_.pw_uid, 10.0)["result"]
    assert again["samples"] == found["samples"]
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    assert len(asks(0)["result"]["samples"]) == 3
    # Without a database of accounts, or without such a user, nobody coordinates anything.
    sacctmgr.write_text("#!/bin/sh\nexit 1\n")
    assert {row["job"] for row in asks(OTHER)["result"]["samples"]} == {"2"}
    assert asks(4_000_000)["result"]["samples"] == []
    assert asks(0, "nonsense")["usage"] and asks(0, float("nan"))["usage"]
