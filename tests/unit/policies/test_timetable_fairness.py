"""Finish-time fairness in the timetable policy's objective: a case by hand, and what follows."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar.domain.view import JobArrays, View
from slurm_hadar.policies.allocation import resource_pools
from slurm_hadar.policies.timetable.doubt import doubt_of
from slurm_hadar.policies.timetable.fairness import finish_ratio
from slurm_hadar.policies.timetable.policy import decide
from slurm_hadar.policies.timetable.work import options_of
from slurm_hadar.testing import NOW, applied, check_plan, jobs_of, nodes_of, view_of
from slurm_hadar.testing.strategies import views

pytestmark = pytest.mark.filterwarnings("error")


def _ratio(view: View) -> list[float]:
    pools = resource_pools(view)
    options = options_of(view, pools, view.jobs.rate, 0.0)
    found: list[float] = finish_ratio(view, options, doubt_of(view, pools, options)).tolist()
    return found


def _crowded(owner: list[int]) -> JobArrays:
    """Three jobs of 1,000 s alone, half of the first one's work done; the last came just now."""
    jobs = jobs_of(
        [[[1.0]]] * 3,
        total=1000.0,
        left=[500.0, 1000.0, 1000.0],
        arrival_s=[NOW - 2000.0, NOW - 1500.0, NOW],
    )
    return replace(jobs, owner=np.array(owner, dtype=np.int64))


def test_each_job_has_an_equal_part_where_no_owner_is_given() -> None:
    jobs = replace(_crowded([0, 0, 0]), owner=np.zeros(0, dtype=np.int64))
    # One GPU: a third of the time each, 3,000 s for 1,000 s of work.
    found = _ratio(view_of(nodes_of([[1]]), jobs))
    assert found == pytest.approx([3500 / 3000, 4500 / 3000, 1.0])


def test_a_user_has_an_equal_part_however_many_jobs() -> None:
    found = _ratio(view_of(nodes_of([[1]]), _crowded([7, 7, 9])))
    # A quarter of the time for each of the first user's two jobs, half of it for the other's.
    both = (2000 + 500 * 4 + 1500 + 1000 * 4) / (2 * 4000)
    assert found == pytest.approx([both, both, 1.0])


def test_more_gpus_than_jobs_are_no_more_than_all_of_the_time() -> None:
    found = _ratio(view_of(nodes_of([[4]]), _crowded([1, 2, 3])))
    assert found == pytest.approx([2500 / 1000, 2500 / 1000, 1.0])


def test_who_is_behind_goes_first_where_fairness_counts() -> None:
    jobs = jobs_of(
        [[[1.0]]] * 2, total=[4000.0, 1000.0], left=[4000.0, 1000.0], arrival_s=[NOW - 40_000, NOW]
    )
    for power, first in ((0.0, "j1"), (4.0, "j0")):
        plan, _ = decide(view_of(nodes_of([[1]]), jobs, options={"fairness": power}), {})
        assert list(plan.placements) == [first], power
        said = plan.placements[first].reason + "".join(plan.waiting.values())
        assert ("as its user is behind an equal part" in said) == (power > 0), said


@given(views(), st.integers(0, 2**32), st.sampled_from([0.5, 2.0, 8.0]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plans_are_valid_however_much_it_counts(view: View, seed: int, power: float) -> None:
    owner = np.random.default_rng(seed).integers(0, 3, len(view.jobs.ids))
    view = replace(
        view,
        jobs=replace(view.jobs, owner=owner),
        options=MappingProxyType({**view.options, "fairness": power}),
    )
    if view.jobs.ids:
        assert all(0.1 <= one <= 10.0 for one in _ratio(view))
    plan, state = decide(view, {})
    check_plan(view, plan)
    after = applied(view, plan)
    again, _ = decide(after, state)
    check_plan(after, again)
