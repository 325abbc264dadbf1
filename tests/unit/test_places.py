"""The account of what moves cost: logs made by hand, each answer known."""

from datetime import datetime

from benchmarks.places.count import Account, Look, Moved, starts, submissions

LOG = """\
[2026-11-23T18:00:00.500] sched: Allocate JobId=1 NodeList=v1 #CPUs=1 Partition=v100
[2026-11-23T18:00:01.000] sched: Allocate JobId=7 NodeList=p1 #CPUs=1 Partition=gpu
[2026-11-23T18:00:{submitted}] _slurm_rpc_submit_batch_job: JobId=9 InitPrio=1 usec=525
[2026-11-23T18:00:10.000] Requeuing JobId=1
[2026-11-23T18:00:11.000] _update_job: setting partition to p100,v100 for JobId=1
{taker}
[2026-11-23T18:00:12.000] sched: Allocate JobId=1 NodeList={node} #CPUs=1 Partition=p100
[2026-11-23T18:00:20.000] _job_complete: JobId=7 done
"""
TAKER = "[2026-11-23T18:00:11.500] sched/backfill: _start_job: Started JobId=9 in gpu on p1"


def at(seconds):
    return datetime.fromisoformat("2026-11-23T18:00:00").timestamp() + seconds


def account(taker="", node="p1", gpus=1, there=2, submitted="04.000"):
    move = Moved("1", at(10), ("p1",), decided_s=at(5))
    log = LOG.format(taker=taker, node=node, submitted=submitted)
    nodes = {"v1": 1, "p1": there}
    return Account(starts(log), {"1": 1, "7": 1, "9": gpus}, nodes, [move], submissions(log)), move


def look(seconds, state, priority, nice=0):
    return Look(at(seconds), state, priority, nice)


def test_the_log_tells_starts_and_ends():
    first, other, again = starts(LOG.format(taker="", node="p1", submitted="04.000"))
    assert (first.job, first.node, first.at_s, first.until_s) == ("1", "v1", at(0.5), at(10))
    assert (other.job, other.until_s) == ("7", at(20))
    assert again.job == "1" and again.until_s == float("inf")


def test_a_place_is_lost_where_others_leave_too_little_or_the_job_starts_elsewhere():
    def lost(**more):
        one, move = account(**more)
        return one.cost(move, []).place_lost

    assert not lost()
    aside, moved = account(node="v1")
    assert aside.cost(moved, []).elsewhere and not aside.cost(moved, []).place_lost
    assert lost(taker=TAKER)
    # There is room for both.
    assert not lost(taker=TAKER, there=3)
    assert lost(taker=TAKER, there=3, gpus=2)
    one, _ = account()
    assert one.cost(Moved("1", at(13), ("p1",)), []).place_lost


def test_a_job_that_came_after_the_decision_does_not_count_as_one_that_waited():
    def cost(**more):
        one, move = account(taker=TAKER, **more)
        return one.cost(move, [])

    waited, came = cost(), cost(submitted="08.500")
    assert waited.place_lost and not waited.contested and waited.taken_by == {"9": -1.0}
    assert came.contested and not came.place_lost and came.taken_by == {"9": 3.5}
    # One whose submission is not in the log waited before the log began.
    assert cost(submitted="unknown").place_lost


def test_priority_is_lost_where_the_job_starts_with_less():
    one, move = account()
    looks = [look(9, "RUNNING", 155), look(11, "PENDING", 1), look(11.4, "PENDING", 155)]
    kept = one.cost(move, [*looks, look(12.2, "RUNNING", 155), look(15, "RUNNING", 3)])
    assert (kept.before, kept.after, kept.seen) == (155, 155, True) and not kept.priority_lost
    assert kept.lower_s == 0.0
    less = one.cost(move, [*looks, look(11.8, "PENDING", 3), look(12.2, "RUNNING", 154)])
    assert less.priority_lost and 0.7 < less.lower_s < 0.9
    assert not one.cost(move, looks).seen
    # By the first look at it as it runs it has its owner's Nice again.
    late = [look(9, "RUNNING", 8), look(11.4, "PENDING", 158, -156), look(14, "RUNNING", 2)]
    assert one.cost(move, late).after == 158
    # Slurm shows the old priority until an update.
    old = [look(9, "RUNNING", 8), look(10.4, "PENDING", 8), look(14, "RUNNING", 2)]
    assert one.cost(move, old).priority_lost
