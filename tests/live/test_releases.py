"""docs/releases.md has all of the contract, and making a later Debian harms nothing."""

from pathlib import Path

import pytest

from benchmarks.releases import page
from benchmarks.releases.debian import Debian
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.sandbox import programs

REPORT = """<testsuites><testsuite>
<testcase name="test_a_job_moves[commands-path]"/>
<testcase name="test_of_two[commands-path-k80]"/><testcase name="test_of_two[commands-path-p100]"/>
<testcase name="test_both[commands-path]"><skipped message="one back end"/></testcase>
<testcase name="test_of_two[pyslurm-prefix-k80]"><failure message="no">no</failure></testcase>
<testcase name="test_of_two[commands-prefix-k80]"><skipped message="no second Slurm"/></testcase>
</testsuite></testsuites>"""
NAMES = {
    "commands-path": "1.2.3, commands",
    "commands-prefix": "4.5.6, commands",
    "pyslurm-prefix": "4.5.6, PySlurm",
}


def test_the_table_is_that_of_todays_contract() -> None:
    found = page.read(page.PAGE.read_text())
    assert {column[:5] for column in found} >= {"22.05", "24.11", "26.05"}
    assert any("PySlurm" in column for column in found)
    for column, cells in found.items():
        assert list(cells) == page.tests(), f"{column}: python -m benchmarks.releases --write"
        assert all(cell == "-" or cell.startswith("passed") for cell in cells.values()), column
        assert sum(cell != "-" for cell in cells.values()) > 30


@pytest.mark.live
def test_the_slurm_of_path_has_a_column() -> None:
    try:
        found = programs.find(None)
    except HadarError as error:
        pytest.skip(str(error))
    release = f"{found.release[0]}.{found.release[1]:02}"
    assert any(column.startswith(release) for column in page.read(page.PAGE.read_text()))


def test_columns_of_a_report() -> None:
    found = page.columns(REPORT, NAMES)
    assert found == {
        "1.2.3, commands": {"a job moves": "passed", "of two": "passed (2)", "both": "-"},
        "4.5.6, PySlurm": {"of two": "failed"},
    }


def test_new_columns_replace_those_of_their_name_only() -> None:
    first, second = page.tests()[:2]
    empty = f"before\n{page.BEGIN}\n{page.END}\nafter\n"
    one = page.written(empty, {"b": {first: "passed", second: "-"}})
    two = page.written(one, {"a": {first: "failed"}})
    assert one.startswith("before\n") and two.endswith("\nafter\n")
    read = page.read(two)
    assert list(read) == ["a", "b"]
    assert read["b"][first] == "passed" and read["a"][first] == "failed"
    assert read["a"][second] == read["b"][second] == "-"
    assert page.read(page.written(two, {"a": {first: "passed"}}))["a"][first] == "passed"


def test_a_folder_of_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="is not empty and was not made here"):
        Debian(tmp_path, page.ROOT).make("forky")
    assert (tmp_path / "mine").exists()


def test_a_folder_with_something_mounted_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.releases.debian._run", lambda *_: pytest.fail("it removes"))
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounted = {Path(line.split()[1]) for line in lines}
    below = next(path for path in sorted(mounted, reverse=True) if len(path.parts) > 2)
    with pytest.raises(HadarError, match="is mounted; unmount it"):
        Debian(below.parent, page.ROOT).remove()
