"""The benchmark of decisions: its scene stays consistent, and any policy can be measured."""

import numpy as np
import pytest

from benchmarks.decide import Scene, growth, measure
from slurm_hadar import policies
from slurm_hadar.testing import check_plan as check
from slurm_hadar.testing import held_by


def test_the_scene_carries_out_what_was_decided() -> None:
    scene = Scene(30, 24, 3, seed=1)
    left = scene.view.jobs.left.copy()
    plan, state = policies.get("hadar")(scene.view, {})
    check(scene.view, plan)
    names = scene.view.jobs.ids
    scene.advance(plan)
    jobs = scene.view.jobs
    assert len(jobs.ids) == len(set(jobs.ids)) == 30
    assert scene.view.now == scene.view.round_s
    for job, id_ in enumerate(jobs.ids):
        assert bool(jobs.running[job]) is (id_ in plan.placements)
        if id_ in names:
            assert bool(jobs.left[job] < left[names.index(id_)]) is (id_ in plan.placements)
    assert sum(sum(place.values()) for place in held_by(scene.view).values()) <= 24
    check(scene.view, policies.get("hadar")(scene.view, state)[0])


def test_equal_seeds_equal_scenes() -> None:
    first, second, other = Scene(9, 8, 2, 5), Scene(9, 8, 2, 5), Scene(9, 8, 2, 6)
    assert np.array_equal(first.view.jobs.rate, second.view.jobs.rate)
    assert not np.array_equal(first.view.jobs.rate, other.view.jobs.rate)


@pytest.mark.parametrize("name", ["fifo", "hadar", "srtf"])
def test_figures(name: str) -> None:
    found = measure(name, 12, 8, 2, rounds=2, seed=0, options={})
    assert found["policy"] == name
    assert found["gpus"] == 8
    seconds, used = found["rounds_s"], found["used_gpus"]
    assert isinstance(seconds, list)
    assert isinstance(used, list)
    assert len(seconds) == 3
    assert 0 < max(used) <= 8


def test_growth_is_the_power_of_the_size() -> None:
    assert growth([10.0, 100.0, 1000.0], [0.02, 0.2, 2.0]) == pytest.approx(1.0)
    assert growth([10.0, 100.0], [0.01, 1.0]) == pytest.approx(2.0)
