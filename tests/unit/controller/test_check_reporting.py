"""``hadar check`` on files, programs, users and accounts that the configuration names."""

import os
import pwd
import socket
from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import config

from slurm_hadar.controller.checks import check_reporting
from slurm_hadar.controller.checks.check import findings
from slurm_hadar.controller.checks.check_reporting import people_findings, reporting_findings
from slurm_hadar.controller.checks.controller_user import ControllerUser, controller_user
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.exchange.heartbeat import STOPPED, write_heartbeat


@pytest.fixture
def site(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "exchange").mkdir()
    head = f"""
[site]
state_dir = "{tmp_path}/state"
exchange_dir = "{tmp_path}/exchange"
rights = "sandbox"
[slurm]
backend = "cli"
bin_dir = "{tmp_path}/nowhere"
"""
    return lambda more="": config(head + more)


def without_slurm(known):
    return list(reporting_findings(known, controller_user(known)))


def of_people(known, settings=None):
    return list(people_findings(known, settings or {}, controller_user(known)))


@pytest.mark.parametrize("table", ['[log]\nfile = "{}"\n', '[metrics]\ntextfile = "{}"\n'])
def test_a_file_whose_folder_is_missing_or_closed_is_one_problem(site, tmp_path, table):
    missing = site(table.format(tmp_path / "none" / "hadar.out"))
    (found,) = without_slurm(missing)
    assert found.level == "problem" and f"{tmp_path}/none does not exist" in found.what
    assert found.what.split(":")[0] in ("log.file", "metrics.textfile") and found.cure
    (tmp_path / "none").mkdir()
    assert without_slurm(missing) == []
    (tmp_path / "none" / "hadar.out").mkdir()
    (found,) = without_slurm(missing)
    folder = tmp_path / "none" / "hadar.out"
    assert found.level == "problem" and f"{folder} is a folder, and" in found.what
    assert f'= "{folder}/hadar.' in found.cure


def test_a_log_that_is_a_folder_is_said_also_where_the_folder_above_is_closed(tmp_path):
    """As log.file = "/var/log/slurm-hadar", in root's /var/log."""
    folder = tmp_path / "slurm-hadar"
    folder.mkdir()
    known = config(f'[log]\nfile = "{folder}"\n')
    other = ControllerUser(pwd.getpwnam("daemon").pw_uid)
    (found,) = reporting_findings(known, other)
    assert "is a folder" in found.what and f'"{folder}/hadar.log"' in found.cure


def test_hadar_check_says_it_though_slurm_does_not_answer(site, tmp_path):
    found = list(findings(site(f'[log]\nfile = "{tmp_path}/none/log"\n')))
    assert any("log.file: folder" in one.what for one in found)


def test_a_log_that_is_off_is_not_judged(site, tmp_path):
    assert without_slurm(site(f'[log]\nenabled = false\nfile = "{tmp_path}/none/log"\n')) == []
    assert without_slurm(site()) == []


def test_a_caller_who_is_not_the_controllers_user_does_not_judge_rights(site, tmp_path):
    known = site(f'[log]\nfile = "{tmp_path}/log"\n')
    # Root may write everywhere: another user is asked for.
    other = ControllerUser(os.getuid() or pwd.getpwnam("daemon").pw_uid)
    tmp_path.chmod(0o500)
    try:
        (found,) = reporting_findings(known, other)
        assert found.level == "problem", "it judges those of the controller's user"
        assert list(reporting_findings(known, replace(other, is_controllers=False))) == []
    finally:
        tmp_path.chmod(0o700)


def test_a_port_of_another_process_is_a_problem_unless_a_controller_runs(site, tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        known = site(f"[metrics]\nport = {held.getsockname()[1]}\n")
        (found,) = without_slurm(known)
        assert found.level == "problem" and f"port {held.getsockname()[1]}" in found.what
        write_heartbeat(tmp_path / "exchange", "act", 10.0)
        assert without_slurm(known) == []
        write_heartbeat(tmp_path / "exchange", STOPPED, 10.0)
        assert len(without_slurm(known)) == 1
    assert without_slurm(known) == []


def test_a_web_server_without_its_user_is_a_problem(site):
    (found,) = without_slurm(site('[web]\nproxy_user = "no-such-user"\n'))
    assert found.level == "problem" and "no-such-user" in found.what
    assert found.cure == "correct the name"
    assert without_slurm(site('[web]\nproxy_user = "root"\n')) == []


@pytest.mark.parametrize(
    ("keys", "settings", "says"),
    [
        ('command = ["/no/alerter", "-x"]', {}, "alerts.command: there is no program /no/alerter"),
        ('command = ["no-such-alerter"]', {}, "there is no program no-such-alerter"),
        ('command = ["/etc/passwd"]', {}, "cannot run /etc/passwd"),
        ('mail_prog = "/no/mail"', {}, "alerts.mail_prog: there is no program /no/mail"),
        ("", {"MailProg": "/no/mailer"}, "MailProg of slurm.conf: there is no program /no/mailer"),
        ('command = ["/bin/true"]', {}, ""),
        ('command = ["true"]', {}, ""),
        ('smtp = "localhost"', {"MailProg": "/no/mailer"}, ""),
        ("", {"MailProg": "/bin/true"}, ""),
    ],
)
def test_the_program_that_alerts_go_through(site, keys, settings, says):
    on = f'[alerts]\nenabled = true\noperators = ["root"]\n{keys}\n'
    found = of_people(site(on), settings)
    assert [one.level for one in found] == (["problem"] if says else [])
    assert all(says in one.what and one.cure for one in found)
    assert of_people(site(f"[alerts]\nenabled = false\n{keys}\n"), settings) == []


def test_a_program_is_looked_up_on_the_path_of_the_controllers_unit(site, tmp_path, monkeypatch):
    program = tmp_path / "alerter"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    on = '[alerts]\nenabled = true\noperators = ["root"]\ncommand = ["{}"]\n'
    (missing,) = of_people(site(on.format("alerter")))
    assert missing.level == "problem"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (elsewhere,) = of_people(site(on.format("alerter")))
    assert elsewhere.level == "warning" and str(program) in elsewhere.cure
    for one in (missing, elsewhere):
        assert "the PATH of the controller's unit" in one.what + one.cure, one
    assert of_people(site(on.format(program))) == []


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ('operators = ["root", "no-such-user", "ops@example.org"]', True),
        ('operators = ["no-such-user"]\nmail_domain = "example.org"', False),
        ('operators = ["root"]', False),
    ],
)
def test_an_operator_who_is_no_user_is_warned_of(site, keys, warned):
    on = site(f'[alerts]\nenabled = true\nmail_prog = "/bin/true"\n{keys}\n')
    found = of_people(on)
    assert [one.level for one in found] == (["warning"] if warned else [])
    assert all("no-such-user" in one.what for one in found)


@pytest.mark.parametrize(
    ("keys", "missed"),
    [
        ("", "of the controller go to no user"),
        ("owners = false", "of the controller and of jobs go to no user"),
        ('operators = ["root"]', ""),
    ],
)
def test_alerts_that_no_user_gets_are_warned_of(site, keys, missed):
    on = f'[alerts]\nenabled = true\ncommand = ["/bin/true"]\n{keys}\n'
    found = of_people(site(on))
    assert [one.level for one in found] == (["warning"] if missed else [])
    assert all(missed in one.what and "alerts.operators" in one.cure for one in found)


def test_users_and_accounts_of_the_rollout_that_are_not_there(site, monkeypatch):
    asked = []

    def unknown(_, names):
        asked.append(names)
        return ["biolgy"]

    monkeypatch.setattr(check_reporting, "unknown_accounts", unknown)
    known = site('[rollout]\nusers = ["root", "no-such-user"]\naccounts = ["bio", "biolgy"]\n')
    user, account = of_people(known)
    assert user.level == account.level == "problem"
    assert "rollout.users" in user.what and "no-such-user" in user.what
    assert "rollout.accounts" in account.what and "biolgy" in account.what
    assert asked == [("bio", "biolgy")]
    # Without a database of accounts no name can be wrong.
    assert of_people(known, {"AccountingStorageType": "accounting_storage/none"}) == [user]
    assert len(asked) == 1 and of_people(site()) == []


def test_accounting_that_does_not_answer_is_said(site, monkeypatch):
    def unknown(*_):
        raise SlurmError("slurmdbd is away")

    monkeypatch.setattr(check_reporting, "unknown_accounts", unknown)
    (found,) = of_people(site('[rollout]\naccounts = ["bio"]\n'))
    assert found.level == "warning" and "slurmdbd is away" in found.what
