"""Bad input for every parser: an answer or one clear error, never a traceback, never without end.

2,000 inputs in all, and some whole ticks; ``python -m benchmarks.fuzz`` is the long form.
"""

import json
import random
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import ticked
from benchmarks.fuzz.hostile import ANN
from benchmarks.fuzz.parsers import Parser, all_parsers, whole_ticks
from benchmarks.fuzz.trial import Outcome, make, trial
from slurm_hadar.controller.actuation.actions import Kind

PARSERS = all_parsers(bool(find_spec("torch")))
TICKS = whole_ticks()
EACH = 2000 // len(PARSERS) + 1


def judge(parser: Parser, data: bytes, folder: Path) -> Outcome:
    found = trial(parser, data, folder)
    assert found.ending != "traceback", f"{parser.name}, {data[:2000]!r}:\n{found.words}"
    return found


@pytest.mark.parametrize("parser", [*PARSERS, *TICKS], ids=lambda parser: parser.name)
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


@pytest.mark.parametrize("parser", TICKS, ids=lambda parser: parser.name)
def test_what_one_user_writes_stops_no_tick_and_no_others_job(
    parser: Parser, tmp_path: Path
) -> None:
    for number in range(2):
        judge(parser, make(parser, random.Random(f"{parser.name}/{number}")), tmp_path)


def test_the_ticks_do_what_they_are_tried_for(tmp_path: Path) -> None:
    """Jobs that wait get hints, the profiles learn, and trainings get idle nodes."""
    first, second = ticked.ticked(ticked.scene("hadar"), tmp_path)
    hints = {one.job.id: one.fields for one in first.diff.of(Kind.HINT)}
    # What Eve reports of the model would not fit Ann's time limit on a k80: that keeps none away.
    assert set(hints[ANN]["Partition"].split(",")) == {"v100", "p100", "k80"}
    assert "StartTime" in hints["2"] and first.acted and second.acted
    assert first.backfill.schedulable
    with closing(sqlite3.connect(tmp_path / "state" / "hadar.sqlite")) as state:
        (rate,) = state.execute("SELECT samples_per_s FROM throughput").fetchone()
    assert rate == 12.5


def replaced(**changes: Any) -> bytes:
    scene = json.loads(ticked.scene("hadar"))
    eve = scene["jobs"][0]
    eve["comment"] = eve["comment"].replace("samples=1e6", "samples=1e18")
    progress = {**scene["progress"], **changes.pop("progress", {})}
    jobs = [eve | changes, *scene["jobs"][1:]]
    return json.dumps({**scene, "progress": progress, "jobs": jobs}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"comment": f"[hadar1 types=any constraint={'(' * 900}]"},
        {"features": "(" * 900, "comment": "[hadar1 lease=yes]"},
        *({"progress": {"rate": rate}} for rate in (5e-324, 1e-300, 1e9)),
        {"progress": {"window_s": 5e-324}},
        {"memory_per_cpu": 10**18, "cpus": 10**18},
    ],
    ids=["nest", "nest by -C", "5e-324", "1e-300", "1e9", "window", "memory"],
)
def test_what_stopped_a_tick_once(changes: dict[str, object], tmp_path: Path) -> None:
    (parser,) = (one for one in TICKS if one.name == "tick, hadar")
    judge(parser, replaced(**changes), tmp_path)


IMMENSE = ("", "cpus=1-1000000 mem=1G-900000G", "cpus=1-1000000 pin=yes")
CHOOSE = ("synergy", "ones", "hadar")
"""Policies that get all of IMMENSE, of which the first chooses CPUs and memory itself. What the
others are shown is made by the same code, so each of them gets one in turn."""


@pytest.mark.parametrize(
    ("parser", "words"),
    [
        pytest.param(parser, words, id=f"{parser.name}, {words}")
        for number, parser in enumerate(TICKS)
        for place, words in enumerate(IMMENSE)
        if number % len(IMMENSE) == place or parser.name.removeprefix("tick, ") in CHOOSE
    ],
)
def test_more_cpus_and_memory_than_there_are(parser: Parser, words: str, tmp_path: Path) -> None:
    """Of a job that runs and one that waits, where their owner lets them be changed too."""
    scene = json.loads(ticked.scene(parser.name.removeprefix("tick, ")))
    for job in scene["jobs"][:2]:
        job["comment"] = job["comment"].replace("samples", f"{words} samples")
        job |= {"cpus": 10**18} | ({} if "pin" in words else {"memory_per_node": 10**18})
    judge(parser, json.dumps(scene).encode(), tmp_path)
