"""The package imports downward only, as pyproject.toml and docs/architecture.md say."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from mypy.main import define_options

ROOT = Path(__file__).resolve().parents[2]
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
SETTINGS = TOOLS["importlinter"]
STORES = ("controller/journal/", "profiles/")
"""Only these packages hold tables; all others call their named methods."""
SQL = re.compile(
    r"\b(SELECT\b.+\bFROM|INSERT (OR \w+ )?INTO|UPDATE \S+ SET|DELETE FROM|CREATE TABLE|WHERE \w+ ?"
    r"[=<>I(]|ORDER BY|PRAGMA|SAVEPOINT|BEGIN IMMEDIATE)",
    re.DOTALL,
)


FIRST = re.compile("SELECT|INSERT|UPDATE|DELETE|CREATE|WHERE|ORDER|PRAGMA|SAVEPOINT|BEGIN")
"""Each SQL has one of these: most modules have none, and need not be parsed."""


def sql_in(text):
    """Lines of the texts in a module that are SQL, or a clause of it."""
    if not FIRST.search(text):
        return []
    texts = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant))
    return sorted(n.lineno for n in texts if isinstance(n.value, str) and SQL.search(n.value))


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


def test_the_package_is_checked_by_all_that_mypy_calls_strict():
    """What is left out for tests is not left out for the package."""
    _, _, strict = define_options()
    (package,) = (one for one in TOOLS["mypy"]["overrides"] if "slurm_hadar.*" in one["module"])
    assert dict(strict).items() <= {**TOOLS["mypy"], **package}.items()
    assert package["strict_optional"]
    assert "disable_error_code" not in TOOLS["mypy"] | package


def test_the_architecture_names_the_packages_in_the_order_of_the_linter():
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("## The packages")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)/` \|", section, re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "slurm_hadar").glob("*/__init__.py")}
    layers = SETTINGS["contracts"][0]["layers"]
    assert named == [layer for layer in layers if layer in packages]
    assert set(named) == packages


def test_sql_stands_behind_named_methods_of_the_stores():
    found = {
        str(path): lines
        for path in (ROOT / "slurm_hadar").rglob("*.py")
        if not str(path.relative_to(ROOT / "slurm_hadar")).startswith(STORES)
        if (lines := sql_in(path.read_text()))
    }
    assert found == {}


def test_clauses_of_sql_are_found():
    text = 'store.entries(f"WHERE kind={kind}")\nstore.entries("WHERE job=?")\nx = "WHERE it is"'
    assert sql_in(text) == [1, 2]
    for name in ("controller/journal/store.py", "profiles/measured.py"):
        assert sql_in((ROOT / "slurm_hadar" / name).read_text())
