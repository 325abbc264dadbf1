"""The lock files and the SBOM belong to this pyproject.toml, and a wrong hash stops an install."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKED = ROOT / "packaging" / "locked"
ENTRY = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; [^\\]+?)? \\\n((?:    --hash=\S+.*\n?)+)")


def pins(name):
    """name -> (releases, hashes), of the whole file."""
    text = (LOCKED / name).read_text()
    entries = ENTRY.findall(text)
    # Nothing in it is without a hash.
    assert "".join(ENTRY.sub("", text).split()) == ""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for one, release, hashes in entries:
        found.setdefault(one.lower(), []).append(
            (release, re.findall("sha256:[0-9a-f]{64}", hashes))
        )
    return found


def declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ours, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    of_site = [*ours, *extras["controller"], *extras["plugins"], *extras["web"]]
    return of_site, project["build-system"]["requires"]


@pytest.mark.parametrize(("name", "which"), [("site.txt", 0), ("build.txt", 1)])
def test_what_we_ask_for_is_locked_within_its_bounds(name, which):
    locked = pins(name)
    assert all(hashes for entries in locked.values() for _, hashes in entries)
    for text in declared()[which]:
        wanted = Requirement(text)
        for release, _ in locked[wanted.name.lower()]:
            assert wanted.specifier.contains(release), f"run {LOCKED}/lock.py: {text}, {release}"


def test_each_library_that_we_ask_for_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    parts = ("controller", "plugins", "web", "top")
    asked = [*project["dependencies"], *(one for part in parts for one in extras[part])]
    names = {canonicalize_name(Requirement(text).name) for text in asked}
    text = "\n".join(path.read_text() for path in (ROOT / "slurm_hadar").rglob("*.py"))
    imported = set(re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE))
    found = packages_distributions()
    assert (
        names - {canonicalize_name(one) for name in imported for one in found.get(name, ())}
        == set()
    )


def test_the_sbom_is_that_of_the_lock():
    text = (LOCKED / "sbom.cdx.json").read_text()
    assert text == runpy.run_path(str(LOCKED / "lock.py"))["sbom"](), "run lock.py --sbom"
    found = json.loads(text)
    assert found["bomFormat"] == "CycloneDX"
    releases = {(name, one) for name, entries in pins("site.txt").items() for one, _ in entries}
    assert {(part["name"], part["version"]) for part in found["components"]} == releases


def test_a_package_that_is_not_the_locked_one_is_refused(tmp_path):
    """install.sh's own function, with a lock file whose hash is another."""
    wheel = tmp_path / "thing-1-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"thing @ {wheel.as_uri()} --hash=sha256:{'0' * 64}\n")
    script = (ROOT / "install.sh").read_text()
    functions = "\n".join(re.findall(r"^(?:say|die)\(\).*$", script, re.MULTILINE))
    functions += "\n" + re.search(r"^locked\(\) \{.*?^\}", script, re.MULTILINE | re.DOTALL)[0]
    done = subprocess.run(
        ["bash", "-c", f'{functions}\nlocked "$1" "$2"', "locked", Path(sys.prefix), lock],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert "--unlocked" in done.stderr
