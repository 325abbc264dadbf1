"""The benchmark of decisions: its scene stays consistent, and any policy can be measured."""

import numpy as np
import pytest

from benchmarks.decide import Scene, growth, measure
from benchmarks.fitted_rates import FittedRates
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


def test_with_fits_all_jobs_are_fitted_first_and_then_those_that_report_anew_or_are_new() -> None:
    found = measure("gavel_las", 200, 200, 3, 3, 0, {}, anew=0.05)
    fits, fits_s, both_s = found["fits"], found["fits_s"], found["rounds_s"]
    assert isinstance(fits, list) and isinstance(fits_s, list) and isinstance(both_s, list)
    first, *later = fits
    assert first == 200 and all(0 < number < 100 for number in later)
    assert all(0 < alone < both for alone, both in zip(fits_s, both_s, strict=True))
    assert measure("gavel_las", 50, 50, 3, 1, 0, {})["fits"] == []


def test_fitted_rates_are_near_what_was_reported_and_zero_where_a_job_cannot_run() -> None:
    jobs = Scene(200, 200, 3, 0).view.jobs
    fitted = FittedRates((1, 2, 4, 8), 3, 4, 0)
    fitted.meet(jobs)
    at = np.arange(200)
    fitted.fit(jobs, at, fitted.reports(jobs, at))
    rate = fitted.of(jobs)
    np.testing.assert_array_equal(rate > 0, jobs.rate > 0)
    off = np.abs(np.log(rate[rate > 0] / jobs.rate[rate > 0]))
    assert np.median(off) < 0.1
