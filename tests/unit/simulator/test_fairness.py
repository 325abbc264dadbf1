"""Finish-time fairness and Jain's index: cases done by hand, and what must always hold."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend import machines, work

from slurm_hadar import policies
from slurm_hadar.domain.placement import Plan
from slurm_hadar.domain.view import JobArrays, State, View
from slurm_hadar.simulator.engine import simulate
from slurm_hadar.simulator.fairness import fairness, jain
from slurm_hadar.simulator.job_owners import JobOwners, owners
from slurm_hadar.simulator.workload import Queued

ONE = np.array([1, 1])


def people(*users: str, account: str = "lab") -> JobOwners:
    return JobOwners(users, (account,) * len(users))


def test_two_alike_jobs_that_share_one_gpu_in_turn() -> None:
    # 100 s of work each on the one fast GPU; the slow one cannot run them.
    jobs = work([[[1.0], [0.0]]] * 2, total=100.0)
    # One after the other. Job 0 lives 100 s with two there; job 1 200 s with 1.5 on average.
    found = fairness(jobs, ONE, np.array([100.0, 200.0]), people("a", "b"))
    # Half or two thirds of both types' time: at most all of the time over two types, so X / 2 each.
    assert found.jobs.worst_rho == pytest.approx(200.0 / (100.0 / (1.0 / 2.0)))
    assert found.users == found.jobs
    assert found.jobs.mean_rho == pytest.approx((100.0 / 200.0 + 1.0) / 2)
    assert found.jobs.jain == pytest.approx((2.0 + 1.0) ** 2 / (2 * (4.0 + 1.0)))
    # All jobs are of one account: 300 s in place of 400.
    assert found.accounts.mean_rho == found.accounts.worst_rho == pytest.approx(300.0 / 400.0)
    assert found.accounts.jain == 1.0


def test_a_user_has_an_equal_part_however_many_jobs_there_are() -> None:
    # Four fast GPUs' time among jobs of one GPU; a user with nine jobs beside a user with one.
    jobs = work([[[1.0], [0.0]]] * 10, total=100.0)
    end = np.full(10, 1000.0)
    found = fairness(jobs, np.array([1, 0]), end, people(*"aaaaaaaaab"))
    # As jobs all ten are alike; as users b should have had half of the GPU: 200 s in place of 1000.
    assert found.jobs.worst_rho == pytest.approx(1.0) and found.jobs.jain == pytest.approx(1.0)
    assert found.users.worst_rho == pytest.approx(1000.0 / 200.0)
    assert found.users.mean_rho == pytest.approx((5.0 + 1000.0 / 1800.0) / 2)
    assert found.users.jain < 0.7


def test_jobs_that_never_finish_contend_and_have_no_rho() -> None:
    jobs = work([[[1.0], [0.0]]] * 2, total=100.0)
    found = fairness(jobs, np.array([1, 0]), np.array([100.0, np.nan]), people("a", "b"))
    assert found.users.worst_rho == found.users.mean_rho == pytest.approx(100.0 / 200.0)
    none = fairness(jobs, np.array([1, 0]), np.full(2, np.nan), people("a", "b"))
    assert set(none.summary().values()) == {None}


def test_the_trace_says_whose_jobs_they_are_and_the_seed_fills_up() -> None:
    jobs = work([[[1.0], [1.0]]] * 3)
    none = np.zeros(3)
    said = Queued(np.full(3, -1), np.zeros((3, 2), bool), none, none, ("ann", "", ""), ("", "", ""))
    found, drawn = owners(replace(jobs, queue=said), 3), owners(jobs, 3)
    assert found.users == ("ann", *drawn.users[1:]) and found.accounts == drawn.accounts
    assert owners(jobs, 3) == drawn


def test_every_run_reports_it() -> None:
    jobs = work([[[1.0], [0.5]]] * 4, arrival=[0.0, 0.0, 10.0, 500.0])
    out = simulate(jobs, machines(), policies.get("fifo"))
    figures = out.summary()
    assert figures["user_worst_rho"] == out.fairness.users.worst_rho > 0.0
    assert 0.0 < float(str(figures["account_jain"])) <= 1.0
    assert out.fairness == fairness(jobs, out.capacity, out.finish_s, owners(jobs, 0))


def test_a_policy_knows_whose_jobs_they_are() -> None:
    jobs = work([[[1.0], [0.5]]] * 30)
    seen: list[JobArrays] = []

    def decide(view: View, state: State) -> tuple[Plan, State]:
        seen.append(view.jobs)
        return policies.get("fifo")(view, state)

    simulate(jobs, machines(), decide)
    users = np.array(owners(jobs, 0).users)
    for some in (seen[0], seen[-1]):
        mine = users[[jobs.ids.index(id_) for id_ in some.ids]]
        same = some.owner[:, None] == some.owner[None, :]
        assert (same == (mine[:, None] == mine[None, :])).all()
    assert len(set(seen[0].owner.tolist())) < len(seen[0].ids)


@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 40), users=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_bounds_of_the_figures(seed: int, jobs: int, users: int) -> None:
    rng = np.random.default_rng(seed)
    some = work(
        rng.uniform(0.1, 5.0, (jobs, 2, 1)),
        total=rng.uniform(1.0, 1e5, jobs).tolist(),
        arrival=rng.choice([0.0, 5.0, 70.0], jobs).tolist(),
    )
    end = some.arrival_s + rng.choice([1.0, 50.0, np.nan, 1e4], jobs)
    who = tuple(f"u{n}" for n in rng.integers(0, users, jobs))
    found = fairness(some, np.array([3, 5]), end, JobOwners(who, ("one",) * jobs))
    if np.isnan(end).all():
        return
    for group in (found.jobs, found.users, found.accounts):
        assert 0.0 < group.mean_rho <= group.worst_rho * (1 + 1e-12)
        assert 0.0 < group.jain <= 1.0 + 1e-12
    # A single account divides the cluster as jobs do.
    assert found.accounts.worst_rho <= found.jobs.worst_rho * (1 + 1e-9)
    # No unit of work or time matters.
    scaled = replace(some, total=some.total * 1e3, rate=some.rate * 1e3)
    assert fairness(scaled, np.array([3, 5]), end, JobOwners(who, who)).users.jain == pytest.approx(
        found.users.jain
    )


def test_jain() -> None:
    assert jain(np.array([2.0, 2.0, 2.0])) == pytest.approx(1.0)
    assert jain(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain(np.zeros(3)) == 1.0
    assert jain(np.array([1e-200, 1e-200])) == pytest.approx(1.0)
