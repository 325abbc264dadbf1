"""The controller dies between two statements of a tick; no job suffers, and planted faults show.

A few points only: ``python -m benchmarks.faults`` tries all of them.
"""

import itertools
import random

import pytest
from conftest import need

from benchmarks.faults.trial import LOOK, THEN
from benchmarks.faults.trials import Case, distinct, planted, room

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    need(None)
    with room(tmp_path_factory.mktemp("faults"), 4) as made:
        yield made


def test_no_job_suffers_wherever_the_controller_dies(boxes):
    found = boxes.run([Case(then=LOOK)])[0][1]
    assert not found.wrong
    points = distinct(found.touches)
    print(f"{len(points)} points between statements of one tick")
    assert len(points) >= 25
    # One before anything is sent, one while starts are sent, one in the middle of a move.
    acts = [n for n, touch in enumerate(points) if touch.place.startswith("controller/acts/acting")]
    bounds = [0, acts[0], acts[-1] + 1, len(points)]
    drawn = random.Random(0)
    # How often a statement comes again differs from run to run; the first time does come.
    parts = [points[slice(*part)] for part in itertools.pairwise(bounds)]
    some = [drawn.choice([touch for touch in part if touch.times == 1]) for part in parts]
    cases = [Case(touch.name, then) for touch, then in zip(some, THEN, strict=True)]
    # One that shows whether or not Slurm has started a job by itself before the recovery.
    bad = planted("another plan", found.touches)[0]
    answers = dict(boxes.run([*cases, bad]))
    for case in cases:
        assert answers[case].killed, case
        assert not answers[case].wrong, (case, answers[case].touches[-1], answers[case].wrong)
    assert answers[bad].killed
    assert any("its plan speaks" in words for words in answers[bad].wrong), answers[bad].wrong
