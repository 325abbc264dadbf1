import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_hadar import config as configuration
from slurm_hadar.cli import main
from slurm_hadar.cli.common import check_writable, controller_of, reader_of
from slurm_hadar.domain.errors import HadarError, UsageError


def test_another_user_than_the_controllers_learns_whose_command_it_is(tmp_path):
    folder = Path("/usr")
    if os.getuid() == 0:
        folder = tmp_path / "state"
        folder.mkdir(mode=0o700)
        os.chown(folder, 65534, -1)
    site = configuration.parse(f'[site]\nstate_dir = "{folder}"\n', "here")
    with pytest.raises(HadarError) as caught, reader_of(site):
        pass
    said = str(caught.value)
    assert str(folder) in said and f"sudo -u {folder.owner()}" in said and "\n" not in said
    assert "set site.state_dir" not in said


def test_a_folder_that_may_not_be_entered_is_one_sentence(monkeypatch, capsys):
    def refused():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/closed/stop")

    monkeypatch.setattr(main, "app", refused)
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 1
    said = "hadar: this user has no access to /closed/stop: Permission denied\n"
    assert capsys.readouterr().err == said


def test_what_an_error_quotes_does_not_act_on_the_terminal(monkeypatch, capsys):
    def refused():
        raise HadarError("no account \x1b[2J\x1b]0;owned\x07\u202e of\r\nthis site")

    monkeypatch.setattr(main, "app", refused)
    with pytest.raises(SystemExit):
        main.main()
    said = capsys.readouterr().err
    assert said == "hadar: no account  [2J ]0;owned   of \nthis site\n"


def test_a_state_folder_that_was_closed_is_reported_with_its_cure():
    with tempfile.TemporaryDirectory(prefix="hadar-test-", dir="/tmp") as name:
        folder = Path(name) / "state"
        folder.mkdir(mode=0o000)
        Path(name).chmod(0o755)
        site = configuration.parse(f'[site]\nstate_dir = "{folder}"\n', "here")
        if os.getuid() != 0:
            said = _refused(site)
        else:
            # Root is no controller: whoever is one is somebody else.
            os.chown(folder, 65534, -1)
            said = _as_nobody(lambda: _refused(site))
    assert "chmod 700" in said


def _refused(site):
    with pytest.raises(HadarError) as caught, controller_of(site, 0.0):
        pass
    return str(caught.value)


def _as_nobody(tell):
    """What it says in a child of another user; "" where it fails."""
    end, start = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(65534)
            os.write(start, tell().encode())
        finally:
            os._exit(0)
    os.close(start)
    with os.fdopen(end) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_there_is_not_is_one_sentence(monkeypatch, capsys, port):
    monkeypatch.setattr(sys, "argv", ["hadar", "web", "--port", port])
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert caught.value.code == 2
    said = f"hadar: --port takes a number from 0 to 65535, not {port}\n"
    assert capsys.readouterr().err == said


PROGRAM = [sys.executable, "-m", "slurm_hadar.cli.main"]


@pytest.mark.parametrize("words", [["policies"], ["policies", "--json"], ["--help"]])
def test_a_full_disk_behind_the_output_is_one_sentence(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    said = "hadar: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("number", [1, 2])
def test_a_closed_output_is_no_error(number):
    done = subprocess.run(
        ["bash", "-c", f'"$@" {number}>&-', "bash", *PROGRAM, "simulate", "jobs", "mixed_60",
         "--policy", "fifo"], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_what_keeps_a_file_from_being_written_is_named(tmp_path):
    check_writable(None)
    check_writable(tmp_path / "new")
    with pytest.raises(UsageError, match=f"^{tmp_path} is a folder; name a file in it$"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match=f"there is no folder {tmp_path}/gone$"):
        check_writable(tmp_path / "gone" / "page")


def test_a_file_in_a_folder_of_another_user_may_be_ones_own(tmp_path, monkeypatch):
    """As /dev/stdout, where the folder is root's."""
    mine = tmp_path / "mine"
    mine.touch()
    monkeypatch.setattr(os, "access", lambda path, how: path == mine)
    check_writable(mine)
    with pytest.raises(UsageError, match="this user may not"):
        check_writable(tmp_path / "new")
