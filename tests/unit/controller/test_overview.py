"""What ``hadar status`` tells to whom."""

from dataclasses import replace

import pytest
from hand_made import CONFIG, NOW, job, node, observation, ordinary, running

from slurm_hadar.controller.journal.entry import NOT_MEANT, Decision, Entry
from slurm_hadar.controller.presentation import event_log, job_history
from slurm_hadar.controller.presentation import overview as words
from slurm_hadar.controller.presentation.cluster_view import cluster_view
from slurm_hadar.controller.presentation.job_explanation import move_row
from slurm_hadar.controller.presentation.overview import Sight, Viewer, overview
from slurm_hadar.controller.presentation.privacy import Privacy
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.heartbeat import Heartbeat
from slurm_hadar.exchange.progress import Ack, Progress
from slurm_hadar.reports.cluster import HIDDEN
from slurm_hadar.reports.formats import moment
from slurm_hadar.reports.status import (
    CHAINED,
    CONTROLLER,
    SLURM,
    STATE_FILE,
    ControllerState,
    Overview,
    summary,
)

ALIVE = ControllerState("acts", "login1", NOW - 5)
SILENT = ControllerState("silent", "login1", NOW - 7200)
ANN, BOB, OPERATOR = Viewer(1000), Viewer(1001), Viewer(0, everything=True)


def hidden(viewer):
    return replace(viewer, hidden_jobs=True, hidden_nodes=True)


def some():
    """Ann's job runs, Bob's waits, and somebody's is not managed."""
    return observation(
        [
            running("1", {"v1": {"v100": 1}}),
            job("2", uid=1001, user="bob", reason="Resources"),
            ordinary("3", uid=1002, user="eve"),
        ]
    )


def sight(observed=None, controller=ALIVE, source=CONTROLLER, **more):
    decisions = {
        "1": Decision("1", NOW - 60, "1 x v100 on v1", "job 2 pays less"),
        "2": Decision("2", NOW - 60, "1 x k80 on k1", "its declared work counts 3.0 times"),
    }
    return Sight(observed or some(), CONFIG, controller, source, decisions, **more)


def rows(found):
    return {row.id: row for row in found.rows}


def test_an_operator_sees_all_and_why():
    found = overview(sight(), OPERATOR)
    assert rows(found).keys() == {"1", "2"}
    assert rows(found)["2"].reason == "Slurm: Resources; its declared work counts 3.0 times"
    assert found.managed == {"running": 1, "pending": 1} and found.others == {"pending": 1}


def test_of_others_jobs_a_user_sees_what_squeue_shows():
    found = overview(sight(), ANN)
    assert rows(found)["1"].reason == "job 2 pays less"
    other = rows(found)["2"]
    assert other.reason == "Slurm: Resources" and not other.planned and other.done is None


def test_a_silent_accounting_database_is_a_line_for_the_operator_while_the_controller_ticks():
    silent = {"database": "slurmdbd does not answer: until it gives its limits no job is moved"}

    def line(viewer, **more):
        lines = (str(one) for one in summary(overview(sight(**more), viewer), NOW))
        return next((one for one in lines if one.startswith("Accounting")), "")

    assert line(OPERATOR, accounting=silent).split(maxsplit=1)[1] == silent["database"]
    assert line(OPERATOR) == line(ANN, accounting=silent) == ""
    assert line(OPERATOR, accounting=silent, controller=SILENT) == ""


def test_under_private_data_nothing_of_others_is_shown():
    found = overview(sight(entries=[], trust={1001: 3.0}), hidden(ANN))
    assert rows(found).keys() == {"1"}
    assert rows(found)["1"].reason == "another job pays less"
    assert found.managed == {"running": 1} and found.others == {} and found.gpus == ()
    assert found.trust == 1.0
    (line,) = (str(one) for one in summary(found, NOW) if str(one).startswith("GPUs"))
    assert "Slurm hides the nodes" in line
    assert "bob" not in repr(found) and "3.0" not in repr(found)


def test_under_private_data_a_place_in_the_queue_counts_no_jobs_of_others():
    queued = sight()
    queued.decisions["1"] = replace(
        queued.decisions["1"],
        reason="number 6 of 16 in the policy's queue, in the order of gain per price",
    )
    (row,) = overview(queued, hidden(ANN)).rows
    assert row.reason == "in the policy's queue, in the order of gain per price"
    assert "number 6 of 16" in rows(overview(queued, ANN))["1"].reason


def test_what_users_share_of_the_nodes_shows_nobody_anothers_hidden_job():
    blind = replace(BOB, hidden_jobs=True)
    both = observation(
        [running("1", {"v1": {"v100": 1}}), running("2", {"v1": {"v100": 1}}, uid=1001)]
    )
    for viewers in ((OPERATOR, blind, ANN), (blind, ANN, OPERATOR), (ANN, OPERATOR, blind)):
        shared = sight(both)
        for viewer in viewers:
            (held,) = (one.jobs for one in cluster_view(shared, viewer).nodes if one.name == "v1")
            assert held == ({HIDDEN: 1, "2": 1} if viewer is blind else {"1": 1, "2": 1})
        assert cluster_view(shared, hidden(BOB)).nodes == []


def test_each_user_sees_how_far_their_own_declarations_count():
    known = sight(trust={1001: 3.0})
    assert overview(known, BOB).trust == 3.0 and overview(known, ANN).trust == 1.0
    assert overview(sight(), ANN).trust is None


def test_reasons_of_a_dead_controller_are_marked_as_old():
    found = overview(sight(controller=SILENT, source=STATE_FILE), OPERATOR)
    assert rows(found)["1"].reason == "OLD, decided 1 min 00 s ago: job 2 pays less"
    # Slurm's own reason is of now.
    assert rows(found)["2"].reason.startswith("Slurm: Resources; OLD, decided 1 min")
    alone = overview(sight(source=SLURM), ANN)
    assert rows(alone)["1"].reason == "decided 1 min 00 s ago: job 2 pays less"


def test_what_a_controller_answers_that_waits_for_slurm_is_dated_by_the_clock():
    # It answers from its last tick, which may be long ago.
    reason = rows(overview(sight(controller=SILENT), OPERATOR))["1"].reason
    assert reason == f"OLD, decided at {moment(NOW - 60)}: job 2 pays less"


def test_gpus_are_counted_by_type():
    nodes = [
        node("v1", gpus=4, gpus_used={"v100": 1}),
        node("v2", gpus=2, usable=False, gpus_used={"v100": 1}),
        node("k1", gpus=2),
    ]
    jobs = [running("1", {"v1": {"v100": 1}}), job("2", uid=1001, user="bob")]
    found = overview(sight(observation(jobs, nodes)), OPERATOR).gpus
    shown = {use.gpu_type: (use.total, use.used, use.idle, use.down, use.planned) for use in found}
    assert shown == {"v100": (6, 2, 3, 1, 0), "k80": (2, 0, 2, 0, 1)}


def move(id_, job_, outcome, effect=None, restarts=0):
    details = {"gpus": {"v100": 1}, "from": {"k1": {"k80": 2}}, "restarts": restarts}
    return Entry(id_, job_, "move", "asked", NOW - 500, NOW - 400, details, outcome, effect=effect)


def test_a_requeue_at_the_time_limit_is_no_move():
    stop = move(1, "1", "stopped")
    stop = replace(stop, details={**stop.details, "gpus": {}})
    chained = replace(stop, details={**stop.details, chaining.DETAIL: {"left": 3}})
    found = words.today([stop, chained, replace(chained, outcome="moved")], observation([]))
    assert found.moves == {"stopped": 1, CHAINED: 2}
    printed = "\n".join(
        str(line) for line in summary(Overview(NOW, CONTROLLER, ALIVE, today=found), NOW)
    )
    assert "1 move (1 stopped, 2 requeued at the time limit)" in printed
    slower = Overview(NOW, CONTROLLER, ALIVE, today=replace(found, gained_gpu_h=-0.01))
    assert "; 0.0 GPU-hours gained" in "\n".join(str(line) for line in summary(slower, NOW))


def test_a_job_that_did_not_come_to_its_place_was_not_moved():
    gone = replace(move(1, "1", "moved"), shown="runs on 1 x k80 on k1, which was not meant")
    assert words.today([gone], observation([])).moves == {"not carried out": 1}
    # So says everything else that shows the move.
    assert move_row(gone).outcome == f"not carried out; {gone.shown}"
    assert job_history._action(gone).detail == f"not carried out after 100 s; {gone.shown}"
    assert event_log._action(gone, {}, Privacy(CONFIG))["outcome"] == "not carried out"
    assert move_row(replace(gone, shown=None)).outcome == "moved"
    # It is a restart, and no move.
    restarted = replace(some(), steering={"1": Steering(time=NOW - 400, moves=3)})
    assert rows(overview(sight(restarted, in_vain={"1": 1}), OPERATOR))["1"].moves == 2
    # Where it runs now and stays is what is planned, not where it was sent.
    sent = Steering(time=NOW - 400, gpus={"k80": 1})
    found = overview(sight(replace(some(), steering={"1": sent})), OPERATOR)
    assert rows(found)["1"].planned == rows(found)["1"].here == {"v100": 1}


def test_hours_gained_and_lost_are_those_that_the_trainings_reported():
    runs = running("1", {"v1": {"v100": 1}}, restarts=1)
    shown = observation([replace(runs, start_s=NOW - 3600)])
    effect = {"rate_before": 100.0, "rate_after": 400.0, "without_training_s": 30.0, "lost_s": 6.0}
    entries = [
        move(1, "1", "moved", effect),
        move(2, "9", "the job did not save within 120 s"),
        move(3, "8", None),
        move(4, "7", "Slurm refused it"),
    ]
    found = words.today(entries, shown)
    assert found.moves == {"moved": 1, "not saved": 1, "not carried out": 1, "under way": 1}
    # An hour on one v100 did what four hours of two k80 would.
    assert found.gained_gpu_h == pytest.approx(4 * 2 - 1)
    assert found.lost_gpu_h == pytest.approx(36 * 2 / 3600)
    # Where the job has left that place nothing is counted.
    gone = observation([replace(runs, restarts=2)])
    assert words.today(entries, gone).gained_gpu_h == 0
    # It started elsewhere: what it trains there is no gain of the move.
    elsewhere = replace(entries[0], shown=f"runs on 4 x p100 on p1, {NOT_MEANT}")
    assert words.today([elsewhere], shown).gained_gpu_h == 0
    assert words.today([elsewhere], shown).lost_gpu_h == found.lost_gpu_h


def test_todays_moves_are_the_same_for_all_or_those_of_own_jobs():
    moved = [move(number, id_, "moved") for number, id_ in enumerate(("1", "2", "77", "78"))]
    # Two of these have ended, of which one was Ann's.
    known = sight(entries=moved, owned=lambda uid: {"1", "77"} if uid == 1000 else {"2", "78"})
    for viewer in (OPERATOR, ANN, BOB):
        today = overview(known, viewer).today
        assert today.moves == {"moved": 4} and not today.own
    today = overview(known, hidden(ANN)).today
    assert today.moves == {"moved": 2} and today.own
    lines = summary(Overview(NOW, CONTROLLER, ALIVE, today=today), NOW)
    assert "2 moves of your jobs (2 moved)" in "\n".join(map(str, lines))


@pytest.mark.parametrize(
    ("age", "mode", "state"),
    [(10, "act", "acts"), (10, "observe", "observes"), (1000, "act", "silent")],
)
def test_the_heartbeat_tells_whether_a_controller_is_alive(age, mode, state):
    beat = Heartbeat("login1", 1, mode, NOW - age, 60.0)
    assert words.controller_state(beat, NOW) == ControllerState(state, "login1", NOW - age)
    assert words.controller_state(None, NOW).state == "never seen"


def test_a_job_that_is_asked_to_save_says_so_and_where_it_goes():
    """While it is, a policy sees it where it goes already."""
    details = {"gpus": {"k80": 1}, "nodes": {"k1": {"k80": 1}}, "habit": "signal", "grace_s": 60.0}
    asked = Entry(1, "1", "move", "asked", NOW - 12, NOW - 12, details, None)
    found = overview(sight(entries=[asked]), ANN)
    row = rows(found)["1"]
    assert row.reason == "asked to save 12 s ago, may take 60 s, then moves to 1 x k80 on k1"
    assert row.planned == {"k80": 1} and row.here == {"v100": 1}
    sent = replace(asked, phase="requeued")
    reason = rows(overview(sight(entries=[sent]), ANN))["1"].reason
    assert reason == "requeued 12 s ago for this move, waits to start on 1 x k80 on k1"
    assert rows(overview(sight(entries=[replace(asked, outcome="moved")]), ANN))["1"].planned != {
        "k80": 1
    }


def test_a_job_that_has_saved_or_left_since_the_last_tick_is_not_said_to_be_asked():
    details = {"gpus": {"k80": 1}, "nodes": {"k1": {"k80": 1}}, "save": "n", "restarts": 0}
    asked = Entry(1, "1", "move", "asked", NOW - 12, NOW - 12, details, None)
    done = Ack("n", NOW - 2, 64)
    report = Progress("1", NOW - 2, 0, "v1", 1, False, NOW, "m", 64, 1.0, 0.0, 64, 1, ack=done)
    saved = replace(some(), progress={"1": report})
    reason = rows(overview(sight(saved, entries=[asked]), ANN))["1"].reason
    assert reason == "has saved and is about to be requeued, moves to 1 x k80 on k1"
    # By itself, as with checkpoint=signal.
    left = observation([job("1", restarts=1)])
    (row,) = overview(sight(left, entries=[asked]), ANN).rows
    assert row.reason == "Slurm: Priority; requeued for this move, waits to start on 1 x k80 on k1"
    # Released, and not started yet.
    sent = replace(asked, phase="requeued", outcome="moved")
    (row,) = overview(sight(left, entries=[sent]), ANN).rows
    assert "requeued 12 s ago for this move, waits to start on 1 x k80 on k1" in row.reason
    for over in (replace(sent, shown="runs on 1 x k80 on k1"), replace(sent, outcome="refused")):
        assert "requeued" not in overview(sight(left, entries=[over]), ANN).rows[0].reason


def test_moves_of_others_jobs_are_not_said_as_none():
    found = rows(overview(sight(), ANN))
    assert found["1"].moves == 0 and found["2"].moves is None
