"""The controller dies, or is stopped, between two statements of a tick, and a training in a save.

No job suffers, and planted faults show. Few points of ticks: ``python -m benchmarks.faults`` tries
all of them.
"""

import itertools
import random
from typing import Any

import pytest
from slurms import need

from benchmarks.faults.planted import FAULTS
from benchmarks.faults.planted_saves import SAVE_FAULTS
from benchmarks.faults.saves import HOWS, SaveCase, caught, saves, summary
from benchmarks.faults.scene import KINDS
from benchmarks.faults.trial import LOOK, STALLED, THEN
from benchmarks.faults.trials import Case, distinct, has_moved, is_sent, planted, trial_sandboxes

pytestmark = [pytest.mark.live, pytest.mark.once, pytest.mark.timeout(1200)]


_TRIES = 6
"""Points of one part of a tick, until the controller dies at one."""


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    need(None)
    with trial_sandboxes(tmp_path_factory.mktemp("faults"), 4) as made:
        yield made


@pytest.fixture(scope="module")
def whole(boxes):
    """A tick that is not disturbed."""
    return boxes.undisturbed(LOOK)


def test_no_job_suffers_wherever_the_controller_dies(boxes, whole):
    found = whole
    assert not found.wrong and has_moved(found)
    points = distinct(found.touches)
    print(f"{len(points)} points between statements of one tick")
    assert len(points) >= 25
    # What a tick may do to a job is all in it, and what is kept of that as on a site.
    assert found.kinds >= KINDS
    assert any("keep file steer" in touch.name for touch in points)
    # One before anything is sent, one while hints are sent, one while jobs are asked to save, one
    # in the middle of a move.
    acts = [n for n, touch in enumerate(points) if is_sent(touch)]
    asks = next(n for n in acts if points[n].place.endswith("ask_to_save"))
    bounds = [0, acts[0], asks, acts[-1] + 1, len(points)]
    drawn = random.Random(0)
    # How often a statement comes again differs from run to run; the first time does come.
    parts = [points[slice(*part)] for part in itertools.pairwise(bounds)]
    firsts = [[touch.name for touch in part if touch.times == 1] for part in parts]
    some = [drawn.sample(names, min(_TRIES, len(names))) for names in firsts]
    drawn_cases = [
        [Case(name, then) for name in names] for names, then in zip(some, THEN, strict=True)
    ]
    cases = [tried[0] for tried in drawn_cases]
    # In the recovery where another one ticks at once: before Slurm has started a job by itself.
    bad = {plant: planted(plant, found.touches)[::2] for plant in FAULTS}
    answers = dict(boxes.run([*(tried[0] for tried in bad.values()), *cases]))
    found_by = [[answers[tried[0]]] for tried in drawn_cases]
    # A busy machine may come to a point by another way, or too late for the fault.
    for number in range(1, _TRIES):
        again = {
            n: tried[number % len(tried)]
            for n, tried in enumerate(drawn_cases)
            if not any(answer.killed for answer in found_by[n])
        }
        found_now = dict(boxes.run(list(again.values()))) if again else {}
        for n, case in again.items():
            found_by[n].append(found_now[case])
    for tried, answered in zip(drawn_cases, found_by, strict=True):
        assert any(answer.killed for answer in answered), tried
        for answer in answered:
            assert not answer.wrong, (tried, answer.touches[-1], answer.wrong)
    last = {plant: answers[tried[0]] for plant, tried in bad.items()}
    for number in range(1, _TRIES + 1):
        late = {p: n[number % len(n)] for p, n in bad.items() if not _caught(p, last[p])}
        found_now = dict(boxes.run(list(late.values()))) if late else {}
        last |= {plant: found_now[case] for plant, case in late.items()}
    for plant, answer in last.items():
        assert _caught(plant, answer), (plant, answer)


def _caught(plant, answer):
    """Not where Slurm was faster to start the job, which has nothing to spoil then: before the
    fault acted, or between that and the look at the job."""
    return answer.killed and answer.acted and FAULTS[plant].reported_by(answer.wrong)


def test_no_job_suffers_where_the_controller_is_stopped_and_goes_on(whole, tmp_path):
    """In the middle of a move, and as hints are sent: with what it saw 35 s before."""
    sent = [
        touch for touch in distinct(whole.touches) if touch.times == 1 and touch.what == "slurm"
    ]
    hints = [one.name for one in sent if is_sent(one)]
    moves = [one.name for one in sent if "actuation/running/moves.py" in one.place]
    drawn = random.Random(0)
    tried = [
        [Case(name, then) for name in drawn.sample(names, min(_TRIES, len(names)))]
        for names, then in zip((moves, hints), STALLED, strict=True)
    ]
    answers: list[list[Any]] = [[] for _ in tried]
    with trial_sandboxes(tmp_path, 2, stalls=True) as boxes:
        # A busy machine may come to a point by another way, or to none of them once.
        for number in range(2 * _TRIES):
            left = [n for n, found in enumerate(answers) if not any(one.killed for one in found)]
            cases = [tried[n][number % len(tried[n])] for n in left]
            for n, (_, answer) in zip(left, boxes.run(cases) if cases else (), strict=True):
                answers[n].append(answer)
    for cases, found in zip(tried, answers, strict=True):
        seen = [(one.unset, one.seconds, [touch.name for touch in one.touches]) for one in found]
        assert any(one.killed for one in found), (cases, seen)
        assert not [one.wrong for one in found if one.wrong], cases


def test_no_stale_attempt_changes_what_a_later_one_saved():
    """Some points of a save and of taking over."""
    with saves(2) as trials:
        points = trials.points()
        assert len(points) >= 50
        drawn = random.Random(0)
        found = trials.run(
            [
                SaveCase(point, how)
                for how, count in (("stall", 24), ("kill", 6))
                for point in drawn.sample(points, count)
            ]
        )
        bad = trials.run([trials.planted(plant)[0] for plant in SAVE_FAULTS])
    print("\n".join(summary(found)))
    assert {case.how for case, _ in found} == set(HOWS)
    assert not [(case.name, one.wrong) for case, one in found if one.wrong]
    assert None not in caught(bad).values(), caught(bad)
