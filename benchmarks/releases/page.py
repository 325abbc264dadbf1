"""The table of docs/releases.md: a row for each test, a column for each release and back end."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "releases.md"
CONTRACT = ROOT / "tests" / "live" / "test_slurm_contract.py"
BEGIN, END = "<!-- table: python -m benchmarks.releases -->", "<!-- end of table -->"

Column = Mapping[str, str]
"""Test in words -> ``passed``, ``passed (3)``, ``failed`` or ``-`` (nothing to test there)."""


def in_words(name: str) -> str:
    """``test_a_job_moves`` as ``a job moves``."""
    return name.removeprefix("test_").replace("_", " ")


def tests() -> list[str]:
    """The tests of the contract in words, in their order."""
    return [in_words(name) for name in re.findall(r"^def (test_\w+)", CONTRACT.read_text(), re.M)]


def columns(report: str, names: Mapping[str, str]) -> dict[str, Column]:
    """Columns of a JUnit report of the contract. ``names``: id of the fixture -> its column."""
    found: dict[str, dict[str, Counter[str]]] = {column: {} for column in names.values()}
    for case in ElementTree.fromstring(report).iter("testcase"):
        test, _, parameters = case.get("name", "").partition("[")
        column = next((names[id_] for id_ in names if id_ in parameters), None)
        if column is None:
            continue
        ending = next((child.tag for child in case if child.tag != "system-out"), "passed")
        found[column].setdefault(in_words(test), Counter())[ending] += 1
    return {
        column: {test: _cell(endings) for test, endings in cells.items()}
        for column, cells in found.items()
        if any(set(endings) != {"skipped"} for endings in cells.values())
    }


def _cell(endings: Counter[str]) -> str:
    if endings["failure"] or endings["error"]:
        return "failed"
    if not endings["passed"]:
        return "-"
    return "passed" if endings["passed"] == 1 else f"passed ({endings['passed']})"


def read(text: str) -> dict[str, Column]:
    """The columns that a page has."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|") and not line.startswith("|-")
    ]
    if not rows:
        return {}
    return {
        column: {row[0]: row[at] for row in rows[1:]} for at, column in enumerate(rows[0]) if at
    }


def written(text: str, new: Mapping[str, Column]) -> str:
    """The page with the columns of ``new`` in place of those of the same name, in order."""
    both = {**read(text), **new}
    names = sorted(both)
    lines = ["| test | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {test} | " + " | ".join(both[name].get(test, "-") for name in names) + " |"
        for test in tests()
    ]
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *lines, END + after])
