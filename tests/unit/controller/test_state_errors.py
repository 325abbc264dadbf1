"""The cause in what is said of a state folder that cannot be used."""

import errno
import os
import pwd
import sqlite3
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand_made import config
from missing import needs_root

from slurm_hadar.cli import common
from slurm_hadar.controller.announcements import Announcements
from slurm_hadar.controller.journal import state_errors, store_file
from slurm_hadar.controller.journal.store import Store, make_private
from slurm_hadar.controller.lock import only_one
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.steering import Steering


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "its disk is full"),
        (errno.EDQUOT, "its disk is full"),
        (errno.EROFS, "its file system is read-only"),
        (errno.EACCES, "install -d -m 0700 -o"),
        (errno.ENOTDIR, "a file is in its place or above it"),
        (errno.EIO, "see its disk"),
    ],
)
def test_a_folder_that_cannot_be_made_or_locked(tmp_path, monkeypatch, number, says):
    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    folder = tmp_path / "state"
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", fails)
        with pytest.raises(HadarError, match=says):
            make_private(folder)
    make_private(folder)
    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(HadarError, match=says), only_one(folder, 0):
        pass


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, r"No space left on device\): its disk is full; free some space \(df /"),
        (errno.EROFS, r"its file system is read-only \(findmnt -T /"),
        (errno.ENOENT, r"the folder is gone; mount it, or run as root: install -d -m 1777 -o "),
        (errno.ENOTDIR, "a file is in its place or above it"),
        (errno.EACCES, r"it belongs to \S+; run as root: install -d -m 1777 -o \S+ /"),
        (errno.EIO, "see its disk"),
    ],
)
def test_a_heartbeat_that_cannot_be_written_comes_with_its_cause_and_cure(tmp_path, number, says):
    error = state_errors.heartbeat_error(tmp_path, OSError(number, os.strerror(number)))
    with pytest.raises(HadarError, match=says):
        raise error


def test_a_closed_folder_above_the_heartbeat_is_named(tmp_path):
    inside: Any = SimpleNamespace(stat=(tmp_path / "none").stat, parents=(tmp_path,))
    said = state_errors._exchange_cause(inside, PermissionError(errno.EACCES, "no"))
    assert said.endswith(f"enter the folders below {tmp_path}")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (sqlite3.SQLITE_FULL, "its disk is full"),
        (sqlite3.SQLITE_BUSY, "another process has it in use"),
        (sqlite3.SQLITE_LOCKED, "another process has it in use"),
        (sqlite3.SQLITE_IOERR, "full or failing"),
    ],
)
def test_an_error_of_sqlite_names_its_cause(tmp_path, code, says):
    error = sqlite3.OperationalError("some words")
    error.sqlite_errorcode = code
    said = str(store_file.state_file_error(error, tmp_path / "hadar.sqlite"))
    assert "cannot be used now (some words)" in said and says in said


@pytest.mark.parametrize(
    ("flag", "free", "says"),
    [(os.ST_RDONLY, 5, "its file system is read-only"), (0, 0, "its disk is full")],
)
def test_the_file_system_is_asked(tmp_path, monkeypatch, flag, free, says):
    found = SimpleNamespace(f_flag=flag, f_blocks=9, f_bavail=free)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    assert says in state_errors.file_cause(tmp_path / "hadar.sqlite", error)


def test_a_folder_in_place_of_the_file(tmp_path):
    make_private(tmp_path / "state")
    (tmp_path / "state" / "hadar.sqlite").mkdir()
    with pytest.raises(HadarError, match="it is no file"):
        Store.open(tmp_path / "state")


def test_a_file_in_use_by_another_process(tmp_path):
    store = Store.open(tmp_path / "state")
    other = sqlite3.connect(tmp_path / "state" / "hadar.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.connection.execute("PRAGMA busy_timeout=50")
    with pytest.raises(HadarError, match="another process has it in use"), store.readable_errors():
        store.begin("7", "move", "asked", 5.0, {})
    other.close()
    store.close()


def test_another_users_folder_and_file(tmp_path):
    needs_root("it gives files to another user")
    other = pwd.getpwnam("daemon")
    folder = tmp_path / "state"
    make_private(folder)
    os.chown(folder, other.pw_uid, -1)
    with pytest.raises(HadarError, match=f"not belong to root but to {other.pw_name}") as found:
        make_private(folder)
    assert "chown" not in str(found.value), "another user's controller may run there"
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    (folder / "hadar.sqlite").touch()
    os.chown(folder / "hadar.sqlite", other.pw_uid, -1)
    said = state_errors.file_cause(folder / "hadar.sqlite", error)
    assert f"it belongs to {other.pw_name}; set site.state_dir" in said and "chown" not in said


def test_a_folder_that_lost_its_mode_is_a_cause_with_a_cure(tmp_path):
    """As its own user, whom the mode binds: Path.exists() raises PermissionError there."""
    needs_root("it takes another user's rights")
    other = pwd.getpwnam("daemon")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        folder = Path(place) / "state"
        folder.mkdir(0o600)
        os.chown(folder, other.pw_uid, -1)
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        os.seteuid(other.pw_uid)
        try:
            said = str(store_file.state_file_error(error, folder / "hadar.sqlite"))
        finally:
            os.seteuid(0)
    assert f"chmod 700 {folder}" in said


def test_a_folder_that_was_given_to_another_user_is_not_called_removed(tmp_path, monkeypatch):
    def closed(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    store = Store.open(tmp_path / "state")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", closed)
        with pytest.raises(store_file.StateFileError) as found, store.readable_errors():
            pass
    assert "cannot be used (Permission denied)" in str(found.value)
    with store.readable_errors():
        store.begin("1", "hint", "sent", 1.0, {})
    store.close()


def test_who_has_the_folder_or_the_file_that_may_not_be_written_is_named(tmp_path):
    needs_root("it gives files to another user")
    other = pwd.getpwnam("daemon")
    os.chown(tmp_path, other.pw_uid, -1)
    lock = tmp_path / "lock"
    lock.touch()
    said = str(state_errors.folder_error(tmp_path, PermissionError(errno.EACCES, "no", str(lock))))
    assert said.endswith(
        f"root may not write {lock}; run as root: chown root {lock}; chmod 600 {lock}"
    )
    said = str(state_errors.folder_error(tmp_path, PermissionError(errno.EACCES, "no")))
    assert f"it belongs to {other.pw_name}; if root is to use it, run as root: install -d" in said


def test_a_state_file_that_lost_its_mode_is_written_at_once(tmp_path):
    """As its own user, whom the mode binds: SQLite would read only."""
    needs_root("it takes another user's rights")
    other = pwd.getpwnam("daemon")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chown(place, other.pw_uid, -1)
        path = Path(place) / "hadar.sqlite"
        os.seteuid(other.pw_uid)
        try:
            store_file.open_file(path).close()
            path.chmod(0o400)
            opened = store_file.open_file(path)
            opened.execute("CREATE TABLE written (job TEXT)")
            opened.close()
        finally:
            os.seteuid(0)


def test_a_read_only_file_system_has_its_own_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(HadarError, match="run: chmod 700"):
        common._writable(tmp_path)
    found = SimpleNamespace(f_flag=os.ST_RDONLY, f_blocks=9, f_bavail=9)
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    with pytest.raises(HadarError, match=r"its file system is read-only \(findmnt") as said:
        common._writable(tmp_path)
    assert "chmod" not in str(said.value)


def test_a_closed_folder_above_the_state_folder_is_no_traceback(tmp_path, monkeypatch):
    def closed(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    site = config(f'[site]\nrights = "user"\nstate_dir = "{tmp_path}/closed/state"\n')
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", closed)
        assert common.is_controllers_user(site)


@pytest.mark.parametrize(("steered", "says"), [(0, ""), (1, "1 job was"), (3, "3 jobs were")])
def test_a_new_folder_is_not_called_a_lost_one(tmp_path, steered, says):
    """An admin may have made it on purpose."""
    site = config(f'[site]\nstate_dir = "{tmp_path}/state"\n')
    store = Store.open(site.site.state_dir)
    ours = {str(number): Steering() for number in range(steered)}
    observation = Observation(now=1.0, jobs={}, nodes={}, partitions={}, steering=ours)
    said = Announcements(site, store, AccountingLimits(None, site)).of_cluster(observation)
    assert len(said) == bool(says) and all(says in one and "lost" not in one for one in said)
    assert all(str(site.site.state_dir) in one and "history begin anew" in one for one in said)
    store.close()


def test_a_standby_has_its_own_file_and_is_not_told_to_look_for_another(tmp_path):
    usual = state_errors.new_file_message(tmp_path, 1)
    assert "1 job was steered" in usual and "move it here" in usual
    standby = state_errors.new_file_message(tmp_path, 2, of_another_host=True)
    assert "2 jobs were steered" in standby and "move it here" not in standby
