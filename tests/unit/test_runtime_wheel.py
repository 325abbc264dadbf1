"""The distribution of the runtime alone: what it holds, with which Pythons, and without Slurm."""

import ast
import email
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "packaging" / "runtime"
SESSION = ROOT / "tests" / "unit" / "runtime" / "own_loop_session.py"
OTHERS = ("3.10", "3.12", "3.13", "3.14")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtime")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=RUNTIME, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def imports_of(path):
    """Modules of ours that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slurm_hadar"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("slurm_hadar"))


def file_of(module):
    path = ROOT / module.replace(".", "/")
    for one in (path / "__init__.py", path.with_suffix(".py")):
        if one.is_file():
            return one
    return None


def test_it_holds_all_that_the_runtime_imports_and_nothing_else_of_ours(wheel):
    packages = [ROOT / "slurm_hadar" / name for name in ("runtime", "exchange")]
    left = [path for package in packages for path in package.rglob("*.py")]
    needed = {ROOT / "slurm_hadar" / "__init__.py", ROOT / "slurm_hadar" / "domain" / "__init__.py"}
    while left:
        path = left.pop()
        needed.add(path)
        found = {file_of(module) for module in imports_of(path)} - {None}
        left += found - needed
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {path.relative_to(ROOT).as_posix() for path in needed}


def test_it_needs_torch_and_numpy_alone_and_is_of_this_release(wheel):
    with zipfile.ZipFile(wheel) as files:
        (name,) = (one for one in files.namelist() if one.endswith("/METADATA"))
        metadata = email.message_from_bytes(files.read(name))
    assert metadata["Requires-Python"] == ">=3.10"
    assert {line.partition(">")[0] for line in metadata.get_all("Requires-Dist")} == {
        "numpy",
        "torch",
    }
    assert metadata["Version"] in (ROOT / "slurm_hadar" / "__init__.py").read_text()


def test_its_syntax_is_that_of_the_oldest_python(installed):
    for path in installed.rglob("*.py"):
        ast.parse(path.read_text(), str(path), feature_version=(3, 10))


def python(release):
    """This release of Python, where the machine has it."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    at = [*pyenv.glob(f"{release}.*/bin/python"), Path(f"/usr/bin/python{release}")]
    found = next((path for path in at if path.exists()), None)
    if found is None:
        pytest.skip(f"there is no Python {release}")
    return found


ALONE = """
import os, sys, time
from slurm_hadar.runtime import scalar_files, signals, watch
from slurm_hadar.exchange import heartbeat, job_side, plan_file
watch.run([], iter([True] * 3 + [False]).__next__, os.getpid())
"""


@pytest.mark.parametrize("release", OTHERS)
def test_what_needs_no_torch_runs_with_other_pythons_without_any_library(
    installed, tmp_path, release
):
    interpreter = python(release)
    (tmp_path / "exchange").mkdir()
    (tmp_path / "out").write_text("")
    env = {
        "PYTHONPATH": str(installed),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HADAR_EXCHANGE": str(tmp_path / "exchange"),
        "HADAR_PROGRESS": "step={step*2}",
        "SLURM_JOB_ID": "7",
    }
    # -S: without what is installed for it.
    command = [interpreter, "-S", "-W", "error", "-c", ALONE]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert [path.name for path in (tmp_path / "exchange").iterdir()] == ["progress.7.0.json"]
    # Each module compiles, also those that need torch.
    words = ["-m", "compileall", "-q", str(installed / "slurm_hadar")]
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "cache")
    assert subprocess.run([interpreter, "-S", *words], env=env).returncode == 0


@pytest.mark.timeout(600)
def test_in_a_container_without_slurms_commands_a_training_saves_leaves_and_resumes(
    installed, tmp_path
):
    pytest.importorskip("torch")
    (tmp_path / "exchange").mkdir()
    env = {
        "PATH": str(tmp_path / "no-commands"),
        "PYTHONPATH": str(installed),
        "HADAR_EXCHANGE": str(tmp_path / "exchange"),
        "HADAR_PAUSE_S": "0",
        "SLURM_JOB_ID": "7",
    }

    def attempt(restarts, pace):
        words = [sys.executable, str(SESSION), "--epochs", "2", "--pace", str(pace)]
        return subprocess.Popen(
            words,
            cwd=tmp_path,
            env={**env, "SLURM_RESTART_COUNT": str(restarts)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with attempt(0, 1) as first:
        lines = [first.stdout.readline() for _ in range(2)]
        first.send_signal(signal.SIGTERM)
        rest, errors = first.communicate(timeout=280)
    assert first.returncode == 143, errors
    lines += rest.splitlines(keepends=True)
    with attempt(1, 0) as second:
        more, errors = second.communicate(timeout=280)
    assert second.returncode == 0 and "resumed at" in errors, errors
    lines += more.splitlines(keepends=True)
    assert len([line for line in lines if line.startswith("read 0 ")]) == 13
    assert len(set(lines)) == len(lines) == 28
    assert [path.name for path in (tmp_path / "exchange").iterdir()] == ["progress.7.0.json"]
