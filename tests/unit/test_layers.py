"""The package imports downward only, as pyproject.toml and docs/architecture.md say."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def lint(folder):
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_no_import_goes_upward_or_in_a_circle():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


def test_an_import_upward_is_found(tmp_path):
    copy = tmp_path / "slurm_hadar"
    shutil.copytree(ROOT / "slurm_hadar", copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "domain" / "errors.py").open("a") as file:
        file.write("\n\ndef late() -> None:\n    import slurm_hadar.slurm.cluster\n")
    with (copy / "controller" / "journal" / "entry.py").open("a") as file:
        file.write("\n\ndef late() -> None:\n    import slurm_hadar.runtime.meter\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert "domain is not allowed to import slurm_hadar.slurm" in done.stdout
    assert "controller is not allowed to import slurm_hadar.runtime" in done.stdout


def test_the_architecture_names_the_packages_in_the_order_of_the_linter():
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("## The packages")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)/` \|", section, re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "slurm_hadar").glob("*/__init__.py")}
    layers = SETTINGS["contracts"][0]["layers"]
    assert named == [layer for layer in layers if layer in packages]
    assert set(named) == packages
