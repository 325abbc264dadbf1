"""``sudo hadar check``: root judges for the user that runs the controller."""

import errno
import os
import pwd
from dataclasses import replace

import pytest
from hand_made import as_cluster, config
from missing import needs_root
from reachable import open_to_all

from slurm_hadar.controller.checks import check
from slurm_hadar.controller.checks.check import findings
from slurm_hadar.controller.checks.check_folders import folder_findings
from slurm_hadar.controller.checks.check_reporting import people_findings, reporting_findings
from slurm_hadar.controller.checks.controller_user import controller_user
from slurm_hadar.domain.errors import SlurmError

OTHER = pwd.getpwnam("daemon")


@pytest.fixture
def place():
    """A folder that OTHER can reach, unlike pytest's own."""
    needs_root("it takes another user's rights")
    with open_to_all() as folder:
        yield folder


def site(place, more="", named=OTHER.pw_name):
    who = f'controller_user = "{named}"\n' if named else ""
    return config(
        f'[site]\nstate_dir = "{place}/state"\nexchange_dir = "{place}/exchange"\n{who}{more}'
    )


def folders(place, owner=OTHER.pw_uid):
    for name, mode in (("state", 0o700), ("exchange", 0o1777)):
        (place / name).mkdir()
        (place / name).chmod(mode)
        os.chown(place / name, owner, -1)


def test_folders_of_the_configured_user_are_right_and_roots_are_not(place):
    folders(place)
    assert [one.level for one in folder_findings(site(place))] == ["ok", "ok"]
    os.chown(place / "state", 0, 0)
    state, _ = folder_findings(site(place))
    own = f"{place}/state"
    assert state.level == "problem" and state.cure == (
        f"chown {OTHER.pw_name} {own} && chmod 700 {own}"
    )
    (place / "state").rmdir()
    state, _ = folder_findings(site(place))
    assert f"-o {OTHER.pw_name} " in state.cure


def in_place_of_the_state_folder(place, owner, mode, files):
    folders(place)
    (place / "state").chmod(mode)
    for name in files:
        (place / "state" / name).touch()
    os.chown(place / "state", owner, -1)
    return next(folder_findings(site(place))).cure


def test_roots_state_folder_is_given_away_with_the_files_of_a_controller(place):
    cure = in_place_of_the_state_folder(place, 0, 0o700, ("lock", "hadar.sqlite", "identity"))
    own = f"{place}/state"
    files = f"{own}/hadar.sqlite {own}/identity {own}/lock"
    assert cure == f"chown {OTHER.pw_name} {own} {files} && chmod 700 {own}"


@pytest.mark.parametrize(
    ("owner", "mode", "files"),
    [(0, 0o755, ["dpkg"]), (0, 0o1777, []), (2, 0o700, []), (2, 0o700, ["hadar.sqlite"])],
)
def test_no_cure_gives_away_what_may_be_the_systems_or_anothers(place, owner, mode, files):
    """/var/lib, /tmp, and another user's folder, where a state file may be planted."""
    cure = in_place_of_the_state_folder(place, owner, mode, files)
    assert cure == f"set site.state_dir to a folder of {OTHER.pw_name}'s own"


def test_a_planted_state_file_in_roots_folder_is_not_taken(place):
    folders(place, owner=0)
    (place / "state" / "hadar.sqlite").touch()
    os.chown(place / "state" / "hadar.sqlite", 2, -1)
    assert "chown" not in next(folder_findings(site(place))).cure


def test_a_folder_above_that_is_closed_to_the_user_is_a_problem(place):
    folders(place)
    place.chmod(0o700)
    found = list(folder_findings(site(place)))
    assert [one.level for one in found] == ["problem", "problem"]
    assert all(OTHER.pw_name in one.what and "above" in one.cure for one in found)


@pytest.mark.parametrize("made", [True, False])
def test_without_a_configured_user_no_cure_gives_a_folder_to_root(place, made):
    if made:
        folders(place, owner=0)
        (place / "state").chmod(0o755)
    for one in folder_findings(site(place, named="")):
        assert "chown root" not in one.cure and "-o root" not in one.cure, one
    if not made:
        state, exchange = folder_findings(site(place, named=""))
        assert all("site.controller_user" in one.cure for one in (state, exchange))


def test_the_owner_of_the_state_folder_counts_where_none_is_configured(place):
    folders(place)
    assert [one.level for one in folder_findings(site(place, named=""))] == ["ok", "ok"]


def test_files_and_programs_are_judged_as_the_controllers_user(place):
    folders(place)
    (place / "log").mkdir()
    table, program = place / "table.csv", place / "alert"
    for file, mode in ((table, 0o600), (program, 0o700)):
        file.write_text("#!/bin/sh\n")
        file.chmod(mode)
    more = f"""
[log]
file = "{place}/log/hadar.log"
[profiles]
tables = ["{table}"]
[alerts]
enabled = true
operators = ["root"]
command = ["{program}"]
"""

    def found():
        known = site(place, more)
        user = controller_user(known)
        yield from reporting_findings(known, user)
        yield from people_findings(known, {}, user)
        yield from (one for one in check._names(known, user) if "profiles" in one.what)

    bad = list(found())
    assert [one.level for one in bad] == ["problem"] * 3
    assert all(OTHER.pw_name in one.what for one in bad)
    os.chown(place / "log", OTHER.pw_uid, -1)
    table.chmod(0o644)
    program.chmod(0o755)
    assert list(found()) == []
    assert os.geteuid() == 0, "the caller has its own rights again"


@pytest.mark.parametrize("key", ["log.file", "metrics.textfile"])
def test_no_cure_opens_a_folder_that_is_anothers(place, key):
    """/var/log: who may write there may replace the logs of the machine."""
    (place / "log").mkdir()
    table, name = key.split(".")
    known = site(place, f'[{table}]\n{name} = "{place}/log/hadar.out"\n')
    (found,) = reporting_findings(known, controller_user(known))
    assert found.level == "problem" and f"set {key} to a file in a folder of its own" in found.cure
    assert "let " not in found.cure and "chown" not in found.cure
    os.chown(place / "log", OTHER.pw_uid, -1)
    (place / "log" / "hadar.out").touch(mode=0o600)
    (found,) = reporting_findings(known, controller_user(known))
    assert "hadar.out" in found.what and "chown" not in found.cure and found.cure
    (place / "log").chmod(0o500)
    (found,) = reporting_findings(known, controller_user(known))
    assert f"chmod u+wx {place}/log" in found.cure


@pytest.mark.parametrize("refused", ["setgroups", "setegid", "seteuid"])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM])
def test_where_root_may_not_take_a_users_rights_they_are_unknown(
    place, monkeypatch, refused, number
):
    """Root of a container or of a user namespace."""
    folders(place)
    (place / "log").mkdir()
    # Not on the caller's PATH, where another place than the system's is warned of.
    slurm = f'[slurm]\nbin_dir = "{place}"\n'
    known = site(place, f'{slurm}[log]\nfile = "{place}/log/hadar.log"\n')
    given: dict[str, list[object]] = {name: [] for name in ("setgroups", "setegid", "seteuid")}
    before = os.getgroups(), os.getegid(), os.geteuid()

    def refuses(name, real):
        def call(value):
            if name == refused:
                raise OSError(number, os.strerror(number))
            given[name].append(value)
            real(value)

        return call

    for name in given:
        monkeypatch.setattr(os, name, refuses(name, getattr(os, name)))
    found = [one for one in findings(known) if "Slurm" not in one.what and one.level != "ok"]
    assert [one.level for one in found] == ["warning"] and OTHER.pw_name in found[0].what
    assert f"sudo -u {OTHER.pw_name} hadar check" in found[0].cure
    assert (os.getgroups(), os.getegid(), os.geteuid()) == before
    assert all(
        values[-1:] in ([], [own]) for values, own in zip(given.values(), before, strict=True)
    )


def test_groups_that_cannot_be_given_back_are_not_given_up(place, monkeypatch):
    """Those of a group that this user namespace does not map: the kernel takes them no more."""
    folders(place)
    real = os.setgroups

    def unmapped(groups):
        if groups == os.getgroups():
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(groups)

    before = os.getgroups()
    monkeypatch.setattr(os, "setgroups", unmapped)
    assert not controller_user(site(place)).switches
    assert os.getgroups() == before


def test_slurms_commands_are_judged_as_the_controllers_user(place):
    folders(place)
    (place / "bin").mkdir()
    (place / "bin" / "scontrol").write_text("#!/bin/sh\n")
    (place / "bin" / "scontrol").chmod(0o750)
    known = site(place, f'[slurm]\nbin_dir = "{place}/bin"\n')
    (found,) = [one for one in check._names(known) if "slurm.bin_dir" in one.what]
    assert found.level == "problem" and OTHER.pw_name in found.what and found.cure
    (place / "bin" / "scontrol").chmod(0o755)
    assert not [one for one in check._names(known) if "slurm.bin_dir" in one.what]


def test_rights_in_slurm_are_those_of_the_configured_user(place):
    folders(place)
    known = site(place)
    asked = []

    class Slurm:
        def admin_level(self, user):
            asked.append(user)
            return "Operator"

    found = list(check._rights(known, as_cluster(Slurm()), {}, controller_user(known)))
    assert asked == [OTHER.pw_name]
    assert [(one.level, one.what) for one in found] == [("ok", f"{OTHER.pw_name} is an Operator")]


def test_who_does_not_run_the_controller_needs_no_rights(place):
    user = replace(controller_user(site(place)), is_controllers=False)

    class Slurm:
        def admin_level(self, user):
            raise AssertionError

    assert list(check._rights(site(place), as_cluster(Slurm()), {}, user)) == []


@pytest.mark.parametrize(
    ("said", "silent"),
    [
        ("sacctmgr gave no answer within 30 s; slurmdbd may be busy or down", True),
        ("sacctmgr: Problem talking to the database: Connection refused", True),
        ("sacctmgr is not on PATH; install Slurm's commands or set slurm.bin_dir", False),
    ],
)
def test_where_the_accounting_does_not_answer_that_is_one_finding_with_a_cure(place, said, silent):
    folders(place)
    known = site(place)

    class Slurm:
        def admin_level(self, user):
            raise SlurmError(said)

    (found,) = check._rights(known, as_cluster(Slurm()), {}, controller_user(known))
    assert found.level == "problem" and OTHER.pw_name in found.what and said in found.what
    assert ("slurmdbd, which keeps Slurm's accounting, does not answer" in found.what) == silent
    assert ("systemctl status slurmdbd" in found.cure) == silent and found.cure


@pytest.mark.parametrize("key", ["state_dir", "exchange_dir"])
def test_a_folder_that_is_a_link_to_itself_is_a_problem(tmp_path, key):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    other = {"state_dir": "exchange_dir", "exchange_dir": "state_dir"}[key]
    known = config(f'[site]\n{key} = "{tmp_path}/loop"\n{other} = "{tmp_path}/other"\n')
    found = [one for one in folder_findings(known) if "loop" in one.what]
    assert [one.level for one in found] == ["problem"] and found[0].cure


def test_one_folder_for_both_is_one_problem(tmp_path):
    (tmp_path / "both").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "both")
    known = config(f'[site]\nstate_dir = "{tmp_path}/both"\nexchange_dir = "{tmp_path}/link"\n')
    (found,) = folder_findings(known)
    assert found.level == "problem" and "site.exchange_dir" in found.cure
