"""An exchange folder that is a link, holds other files, or belongs to another user."""

import errno
import os

import pytest
from hand_made import NOW, config

from slurm_hadar.controller.checks.check_folders import exchange_finding
from slurm_hadar.controller.journal import state_errors
from slurm_hadar.controller.observation.exchange_folder import ExchangeFolder

ELSEWHERE = "so set site.exchange_dir to a folder of its own"


def site(folder, rights="operator"):
    return config(f'[site]\nrights = "{rights}"\nexchange_dir = "{folder}"\n')


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "exchange"
    found.mkdir()
    found.chmod(0o755)
    return found


def cures(folder):
    """What the check and a failed write of the tick say to do."""
    failed = state_errors._exchange_cause(folder, PermissionError(errno.EACCES, "no"))
    return exchange_finding(site(folder), folder).cure, failed


def test_a_folder_of_its_own_is_opened(folder):
    (folder / "steer.1.json").touch()
    (folder / "heartbeat.json").touch()
    check, failed = cures(folder)
    assert check == f"chmod 1777 {folder}" and "install -d -m 1777" in failed


def test_a_folder_with_other_files_is_not_opened(folder):
    (folder / "passwd").touch()
    for cure in cures(folder):
        assert cure.endswith(f"{folder} holds other files ('passwd'), {ELSEWHERE}")


def test_what_a_link_names_is_not_opened(tmp_path, folder):
    for name, target in (("link", folder), ("none", tmp_path / "away")):
        link = tmp_path / name
        link.symlink_to(target)
        for cure in cures(link):
            # The write says of a link to nothing that the folder cannot be reached.
            if not cure.startswith("let "):
                assert cure.endswith(f"{link} is a symbolic link, {ELSEWHERE}")
    gone = state_errors._exchange_cause(link, FileNotFoundError(errno.ENOENT, "no"))
    assert gone == f"{link} is a symbolic link, {ELSEWHERE}"


@pytest.mark.skipif(os.geteuid() != 0, reason="it needs a folder of another user")
@pytest.mark.parametrize("rights", ["user", "operator"])
def test_a_folder_of_another_user_is_named_by_the_check_and_once_an_hour_by_the_tick(
    folder, rights
):
    folder.chmod(0o1777)
    (folder / "heartbeat.json").touch()
    watched = ExchangeFolder(folder)
    watched.read(())
    assert watched.tidy((), NOW) == []
    assert exchange_finding(site(folder, rights), folder).level == "ok"
    os.chown(folder, 65534, -1)
    found = exchange_finding(site(folder, rights), folder)
    assert found.level == "problem" and f"{folder} belongs to nobody" in found.what
    (said,) = watched.tidy((), NOW)
    assert said.startswith(f"exchange folder {folder} belongs to nobody, who can replace")
    assert watched.tidy((), NOW + 60) == [] and len(watched.tidy((), NOW + 3601)) == 1
