"""Which of the jobs' own reports of speed were learned from, and how long that is remembered."""

from dataclasses import replace

from hand_made import NOW, running, seen

from slurm_hadar.controller.learned.speeds import Speeds
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.runtime.progress import Progress


def told(id_, when=NOW, window_s=60.0):
    return Progress(id_, when, 0, "v1", 1, False, NOW, "m", 0, 50.0, window_s, 64, 2)


def look(*reports):
    mine = [
        running(r.job, {"v1": {"v100": 2}}, declaration=Declaration(model="m")) for r in reports
    ]
    return seen(mine, progress={r.job: r for r in reports})


def test_a_report_counts_once_and_a_later_one_for_the_time_since():
    rates = Rates()
    speeds = Speeds(rates)
    for when in (NOW, NOW, NOW + 5):
        speeds.learn(look(told("1", when)))
    (row,) = rates.store.of("m")
    assert row.seconds == 65.0


def test_a_report_that_cannot_be_read_for_once_is_still_known():
    rates = Rates()
    speeds = Speeds(rates)
    speeds.learn(look(told("1")))
    speeds.learn(replace(look(told("1")), progress={}))
    speeds.learn(look(told("1")))
    (row,) = rates.store.of("m")
    assert row.seconds == 60.0


def test_jobs_that_slurm_shows_no_more_are_forgotten():
    speeds = Speeds(Rates())
    for number in range(100):
        speeds.learn(look(told(str(number))))
    assert len(speeds._learned) == 1
