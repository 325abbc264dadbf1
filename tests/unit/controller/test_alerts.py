"""Alerts: which there are, how often they are sent, and to whom; through real programs."""

import json
import socket
import stat
import threading
from dataclasses import replace
from typing import Any

import pytest
from hand_made import NOW, config, job, observation, running
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from slurm_hadar.cli.main import app
from slurm_hadar.controller.alerts import conditions, dispatch
from slurm_hadar.controller.alerts.conditions import Alert, AlertMemory
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange import heartbeat
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.gpu_sampling import GpuUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.reports.status import ControllerState

TWO = {"v1": {"v100": 2}}
H = 3600.0


def settings(**more):
    lines = {"enabled": True, "operators": ["root", "ops@example.org"], **more}
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())
    return config(f"[alerts]\n{text}\n").alerts


def test_only_a_controller_that_went_away_is_silent():
    (alert,) = conditions.silence(ControllerState("silent", "h1\n", NOW - 600), NOW)
    assert "controller on h1  has not ticked for 10 min 00 s" in alert.text
    for state in ("acts", "observes", "never seen"):
        assert conditions.silence(ControllerState(state, "h1", NOW - 600), NOW) == []


def test_an_accounting_database_that_does_not_answer_is_an_alert():
    faults = {"database": "slurmdbd does not answer: limits are those of 10:00"}
    (alert,) = conditions.of_accounting(faults)
    assert alert.kind == "accounting" and alert.text.startswith(faults["database"])
    assert conditions.of_accounting({}) == []


def test_failing_ticks_and_refusals_count_within_an_hour():
    memory, wanted = AlertMemory(), settings()
    counts = {"ticks|failed": 7.0, "refusals": 100.0}
    # What failed before the first look is history.
    assert conditions.of_ticks(counts, memory, NOW, wanted) == []
    counts = {"ticks|failed": 10.0, "refusals": 119.0}
    (alert,) = conditions.of_ticks(counts, memory, NOW + 600, wanted)
    assert (alert.kind, alert.owner) == ("failing_ticks", "") and "3 ticks" in alert.text
    counts["refusals"] = 120.0
    found = conditions.of_ticks(counts, memory, NOW + 1200, wanted)
    assert [one.kind for one in found] == ["failing_ticks", "refusals"]
    assert conditions.of_ticks(counts, memory, NOW + 2 * H, wanted) == []
    # A new state file counts from 0.
    assert conditions.of_ticks({"ticks|failed": 1.0}, memory, NOW + 2 * H + 60, wanted) == []
    off = settings(failed_ticks=0, refusals=0)
    assert conditions.of_ticks({"ticks|failed": 99.0}, memory, NOW + 2 * H + 120, off) == []


def progress(samples=10, restarts=0, **more):
    return Progress("1", NOW, restarts, "v1", 1, False, NOW, "m", samples, 5.0, 60.0, 8, 2, **more)


def cluster(now, report=None, idle_s=0.0, **more):
    use = GpuUse("G", "P", 600.0, 0.0, None, None, 50.0, 600.0 - idle_s, idle_s, 0.0)
    usual = {"declaration": Declaration(model="m", types=("any",)), "start_s": NOW - 10 * H}
    mine = running("1", TWO, **{**usual, **more})
    given_progress = {"1": report} if report else {}
    files = [NodeUse("1", "v1", 1, now - 10, False, (use, use))]
    found = observation([mine, job("2")], gpus={"1": files}, progress=given_progress)
    return replace(found, now=now)


def test_gpus_held_idle_are_reported_after_their_time_and_not_before():
    memory, wanted = AlertMemory(), settings()
    assert conditions.of_jobs(cluster(NOW, idle_s=600), memory, wanted) == []
    assert conditions.of_jobs(cluster(NOW + H - 1, idle_s=600), memory, wanted) == []
    (alert,) = conditions.of_jobs(cluster(NOW + H, idle_s=600), memory, wanted)
    assert (alert.kind, alert.job, alert.owner) == ("held_idle", "1", "ann")
    assert "2 GPUs" in alert.text and "scancel 1" in alert.text
    # It computed meanwhile: the time begins anew.
    assert conditions.of_jobs(cluster(NOW + H + 60), memory, wanted) == []
    assert conditions.of_jobs(cluster(NOW + H + 120, idle_s=600), memory, wanted) == []
    # So it does after a restart.
    began = cluster(NOW + 2 * H + 60, idle_s=600, start_s=NOW + 2 * H)
    assert conditions.of_jobs(began, memory, wanted) == []


def test_a_training_that_stands_still_and_one_of_nan():
    memory, wanted = AlertMemory(), settings()
    assert conditions.of_jobs(cluster(NOW, progress(10)), memory, wanted) == []
    assert conditions.of_jobs(cluster(NOW + H, progress(11)), memory, wanted) == []
    assert conditions.of_jobs(cluster(NOW + 2 * H - 1, progress(11)), memory, wanted) == []
    (alert,) = conditions.of_jobs(cluster(NOW + 2 * H, progress(11)), memory, wanted)
    assert alert.kind == "no_progress" and "11 samples for 1 h" in alert.text
    # An earlier attempt's file, one that is through, and a waiting job say nothing.
    old = AlertMemory(samples={"1": (0, 11, NOW - 9 * H)})
    assert conditions.of_jobs(cluster(NOW, progress(11), restarts=1), old, wanted) == []
    done = AlertMemory(samples={"1": (0, 11, NOW - 9 * H)})
    assert conditions.of_jobs(cluster(NOW, progress(11, finished=True)), done, wanted) == []
    (alert,) = conditions.of_jobs(cluster(NOW, progress(nonfinite=True)), AlertMemory(), wanted)
    assert alert.kind == "nonfinite"
    off = settings(nonfinite=False, no_progress_s=0, held_idle_s=0)
    stuck = AlertMemory({"1": 0.0}, {"1": (0, 10, 0.0)})
    assert conditions.of_jobs(cluster(NOW, progress(nonfinite=True), 600), stuck, off) == []


REPORTS = (Declaration(checkpoint="yes"), Declaration(progress="step {step}"))
SAYS_NOTHING = (
    Declaration(model="m"),
    Declaration(checkpoint="restart"),
    Declaration(checkpoint="signal", signal="USR1"),
    Declaration(checkpoint="yes", off=True),
)


@pytest.mark.parametrize("declared", REPORTS)
def test_a_training_that_should_report_and_never_did(declared):
    wanted = settings()

    def alerts(now, report=None, memory=None, **more):
        shown = cluster(now, report, declaration=declared, start_s=NOW, **more)
        return conditions.of_jobs(shown, memory or AlertMemory(), wanted)

    assert alerts(NOW + H - 1) == []
    (alert,) = alerts(NOW + H)
    assert (alert.kind, alert.owner) == ("no_report", "ann")
    key = "checkpoint=yes" if declared.checkpoint else "progress="
    assert key in alert.text and "1 h" in alert.text and "hadar doctor 1" in alert.text
    # What an earlier attempt said is not of this one; what this one said is.
    (alert,) = alerts(NOW + H, progress(), restarts=1)
    assert alert.kind == "no_report"
    assert alerts(NOW + H, progress()) == [] == alerts(NOW + H, progress(finished=True))
    # Nor has it begun to be silent where its file is gone again, at one look or at many.
    memory = AlertMemory()
    assert alerts(NOW + 60, progress(), memory) == []
    assert [alerts(NOW + n * H, None, memory) for n in (1, 2, 30)] == [[], [], []]
    (alert,) = alerts(NOW + 31 * H, None, memory, restarts=1)
    assert alert.kind == "no_report"
    # Nothing is said where not all reports could be read, nor where the site wants none.
    blind = replace(cluster(NOW + 9 * H, declaration=declared), all_reports=False)
    assert conditions.of_jobs(blind, AlertMemory(), wanted) == []
    off = settings(no_progress_s=0)
    seen_all = cluster(NOW + 9 * H, declaration=declared)
    assert conditions.of_jobs(seen_all, AlertMemory(), off) == []


@pytest.mark.parametrize("declared", SAYS_NOTHING)
def test_no_report_is_missed_of_a_job_that_declared_none(declared):
    shown = cluster(NOW + 99 * H, declaration=declared)
    assert conditions.of_jobs(shown, AlertMemory(), settings()) == []


SILENT = Alert("silent", "silent")
IDLE = Alert("held_idle", "idle", "1", "ann")


def test_owners_and_operators_hear_of_their_own():
    found = conditions.due([SILENT, IDLE], AlertMemory(), NOW, settings())
    assert found == {"root": [SILENT], "ops@example.org": [SILENT], "ann": [IDLE]}
    found = conditions.due([SILENT, IDLE], AlertMemory(), NOW, settings(owners=False))
    assert found == {"root": [SILENT, IDLE], "ops@example.org": [SILENT, IDLE]}


def test_an_alert_goes_once_and_again_when_it_was_over_or_lasts():
    memory, wanted = AlertMemory(), settings(repeat_s=H)

    def looked(now, *alerts):
        found = conditions.due(alerts, memory, now, wanted)
        for one, mine in found.items():
            conditions.mark_sent(one, mine, memory, now)
        return found.get("ann", [])

    other = replace(IDLE, job="2")
    assert looked(NOW, IDLE) == [IDLE]
    assert looked(NOW + 60, IDLE, other) == [other]
    assert looked(NOW + H, IDLE, other) == [IDLE]
    assert looked(NOW + H + 60) == []
    assert looked(NOW + H + 120, IDLE) == [IDLE]
    assert len(memory.sent) == 1


@given(st.lists(st.tuples(st.floats(0, 5000), st.sets(st.integers(0, 30))), max_size=40))
def test_no_recipient_gets_more_messages_in_a_day_than_is_said(looks):
    memory, now, sent = AlertMemory(), NOW, []
    wanted = settings(most_per_day=3, repeat_s=60)
    for step, jobs in looks:
        now += step
        alerts = [replace(IDLE, job=str(one)) for one in jobs]
        for one, mine in conditions.due(alerts, memory, now, wanted).items():
            conditions.mark_sent(one, mine, memory, now)
            sent.append(now)
            assert mine and one == "ann"
        assert len([time for time in sent if time > now - 24 * H]) <= 3


# -- sinks -------------------------------------------------------------------------------------


def program(path, status=0):
    """A program that writes its arguments and its input beside itself."""
    path.write_text(
        "#!/bin/sh\n"
        f'for one in "$@"; do printf "%s\\n" "$one"; done >> {path}.args\n'
        f"cat >> {path}.text\necho 'no such user' >&2\nexit {status}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_mail_program_gets_recipient_and_text_and_no_shell(tmp_path):
    mail = program(tmp_path / "mail")
    wanted = settings(mail_prog=str(mail), mail_domain="example.org")
    hostile = replace(IDLE, text="$(touch /tmp/x) `id`\x1b[2J; job 1")
    dispatch.send("ann", [hostile, SILENT], wanted, "my site", "")
    assert (tmp_path / "mail.args").read_text().splitlines() == [
        "-s", "slurm-hadar on my site: 2 alerts", "ann@example.org",
    ]  # fmt: skip
    assert (tmp_path / "mail.text").read_text() == "$(touch /tmp/x) `id` [2J; job 1\n\nsilent\n"
    # Slurm's own program, where the configuration names none; no domain where there is one.
    dispatch.send("ops@there.org", [SILENT], settings(mail_domain="x.org"), "s", str(mail))
    assert (tmp_path / "mail.args").read_text().splitlines()[-1] == "ops@there.org"


@pytest.mark.parametrize(
    "name", ["-oQ/tmp", "", "a;reboot", "a b", "a\nb", "$(id)", "a@-x", "ä", "a" * 65, "a@b@c"]
)
def test_a_name_that_is_no_address_reaches_no_program(tmp_path, name):
    mail = program(tmp_path / "mail")
    with pytest.raises(HadarError, match="no user or mail address"):
        dispatch.send(name, [IDLE], settings(mail_prog=str(mail)), "s", "")
    assert not (tmp_path / "mail.args").exists()


def test_a_command_reads_json(tmp_path):
    wanted = settings(command=[str(program(tmp_path / "hook")), "--to chat"])
    dispatch.send("ann", [IDLE], wanted, "s", "")
    assert (tmp_path / "hook.args").read_text() == "--to chat\n"
    read = json.loads((tmp_path / "hook.text").read_text())
    assert read["to"] == "ann" and read["alerts"][0]["job"] == "1"
    failing = settings(command=[str(program(tmp_path / "bad", status=3))])
    with pytest.raises(HadarError, match="ended with 3: no such user"):
        dispatch.send("ann", [IDLE], failing, "s", "")
    with pytest.raises(HadarError, match="could not be run"):
        dispatch.send("ann", [IDLE], settings(command=["/no/such"]), "s", "")


def test_a_mail_server_takes_the_message():
    got: list[str] = []

    def serve():
        link, _ = listener.accept()
        with link, link.makefile("rwb", buffering=0) as stream:
            stream.write(b"220 ready\r\n")
            data = False
            for line in stream:
                got.append(line.decode().rstrip())
                data = (data or line.upper().startswith(b"DATA")) and line != b".\r\n"
                if line.upper().startswith(b"DATA"):
                    stream.write(b"354 go on\r\n")
                elif not data:
                    stream.write(b"221 bye\r\n" if line[:4].upper() == b"QUIT" else b"250 ok\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        wanted = settings(smtp=f"127.0.0.1:{port}", mail_domain="example.org")
        dispatch.send("ann", [IDLE], wanted, "s\r\nBcc: x@y", "")
        thread.join(20)
    assert "To: ann@example.org" in got and "idle" in got
    assert not any(line.startswith("Bcc") for line in got)
    with pytest.raises(HadarError, match="took no message"):
        dispatch.send("ann", [IDLE], settings(smtp=f"127.0.0.1:{port}"), "s", "")


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def silent_site(tmp_path, monkeypatch):
    """A site whose controller went away, and where Slurm does not answer."""
    state, exchange = tmp_path / "s", tmp_path / "x"
    state.mkdir(mode=0o700)
    exchange.mkdir()
    heartbeat.write_heartbeat(exchange, "act", 60.0)
    beat = json.loads((exchange / "heartbeat.json").read_text())
    (exchange / "heartbeat.json").write_text(json.dumps({**beat, "time": beat["time"] - 7200}))
    mail = program(tmp_path / "mail")
    site = tmp_path / "hadar.toml"

    def run(*words, enabled="true", more=""):
        site.write_text(
            f'[site]\nstate_dir = "{state}"\nexchange_dir = "{exchange}"\nrights = "user"\n'
            f'[slurm]\nbackend = "cli"\nbin_dir = "{tmp_path}"\n'
            f'[alerts]\nenabled = {enabled}\noperators = ["root"]\nmail_prog = "{mail}"\n' + more
        )
        return CliRunner().invoke(app, ["alerts", "-c", str(site), *words])

    found: Any = run
    found.folder, found.state = tmp_path, state
    return found


def test_silence_is_reported_once_while_neither_slurm_nor_the_state_file_answers(silent_site):
    done = silent_site("--dry-run")
    assert "silent: the controller on" in done.output
    assert not (silent_site.folder / "mail.args").exists()
    assert "nothing is sent" in silent_site(enabled="false").output
    assert not (silent_site.folder / "mail.args").exists()
    done = silent_site()
    assert done.exit_code == 1 and "sent to root: 1 alert" in done.output
    assert "not all was looked at" in done.output
    (silent_site.state / "hadar.sqlite").write_bytes(b"no database" * 1000)
    done = silent_site("--json")
    found = json.loads(done.stdout.splitlines()[0])["result"]
    assert [one["kind"] for one in found["alerts"]] == ["silent"] and found["sent"] == {}
    assert (silent_site.folder / "mail.args").read_text().count("root") == 1
    (silent_site.state / "sent_alerts.json").write_text("[")
    assert "sent to root" in silent_site().output
    assert "has not ticked for 2 h" in (silent_site.folder / "mail.text").read_text()


def test_silence_is_reported_under_a_configuration_with_a_mistake(silent_site):
    done = silent_site(more="[rollout]\npercent = 'x'\n")
    assert done.exit_code == 1 and "sent to root: 1 alert" in done.output
    assert "not all was looked at" in done.output and "rollout.percent" in done.stderr


def test_a_look_without_alerts_says_so_to_people_and_nothing_to_a_timer(silent_site):
    (old,) = silent_site.folder.rglob("heartbeat.json")
    heartbeat.write_heartbeat(old.parent, "act", 60.0)
    assert "No alerts." in silent_site("--dry-run").output
    assert "No alerts." in silent_site(enabled="false").output
    assert "No alerts." not in silent_site().output


def test_a_test_message_goes_to_the_operators(silent_site):
    assert "sent to root" in silent_site("--test").output
    assert "nothing is wrong" in (silent_site.folder / "mail.text").read_text()
    done = silent_site("--test", enabled="false")
    assert "--test needs" in str(done.exception)


def test_a_message_that_is_not_taken_goes_again(silent_site):
    program(silent_site.folder / "mail", status=1)
    done = silent_site()
    assert done.exit_code == 1 and "not sent to root" in done.output
    program(silent_site.folder / "mail")
    assert "sent to root: 1 alert" in silent_site().output


def test_what_does_not_fit_is_refused():
    for line in ('smtp = "a b"', 'mail_domain = "-x"', "repeat_s = 1", 'mail_prog = "mail"'):
        with pytest.raises(HadarError, match="alerts"):
            config(f"[alerts]\n{line}\n")
