"""The order of the simulated queue goes by age, as Slurm counts it: only while a job waits."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend import machines, work

from slurm_hadar.scheduling.exchange_rule import ExchangeLevel
from slurm_hadar.simulator.queue.order import QueueOrder
from slurm_hadar.simulator.queue.requests import Drawn, requests
from slurm_hadar.simulator.traces import queue_columns
from slurm_hadar.simulator.traces.csv_rows import rows

EVENTS = ("starts", "moves", "is stopped")


def order_of(
    *arrival: float, priority: tuple[int, ...] = (), level: ExchangeLevel = ExchangeLevel.NONE
) -> QueueOrder:
    load = work([[[1.0], [1.0]]] * len(arrival), arrival=list(arrival))
    lines = [
        f"j{job},yes,ann,x,{value}" for job, value in enumerate(priority or (0,) * len(arrival))
    ]
    text = "\n".join(["job_id,managed,user,account,priority", *lines])
    queue = queue_columns.queued(list(rows(text, "t.csv", ["job_id"])), load.types)
    load = replace(load, queue=queue)
    limits = Drawn(limits=(1.0, 1.0))
    return QueueOrder(load, requests(load, machines(), limits), level)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(EVENTS)), min_size=10, max_size=30),
)
def test_the_order_is_that_of_priorities_and_of_ages_that_grow_while_jobs_wait(
    jobs: list[tuple[int, int]], script: list[tuple[int, str]]
) -> None:
    """Against Slurm's count: each second a job that waits, and may start, is one second older; a
    moved one keeps its age (the controller gives it back by Nice), a stopped one has none."""
    order = order_of(*(at for at, _ in jobs), priority=tuple(value for _, value in jobs))
    age, runs, not_before = Counter[int](), set[int](), Counter[int]()
    for now, (whose, event) in enumerate(script, 1):
        here = [job for job, (arrival, _) in enumerate(jobs) if arrival < now]
        age.update(job for job in here if job not in runs and not_before[job] < now)
        job = here[whose % len(here)] if here else -1
        match event:
            case "starts" if job in here and job not in runs and not_before[job] <= now:
                order.start(job, now)
                runs.add(job)
            case "moves" if job in runs:
                order.move(job, now)
                order.start(job, now)
            case "is stopped" if job in runs:
                order.requeue(job, now + 2)
                runs.remove(job)
                age[job], not_before[job] = 0, now + 2
        able = [job for job in here if not_before[job] <= now]
        able.sort(key=lambda job: (-jobs[job][1], -age[job], job))
        waiting = [job for job in able if job not in runs]
        assert order.sort(np.array(waiting, dtype=np.int64)).tolist() == waiting
        ranks = order.owners(np.array(able, dtype=np.int64), now)
        assert [able[at] for at in np.argsort(ranks)] == able
        for one in waiting:
            for other in runs:
                ahead = able.index(one) < able.index(other)
                assert order.is_ahead(one, other, now) == ahead


def test_a_job_has_the_age_of_the_place_from_which_it_started() -> None:
    """j2 starts at 60 s from the place of j0, so with an age of 60 s; j1 is as old at 70 s."""
    order = order_of(0.0, 10.0, 50.0, level=ExchangeLevel.ASSOCIATION)
    order.exchange([0, 1, 2], np.array([False, False, True]))
    assert order.sort(np.arange(3)).tolist()[0] == 2
    order.start(2, 60.0)
    assert not order.is_ahead(1, 2, 60.0)
    assert not order.is_ahead(1, 2, 70.0)
    assert order.is_ahead(1, 2, 70.5)
    # j0 has the place of j1 or of j2 by then.
    assert sorted(order.owners(np.array([0, 1]), 60.0).tolist()) == [0, 1]
