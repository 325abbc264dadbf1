"""Rates learned from progress in the simulation: what a policy sees, and what it comes to know."""

from dataclasses import replace

import numpy as np
import pytest
from pretend import machines, on, scripted, work
from typer.testing import CliRunner

from slurm_hadar import policies
from slurm_hadar.cli.main import app
from slurm_hadar.config import Config
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import State, View
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.simulator import cluster
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.engine import Clock, RoundSetting, simulate
from slurm_hadar.simulator.estimates import estimate
from slurm_hadar.simulator.traces import open_trace

COUNTS = (1, 2, 4)
# It scales badly, is twice as fast on the first type, and has no four of the second.
RATE = [[[10.0, 12.0, 13.0], [5.0, 6.0, 0.0]]]


def views(script, total: float = 1e5) -> list[View]:
    """What a policy that follows the script is shown, each round of 100 s."""
    seen: list[View] = []
    decide = scripted(script)

    def watch(view: View, state: State):
        seen.append(view)
        return decide(view, state)

    jobs = work(RATE, total=total, counts=COUNTS)
    simulate(
        jobs,
        machines("fast=4,slow=4"),
        watch,
        RoundSetting(clock=Clock(100.0), seen=replace(estimate(jobs), learned=True)),
    )
    return seen


def test_at_first_only_the_least_count_is_known_and_the_rest_is_untried_or_impossible() -> None:
    first = views({0.0: {"j0": on("fast", 4)}})[0].jobs
    rate = first.rate[0]
    assert first.prospects is not None and not first.known.any()
    assert rate[:, 0] == pytest.approx([10.0, 5.0])
    # Optimistic, and unsure.
    assert rate[0, 2] > 35.0 and first.prospects.rate_error[0, 0, 2] > 0.2
    assert rate[1, 2] == 0.0 and np.isnan(first.prospects.rate_error[0, 1, 2])


def test_progress_corrects_the_rates_there_and_elsewhere() -> None:
    seen = views({0.0: {"j0": on("fast", 1)}, 100.0: {"j0": on("fast", 2)},
                  200.0: {"j0": on("fast", 4)}})  # fmt: skip
    one, two, four = (view.jobs for view in seen[1:4])
    assert one.known[0].tolist() == [[True, False, False], [False, False, False]]
    assert four.known[0].tolist() == [[True, True, True], [False, False, False]]
    assert four.rate[0, 0] == pytest.approx(RATE[0][0], rel=0.1)
    # Two GPUs were little faster than one: four are expected to be worse, on both types.
    assert two.rate[0, 0, 2] < one.rate[0, 0, 2] * 0.8
    assert four.rate[0, 1, 1] < 9.0 < one.rate[0, 1, 1]
    assert one.prospects is not None and four.prospects is not None
    assert (four.prospects.rate_error[0, 0] < one.prospects.rate_error[0, 0] + 1e-9).all()
    assert seen[3].jobs.prospects is not None and seen[3].jobs.prospects.restarts[0] == 2


def test_the_rates_that_are_kept_back_change_nothing_until_they_are_tried() -> None:
    other = [[[10.0, 19.0, 35.0], [5.0, 9.0, 0.0]]]
    found = []
    for rate in (RATE, other):
        jobs = work(rate, counts=COUNTS)
        seen: list[np.ndarray] = []

        def watch(view: View, state: State, seen=seen):
            seen.append(view.jobs.rate)
            return policies.get("hadar")(view, state)

        learned = replace(estimate(jobs), learned=True)
        simulate(jobs, machines("fast=4,slow=4"), watch, RoundSetting(seen=learned))
        found.append(seen[0])
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize("policy", ["hadar", "timetable", "ones", "gavel_las", "srtf"])
def test_policies_run_to_the_end_on_learned_rates(policy: str) -> None:
    jobs = work(RATE * 6, total=4e4, arrival=[0, 0, 50, 500, 500, 900], counts=COUNTS)
    seen = replace(estimate(jobs, noise=0.3, seed=1), learned=True)
    out = simulate(jobs, machines("fast=4,slow=4"), policies.get(policy), RoundSetting(seen=seen))
    assert not out.unfinished
    again = simulate(jobs, machines("fast=4,slow=4"), policies.get(policy), RoundSetting(seen=seen))
    assert again.finish_s.tolist() == out.finish_s.tolist()


def test_timetable_finds_counts_that_are_faster_than_the_model_says() -> None:
    """mixed_60 has a training that is 12 times as fast on 8 GPUs as on 1. All known: 44 h."""
    site = cluster.build({"v100": 8, "p100": 8, "k80": 8}, 4)
    jobs = open_trace("mixed_60", site.types, open_rates(Config()), elastic=True)
    seen = replace(estimate(jobs), learned=True)
    setting = RoundSetting(costs=Costs(restart_s=30.0), clock=Clock(360.0), seen=seen)
    out = simulate(jobs, site, policies.get("timetable"), setting)
    assert not out.unfinished
    assert out.makespan_s < 55.0 * 3600.0 and out.avg_jct_s < 7.4 * 3600.0


def test_the_command_takes_it_and_says_where_it_cannot() -> None:
    words = ["simulate", "jobs", "mixed_60", "--learn", "--policy", "srtf"]
    assert CliRunner().invoke(app, words).exit_code == 0
    found = CliRunner().invoke(app, [*words, "--order", "slurm"])
    assert isinstance(found.exception, UsageError) and "--learn" in str(found.exception)
