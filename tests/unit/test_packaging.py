"""The files for systemd and cron, as systemd's own tools see them."""

import configparser
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from click import Context
from missing import needs_root
from typer.main import get_command

from slurm_hadar.cli.main import app
from slurm_hadar.plugins import install

FILES = sorted((Path(__file__).resolve().parents[2] / "packaging").iterdir())
UNITS = [path for path in FILES if path.suffix in (".service", ".timer")]
EARLIER = {"run", "tick --wait 0", "widen"}
"""Commands in the units and the crontab of releases before this one."""
IN_FILES = {
    found.strip()
    for path in FILES
    if path.suffix in (".service", ".cron")
    for found in re.findall(r"@PREFIX@/bin/hadar ([^\n>]+)", path.read_text())
}


def filled(path, prefix):
    return path.read_text().replace("@PREFIX@", str(prefix)).replace("@EXCHANGE@", "/tmp")


def ran(*argv):
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed; it is what checks these files")
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_systemd_finds_no_fault_with_the_units(tmp_path):
    program = tmp_path / "bin" / "hadar"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in UNITS:
        (tmp_path / path.name).write_text(filled(path, tmp_path))
    done = ran("systemd-analyze", "verify", *(str(tmp_path / path.name) for path in UNITS))
    ours = [line for line in done.stderr.splitlines() if "slurm-hadar" in line]
    assert not ours and done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "path", [path for path in UNITS if path.suffix == ".service"], ids=lambda path: path.stem
)
def test_a_service_has_no_rights(path, monkeypatch):
    unit = configparser.ConfigParser(strict=False)
    monkeypatch.setattr(unit, "optionxform", str)
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert service["User"] == "hadar"
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == ""
    assert service["PrivateTmp"] == "yes" and "MemoryMax" in service
    if path.stem == "slurm-hadar-alerts":
        # A mail program with a set-group-ID queues its message below /var/spool.
        assert "NoNewPrivileges" not in service and service["ProtectSystem"] == "full"
    else:
        assert service["NoNewPrivileges"] == "yes" and service["ProtectSystem"] == "strict"
    assert service["ExecStart"].startswith("@PREFIX@/bin/hadar ")
    # What it may write is mounted first.
    assert unit["Unit"].get("RequiresMountsFor") == service.get("ReadWritePaths")


@pytest.mark.parametrize("words", sorted(EARLIER | IN_FILES))
def test_the_units_of_this_release_and_of_earlier_ones_start_it(words):
    """An upgrade of the package leaves an admin's own copies of the units as they are."""
    program: Any = get_command(app)
    rest = words.split()
    name, command, rest = program.resolve_command(Context(program), rest)
    assert command is not None, name
    command.make_context(name, rest)


def test_user_and_folders(tmp_path):
    needs_root("it creates users below another root folder")
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", tmp_path / "etc")
    for name in ("sysusers", "tmpfiles"):
        path = next(path for path in FILES if path.suffix == f".{name}")
        (tmp_path / f"{name}.conf").write_text(filled(path, tmp_path).replace("/tmp ", "/ex "))
    made = ran("systemd-sysusers", f"--root={tmp_path}", str(tmp_path / "sysusers.conf"))
    assert made.returncode == 0, made.stderr
    line = next(x for x in (tmp_path / "etc/passwd").read_text().splitlines() if "hadar" in x)
    uid = int(line.split(":")[2])
    made = ran(
        "systemd-tmpfiles", f"--root={tmp_path}", "--create", str(tmp_path / "tmpfiles.conf")
    )
    assert made.returncode == 0, made.stderr
    state, exchange = (tmp_path / "var/lib/slurm-hadar").stat(), (tmp_path / "ex").stat()
    assert (state.st_mode & 0o7777, state.st_uid) == (0o700, uid)
    assert (exchange.st_mode & 0o7777, exchange.st_uid) == (0o1777, uid)


def uninstall(folder, *words):
    shutil.copy(FILES[0].parents[1] / "install.sh", folder)
    return subprocess.run(
        ["./install.sh", "uninstall", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("words", [("--prefix",), ("--prefix", ""), ("--prefix=",)])
def test_an_uninstall_without_a_folder_removes_nothing(tmp_path, words):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".hadar-0123-demo").touch()
    assert uninstall(tmp_path, *words).returncode == 2
    assert (tmp_path / ".venv").is_dir()


def test_only_an_environment_that_we_made_is_removed(tmp_path):
    venv = tmp_path / ".venv"
    venv.mkdir()
    (venv / "mine").touch()
    done = uninstall(tmp_path)
    assert done.returncode == 1 and "was not made by" in done.stderr and (venv / "mine").exists()
    (venv / ".hadar-0123-test").touch()
    assert uninstall(tmp_path).returncode == 0 and not venv.exists()
    assert uninstall(tmp_path).returncode == 0


def test_its_help_is_shown_from_any_folder(tmp_path):
    (tmp_path / "clone").mkdir()
    shutil.copy(FILES[0].parents[1] / "install.sh", tmp_path / "clone")
    words = ["clone/install.sh", "--help"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "./install.sh demo" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("sites",), ("site", "--prefx", "/opt"), ("uninstall", "--all")]
)
def test_an_argument_that_it_does_not_know_is_named(arguments):
    done = subprocess.run(
        [FILES[0].parents[1] / "install.sh", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    unknown = next(one for one in arguments if one not in ("site", "uninstall"))
    assert done.returncode == 2 and f"unknown argument: {unknown}\n" in done.stderr


def test_a_folder_that_other_users_cannot_enter_is_named(tmp_path):
    """install.sh's own function."""
    needs_root("it looks at what root installs for other users")
    script = (FILES[0].parents[1] / "install.sh").read_text()
    functions = re.search(r"^say\(\).*$", script, re.MULTILINE)[0]
    functions += "\n" + re.search(r"^reachable\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)[0]
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)

    def said():
        argv = ["bash", "-c", f'{functions}\nreachable "$1"', "reachable", closed / "bin"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        return [line for line in done.stderr.splitlines() if str(closed) in line]

    closed.chmod(0o755)
    (closed / "bin").chmod(0o755)
    assert not said()
    closed.chmod(0o700)
    (line,) = said()
    assert f"cannot enter {closed}," in line and f"chmod o+x {closed}," in line


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """What 'install.sh site' makes, as far as 'uninstall' looks at it."""
    found = tmp_path / "opt"
    (found / "venv" / "bin").mkdir(parents=True)
    (found / "share" / "slurm-hadar").mkdir(parents=True)
    program = found / "venv" / "bin" / "hadar"
    program.write_text(f'#!/bin/sh\nexec {sysconfig.get_path("scripts")}/hadar "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(found / "venv"))
    return found


def test_it_is_not_removed_while_a_slurm_conf_has_its_plugins(tmp_path, prefix):
    conf = tmp_path / "site" / "slurm.conf"
    conf.parent.mkdir()
    conf.write_text("ClusterName=c\n")
    toml = tmp_path / "hadar.toml"
    toml.write_text(f'[site]\nexchange_dir = "{tmp_path}"\n[gpu_types.v100]\nmemory_gb = 16\n')
    add = ["install", "--config", str(toml), "--plugin", "task-prolog", "--apply"]
    of = ["--slurm-conf", str(conf)]
    command = get_command(app)
    command.main(["plugins", *add, *of], standalone_mode=False)
    assert "TaskProlog=" in conf.read_text()
    done = uninstall(tmp_path, "--prefix", str(prefix), "--keep-jobs")
    assert done.returncode == 1 and f"plugins remove --slurm-conf {conf}" in done.stderr
    assert prefix.exists()
    for _ in range(2):
        command.main(["plugins", "remove", "--apply", *of], standalone_mode=False)
    done = uninstall(tmp_path, "--prefix", str(prefix), "--keep-jobs")
    assert done.returncode == 0 and not prefix.exists(), done.stderr


def test_a_slurm_conf_that_cannot_be_recorded_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "a-file"))
    (tmp_path / "a-file").touch()
    message = install.note_installation(Path("/etc/x.conf"))
    assert "uninstall will not know of /etc/x.conf" in message


def test_the_sites_own_folders_are_listed_as_left(tmp_path, prefix, monkeypatch):
    toml = tmp_path / "hadar.toml"
    toml.write_text(f'[site]\nstate_dir = "{tmp_path}/st" # x\nexchange_dir = "{tmp_path}/ex"\n')
    (tmp_path / "ex").mkdir()
    monkeypatch.setenv("HADAR_CONFIG", str(toml))
    done = uninstall(tmp_path, "--prefix", str(prefix), "--keep-jobs")
    assert done.returncode == 0 and f"{tmp_path}/ex" in done.stdout + done.stderr
    assert f"{tmp_path}/st" not in done.stdout + done.stderr, "it is not there"


def test_it_is_not_removed_while_its_programs_run(tmp_path, prefix):
    daemon = subprocess.Popen(
        [f"{prefix}/venv/bin/python", "60"], executable=shutil.which("sleep"), cwd=tmp_path
    )
    try:
        done = uninstall(tmp_path, "--prefix", str(prefix), "--keep-jobs")
        assert done.returncode == 1 and prefix.exists()
        assert f"process {daemon.pid} ({prefix}/venv/bin/python 60)" in done.stderr
        done = uninstall(tmp_path, "--prefix", str(prefix), "--keep-jobs", "--keep-running")
        assert done.returncode == 0 and not prefix.exists()
    finally:
        daemon.kill()
        daemon.wait()
