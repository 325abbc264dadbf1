"""Bad input for every parser: an answer or one clear error, never a traceback, never without end.

2,000 inputs in all; ``python -m benchmarks.fuzz`` is the long form.
"""

import random
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz.parsers import Parser, all_parsers
from benchmarks.fuzz.trial import Outcome, make, trial

PARSERS = all_parsers(bool(find_spec("torch")))
EACH = 2000 // len(PARSERS) + 1


def judge(parser: Parser, data: bytes, folder: Path) -> Outcome:
    found = trial(parser, data, folder)
    assert found.ending != "traceback", f"{parser.name}, {data[:2000]!r}:\n{found.words}"
    return found


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_what_is_not_damaged_is_understood(parser: Parser, tmp_path: Path) -> None:
    for seed in parser.seeds:
        found = trial(parser, seed, tmp_path)
        assert found.ending == "answer", found.words


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_bad_input_is_an_answer_or_one_clear_error(parser: Parser, tmp_path: Path) -> None:
    @settings(
        max_examples=EACH,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.randoms(use_true_random=False))
    def tried(draw: random.Random) -> None:
        judge(parser, make(parser, draw), tmp_path)

    tried()
