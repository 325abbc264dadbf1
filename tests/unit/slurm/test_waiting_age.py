"""What an update of its partitions takes from a waiting job's priority, by Slurm's configuration.

That Slurm counts the age again is seen in tests/live/test_like_plain_jobs.py.
"""

from math import inf

import pytest

from slurm_hadar.slurm.waiting_age import AgePriority, age_at_stake

SITE = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "PriorityFlags": "SMALL_RELATIVE_TO_TIME",
    "PriorityMaxAge": "7-00:00:00",
    "PriorityType": "priority/multifactor",
    "PriorityWeightAge": "10000",
}


def test_where_slurm_enforces_limits_it_is_the_age():
    age = age_at_stake(SITE)
    assert age == AgePriority(10_000, 7 * 86_400.0)
    assert age.points(86_400.0) == pytest.approx(10_000 / 7)
    assert age.points(30 * 86_400.0) == 10_000
    assert age.points(-5.0) == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("AccountingStorageEnforce", "associations"),
        ("AccountingStorageEnforce", "none"),
        ("PriorityFlags", "ACCRUE_ALWAYS,MAX_TRES"),
        ("PriorityType", "priority/basic"),
        ("PriorityWeightAge", "0"),
    ],
)
def test_elsewhere_it_is_nothing(key, value):
    assert age_at_stake({**SITE, key: value}).points(inf) == 0


def test_what_slurm_does_not_say_is_nothing():
    assert age_at_stake({}).points(1e6) == 0
    assert AgePriority().points(inf) == 0
