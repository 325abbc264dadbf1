"""docs/releases.md has all of the contract, and making a later Debian harms nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from slurms import need

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
EMPTY = "\n".join(["before", *page.RESULTS, "between", *page.MADE, "after\n"])
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
        both = cells["both back ends see the same"]
        assert both == ("passed" if "PySlurm" in column else "-"), column


def test_no_column_is_older_than_the_contract() -> None:
    again = "python -m benchmarks.releases --write, and once more with --suite for the last column"
    assert page.older(page.PAGE.read_text(), "contract") == [], again


def test_a_column_that_is_older_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contract = tmp_path / "test_slurm_contract.py"
    contract.write_text(page.CONTRACT.read_text())
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(page, "CONTRACT", contract)
    monkeypatch.setattr(page, "CODE", tmp_path / "code")
    one = page.written(EMPTY, {"old": {}}, page.now())
    with contract.open("a") as more:
        more.write("\n# A remark changes nothing.\n")
    assert page.older(one, "contract") == page.older(one, "code") == []
    with contract.open("a") as more:
        more.write("def test_more() -> None: ...\n")
    assert page.older(one, "contract") == ["old"] and page.older(one, "code") == []
    two = page.written(one, {"new": {}}, page.now())
    assert page.older(two, "contract") == ["old"]
    (tmp_path / "code" / "jobs.py").write_text("answer = 42\n")
    assert page.older(two, "code") == ["new", "old"]


@pytest.mark.live
def test_the_slurm_of_path_has_a_column() -> None:
    need(None)
    found = programs.find(None)
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
    one = page.written(EMPTY, {"b": {first: "passed", second: "-"}}, {})
    two = page.written(one, {"a": {first: "failed"}}, {})
    assert one.startswith("before\n") and two.endswith("\nafter\n")
    read = page.read(two)
    assert list(read) == ["a", "b"]
    assert read["b"][first] == "passed" and read["a"][first] == "failed"
    assert read["a"][second] == read["b"][second] == "-"
    assert page.read(page.written(two, {"a": {first: "passed"}}, {}))["a"][first] == "passed"


def test_a_folder_of_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError, match="is not empty and was not made here"):
        Debian(tmp_path, page.ROOT).make("forky")
    assert (tmp_path / "mine").exists()


def test_it_trusts_whom_this_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, folder = tmp_path / "etc", tmp_path / "forky"
    (here / "ssl/certs").mkdir(parents=True)
    (here / "ssl/certs/ca-certificates.crt").write_text("ours")
    trusted = folder / "etc/ssl/certs/ca-certificates.crt"
    seen_by_pip = []

    def run(argv: Sequence[str], *_: object) -> str:
        if argv[0] == "debootstrap":
            (folder / "usr/sbin").mkdir(parents=True)
        elif "ca-certificates" in argv:
            trusted.write_text("Debian's")
        elif "pip" in argv:
            seen_by_pip.append(trusted.read_text())
        return "http://mirror"

    monkeypatch.setattr("benchmarks.releases.debian._ETC", here)
    monkeypatch.setattr("benchmarks.releases.debian._run", run)
    Debian(folder, page.ROOT).make("forky")
    assert seen_by_pip == ["ours"]


def test_a_folder_with_something_mounted_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.releases.debian._run", lambda *_: pytest.fail("it removes"))
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounted = {Path(line.split()[1]) for line in lines}
    below = next(path for path in sorted(mounted, reverse=True) if len(path.parts) > 2)
    with pytest.raises(HadarError, match="is mounted; unmount it"):
        Debian(below.parent, page.ROOT).remove()
