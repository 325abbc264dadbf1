"""The tables of docs/releases.md: a row for each test, a column for each release and back end.

The second one says of what each column was made: digests of the contract and of the code that
talks to Slurm, so that a column that is older than these is known.
"""

import hashlib
import re
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "releases.md"
CONTRACT = ROOT / "tests" / "live" / "test_slurm_contract.py"
CODE = ROOT / "slurm_hadar" / "slurm"
RESULTS = ("<!-- table: python -m benchmarks.releases -->", "<!-- end of table -->")
MADE = ("<!-- made of: python -m benchmarks.releases -->", "<!-- end of made of -->")

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


def digest(*files: Path) -> str:
    """Of the lines of these files that are neither empty nor a comment."""
    found = hashlib.sha256()
    for file in sorted(files):
        bare = (line.strip() for line in file.read_text().splitlines())
        found.update("\n".join([file.name, *(x for x in bare if x and x[0] != "#")]).encode())
    return found.hexdigest()[:10]


def now() -> Column:
    """Of what a column that is made now is made."""
    argv = ["git", "-C", str(ROOT), "rev-parse", "--short=9", "HEAD"]
    try:
        commit = subprocess.run(argv, capture_output=True, text=True).stdout.strip()
    except OSError:
        commit = ""
    return {
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "on top of commit": commit or "unknown",
        "contract": digest(CONTRACT),
        "code": digest(*CODE.glob("*.py")),
    }


def older(text: str, what: str) -> list[str]:
    """The columns of a page whose ``contract`` or ``code`` was another than today's."""
    made, today = read(text, MADE), now()[what]
    return [column for column in read(text) if made.get(column, {}).get(what) != today]


def read(text: str, marks: tuple[str, str] = RESULTS) -> dict[str, Column]:
    """The columns that a page has between these marks."""
    table = text.partition(marks[0])[2].partition(marks[1])[0]
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


def written(text: str, new: Mapping[str, Column], today: Column) -> str:
    """The page with the columns of ``new``, made of ``today``, in place of those of the same name,
    in order."""
    text = _with(text, RESULTS, "test", tests(), {**read(text), **new})
    made = {**read(text, MADE), **dict.fromkeys(new, today)}
    return _with(text, MADE, "made of", list(today), made)


def _with(
    text: str, marks: tuple[str, str], corner: str, rows: list[str], columns: Mapping[str, Column]
) -> str:
    names = sorted(columns)
    lines = [f"| {corner} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [
        f"| {row} | " + " | ".join(columns[name].get(row, "-") for name in names) + " |"
        for row in rows
    ]
    before, _, rest = text.partition(marks[0])
    _, _, after = rest.partition(marks[1])
    return "\n".join([before + marks[0], *lines, marks[1] + after])
