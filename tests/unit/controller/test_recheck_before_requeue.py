"""Whether a move is still right just before its requeue, by what is seen then. That it is looked at
is seen in tests/live/test_owner_changes_live.py."""

from dataclasses import replace

import pytest
from hand_made import CONFIG, NOW, nodes, observation, ordinary, running

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.running.recheck_before_requeue import obstacles
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.domain.node import Reservation

HERE = running("1", {"k1": {"k80": 1}})
LIMIT = "QOSMaxJobsPerUserLimit"
GPU = {"reason": "Resources", "partitions": ("gpu",)}


def asked(job="1", place=None, number=1):
    place = place or {"v1": {"v100": 1}}
    gpus = {kind: count for one in place.values() for kind, count in one.items()}
    details = {"gpus": gpus, "nodes": place, "fields": {"Features": "v100"}, "restarts": 0}
    return Entry(number, job, "move", "asked", NOW - 30, NOW - 30, details, None)


def why(*others, here=HERE, found=None, site=CONFIG, moves=(), **more):
    """Why the move of job 1 is dropped; "": it is not."""
    shown = observation([here, *others], found, **more)
    return obstacles([(asked(), here)], moves, shown, site).get("1", "")


def test_nothing_stands_in_the_way_of_a_free_place():
    assert why() == ""


@pytest.mark.parametrize(
    ("other", "used", "said"),
    [
        (running("2", {"v1": {"v100": 2}}, declaration=None), 2, "not free yet"),
        (ordinary("2", **GPU), 1, "job 2, which waits, gets these GPUs first"),
        (ordinary("2", reason=LIMIT, uid=HERE.uid), 0, "job 2 waits for a limit"),
    ],
)
def test_what_others_took_or_wait_for_does(other, used, said):
    full = dict.fromkeys(("v2", "p1", "p2", "k1", "k2"), 2)
    assert said in why(other, found=nodes(v1=used, **full))


def test_a_hold_does():
    assert "it is held" in why(here=replace(HERE, priority=0))


@pytest.mark.parametrize(("gpus", "kind"), [({"v100": 1}, Kind.MOVE), ({}, Kind.STOP)])
def test_a_limit_that_became_tighter_does(gpus, kind):
    asked_of: list[tuple[str, Kind, bool]] = []

    def refused(actions):
        asked_of.extend((action.job.id, action.kind, action.placement is None)
                        for action in actions)  # fmt: skip
        return {"1": "it is over a limit"}

    entry = asked(place={"v1": gpus} if gpus else {"v1": {}})
    shown = observation([HERE])
    assert obstacles([(entry, HERE)], (), shown, CONFIG, refused) == {"1": "it is over a limit"}
    assert asked_of == [("1", kind, kind is Kind.STOP)]


def test_a_node_that_has_gone_does():
    found = [replace(one, usable=False) if one.name == "v1" else one for one in nodes()]
    assert "node v1, where it would go, is not available any more" in why(found=found)


def test_a_node_that_fell_asleep_does():
    found = [replace(one, asleep=True) if one.name == "v1" else one for one in nodes()]
    assert "node v1, where it would go, is not available any more" in why(found=found)


def test_the_place_of_another_move_is_not_free():
    other = running("2", {"k1": {"k80": 1}})
    both = {"v1": {"v100": 2}}
    assert why(other) == ""
    assert "not free yet" in why(other, moves=[asked("2", both, 2)])


def test_under_preempt_the_place_may_still_be_that_of_a_job_that_makes_way():
    busy = running("2", {"v1": {"v100": 2}}, declaration=None)
    assert why(busy, found=nodes(v1=2)) != ""
    guards = CONFIG.guards.model_copy(update={"preempt": True})
    site = CONFIG.model_copy(update={"guards": guards})
    assert why(busy, found=nodes(v1=2), site=site) == ""


def test_a_reservation_does():
    soon = Reservation("r", ("v1",), NOW + 60, NOW + 7200)
    here = replace(HERE, time_limit_s=3600.0)
    assert "a reservation of v1" in why(here=here, reservations=(soon,))
