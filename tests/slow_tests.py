"""Which unit tests ``./install.sh check`` leaves out: tests/unit/slow.txt, from measured times.

``python -m pytest tests/unit -n 2 --junitxml=unit.xml`` measures all of them;
``python tests/slow_tests.py unit.xml >tests/unit/slow.txt`` takes the test functions whose calls
together took LEAST_S or more. A file of which half the functions do is left out as a whole, since
its fixtures take the time, and so is one of WHOLE.
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

LEAST_S = 1.0
WHOLE = {
    # They import Lightning or transformers, which the first test of a process pays for.
    "tests/unit/runtime/test_checkpoint_trials.py",
    "tests/unit/runtime/test_framework_loop.py",
    "tests/unit/runtime/test_leaving_between_iterations.py",
    # It builds the site.
    "tests/unit/test_docs_site.py",
}
ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "unit" / "slow.txt"


def listed() -> list[str]:
    """Files and test functions of the list, as pytest names them."""
    return [line.partition("=")[2] for line in LIST.read_text().splitlines()]


@cache
def functions_of(path: str) -> list[str]:
    """Names of the functions of a test file, which is named from the repository's root on."""
    tree = ast.parse((ROOT / path).read_text())
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def option(name: str) -> str:
    """What leaves a file or a test function out. A file is not even read, so that what it imports
    costs nothing."""
    return f"--{'deselect' if '::' in name else 'ignore'}={name}"


def _slow(times: Mapping[str, float]) -> list[str]:
    """``times``: of each test function, s."""
    slow = {name for name, seconds in times.items() if seconds >= LEAST_S}
    functions = Counter(name.partition("::")[0] for name in times)
    many = Counter(name.partition("::")[0] for name in slow)
    whole = WHOLE | {path for path, count in many.items() if 2 * count >= functions[path]}
    return sorted(whole | {name for name in slow if name.partition("::")[0] not in whole})


def main() -> None:
    """Print the list."""
    times: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(sys.argv[1]).getroot().iter("testcase"):
        path = case.get("classname", "").replace(".", "/") + ".py"
        name = case.get("name", "").partition("[")[0]
        times[f"{path}::{name}"] += float(case.get("time", 0))
    for name in _slow(times):
        print(option(name))


if __name__ == "__main__":
    main()
