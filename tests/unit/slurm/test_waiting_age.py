"""What an update of its partitions takes from a waiting job's priority, by Slurm's configuration.

That Slurm counts the age again is seen in tests/live/test_like_plain_jobs.py.
"""

from math import inf

import pytest

from slurm_hadar.slurm.waiting_age import AgePriority, age_priority

SITE = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "PriorityCalcPeriod": "00:02:00",
    "PriorityFlags": "SMALL_RELATIVE_TO_TIME",
    "PriorityMaxAge": "7-00:00:00",
    "PriorityType": "priority/multifactor",
    "PriorityWeightAge": "10000",
}


def test_where_slurm_enforces_limits_an_update_of_the_partitions_takes_the_age():
    age = age_priority(SITE)
    assert age == AgePriority(10_000, 7 * 86_400.0, 120.0, is_forgotten=True)
    assert age.lost(86_400.0) == pytest.approx(10_000 / 7)
    assert age.lost(30 * 86_400.0) == 10_000
    assert age.lost(-5.0) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("AccountingStorageEnforce", "associations"),
        ("AccountingStorageEnforce", "none"),
        ("PriorityFlags", "ACCRUE_ALWAYS,MAX_TRES"),
    ],
)
def test_elsewhere_it_counts_the_age_since_the_last_computation(key, value):
    age = age_priority({**SITE, key: value})
    assert age.lost(inf) == 0
    assert age.in_a_period(86_400.0) == pytest.approx(10_000 * 120 / (7 * 86_400))
    assert age.in_a_period(60.0) == pytest.approx(10_000 * 60 / (7 * 86_400))


@pytest.mark.parametrize(
    "settings",
    [{}, {**SITE, "PriorityType": "priority/basic"}, {**SITE, "PriorityWeightAge": "0"}],
)
def test_where_no_age_counts_it_does_nothing(settings):
    age = age_priority(settings)
    assert age.lost(1e6) == age.in_a_period(1e6) == 0
