"""``hadar report``: its arguments."""

import json
import os
from typing import Any

import pytest
from typer.testing import CliRunner

from slurm_hadar.cli import report, status
from slurm_hadar.cli.main import app
from slurm_hadar.controller.presentation.account_usage import RecordedUse
from slurm_hadar.domain.errors import HadarError, SlurmError, UsageError
from slurm_hadar.slurm.times import time_before


def test_how_long_back():
    assert time_before("7d", 1e9) == 1e9 - 7 * 86400
    assert time_before("24h", 1e9) == 1e9 - 86400
    assert time_before("2w", 1e9) == 1e9 - 14 * 86400
    assert time_before("1970-01-02", 1e9) < 3 * 86400


@pytest.mark.parametrize("since", ["", "7", "-7d", "7d; rm", "2999-01-01", "٧d", "x" * 99])
def test_what_is_no_time_is_refused(since):
    with pytest.raises(UsageError, match="--since"):
        time_before(since, 1e9)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The command on a site whose sacct is a program of ours."""
    sacct = tmp_path / "sacct"
    sacct.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/args\ncat {tmp_path}/answer\n')
    sacct.chmod(0o755)
    site = tmp_path / "hadar.toml"
    site.write_text(
        f'[site]\nstate_dir = "{tmp_path}/s"\nexchange_dir = "{tmp_path}/x"\nrights = "user"\n'
        f'[slurm]\nbin_dir = "{tmp_path}"\nbackend = "cli"\n'
    )

    def run(answer, *words):
        (tmp_path / "answer").write_text(answer)
        return CliRunner().invoke(app, ["report", "-c", str(site), *words])

    found: Any = run
    found.folder = tmp_path
    return found


def line(job="7", start="2026-01-05T11:00:00", end="2026-01-05T13:00:00", account="phys"):
    tres = "cpu=4,gres/gpu=2"
    return (
        f"{job}|2026-01-05T10:00:00|2026-01-05T10:00:00|{start}|{end}|COMPLETED|600|"
        f"{tres}|{tres}|gpu|ann|{account}\n"
    )


def test_one_query_gives_text_json_and_page(asked):
    page = asked.folder / "use.html"
    done = asked(line() + "odd\n", "--since", "2026-01-01", "--html", str(page))
    assert done.exit_code == 0 and "4.0 GPU-hours, 1 job" in done.stdout.replace("\n", " ")
    assert "which are not counted: 1" in done.stdout.replace("\n", " ")
    words = (asked.folder / "args").read_text().split()
    assert {"-a", "-X", "-D", "-P"} <= set(words) and words[words.index("-S") + 1] == (
        "2026-01-01T00:00:00"
    )
    assert "phys" in page.read_text()
    hostile = "$(touch /tmp/x)"
    done = asked(line(account=hostile), "--since", "2026-01-01", "--account", hostile, "--json")
    (found,) = json.loads(done.stdout)["result"]["accounts"]
    assert (found["account"], found["received_gpu_h"], found["moves"]) == (hostile, 4.0, 0)
    assert hostile not in (asked.folder / "args").read_text()


def test_what_cannot_be_done_is_one_sentence(asked):
    done = asked(line(), "--html", "/no/such/folder/x.html")
    assert isinstance(done.exception, UsageError)
    (asked.folder / "sacct").write_text("#!/bin/sh\necho 'sacct: error: no database' >&2\nexit 1\n")
    done = asked("")
    assert isinstance(done.exception, SlurmError) and "no database" in str(done.exception)


def test_a_user_sees_their_own_jobs_and_those_of_accounts_that_they_coordinate(asked, monkeypatch):
    rights = asked.folder / "sacctmgr"
    monkeypatch.setattr(report, "is_controllers_user", lambda _: False)
    monkeypatch.setattr(report, "me", lambda: "ann")
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    rows = line() + line("8", account="chem").replace("|ann|", "|bob|") + line("9", account="bio")

    def jobs(level, coordinates, *words):
        rights.write_text(f"#!/bin/sh\necho 'ann|{level}|{coordinates}'\n")
        rights.chmod(0o755)
        done = asked(rows, "--since", "2026-01-01", "--json", *words)
        assert done.exit_code == 0, done.exception
        found = json.loads(done.stdout)["result"]
        assert found["total"]["moves"] is None
        return {one["account"] for one in found["accounts"]}, " ".join(found["notes"])

    own, notes = jobs("None", "")
    assert own == {"phys", "bio"} and "your own jobs alone; --user all" in notes
    assert "no controller answers on this host" in notes
    assert jobs("None", "", "--user", "all")[0] == {"phys", "bio", "chem"}
    assert jobs("None", "", "--user", "bob")[0] == {"chem"}
    also, notes = jobs("None", "chem,other")
    assert also == {"phys", "bio", "chem"} and "your own" not in notes
    assert jobs("Operator", "")[0] == {"phys", "bio", "chem"}
    # What the controller answers counts, not what the client makes of it.
    answer = RecordedUse(everything=False, accounts=frozenset({"chem"}))
    monkeypatch.setattr(status, "asked", lambda *_, **more: answer)
    done = asked(rows, "--since", "2026-01-01", "--json", "--user", "bob,ann")
    assert json.loads(done.stdout)["result"]["total"]["moves"] == 0
    assert json.loads(done.stdout)["result"]["notes"] == []

    def refuses(*_, **more):
        raise HadarError("the controller has not finished its first tick yet")

    monkeypatch.setattr(status, "asked", refuses)
    assert "first tick yet" in jobs("None", "")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--account", "no-such"), "no account no-such"),
        (("--account", "a'; reboot"), "no account a'; reboot"),
        (("--user", "no-such-user"), "no user no-such-user"),
        (("--user", "\x1b[2J"), "no user ?[2J"),
    ],
)
def test_a_filter_that_nobody_has_is_one_sentence(asked, words, says):
    manager = asked.folder / "sacctmgr"
    manager.write_text("#!/bin/sh\necho phys; echo chem\n")
    manager.chmod(0o755)
    done = asked(line(), "--since", "2026-01-01", *words)
    assert isinstance(done.exception, HadarError) and says in str(done.exception)


def test_an_account_or_a_user_without_jobs_is_said(asked):
    manager = asked.folder / "sacctmgr"
    manager.write_text("#!/bin/sh\necho phys; echo chem\n")
    manager.chmod(0o755)
    for words in (("--account", "chem"), ("--user", "root")):
        done = asked(line(), "--since", "2026-01-01", *words)
        assert done.exit_code == 0 and "had no GPU job" in " ".join(done.stdout.split())


def test_a_slurm_without_accounting_is_named_with_what_remains(asked):
    sacct = asked.folder / "sacct"
    sacct.write_text("#!/bin/sh\necho Slurm accounting storage is disabled >&2\nexit 1\n")
    done = asked("")
    assert isinstance(done.exception, SlurmError)
    assert "AccountingStorageType" in str(done.exception)
    assert "hadar status" in str(done.exception)


def test_a_silent_slurmdbd_is_one_sentence_with_what_to_do(asked):
    sacct = asked.folder / "sacct"
    sacct.write_text(
        "#!/bin/sh\n"
        'echo "sacct: error: slurm_persist_conn_open: failed to send/recv persistent connection '
        'init message to localhost:6819" >&2\n'
        'echo "sacct: error: Sending PersistInit msg: Connection refused" >&2\nexit 1\n'
    )
    done = asked("")
    assert isinstance(done.exception, SlurmError)
    said = str(done.exception)
    assert said.startswith("slurmdbd, which keeps Slurm's accounting, does not answer (sacct: ")
    assert "systemctl status slurmdbd" in said and "hadar status" in said
