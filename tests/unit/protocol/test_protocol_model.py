"""The model keeps the promises of docs/reliability.md, and planted faults break them."""

from dataclasses import replace
from typing import Any

import pytest
from protocol_explorer import explore
from protocol_world import PRODUCT, Bounds, Left

from slurm_hadar.controller.actuation.move_steps import MoveDecision, MoveStep, decide_move
from slurm_hadar.controller.lock import Who, rival_in, taken_over_from
from slurm_hadar.runtime.attempts import AttemptId

ONE, SAME, OTHER = ("h1",), ("h1", "h1"), ("h1", "h2")

SILENT = Bounds("two nodes go silent in a start or a save", Left(silent=2), work=1)
SAVES = Bounds("a node goes silent, the owner requeues", Left(silent=1, requeues=1))
MOVE = Bounds("a hint and a move", Left(crashes=1, moves=1, hints=1), ONE, whole_saves=True)
MOVES = Bounds("two moves", Left(crashes=1, moves=2), ONE, work=1, whole_saves=True)
LOST = Bounds(
    "a move and a silent node", Left(crashes=1, moves=1, silent=1), ONE, 1, True, follows=False
)
LAUNCH = Bounds(
    "a launch that fails", Left(crashes=1, moves=1, hints=1, launches=1), ONE, 1, whole_saves=True
)
HINT = Bounds(
    "hints and a silent node", Left(crashes=1, silent=1, hints=2), ONE, 1, whole_saves=True
)
TWO = Bounds("two controllers, one folder", Left(crashes=1, moves=1), SAME, 1, whole_saves=True)
HOSTS = Bounds("controllers on two hosts", Left(crashes=1, moves=1), OTHER, 0, whole_saves=True)
SIGNAL = Bounds(
    "a job that requeues itself on its signal",
    Left(crashes=1, moves=2, requeues=1), ONE, 1, whole_saves=True,
    parts=replace(PRODUCT, habit="signal"),
)  # fmt: skip
EITHER_STALLS = Bounds(
    "one of two hosts stalls", Left(moves=2, stalls=1), OTHER, 0, whole_saves=True, follows=False
)
"""By hand: ``explore(EITHER_STALLS)`` takes a minute."""
STALL = replace(EITHER_STALLS, name="the first of two hosts stalls", first_stalls=True)


@pytest.mark.parametrize(
    "bounds",
    [SILENT, SAVES, MOVE, MOVES, LOST, LAUNCH, HINT, TWO, HOSTS, STALL, SIGNAL],
    ids=lambda one: one.name,
)
def test_every_state_keeps_the_promises(bounds, record_property):
    found = explore(bounds)
    print(f"{bounds.name}: {found}")
    record_property("states", found.states)
    assert not found.broken, f"{bounds.name}: {found}"
    assert found.completed


def without_acknowledgement(move, now, times):
    """Requeues a running job whose move is open, whatever it has answered and to whom."""
    if move.job.state.value == "running":
        return MoveDecision(MoveStep.REQUEUE)
    return decide_move(move, now, times)


def without_restarts(move, now, times):
    """Takes an old acknowledgement for one of the attempt that runs now."""
    if move.job.state.value == "running":
        again = replace(move.job, restarts=move.entry.details["restarts"])
        move = replace(move, job=again)
    return decide_move(move, now, times)


def by_number(mine: AttemptId, present):
    """The newest attempt by number alone, as the product once had it."""
    newest = max(present, default=mine)
    return newest if newest > mine else None


def wish_of_any_start(plan, restarts, answered):
    return "" if plan is None or plan.save in answered else plan.save


def at_once(move, now, times):
    """Takes a requeue that the controller did not ask for itself for one of its own."""
    return decide_move(move, now, replace(times, after_return_s=1.0))


def requeued_too(move, now, times):
    """Requeues a job that was signalled, as if it had acknowledged."""
    found = decide_move(move, now, times)
    if found.step is MoveStep.STAY:
        return MoveDecision(MoveStep.REQUEUE)
    return found


FAULTS: dict[str, tuple[Bounds, dict[str, Any], str]] = {
    "a job that requeued itself is sent on at once": (
        SIGNAL, {"decide_move": at_once, "habit": "signal"}, "job lost: started beside"),
    "a job that did not answer its signal is requeued": (
        SIGNAL, {"decide_move": requeued_too, "habit": "signal"}, "did not acknowledge this move"),
    "a take-over leaves the folders of earlier attempts": (
        SAVES, {"removes_earlier": False}, "a stale attempt published"),
    "a checkpoint is checked, then renamed from elsewhere": (
        SAVES, {"renames_from_folder": False}, "a stale attempt published"),
    "a take-over keeps what it loaded before": (
        SAVES, {"reloads": False}, "took over without the newest checkpoint"),
    "attempts are ordered by number alone": (
        SILENT, {"later": by_number, "supersedes": lambda mine: mine.__gt__}, "SUPERSEDED"),
    "a requeue without an acknowledgement": (
        MOVE, {"decide_move": without_acknowledgement}, "did not acknowledge this move"),
    "a requeue again after a crash": (
        MOVE, {"decide_move": without_restarts}, "did not acknowledge this move"),
    "a wish to save without a restart count": (
        LOST, {"save_wish": wish_of_any_start}, "a wish to save that was meant for another"),
    "a hint that lets the job start at once": (
        HINT, {"hints_keep_begin": False}, "job lost: started"),
}  # fmt: skip


STALLED = "an attempt was requeued that did not acknowledge this move"


def test_a_controller_that_does_not_look_again_acts_beside_another_one():
    parts = replace(PRODUCT, taken_over_from=lambda beat, who, now: "")
    found = explore(replace(STALL, parts=parts))
    assert found.broken == STALLED, str(found)


def test_controllers_that_are_distinguished_by_their_hosts_name_alone_act_beside_each_other():
    parts = replace(
        PRODUCT,
        rival_in=lambda beat, who, now: rival_in(beat, Who(who.host), now),
        taken_over_from=lambda beat, who, now: taken_over_from(beat, Who(who.host), now),
    )
    # One move is enough to find it.
    found = explore(replace(STALL, left=Left(moves=1, stalls=1), parts=parts), deep=True)
    assert found.broken == STALLED, str(found)


def test_what_slurm_leaves_open_is_found_too():
    """Slurm requeues without a condition, so a controller that stalls between its last look and its
    command for longer than a heartbeat lasts ends an attempt of another controller's."""
    found = explore(replace(STALL, stalls_anywhere=True))
    assert found.broken == STALLED, str(found)
    assert found.trace[-1] == "controller 0: sends the requeue: ok", str(found)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    bounds, parts, broken = FAULTS[name]
    found = explore(replace(bounds, parts=replace(PRODUCT, **parts)))
    print(f"{name}: {found}")
    assert broken in found.broken, f"{name}: {found}"
    assert 1 < len(found.trace) < 40
