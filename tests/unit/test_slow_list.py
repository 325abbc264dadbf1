"""The lists of slow tests name what there is, and slow.txt leaves out no other test."""

import re
from pathlib import Path

from slow_tests import LIST, functions_of, listed, option

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_names_tests_that_there_are_each_once_and_in_order():
    assert LIST.read_text().splitlines() == [option(name) for name in listed()]
    assert listed() == sorted(set(listed()))
    for name in listed():
        path, _, function = name.partition("::")
        assert not function or function in functions_of(path), name


def test_no_name_of_the_list_begins_another_one():
    """pytest leaves out all tests whose name begins with one that is given."""
    names = set(listed())
    for name in names:
        path, _, function = name.partition("::")
        if function:
            others = [one for one in functions_of(path) if one.startswith(function)]
            assert all(f"{path}::{one}" in names for one in others), name


def test_contributing_names_ten_slow_tests_that_there_are():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"^\| `(tests/[\w/.]+)::(\w+)` \|", page, re.MULTILINE)
    assert len(set(named)) == 10
    assert all(function in functions_of(path) for path, function in named)
