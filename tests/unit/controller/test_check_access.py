"""``hadar check`` on what jobs, users or the controller cannot reach, and on full disks."""

import os
import pwd
from dataclasses import replace
from types import SimpleNamespace

import pytest
from missing import needs_root
from reachable import open_to_all

from slurm_hadar.config import parse, schema
from slurm_hadar.controller.checks.check import findings
from slurm_hadar.controller.checks.check_access import access_findings, closed_folder, file_findings
from slurm_hadar.controller.checks.check_folders import folder_findings, space_finding
from slurm_hadar.controller.checks.controller_user import controller_user

OTHER = pwd.getpwnam("daemon")


@pytest.fixture
def place():
    """A folder that all users can enter, unlike pytest's own."""
    with open_to_all() as folder:
        yield folder


def site(place, more="", rights="operator", exchange=None, named=None):
    me = named or pwd.getpwuid(os.getuid()).pw_name
    text = (
        f'[site]\nstate_dir = "{place}/state"\nexchange_dir = "{exchange or place / "exchange"}"\n'
        f'rights = "{rights}"\ncontroller_user = "{me}"\n{more}'
    )
    return parse(text, "test")


def made(folder, mode, owner=-1):
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    os.chown(folder, owner, -1)
    return folder


def of_folders(known):
    return list(folder_findings(known))


@pytest.fixture(autouse=True)
def no_default_sockets(monkeypatch, tmp_path):
    """Of a controller that is installed on this machine."""
    monkeypatch.setattr(schema, "_RUN", tmp_path / "none" / "hadar.sock")
    monkeypatch.setattr(schema, "_WEB", tmp_path / "none" / "web.sock")


def of_access(known):
    return list(access_findings(known, controller_user(known)))


def test_a_configuration_that_users_cannot_read_is_warned_of(place):
    path = place / "etc" / "hadar.toml"
    made(path.parent, 0o755)
    path.touch(0o640)
    (found,) = file_findings(site(place), path)
    assert found.level == "warning" and f"chmod o+r {path};" in found.cure
    # One researcher's own is for that researcher.
    assert list(file_findings(site(place, rights="user"), path)) == []
    path.chmod(0o644)
    assert list(file_findings(site(place), path)) == []
    path.parent.chmod(0o750)
    (found,) = file_findings(site(place), path)
    assert f"chmod o+x {path.parent};" in found.cure


def test_an_exchange_folder_inside_the_private_state_folder_is_a_problem(place):
    made(place / "state", 0o700)
    inside = made(place / "state" / "exchange", 0o1777)
    state, exchange = of_folders(site(place, exchange=inside))
    assert state.level == "ok" and exchange.level == "problem"
    assert f"is inside state folder {place}/state" in exchange.what
    assert "site.exchange_dir" in exchange.cure and "chmod" not in exchange.cure
    # One researcher's jobs are the controller's user's own.
    assert [one.level for one in of_folders(site(place, rights="user", exchange=inside))] == [
        "ok",
        "ok",
    ]


def test_a_closed_folder_above_the_exchange_folder_is_warned_of(place):
    made(place / "state", 0o700)
    made(place / "shared", 0o750)
    below = made(place / "shared" / "exchange", 0o1777)
    _, exchange = of_folders(site(place, exchange=below))
    assert exchange.level == "warning" and f"{place}/shared above it" in exchange.what
    (place / "shared").chmod(0o751)
    assert [one.level for one in of_folders(site(place, exchange=below))] == ["ok", "ok"]


def test_the_first_closed_folder_counts_behind_links(place):
    made(place / "closed", 0o700)
    made(place / "closed" / "in", 0o755)
    (place / "link").symlink_to(place / "closed" / "in")
    assert closed_folder(place / "link") == place / "closed"
    assert closed_folder(place) is None and closed_folder(place / "none") is None


def disk(**more):
    usual = {"f_blocks": 1000, "f_bavail": 500, "f_files": 9, "f_favail": 5, "f_frsize": 2**20}
    return SimpleNamespace(**{**usual, **more})


@pytest.mark.parametrize(
    ("of_disk", "level", "says"),
    [
        ({"f_bavail": 0}, "problem", "its disk is full"),
        ({"f_favail": 0}, "problem", "no inode left"),
        ({"f_bavail": 7}, "warning", "only 7 MiB left"),
        ({}, "", ""),
        ({"f_blocks": 0, "f_bavail": 0, "f_files": 0, "f_favail": 0}, "", ""),
    ],
)
def test_a_disk_without_space_is_named_with_its_folder(place, monkeypatch, of_disk, level, says):
    monkeypatch.setattr(os, "statvfs", lambda _: disk(**of_disk))
    made(place / "state", 0o700)
    made(place / "exchange", 0o1777)
    found = [one for one in of_folders(site(place)) if one.level != "ok"]
    assert [one.level for one in found] == ([level] * 2 if level else [])
    for which, one in zip(("state", "exchange"), found, strict=False):
        assert one.what.startswith(f"{which} folder {place}/{which}") and says in one.what
        assert f"df -h {place}/{which}" in one.cure and f"site.{which}_dir" in one.cure


def test_a_disk_that_cannot_be_asked_is_not_judged(place):
    assert space_finding("state", place / "none") is None


def test_a_stop_file_that_the_controller_cannot_look_for_is_a_problem(place):
    needs_root("it takes another user's rights")
    made(place / "closed", 0o700)
    known = site(place, f'[guards]\nstop_file = "{place}/closed/stop"\n', named=OTHER.pw_name)
    (found,) = of_access(known)
    assert found.level == "problem" and found.what.startswith("guards.stop_file: daemon cannot")
    assert "changes nothing" in found.what and found.cure
    (place / "closed").chmod(0o711)
    assert of_access(known) == []
    # The rights of a caller who is not the controller's user say nothing.
    (place / "closed").chmod(0o700)
    asks = replace(controller_user(known), is_controllers=False)
    assert list(access_findings(known, asks)) == []


def test_a_stop_file_that_exists_is_named_with_its_cure(place):
    stop = place / "to stop"
    known = site(place, f'[guards]\nstop_file = "{stop}"\n')
    assert of_access(known) == []
    stop.touch()
    (found,) = of_access(known)
    assert found.level == "warning" and "changes nothing" in found.what
    assert found.cure.startswith(f"rm '{stop}'")


def test_a_stop_file_whose_folder_is_missing_cannot_be_made_in_need(place):
    (found,) = of_access(site(place, f'[guards]\nstop_file = "{place}/none/stop"\n'))
    assert found.level == "warning" and f"folder {place}/none does not exist" in found.what
    assert f"install -d {place}/none" in found.cure
    assert of_access(site(place)) == [], "the default's folder is the package's"


@pytest.mark.parametrize("table", ["status", "web"])
def test_a_socket_where_users_or_the_controller_cannot_go(place, table):
    known = site(place, f'[{table}]\nsocket = "{place}/run/hadar.sock"\n')
    (missing,) = of_access(known)
    assert missing.level == "problem" and f"folder {place}/run does not exist" in missing.what
    made(place / "run", 0o700)
    (closed,) = of_access(known)
    assert closed.level == "problem" and closed.what.startswith(f"{table}.socket: users cannot")
    # The folder may be the private state folder.
    assert f"{place}/run" in closed.what and "chmod" not in closed.cure
    assert of_access(site(place, f'[{table}]\nsocket = "{place}/run/s"\n', rights="user")) == []
    (place / "run").chmod(0o755)
    assert of_access(known) == []


@pytest.mark.parametrize("table", ["status", "web"])
def test_a_socket_in_a_folder_that_the_controller_cannot_write(place, table):
    needs_root("it takes another user's rights")
    made(place / "run", 0o755)
    known = site(place, f'[{table}]\nsocket = "{place}/run/s"\n', named=OTHER.pw_name)
    (found,) = of_access(known)
    assert found.level == ("warning" if table == "web" else "problem")
    assert found.what == f"{table}.socket: daemon cannot make the socket in folder {place}/run"
    os.chown(place / "run", OTHER.pw_uid, -1)
    assert of_access(known) == []


def test_the_pages_socket_is_for_the_web_server_where_one_is_named(place):
    needs_root("it takes another user's rights")
    made(place / "run", 0o750)
    text = f'[web]\nsocket = "{place}/run/s"\nproxy_user = "{OTHER.pw_name}"\n'
    (found,) = of_access(site(place, text))
    assert "web.socket: daemon cannot enter folder" in found.what
    os.chown(place / "run", -1, OTHER.pw_gid)
    assert of_access(site(place, text)) == []


def test_no_socket_is_judged_that_is_not_made(place):
    assert of_access(site(place, f'[status]\nserve = false\nsocket = "{place}/none/s"\n')) == []


def test_hadar_check_says_it_though_slurm_does_not_answer(place):
    known = site(
        place,
        f'[slurm]\nbackend = "cli"\nbin_dir = "{place}/none"\n'
        f'[status]\nsocket = "{place}/none/s"\n',
    )
    assert any("status.socket: folder" in one.what for one in findings(known))


def test_a_socket_that_is_not_set_is_not_to_be_removed(place, monkeypatch):
    needs_root("the folder is another user's")
    monkeypatch.setattr(schema, "_RUN", made(place / "run", 0o755) / "hadar.sock")
    (found,) = of_access(site(place, named=OTHER.pw_name))
    assert found.what == f"status.socket: daemon cannot make the socket in folder {place}/run"
    assert "remove status.socket" not in found.cure
    assert f"install -d -m 0755 -o daemon {place}/run, as the units do" in found.cure
