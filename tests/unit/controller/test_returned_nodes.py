"""Nodes that were down a moment ago: whose processes are still leaving there nobody knows."""

from dataclasses import replace

import pytest
from hand_made import job, node, running

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.returned_nodes import ReturnedNodes


def shown(state, usable=True):
    return {"v1": replace(node("v1"), state=state, usable=usable)}


UP, DOWN = shown("IDLE"), shown("DOWN*", usable=False)


@pytest.fixture
def store(tmp_path):
    opened = Store.open(tmp_path / "state")
    yield opened
    opened.close()


def usable(returned, nodes, now):
    return returned.applied(nodes, now)["v1"].usable


def test_a_node_is_used_some_time_after_it_came_back(store):
    returned = ReturnedNodes(store, 40.0)
    assert usable(returned, UP, 0.0)
    assert not usable(returned, DOWN, 100.0)
    assert [usable(returned, UP, now) for now in (101.0, 139.0, 140.0)] == [False, False, True]


def test_the_next_controller_knows_it_too(store):
    before = ReturnedNodes(store, 40.0)
    before.applied(DOWN, 100.0)
    before.keep()
    assert [usable(ReturnedNodes(store, 40.0), UP, now) for now in (120.0, 140.0)] == [False, True]


def test_a_clock_set_back_keeps_no_node_out_for_long(store):
    returned = ReturnedNodes(store, 40.0)
    returned.applied(DOWN, 4000.0)
    assert usable(returned, UP, 400.0)


def test_only_what_is_recent_is_kept(store):
    returned = ReturnedNodes(store, 40.0)
    returned.applied(DOWN, 100.0)
    returned.applied(UP, 139.0)
    returned.keep()
    assert set(store.policy_state("returned nodes")) == {"v1"}
    returned.applied(UP, 141.0)
    returned.keep()
    assert store.policy_state("returned nodes") == {}


@pytest.mark.parametrize(
    "state", ["IDLE+RESERVED", "MIXED+DRAIN", "ALLOCATED+MAINTENANCE", "IDLE+FAIL"]
)
def test_a_node_that_kept_its_jobs_is_used_as_soon_as_it_is_open(store, state):
    returned = ReturnedNodes(store, 40.0)
    assert not usable(returned, shown(state, usable=False), 100.0)
    assert usable(returned, UP, 100.5)


@pytest.mark.parametrize("state", ["DOWN+DRAIN", "IDLE*+RESERVED", "DOWN+REBOOT_ISSUED", "", "NEW"])
def test_whatever_else_is_shown_beside_down_the_node_was_down(store, state):
    returned = ReturnedNodes(store, 40.0)
    assert not usable(returned, shown(state, usable=False), 100.0)
    assert not usable(returned, UP, 100.5)


def moved(store, job_id, restarts, phase="requeued", kind="move"):
    entry = store.begin(job_id, kind, "asked", 0.0, {"restarts": restarts})
    if phase != "asked":
        store.advance(entry, phase, 1.0)
    return entry


def not_before(returned, now, *jobs):
    return {
        id_: job.not_before_s for id_, job in returned.later({j.id: j for j in jobs}, now).items()
    }


def test_a_job_that_a_failing_node_requeued_may_start_when_its_last_attempt_has_left(store):
    moved(store, "1", 0)
    returned = ReturnedNodes(store, 40.0)
    returned.applied(DOWN, 100.0)
    returned.keep()
    requeued, fresh = job("1", submit_s=95.0, restarts=1), job("2", submit_s=95.0)
    runs = running("3", {"k1": {"k80": 1}}, submit_s=95.0, restarts=1)
    for one in (returned, ReturnedNodes(store, 40.0)):
        one.applied(UP, 110.0)
        assert not_before(one, 110.0, requeued, fresh, runs) == {"1": 135.0, "2": 0.0, "3": 0.0}
    assert not_before(returned, 135.0, requeued) == {"1": 0.0}


@pytest.mark.parametrize("pause_s", [5.0, 30.0, 60.0, 600.0])
@pytest.mark.parametrize("timer", [True, False])
def test_a_node_that_is_down_for_long_keeps_no_requeued_job_waiting(store, pause_s, timer):
    returned = ReturnedNodes(store, 40.0)
    for tick in range(5):
        now = 1000.0 + tick * pause_s
        returned = ReturnedNodes(store, 40.0) if timer else returned
        returned.applied(DOWN, now)
        returned.keep()
    moved(store, "1", 0)
    assert not_before(returned, now, job("1", submit_s=now - 4.0, restarts=1)) == {"1": 0.0}


def test_a_job_that_somebody_else_requeued_waits_as_long_since_a_node_may_have_done_it(store):
    returned = ReturnedNodes(store, 40.0)
    returned.applied(UP, 100.0)
    requeued, fresh = job("1", submit_s=95.0, restarts=2), job("2", submit_s=95.0)
    assert not_before(returned, 100.0, requeued, fresh) == {"1": 135.0, "2": 0.0}
    assert not_before(returned, 135.0, requeued) == {"1": 0.0}


def test_who_is_preempted_all_the_time_waits_for_a_node_that_was_seen_down_only(store):
    returned = ReturnedNodes(store, 40.0)
    returned.applied(UP, 100.0)
    jobs = {"1": job("1", submit_s=95.0, restarts=2)}
    assert returned.later(jobs, 100.0, {"1"}) == jobs
    returned.applied(DOWN, 101.0)
    assert returned.later(jobs, 101.0, {"1"})["1"].not_before_s == 135.0


@pytest.mark.parametrize(
    ("restarts", "phase", "kind", "waits"),
    [
        (1, "requeued", "move", False),
        (1, "asked", "move", True),  # it was requeued before the controller came to it
        (0, "requeued", "move", True),  # that move was an earlier one
        (1, "requeued", "hint", True),
    ],
)
@pytest.mark.parametrize("over", [True, False])
def test_a_job_that_the_controller_requeued_need_not_wait(
    store, restarts, phase, kind, waits, over
):
    moved(store, "1", 0)
    entry = moved(store, "1", restarts, phase, kind)
    moved(store, "2", 7)
    if over:
        store.end(entry, "moved", 2.0)
    returned = ReturnedNodes(store, 40.0)
    returned.applied(UP, 100.0)
    found = not_before(returned, 100.0, job("1", submit_s=95.0, restarts=2))
    assert found == {"1": 135.0 if waits else 0.0}


@pytest.mark.parametrize("kept", [True, False])
def test_a_node_that_goes_down_once_more_keeps_its_jobs_waiting_once_more(store, kept):
    returned = ReturnedNodes(store, 40.0)
    for shown_, now in ((DOWN, 100.0), (UP, 105.0), (DOWN, 120.0)):
        returned.applied(shown_, now)
        returned.keep()
        returned = ReturnedNodes(store, 40.0) if kept else returned
    moved(store, "1", 0)
    assert not_before(returned, 120.0, job("1", submit_s=119.0, restarts=1)) == {"1": 159.0}


def test_after_a_long_pause_a_node_may_have_been_up_meanwhile(store):
    returned = ReturnedNodes(store, 40.0)
    returned.applied(DOWN, 100.0)
    returned.applied(DOWN, 2000.0)
    moved(store, "1", 0)
    assert not_before(returned, 2000.0, job("1", submit_s=1999.0, restarts=1)) == {"1": 2039.0}


@pytest.mark.parametrize("row", [100.0, [100.0, 100.0], ["a", 1.0, True], None, [1.0, 2.0, 3.0]])
def test_what_was_kept_in_another_form_is_forgotten(store, row):
    store.keep_policy_state("returned nodes", {"v1": row})
    assert usable(ReturnedNodes(store, 40.0), UP, 101.0)
