"""Jobs in Slurm's order: its schedulers, and what a controller may change."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend import Decide, machines, on, scripted, work

from slurm_hadar import policies
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.placement import Plan
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.scheduling.exchange_rule import ExchangeLevel
from slurm_hadar.scheduling.free_over_time import FreeOverTime
from slurm_hadar.scheduling.slurm_schedulers import SchedulerLimits
from slurm_hadar.simulator.costs import Costs
from slurm_hadar.simulator.queue.cluster_state import AWAY_S
from slurm_hadar.simulator.queue.engine import simulate
from slurm_hadar.simulator.queue.requests import Drawn, requests
from slurm_hadar.simulator.queue.setting import SimulationSetting, SteeringSetting
from slurm_hadar.simulator.traces import queue_columns, sacct
from slurm_hadar.simulator.traces.csv_rows import rows
from slurm_hadar.simulator.workload import Workload

EXACT = Drawn(unmanaged=1.0, limits=(1.0, 1.0))
MANAGED = Drawn(limits=(1.0, 1.0))
AT_ONCE = SchedulerLimits(interval_s=0.0)
ONE = ("fast",)


def gangs(*gpus: int, seconds: list[float], arrival: list[float] | float = 0.0) -> Workload:
    """Jobs of so many GPUs of one type, each as long."""
    counts = sorted(set(gpus))
    rate = [[[1.0 if n == count else 0.0 for count in counts]] for n in gpus]
    return work(rate, total=seconds, arrival=arrival, counts=counts, types=ONE)


def finishes(
    load: Workload, cluster: str, decide: Decide | None = None, **more: Any
) -> list[float]:
    setting = SimulationSetting(
        load, machines(cluster), **{"drawn": EXACT, "limits": AT_ONCE, **more}
    )
    found: list[float] = simulate(setting, decide).finish_s.tolist()
    return found


STEPS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 3)), max_size=6)


@given(st.integers(0, 4), STEPS, st.integers(1, 8), st.integers(1, 15))
def test_the_earliest_time_is_the_first_one_with_room(free, taken, count, length) -> None:
    profile, used = FreeOverTime(0.0, free), np.zeros(200, dtype=int)
    used[:] = free
    profile.give(25.0, 4)
    used[25:] += 4
    for start, long, number in taken:
        profile.take(float(start), float(start + long), number)
        used[start : start + long] -= number
    fits = [at for at in range(150) if (used[at : at + length] >= count).all()]
    assert profile.earliest(count, length) == (fits[0] if fits else float("inf"))


def test_backfill_starts_who_delays_nobody() -> None:
    jobs = gangs(1, 2, 1, 1, seconds=[100.0, 100.0, 50.0, 200.0])
    # The third is short enough to run before the second can; the fourth is not.
    assert finishes(jobs, "fast=2") == [100.0, 200.0, 50.0, 400.0]
    # Limits are what counts, not how long a job runs.
    long = replace(EXACT, limits=(3.0, 3.0))
    assert finishes(jobs, "fast=2", drawn=long) == [100.0, 200.0, 50.0, 400.0]


def test_backfill_comes_at_its_interval_and_the_main_scheduler_at_once() -> None:
    jobs = gangs(1, 2, 1, 1, seconds=[100.0, 10.0, 50.0, 10.0], arrival=[0.0, 0.0, 1.0, 300.0])
    assert finishes(jobs, "fast=2", limits=SchedulerLimits(interval_s=30.0)) == [
        100.0,
        110.0,
        80.0,
        310.0,
    ]


def exchanging(level: ExchangeLevel, decide: Decide, *gpus: int, managed: str) -> list[float]:
    """Jobs of one user, 10 s each, on two GPUs that the first one holds until 10 s."""
    load = gangs(2, *gpus, seconds=[10.0] * (1 + len(gpus)))
    lines = [f"j{at},{word},ann,x" for at, word in enumerate(["yes", *managed.split()])]
    text = "\n".join(["job_id,managed,user,account", *lines])
    queue = queue_columns.queued(list(rows(text, "t.csv", ["job_id"])), ONE)
    steering = SteeringSetting(moves=False, exchange=level, tick_s=1.0)
    return finishes(replace(load, queue=queue), "fast=2", decide, drawn=MANAGED, steering=steering)


def test_managed_jobs_exchange_their_places() -> None:
    last = scripted({0.0: {"j3": on("fast", 2)}})
    none, own = ExchangeLevel.NONE, ExchangeLevel.ASSOCIATION
    assert exchanging(none, last, 2, 2, 2, managed="yes no yes") == [10.0, 20.0, 30.0, 40.0]
    # The one between keeps its turn.
    assert exchanging(own, last, 2, 2, 2, managed="yes no yes") == [10.0, 40.0, 30.0, 20.0]
    assert exchanging(own, last, 2, 2, 2, managed="yes no no") == [10.0, 20.0, 30.0, 40.0]
    # It would wait for a larger one.
    assert exchanging(own, last, 1, 1, 2, managed="yes no yes") == [10.0, 20.0, 20.0, 30.0]


def test_priority_goes_before_age() -> None:
    jobs = gangs(1, 1, 1, seconds=[10.0, 10.0, 10.0])
    line = "job_id,priority\na,\nb,5\nc,7\n"
    queue = queue_columns.queued(list(rows(line, "t.csv", ["job_id"])), ONE)
    assert finishes(replace(jobs, queue=queue), "fast=1") == [30.0, 20.0, 10.0]


JOBS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50), st.integers(0, 60)), min_size=2,
                max_size=9)  # fmt: skip


@settings(deadline=None)
@given(JOBS)
def test_a_job_behind_delays_none_ahead(jobs) -> None:
    """Conservative backfill with exact limits."""
    jobs.sort(key=lambda job: job[2])
    counts, seconds, arrival = (list(part) for part in zip(*jobs, strict=True))
    whole = gangs(*counts, seconds=seconds, arrival=arrival)
    ends = finishes(whole, "fast=4")
    assert finishes(whole.take(range(len(jobs) - 1)), "fast=4") == pytest.approx(ends[:-1])
    # Never more GPUs than there are.
    runs = [(end - long, end, n) for end, long, n in zip(ends, seconds, counts, strict=True)]
    assert all(sum(n for s, e, n in runs if s <= at + 1e-6 < e - 1e-6) <= 4 for at, _, _ in runs)


BOTH = [[[2.0], [1.0]]]


def test_a_managed_job_begins_with_its_fastest_type_and_an_unmanaged_one_as_the_site_lists_them():
    jobs = work([[[1.0], [2.0]]], types=("slow", "fast"), total=100.0)
    nothing = scripted({0.0: {}})
    assert finishes(jobs, "slow=1,fast=1", nothing, drawn=MANAGED) == [50.0]
    assert finishes(jobs, "slow=1,fast=1", nothing) == [100.0]
    assert finishes(jobs, "slow=1,fast=1", None, drawn=MANAGED) == [100.0]


def test_a_managed_job_waits_rather_than_run_far_slower() -> None:
    jobs = work([[[10.0], [1.0]]] * 2, total=100.0)
    nothing = scripted({0.0: {}})
    assert finishes(jobs, "fast=1,slow=1", nothing, drawn=MANAGED) == [10.0, 20.0]
    assert finishes(jobs, "fast=1,slow=1", nothing) == [10.0, 100.0]


def test_a_job_that_may_move_leaves_no_slow_type_to_others_alone() -> None:
    """j1 would leave the slow GPU to j2, which did not opt in and takes any."""
    jobs = work([[[10.0], [1.0]]] * 3, total=[100.0, 400.0, 100.0])
    jobs = queue_of(jobs, "job_id,managed\nj0,yes\nj1,yes\nj2,no\n")
    nothing = scripted({0.0: {}})
    both: dict[str, Any]
    both = {"load": jobs, "cluster": "fast=1,slow=1", "decide": nothing, "drawn": MANAGED}
    assert finishes(**both, steering=SteeringSetting(moves=False)) == [10.0, 50.0, 100.0]
    assert finishes(**both) == [10.0, 400.0, 20.0]
    typed = queue_of(jobs, "job_id,managed,types\nj0,yes,\nj1,yes,\nj2,no,slow\n")
    assert finishes(**{**both, "load": typed}) == [10.0, 50.0, 100.0]


def test_the_planned_type_comes_first() -> None:
    jobs = work(BOTH, total=100.0, arrival=5.0)
    wanted = scripted({0.0: {"j0": on("slow")}})
    # At its arrival it takes the fastest; the plan of a tick counts for those that wait.
    assert finishes(jobs, "fast=1,slow=1", wanted, drawn=MANAGED) == [55.0]
    before = work(BOTH * 3, total=[100.0, 200.0, 100.0])
    wanted = scripted({0.0: {"j2": on("slow")}})
    assert finishes(before, "fast=1,slow=1", wanted, drawn=MANAGED)[2] == 100.0


ALWAYS = SteeringSetting(tick_s=60.0, min_between_moves_s=0.0)


def moving(script, load, cluster="fast=1,slow=1", **more) -> list[float]:
    more = {"drawn": MANAGED, "steering": ALWAYS, "costs": Costs(restart_s=10.0), **more}
    return finishes(load, cluster, scripted(script), **more)


def test_a_move_takes_free_gpus_and_costs_its_pause() -> None:
    jobs = work(BOTH * 2, total=[200.0, 1000.0])
    # From 100 s on the fast GPU is free; the tick at 120 s moves the second job.
    left = 1000.0 - 120.0
    assert moving({0.0: {"j1": on("fast")}}, jobs) == [100.0, 120.0 + 10.0 + left / 2]
    stays = SteeringSetting(tick_s=60.0, moves=False)
    assert moving({0.0: {"j1": on("fast")}}, jobs, steering=stays) == [100.0, 1000.0]
    later = SteeringSetting(tick_s=60.0, min_between_moves_s=500.0)
    assert moving({0.0: {"j1": on("fast")}}, jobs, steering=later)[1] == 540 + 10 + 460 / 2


GROWS = [[[1.0, 2.0]], [[1.0, 0.0]]]


@pytest.mark.parametrize(
    ("managed", "ends"),
    [
        # It grows at the first tick, gives back at that of 60 s, and grows again at that of 180 s.
        ("no", [190.0 + (1000.0 - 50 * 2 - 110) / 2, 160.0]),
        # A managed job that waits is for the policy.
        ("yes", [10.0 + 1000.0 / 2, 610.0]),
    ],
)
def test_a_grown_job_gives_back_what_an_unmanaged_job_waits_for(managed, ends) -> None:
    jobs = work(GROWS[:2], total=[1000.0, 100.0], arrival=[0.0, 30.0], counts=(1, 2), types=ONE)
    jobs = queue_of(jobs, f"job_id,managed\nj0,yes\nj1,{managed}\n")
    assert moving({0.0: {"j0": on("fast", 2)}}, jobs, "fast=2") == ends


def test_it_does_so_however_short_its_move_was_ago() -> None:
    jobs = work(GROWS[:2], total=[1000.0, 100.0], arrival=[0.0, 630.0], counts=(1, 2), types=ONE)
    jobs = queue_of(jobs, "job_id,managed\nj0,yes\nj1,no\n")
    later = SteeringSetting(tick_s=60.0, min_between_moves_s=600.0)
    found = moving({0.0: {"j0": on("fast", 2)}}, jobs, "fast=2", steering=later)
    # Grown at 600 s.
    assert found == [660.0 + 10.0 + (1000.0 - 600 - 50 * 2), 760.0]


def test_a_grown_job_keeps_what_helps_nobody() -> None:
    """j1 is too large for the rest."""
    jobs = work([*GROWS[:1], [[0.0, 1.0]]], total=[1000.0, 100.0], arrival=[0.0, 30.0],
                counts=(1, 2), types=ONE)  # fmt: skip
    jobs = queue_of(jobs, "job_id,managed\nj0,yes\nj1,no\n")
    found = moving({0.0: {"j0": on("fast", 2)}}, jobs, "fast=2")
    assert found[1] == found[0] + 100.0


PREEMPTS = SteeringSetting(tick_s=60.0, min_between_moves_s=0.0, preempt=True)


def test_a_job_is_stopped_for_one_that_the_plan_starts() -> None:
    jobs = work([[[1.0]], [[1.0]]], total=[1000.0, 100.0], arrival=[0.0, 100.0], types=ONE)
    script = {0.0: {"j0": on("fast")}, 100.0: {"j1": on("fast")}, 300.0: {"j0": on("fast")}}
    # Stopped at the tick of 120 s, for the other one's 100 s; it may not be back before 241 s.
    ends = moving(script, jobs, "fast=1", steering=PREEMPTS)
    assert ends == [120.0 + AWAY_S + 10.0 + 880.0, 220.0]
    assert moving(script, jobs, "fast=1") == [1000.0, 1100.0]


def test_no_job_is_stopped_for_one_behind_somebody_else() -> None:
    """Who is ahead does not opt in, and would get what is left; nor where nobody fits."""
    jobs = work([[[1.0]]] * 3, total=[1000.0, 100.0, 100.0], arrival=[0.0, 50.0, 100.0], types=ONE)
    jobs = queue_of(jobs, "job_id,managed\nj0,yes\nj1,no\nj2,yes\n")
    script = {0.0: {"j0": on("fast")}, 100.0: {"j2": on("fast")}}
    assert moving(script, jobs, "fast=1", steering=PREEMPTS) == [1000.0, 1100.0, 1200.0]


@pytest.mark.parametrize(("gpus", "ends"), [(2, [1131.0, 160.0]), (1, [1000.0, 150.0])])
def test_a_job_is_stopped_only_where_what_is_free_is_too_little(gpus, ends) -> None:
    jobs = gangs(1, gpus, seconds=[1000.0, 100.0], arrival=[0.0, 50.0])
    script = {0.0: {"j0": on("fast")}, 50.0: {"j1": on("fast", gpus)}}
    assert moving(script, jobs, "fast=2", steering=PREEMPTS) == ends


def test_what_is_stopped_is_the_last_of_those_who_wait() -> None:
    jobs = work([[[1.0]]] * 4, total=[1000.0, 100.0, 500.0, 500.0],
                arrival=[0.0, 100.0, 110.0, 400.0], types=ONE)  # fmt: skip
    script = {0.0: {"j0": on("fast")}, 100.0: {"j1": on("fast")}, 180.0: {}}
    never = SteeringSetting(tick_s=60.0, min_between_moves_s=1e6, preempt=True)
    assert moving(script, jobs, "fast=1", steering=never)[0] == 1000.0
    ends = moving(script, jobs, "fast=1", steering=PREEMPTS)
    # j2 came before it was stopped, j3 after that.
    assert ends[1:3] == [220.0, 720.0] and ends[0] < ends[3]


def queue_of(load: Workload, text: str) -> Workload:
    found = list(rows(text, "t.csv", ["job_id"]))
    return replace(load, queue=queue_columns.queued(found, load.types))


def test_no_move_takes_what_a_waiting_job_has_reserved() -> None:
    """j0 and j1 hold the fast GPUs, until 1,000 s and 50 s; j3 waits for both."""
    one, two = [[2.0, 0.0], [1.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]
    jobs = work([one, one, one, two], total=[2000.0, 100.0, 3000.0, 100.0], counts=(1, 2))
    jobs = queue_of(jobs, "job_id,managed\nj0,no\nj1,no\nj2,yes\nj3,no\n")
    ends = moving({0.0: {"j2": on("fast")}}, jobs, "fast=2,slow=1")
    assert ends[:2] == [1000.0, 50.0] and ends[3] == 1050.0
    # Only then it moves, at the tick of 1,080 s.
    assert ends[2] == 1080.0 + 10.0 + (3000.0 - 1080.0) / 2


@pytest.mark.parametrize(("waits", "end"), [("fast", 810.0), ("slow", 60.0 + 10.0 + 750 / 2)])
def test_no_move_to_what_a_waiting_job_could_use_that_backfill_keeps_waiting(waits, end) -> None:
    """j0 holds a fast GPU until 1,000 s, j3 waits for both. j4 is too long to go before it; were
    j0 over before its time limit, it would start on the free one in the next pass."""
    one, two = [[2.0, 0.0], [1.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]
    jobs = work([one, one, one, two, one], total=[2000.0, 1000.0, 800.0, 100.0, 3000.0],
                arrival=[0.0, 0.0, 0.0, 10.0, 20.0], counts=(1, 2))  # fmt: skip
    text = f"j0,no,fast,\nj1,no,slow,\nj2,yes,,1\nj3,no,fast,\nj4,no,{waits},"
    jobs = queue_of(jobs, f"job_id,managed,types,priority\n{text}\n")
    script = {0.0: {"j2": on("slow")}, 30.0: {"j2": on("fast")}}
    assert moving(script, jobs, "fast=2,slow=2")[2] == end


def test_no_move_to_what_a_waiting_job_could_use_with_what_moved_jobs_leave() -> None:
    """j0 and j1 would change their types at one tick; j2 waits for both fast GPUs, of which one is
    free. j0 leaves the other one."""
    one, two = [[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]
    jobs = work([one, one, two], total=[3000.0, 500.0, 100.0], arrival=[0.0, 0.0, 10.0],
                counts=(1, 2))  # fmt: skip
    jobs = queue_of(jobs, "job_id,managed,priority\nj0,yes,\nj1,yes,1\nj2,no,\n")
    begin, end = {"j0": on("fast"), "j1": on("slow")}, {"j0": on("slow"), "j1": on("slow")}
    script = {0.0: begin, 20.0: {"j0": on("slow"), "j1": on("fast")}, 70.0: end}
    assert moving(script, jobs, "fast=2,slow=2") == [3010.0, 510.0, 160.0]


@pytest.mark.parametrize(
    ("types", "end"), [("fast", 1030 + 10 + 1970 / 2), ("", 70 + 10 + 2930 / 2)]
)
def test_no_move_to_a_type_that_is_closed_for_a_job_ahead(types, end) -> None:
    """j0 and j1 hold two GPUs of each type; j3 came later, has priority and waits for three.
    Where it names only the fast type, Slurm would start j2 on the slow one again."""
    two, one = [[0.0, 2.0, 0.0], [0.0, 1.0, 0.0]], [[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    three = [[0.0, 0.0, 2.0], [0.0, 0.0, 1.0]]
    jobs = work([two, two, one, three], total=[2000.0, 1000.0, 3000.0, 2000.0],
                arrival=[0.0, 0.0, 0.0, 10.0], counts=(1, 2, 3))  # fmt: skip
    text = "job_id,managed,types,priority\nj0,no,fast,1\nj1,no,slow,1\nj2,yes,,1\n"
    jobs = queue_of(jobs, f"{text}j3,no,{types},9\n")
    script = {0.0: {"j2": on("slow")}, 20.0: {"j2": on("fast")}}
    ends = moving(script, jobs, "fast=4,slow=4")
    assert ends[3] == 2000.0 and ends[2] == end


@pytest.mark.parametrize(
    ("wish_s", "moved_s"),
    [
        # j2 had waited for 300 s when it started; at this tick j3 has waited for 10 s.
        (355.0, 360.0),
        # j3 has waited for longer, until it starts at 1,000 s.
        (705.0, 1020.0),
    ],
)
def test_a_job_that_waits_passes_a_running_one_once_it_has_waited_longer(wish_s, moved_s) -> None:
    """Slurm counts no age while a job runs. Two GPUs of each type are held until 300 s, two until
    1,000 s; j2 waits from 0 s on, j3 from 350 s on for three fast ones. The last has tick 720
    decide."""
    two, one = [[0.0, 2.0, 0.0], [0.0, 1.0, 0.0]], [[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    three = [[0.0, 0.0, 2.0], [0.0, 0.0, 1.0]]
    jobs = work([two, two, one, three, two, two, one],
                total=[600.0, 300.0, 3000.0, 2000.0, 2000.0, 1000.0, 5.0],
                arrival=[0.0, 0.0, 0.0, 350.0, 0.0, 0.0, 700.0], counts=(1, 2, 3))  # fmt: skip
    text = "j0,no,fast,1\nj1,no,slow,1\nj2,yes,,0\nj3,no,fast,0\nj4,no,fast,1\nj5,no,slow,1"
    jobs = queue_of(jobs, f"job_id,managed,types,priority\n{text}\nj6,no,slow,0")
    script = {0.0: {"j2": on("slow")}, wish_s: {"j2": on("fast")}}
    ends = moving(script, jobs, "fast=4,slow=4")
    assert ends[3] == 2000.0
    assert ends[2] == moved_s + 10.0 + (3000.0 - (moved_s - 300.0)) / 2


def test_a_job_is_never_moved_to_a_type_that_it_does_not_name() -> None:
    jobs = queue_of(work(BOTH, total=1000.0), "job_id,managed,types\nj0,yes,slow\n")
    setting = SimulationSetting(jobs, machines(), MANAGED, steering=ALWAYS)
    assert simulate(setting, policies.get("hadar")).finish_s.tolist() == [1000.0]


def test_an_unmanaged_job_is_never_steered() -> None:
    rng = np.random.default_rng(4)
    rate = rng.uniform(0.5, 2.0, (30, 2, 1))
    jobs = work(rate.tolist(), total=rng.uniform(50, 900, 30).tolist(),
                arrival=np.sort(rng.uniform(0, 600, 30)).tolist())  # fmt: skip
    alone = finishes(jobs, "fast=2,slow=2")
    assert finishes(jobs, "fast=2,slow=2", policies.get("hadar")) == alone
    assert finishes(jobs, "fast=2,slow=2", policies.get("hadar"), drawn=MANAGED) != alone


@pytest.mark.parametrize("policy", ["hadar", "timetable", "fifo", "gavel_las", "ones"])
def test_policies_run_in_slurms_order(policy) -> None:
    rng = np.random.default_rng(5)
    rate = rng.uniform(0.5, 2.0, (12, 2, 1))
    jobs = work(rate.tolist(), total=500.0, arrival=np.arange(12.0) * 20)
    setting = SimulationSetting(jobs, machines("fast=2,slow=2"), Drawn(0.3), steering=ALWAYS)
    out = simulate(setting, policies.get(policy), policy)
    assert out.finished == 12 and out.order == "slurm"
    figures = out.summary()
    assert figures["order"] == "slurm" and figures["unmanaged_jct_h"] and figures["managed_jct_h"]


def test_what_is_drawn_compares_between_runs() -> None:
    jobs = work([[[2.0], [1.0]]] * 400)
    cluster = machines("fast=30,slow=10")
    some = [requests(jobs, cluster, Drawn(share, True, seed=3)) for share in (0.3, 0.7)]
    assert [round(float((~one.managed).mean()), 1) for one in some] == [0.3, 0.7]
    assert (some[0].managed | ~some[1].managed).all()
    both = ~some[0].managed
    assert (some[0].types[both] == some[1].types[both]).all()
    assert (some[0].types[both].sum(axis=1) == 1).all() and some[0].types[~both].all()
    drawn = requests(jobs, cluster, Drawn(1.0, True)).types.mean(axis=0)
    assert drawn[0] == pytest.approx(0.75, abs=0.07)
    often = [number for _, number in Counter(some[0].users).most_common()]
    assert all(a >= b for a, b in pairwise(often)) and often[0] > 5 * often[-1]
    assert len({*zip(some[0].users, some[0].accounts, strict=True)}) == len(set(some[0].users))
    assert len(set(some[0].accounts)) <= 20
    assert some[0].users == some[1].users


def test_what_a_trace_says_goes_before_what_is_drawn() -> None:
    text = (
        "job_id,managed,types,time_limit_s,priority,user,account\n"
        "a,no,slow,500,3,ann,lab\nb,yes,,,,,\nc,,fast slow,,,,\n"
    )
    jobs = queue_of(work([[[2.0], [1.0]]] * 3), text)
    found = requests(jobs, machines(), Drawn())
    assert found.managed.tolist() == [False, True, True]
    assert found.types.tolist() == [[False, True], [True, True], [True, True]]
    assert found.limit_s[0] == 500.0 and 1500 <= found.limit_s[1] <= 3000
    assert found.priority.tolist() == [3.0, 0.0, 0.0]
    assert (found.users[0], found.accounts[0]) == ("ann", "lab") and found.users[1]
    part = jobs.take([2, 0]).queue
    assert part is not None and part.users == ("", "ann") and part.managed.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,maybe,,", "managed is 'maybe'; write yes or no"),
        ("a,yes,h100,", "types names 'h100'; the cluster has fast, slow"),
        ("a,yes,,0", "time_limit_s is 0; it must be more than 0"),
    ],
)
def test_a_wrong_cell_is_one_sentence(row, words) -> None:
    found = list(rows(f"job_id,managed,types,time_limit_s\n{row}\n", "t.csv", ["job_id"]))
    with pytest.raises(UsageError, match=words):
        queue_columns.queued(found, ("fast", "slow"))


def test_a_plan_without_jobs_leaves_all_to_slurm() -> None:
    jobs = work([[[2.0], [1.0]]] * 4, total=100.0)
    nothing = finishes(jobs, "fast=1,slow=1", lambda view, state: (Plan(), state), drawn=MANAGED)
    assert nothing == finishes(jobs, "fast=1,slow=1")


def test_a_job_that_cannot_run_as_it_asks_is_named() -> None:
    jobs = replace(work([[[1.0, 0.0], [0.0, 0.0]]], counts=(1, 2)), request=np.array([2]))
    with pytest.raises(UsageError, match="job j0 cannot run on 1 fast, 1 slow with the 2 GPUs"):
        simulate(SimulationSetting(jobs, machines()), None)


def test_a_sites_own_past_tells_users_accounts_and_limits() -> None:
    head = "JobID|User|Account|Submit|Start|End|Timelimit|AllocTRES\n"
    when = "2026-01-05T10:00:00|2026-01-05T10:00:00|2026-01-05T11:00:00"
    text = head + "".join(
        f"{number}|ann|lab|{when}|{limit}|gres/gpu:fast=1\n"
        for number, limit in enumerate(("02:00:00", "00:30:00", "UNLIMITED", "Partition_Limit", ""))
    )
    queue = sacct.read(text, "past", ("fast", "slow"), Rates()).queue
    assert queue is not None and set(zip(queue.users, queue.accounts, strict=True)) == {
        ("ann", "lab")
    }
    assert queue.limit_s[0] == 7200.0 and np.isnan(queue.limit_s[1:]).all()
    assert (queue.managed == -1).all() and not queue.types.any()
