"""The order in which tests are handed to pytest's processes."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import sharing
from sharing import Sharing, begins_with_unit_tests, longest
from slow_tests import functions_of

ROOT = Path(__file__).resolve().parents[2]
LONG, LONGER = "tests/live/test_e.py::*long*", "tests/live/test_d.py"
TESTS = [
    "tests/live/test_c.py::test_one",
    "tests/live/test_c.py::test_two",
    "tests/live/test_d.py::test_three[a::b]",
    "tests/live/test_e.py::test_long[1]",
    "tests/live/test_e.py::test_long[2]",
    "tests/live/test_e.py::test_short",
    "tests/unit/test_a.py::test_one",
    "tests/unit/test_b.py::test_one",
    "tests/unit/test_c.py::test_one",
]


class Node:
    """A process of xdist that keeps what it is sent."""

    def __init__(self, number):
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down, self.sent = False, []

    def send_runtest_some(self, indices):
        self.sent += [TESTS[index] for index in indices]

    def shutdown(self):
        self.shutting_down = True


@pytest.fixture
def shared(monkeypatch, pytestconfig):
    """Three processes that were handed their first tests."""
    monkeypatch.setattr(sharing, "longest", lambda: [LONGER, LONG])
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda config: [0, 1, 2])
    made, nodes = Sharing(pytestconfig), [Node(number) for number in range(3)]
    for node in nodes:
        made.add_node(node)
    for node in nodes:
        made.add_node_collection(node, TESTS)
    made.schedule()
    return made, nodes


def test_one_begins_with_unit_tests_and_the_others_with_what_takes_longest(shared):
    _, (first, second, third) = shared
    assert first.sent == TESTS[6:8]
    # Behind a long one stands a unit test that is short; short live tests come last.
    assert second.sent == [TESTS[2], TESTS[8]]
    assert third.sent == TESTS[3:5]


def test_what_is_left_goes_to_the_first_that_is_free_and_all_is_handed_out_once(shared):
    made, nodes = shared
    done = dict.fromkeys(nodes, 0)
    while made.has_pending:
        for node in nodes:
            if done[node] < len(node.sent):
                made.mark_test_complete(node, TESTS.index(node.sent[done[node]]))
                done[node] += 1
    assert sorted(test for node in nodes for test in node.sent) == sorted(TESTS)
    assert all(node.shutting_down for node in nodes)


@pytest.mark.parametrize(("count", "first"), [(1, 0), (2, 0), (3, 1), (6, 2)])
def test_a_third_of_the_processes_begins_with_unit_tests(count, first):
    assert [begins_with_unit_tests(f"gw{n}", count) for n in range(count)].count(True) == first


def test_the_list_names_what_there_is_each_once():
    names = longest()
    assert names and len(set(names)) == len(names)
    for name in names:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert not function or "*" in function or function.partition("[")[0] in functions_of(path)


def test_pytest_shares_out_in_this_order(tmp_path):
    """As install.sh calls it: files stay together, and all tests run."""
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text(
            "import os\ndef test_one():\n    print(os.environ['PYTEST_XDIST_WORKER'])\n"
            "test_two = test_one\n"
        )
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n2", "--dist", "loadfile", "-rP", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout + done.stderr
