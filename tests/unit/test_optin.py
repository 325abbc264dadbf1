"""The analysis of the benchmark of opting in: runs made by hand, each answer known."""

import json
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.optin import delays, records
from benchmarks.optin.__main__ import planned
from benchmarks.optin.experiments import CROWD, NICE, crowd, nice, order
from benchmarks.optin.overtaking import overtakings, types_beside
from benchmarks.optin.records import Attempt, JobRecord, Look, RunRecord, Waiting
from benchmarks.optin.refill import refills
from benchmarks.optin.runs import mixed
from benchmarks.optin.table import summary
from benchmarks.optin.training import speed
from benchmarks.optin.watch import logged, passes
from benchmarks.optin.workload import SLEEP, TRAINING, draw, speeds

NODES = {"v1": ("v100", 2), "k1": ("k80", 2)}
PARTITIONS = {"gpu": ("v1", "k1"), "v100": ("v1",), "k80": ("k1",)}


def job(name, *attempts, number=1, priority=100, submit_s=0.0, **more):
    """A job on one GPU; attempts: (start, end, node)."""
    tries = [
        Attempt(start, end, node, more.get("gpus", 1), by) for start, end, node, by in attempts
    ]
    values = {
        "kind": SLEEP,
        "user": "news",
        "managed": False,
        "arrival_s": submit_s,
        "partitions": ("gpu",),
        "gpus": 1,
        "state": "COMPLETED",
        **more,
    }
    return JobRecord(
        name=name,
        submit_s=submit_s,
        number=number,
        priority=priority,
        attempts=tuple(tries),
        **values,
    )


def ran(start_s, end_s, node, by="main"):
    return start_s, end_s, node, by


def waits(one, eligible_s=0.0, priority=None, partitions=None):
    return Waiting(
        one.name,
        one.number,
        one.priority if priority is None else priority,
        eligible_s,
        one.partitions if partitions is None else partitions,
    )


def run(jobs, looks=(), label="plain 1", share=0.0, seed=1, passes=()):
    return RunRecord(
        label, seed, share, NODES, PARTITIONS, tuple(jobs), tuple(looks), passes=tuple(passes)
    )


def overtaken(first, second, looks=None, others=()):
    looks = looks or [Look(0.0, (waits(first), waits(second)))]
    return overtakings(run([first, second, *others], looks))


FIRST = job("first", ran(60, 70, "v1"), number=1)
SECOND = job("second", ran(20, 30, "v1"), number=2)


def test_a_later_job_on_gpus_that_an_earlier_one_could_use_is_an_overtaking():
    (found,) = overtaken(FIRST, SECOND)
    assert (found.earlier, found.later, found.node, found.more_s) == ("first", "second", "v1", 40)
    assert found.listed and found.by == "main"
    assert not overtaken(job("first", ran(10, 70, "v1"), number=1), SECOND)


def test_the_order_is_that_of_priority_then_of_number_at_that_time():
    assert not overtaken(job("first", ran(60, 70, "v1"), number=3), SECOND)
    assert overtaken(job("first", ran(60, 70, "v1"), number=3, priority=101), SECOND)
    looks = [
        Look(0.0, (waits(FIRST), waits(SECOND))),
        Look(10.0, (waits(SECOND, priority=120), waits(FIRST))),
    ]
    assert not overtaken(FIRST, SECOND, looks), "its owner's share had grown meanwhile"
    late = [looks[0], Look(25.0, looks[1].waiting)]
    assert overtaken(FIRST, SECOND, late), "what squeue shows later does not count"


def test_a_job_that_is_never_seen_waiting_has_the_priority_that_it_showed_first():
    looks = [Look(0.0, (waits(FIRST),))]
    assert overtaken(FIRST, SECOND, looks)
    assert not overtaken(FIRST, job("second", ran(20, 30, "v1"), number=2, priority=900), looks)


def test_a_look_that_shows_the_start_already_tells_no_order():
    """squeue answers some milliseconds after the time that is written down."""
    aged = waits(FIRST, priority=120)
    looks = [Look(18.0, (waits(SECOND, priority=130), aged)), Look(19.99, (aged,))]
    assert not overtaken(FIRST, SECOND, looks)
    looks[0] = Look(18.0, (aged, waits(SECOND, priority=110)))
    assert overtaken(FIRST, SECOND, looks)


@pytest.mark.parametrize(
    "request_",
    [{"gpu_type": "k80"}, {"types": ("k80",)}, {"partitions": ("k80",)}, {"gpus": 2}],
    ids=str,
)
def test_what_its_owner_did_not_ask_for_cannot_be_taken_from_a_job(request_):
    holds = job("holds", ran(5, 100, "v1"), number=0, priority=999)
    assert not overtaken(
        job("first", ran(60, 70, "k1"), number=1, **request_), SECOND, None, [holds]
    )


def test_two_gpus_must_be_free_for_a_job_that_asks_for_two():
    two = job("first", ran(60, 70, "v1"), number=1, gpus=2)
    assert overtaken(two, SECOND)
    leaves = job("leaves", ran(5, 19, "v1"), number=0, priority=999)
    assert not overtaken(two, SECOND, None, [leaves]), "Slurm may not know yet that it is free"
    left = job("left", ran(5, 17, "v1"), number=0, priority=999)
    assert overtaken(two, SECOND, None, [left])


def test_backfill_that_delays_nobody_is_no_overtaking_and_else_it_is():
    by_backfill = job("second", ran(20, 30, "v1", "backfill"), number=2)
    two = job("first", ran(60, 70, "v1"), number=1, gpus=2)
    holds = job("holds", ran(5, 59, "v1"), number=0, priority=999)
    assert not overtaken(two, by_backfill, None, [holds])
    (found,) = overtaken(two, by_backfill)
    assert found.by == "backfill"


def test_backfill_may_use_a_gap_that_is_too_short_for_the_earlier_job():
    long = job("first", ran(60, 70, "v1"), number=2, limit_s=600)
    short = job("second", ran(20, 30, "v1", "backfill"), number=3, limit_s=120)
    head = job("head", ran(50, 60, "v1"), number=1, gpus=2)
    looks = [Look(0.0, (waits(head), waits(long), waits(short)))]
    alone = [Look(0.0, (waits(long), waits(short)))]
    assert not [one for one in overtaken(long, short, looks, [head]) if one.earlier == "first"]
    assert overtaken(long, short, alone), "no third job waits for the node"
    same = job("second", ran(20, 30, "v1", "backfill"), number=3, limit_s=600)
    assert [one for one in overtaken(long, same, looks, [head]) if one.earlier == "first"]
    by_main = job("second", ran(20, 30, "v1"), number=3, limit_s=120)
    assert [one for one in overtaken(long, by_main, looks, [head]) if one.earlier == "first"]


def test_a_job_is_not_overtaken_in_the_cycle_in_which_it_starts_itself():
    assert not overtaken(job("first", ran(20.9, 70, "k1"), number=1), SECOND)
    assert overtaken(job("first", ran(21.1, 70, "k1"), number=1), SECOND)


def test_a_job_that_came_just_now_or_may_not_begin_yet_is_not_overtaken():
    for eligible_s, expected in ((17.0, 1), (19.0, 0), (40.0, 0)):
        looks = [Look(0.0, (waits(FIRST, eligible_s), waits(SECOND)))]
        assert len(overtaken(FIRST, SECOND, looks)) == expected
    new = job("first", ran(60, 70, "v1"), number=1, submit_s=19.0)
    assert not overtaken(new, SECOND)


def test_a_job_that_runs_or_is_over_is_not_overtaken():
    for attempt in (ran(5, 90, "k1"), ran(1, 2, "k1")):
        assert not overtaken(job("first", attempt, number=1), SECOND)
    moved = job("first", ran(5, 15, "k1"), ran(60, 70, "v1"), number=1)
    assert overtaken(moved, SECOND), "requeued, it waits again"


def test_it_is_said_when_its_own_list_left_the_type_out():
    looks = [Look(0.0, (waits(FIRST, partitions=("k80",)), waits(SECOND)))]
    (found,) = overtaken(FIRST, SECOND, looks)
    assert not found.listed


def test_delays_are_those_of_the_same_jobs_that_completed_in_both():
    one = run([job("a", ran(0, 50, "v1")), job("b", ran(0, 9, "v1"))])
    other = run([job("a", ran(0, 40, "v1")), job("b", ran(0, 9, "v1"), state="FAILED")])
    (found,) = delays.between(one, other, {"a", "b"})
    assert found.by_s == 10 and found.time_s == 40 and found.late
    assert not delays.between(one, other, {"b"})


@pytest.mark.parametrize(
    "by_s, time_s, late", [(5, 10, False), (6, 10, True), (6, 200, False), (11, 200, True)]
)
def test_a_trifle_is_not_late(by_s, time_s, late):
    assert delays.Delay(by_s, time_s).late == late


def test_a_distribution_and_what_is_worse_in_it():
    found = delays.distribution([delays.Delay(float(number), 10.0) for number in range(21)])
    assert (found.number, found.p50, found.p95, found.worst) == (21, 10, 19, 20)
    assert found.late == pytest.approx(15 / 21)
    better = delays.distribution([delays.Delay(float(number), 10.0) for number in range(17)])
    assert found.worse_than(better) == ["p50", "p95", "worst", "late"]
    assert better.worse_than(found) == [] == found.worse_than(found)
    near = delays.distribution([delays.Delay(float(number), 10.0) for number in range(20)])
    assert found.worse_than(near) == []
    assert delays.distribution([]) is None


def test_one_plain_run_against_another_is_either_way_round():
    one = delays.Delays(4, 1.0, -2.0, 3.0, 0.1)
    other = delays.Delays(4, -1.0, 2.0, 1.0, 0.2)
    assert delays.worst_of([one, None, other]) == delays.Delays(4, 1.0, 2.0, 3.0, 0.2)
    assert delays.worst_of([None]) is None
    runs = plain_and_managed(11.5)
    (line,) = [line for line in summary(runs).lines if "managed" in line and "|" in line]
    assert line.split()[2:] == ["2", "2.0", "2.5", "2.5", "0%", "|", "1.0", "1.0", "1.0", "0%"]


def test_a_freed_gpu_is_refilled_by_a_job_that_waited_for_it():
    done = job("done", ran(0, 20, "v1"), number=0, priority=999)
    first = job("first", ran(21.5, 30, "v1"), number=1, managed=True)
    looks = [Look(1.0, (waits(first),))]
    (found,) = refills(run([done, first], looks))
    assert found.seconds == 1.5 and found.managed and found.node == "v1"
    assert not refills(run([done, first])), "nobody waited"
    new = [Look(1.0, (waits(first, eligible_s=19.5),))]
    assert not refills(run([done, first], new)), "it came as the GPU was freed"
    elsewhere = job("first", ran(21.5, 30, "k1"), number=1)
    assert not refills(run([done, elsewhere], looks))


def test_a_start_refills_one_gpu_only():
    done = [job(name, ran(0, end, "v1")) for name, end in (("a", 20), ("b", 20.1))]
    first = job("first", ran(21, 30, "v1"))
    assert len(refills(run([*done, first], [Look(1.0, (waits(first),))]))) == 1


@pytest.mark.parametrize(
    "all_of_them, beyond_s",
    [
        ((5.0, 21.49, 24.5), 0.01),  # in the first pass after the end
        ((5.0, 20.5, 21.49), 1.0),  # in the second
        ((5.0, 20.05, 21.49), 0.01),  # slurmctld did not know at 20.05 s that the GPU was free
        ((5.0, 24.5), 0.0),  # by backfill, before any
    ],
)
def test_what_a_refill_takes_beyond_slurms_next_pass(all_of_them, beyond_s):
    done = job("done", ran(0, 20, "v1"), number=0, priority=999)
    first = job("first", ran(21.5, 30, "v1"), number=1)
    (found,) = refills(run([done, first], [Look(1.0, (waits(first),))], passes=all_of_them))
    assert found.seconds == 1.5 and found.beyond_s == pytest.approx(beyond_s)
    assert found.left_free == (beyond_s == 1.0)


def refilled(after_s, label="50%", share=0.5, pass_s=2.5):
    """One GPU after another is freed and taken so many seconds later, each; Slurm's next pass is
    ``pass_s`` after the end."""
    jobs, looks, all_of_them = [], [], []
    for turn, wait_s in enumerate(after_s):
        at_s, node = 100.0 * turn, "v1"
        next_ = job(f"next{turn}", ran(at_s + 50 + wait_s, at_s + 99, node))
        jobs += [job(f"done{turn}", ran(at_s, at_s + 50, node)), next_]
        looks.append(Look(at_s + 10, (waits(next_),)))
        all_of_them.append(at_s + 50 + pass_s)
    return run(jobs, looks, label, share, passes=all_of_them)


def test_freed_gpus_are_compared_by_what_they_wait_beyond_slurms_next_pass():
    """When that pass comes depends on how close together the events of a run are."""

    plain = refilled([0.4] * 40, "plain 1", 0.0, pass_s=0.4)

    def broken(*after_s):
        return [one for one in summary([plain, refilled(after_s)]).broken if "pass" in one]

    assert not broken(*[2.9] * 40)
    waits_on, left = broken(*[3.5] * 40)
    assert "waits 1.00 s beyond Slurm's next pass, plain 0.00 s" in waits_on
    assert "leaves 100% of the freed GPUs free, plain 0%" in left
    (left,) = broken(*[20.0] * 10, *[2.5] * 30)
    assert "leaves 25% of the freed GPUs free, plain 0%" in left
    assert not broken(20.0, *[2.5] * 39), "one GPU may be chance"


def test_one_bad_run_among_many_is_a_wide_error_and_the_job_ahead_is_named():
    """One job ahead closes a partition for all GPUs that are freed meanwhile."""
    plain = [refilled([0.4] * 10, f"plain {n}", 0.0, pass_s=0.4) for n in range(4)]
    fine = [refilled([2.5] * 10) for _ in range(3)]
    bad = refilled([20.0] * 10)

    def broken(*runs):
        return [one for one in summary([*plain, *runs]).broken if "next pass leaves" in one]

    assert not broken(*fine, bad), "25% of 40 GPUs, all of one run"
    assert broken(*[refilled([20.0] * 3 + [2.5] * 7)] * 4), "30% of each run"
    done, next_ = job("done", ran(0, 20, "v1")), job("next", ran(26, 30, "v1"), number=9)
    ahead = job("ahead", ran(40, 50, "k1"), number=1, managed=True)
    look = Look(1.0, (waits(ahead), waits(next_)))
    (found,) = refills(run([done, ahead, next_], [look], passes=(20.5,)))
    assert found.left_free and found.closed_by == "ahead"
    listed = Look(1.0, (waits(ahead, partitions=("k80",)), waits(next_)))
    (found,) = refills(run([done, ahead, next_], [listed], passes=(20.5,)))
    assert found.left_free and not found.closed_by, "it waits in no partition of v1"


def test_runs_of_one_share_differ_in_order_and_file():
    args = Namespace(
        what="mix", seeds=[1], jobs=48, minutes=3.0, scale=1.0, fastest_first=False, plain=2,
        shares=[10, 50, 10, 10],
    )  # fmt: skip
    runs = planned(args)
    assert len({one.file_name for one in runs}) == 6
    orders = {tuple(spec.name for spec, _ in one.sent) for one in runs}
    assert len(orders) == 6


def test_a_record_survives_its_json(tmp_path):
    whole = run([FIRST, SECOND], [Look(1.0, (waits(FIRST),))], "100%", 1.0, passes=(1.5, 4.5))
    whole.write(tmp_path / "a.json")
    assert records.read(tmp_path / "a.json") == whole
    text = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps({**text, "version": 99}))
    with pytest.raises(ValueError, match="another version"):
        records.read(tmp_path / "a.json")


LOG = """\
[2026-11-23T15:04:39.470] sched: Allocate JobId=288703 NodeList=v1 #CPUs=1 Partition=v100
[2026-11-23T15:04:39.472] sched: Allocate JobId=288702_2(288702) NodeList=k1 #CPUs=1 Partition=gpu
[2026-11-23T15:04:42.579] _job_complete: JobId=288702_2(288702) WEXITSTATUS 0
[2026-11-23T15:04:42.580] _job_complete: JobId=288702_2(288702) done
[2026-11-23T15:04:46.782] Requeuing JobId=288703
[2026-11-23T15:11:40.700] sched/backfill: _start_job: Started JobId=288704 in gpu on k1
[2026-11-23T15:11:41.700] backfill: Started JobId=288705 in gpu on k1
[2026-11-23T15:11:42.700] _slurm_rpc_submit_batch_job: JobId=288706 InitPrio=2000 usec=464
[2026-11-23T15:11:43.250] debug:  sched: Running job scheduler for default depth.
[2026-11-23T15:11:46.250] debug:  sched: Running job scheduler for full queue.
"""


def test_starts_and_ends_are_read_from_slurms_log():
    found = logged(LOG)
    assert [(one.job, one.by) for one in found] == [
        (288703, "main"),
        (288702, "main"),
        (288702, ""),
        (288703, ""),
        (288704, "backfill"),
        (288705, "backfill"),
    ]
    assert found[1].at_s - found[0].at_s == pytest.approx(0.002, abs=1e-4)
    assert found[2].at_s - found[1].at_s == pytest.approx(3.108, abs=1e-4)
    first, second = passes(LOG)
    assert second - first == pytest.approx(3.0) and first - found[-1].at_s == pytest.approx(1.55)


def test_a_seed_is_one_workload_and_a_larger_share_manages_the_same_jobs_and_more():
    assert draw(1, 40, 3.0) == draw(1, 40, 3.0) != draw(2, 40, 3.0)
    specs = draw(1, 200, 3.0)
    assert {spec.kind for spec in specs} == {"training", "sleep", "array"}
    assert len({spec.user for spec in specs}) == 4
    sets = [
        {spec.name for spec, managed in mixed("x", 1, share, specs).sent if managed}
        for share in (0.0, 0.1, 0.5, 1.0)
    ]
    assert not sets[0] and len(sets[3]) == 200
    assert sets[0] < sets[1] < sets[2] < sets[3]
    assert 0.35 < len(sets[2]) / 200 < 0.65


def test_each_run_sends_the_jobs_of_its_first_moment_in_another_order():
    specs = draw(1, 48, 3.0)
    one, other = (
        [spec for spec, _ in mixed(label, 1, 0.0, specs).sent] for label in ("plain 1", "plain 2")
    )
    first = len(specs) // 3
    assert one[:first] != other[:first] and one[first:] == other[first:] == specs[first:]
    assert {spec.name for spec in one[:first]} == {spec.name for spec in other[:first]}


def test_a_time_limit_is_enough_on_the_slowest_type():
    for spec in draw(3, 100, 3.0):
        if spec.kind == TRAINING:
            slowest = spec.samples / (0.75 * min(speeds(spec.model).values()))
            assert 60 * spec.limit_min > slowest + 3


def test_the_script_is_the_same_for_both_commands(tmp_path):
    one = next(spec for spec in draw(1, 40, 3.0) if spec.kind == TRAINING)
    text = one.script(tmp_path)
    assert text.startswith("#!/bin/sh\n#HADAR types=any model=") and "checkpoint=yes" in text
    assert not [word for word in one.words() if "hadar" in word]


def test_the_pacing_file_tells_the_speed_on_a_node():
    pace = {"nodes": {"k1": ["k80", "k80"]}, "rates": {"lm": {"k80": {"1": 7.0}}}}
    assert speed(pace, "k1", "lm") == 7.0


def plain_and_managed(managed_end_s, label="100%", ends=(9, 10)):
    both = [run([job("a", ran(0, end, "v1"), kind=TRAINING)], label=f"plain {end}") for end in ends]
    here = job("a", ran(0, managed_end_s, "v1"), kind=TRAINING, managed=True)
    return [*both, run([here], label=label, share=1.0)]


def test_the_verdict_is_that_of_the_figures():
    good, bad = summary(plain_and_managed(9.0)), summary(plain_and_managed(40.0))
    assert good.broken == [] and "no promise broken" in good.lines
    assert any("p95 of the delays of managed jobs" in sentence for sentence in bad.broken)
    assert any("trainings end no sooner" in sentence for sentence in bad.broken)


def test_the_floor_is_the_plain_run_that_is_latest_against_all_others():
    found = summary(plain_and_managed(13.0, ends=(9, 10, 14)))
    (row,) = [line.split() for line in found.lines if "managed" in line and "|" in line]
    assert row[2] == "3" and row[row.index("|") + 1 :] == ["4.5", "5.0", "5.0", "0%"]
    (line,) = [line for line in found.lines if "above the floor" in line]
    assert line.startswith("figures above the floor: 0 of 4; one more plain run would have 1.0")


def test_a_job_that_did_not_complete_breaks_a_promise():
    found = summary(
        [*plain_and_managed(9.0), run([job("a", state="FAILED")], label="10%", share=0.1)]
    )
    assert any("10%, seed 1: not COMPLETED: a FAILED" in sentence for sentence in found.broken)


def test_more_overtaken_jobs_than_in_plain_runs_break_a_promise():
    runs = plain_and_managed(9.0)
    looks = (Look(0.0, (waits(FIRST), waits(SECOND))),)
    jobs = [*runs[2].jobs, FIRST, SECOND]
    found = summary([*runs[:2], run(jobs, looks, "100%", 1.0)])
    assert any("list of partitions has: 1; plain: 0" in sentence for sentence in found.broken)
    assert any("second takes v1" in line for line in found.lines)


def test_the_experiments_send_what_they_say():
    sent = crowd(7).sent
    kinds = [managed for spec, managed in sent if not spec.name.startswith("blocker")]
    assert kinds == [True] * 3 + [False] * 7 and len(sent) == 12 + 10
    low = [spec.nice for spec, managed in nice().sent if spec.name.startswith("nice")]
    assert low == [500_000] * 6 and sum(managed for _, managed in nice().sent) == 6
    for one in (crowd(7), nice()):
        arrivals = [spec.arrival_s for spec, _ in one.sent]
        assert arrivals == sorted(arrivals)


def test_the_experiments_are_judged_by_the_order_of_start():
    ordinary = job("nice0", ran(20, 80, "v1"), number=1, priority=1)
    first = job("managed0", ran(19, 60, "v1"), number=2, managed=True)
    last = job("managed1", ran(30, 60, "v1"), number=3, managed=True)
    assert order(run([ordinary, last, first]))[0].name == "managed0"
    assert not summary([run([ordinary, first], label=NICE)]).broken
    (sentence,) = summary([run([ordinary, first, last], label=NICE)]).broken
    assert "1 of the ordinary jobs" in sentence
    overtaken_one = job("first", ran(60, 70, "v1"), number=1, managed=True)
    looks = (Look(0.0, (waits(overtaken_one), waits(SECOND))),)
    (sentence,) = summary([run([overtaken_one, SECOND], looks, CROWD)]).broken
    assert "later jobs that overtake first: 1" in sentence
    elsewhere = (Look(0.0, (waits(overtaken_one, partitions=("k80",)), waits(SECOND))),)
    one = summary([run([overtaken_one, SECOND], elsewhere, CROWD)])
    assert not one.broken and "1 of these on a type that its list" in one.lines[1]


def test_a_look_keeps_the_waiting_jobs_and_notes_the_ends(tmp_path):
    from benchmarks.optin.watch import Watch
    from slurm_hadar.domain.job import Job, JobState

    spec = next(one for one in draw(1, 40, 3.0) if one.tasks > 1)
    watch = object.__new__(Watch)
    watch.__dict__ |= {
        "began": 100.0, "ended": {}, "_looks": [], "_first": {}, "_tasks": {spec.name: spec.tasks},
    }  # fmt: skip

    def shown(id_, state, **more):
        values = {"raw_id": 7, "uid": 1, "user": "x", "name": spec.name, "state": state}
        return Job(id=id_, slurm_state=state.name, priority=5, eligible_s=101.0, **values, **more)

    waiting = [shown("7_1", JobState.PENDING), shown("7_0", JobState.PENDING)]
    other: Any = SimpleNamespace(name="unmanaged")
    watch.look([*waiting, other], 102.0)
    watch.look([*waiting, other], 103.0)
    watch.look([shown("7_1", JobState.PENDING, held=True), shown("7_0", JobState.FINISHED)], 104.0)
    assert [(one.at_s, len(one.waiting)) for one in watch._looks] == [(2.0, 2), (4.0, 0)]
    assert watch._looks[0].waiting[0].name == f"{spec.name}_0"
    assert watch._looks[0].waiting[0].eligible_s == 1.0
    assert watch.ended == {f"{spec.name}_0": "FINISHED"}


def test_a_job_that_started_on_a_slow_type_with_a_faster_one_free():
    # The fourth is behind the third in the queue, though it started a millisecond sooner.
    first = job("first", ran(0.0, 9.0, "v1"), number=1)
    second = job("second", ran(1.0, 9.0, "k1"), number=2)
    third = job("third", ran(1.001, 9.0, "v1"), number=3)
    fourth = job("fourth", ran(1.0, 9.0, "k1"), number=4)
    whole = run([first, second, third, fourth])
    assert types_beside(whole, second) == {"v100"}
    assert types_beside(whole, fourth) == set()
    freed = job("freed", ran(0.0, 0.8, "v1"), number=5)
    assert types_beside(run([freed, first, second]), second) == {"v100"}
    # Not what its owner does not accept, nor what holds fewer GPUs than it asks for.
    for more in ({"gpu_type": "k80"}, {"gpus": 2}, {"partitions": ("k80",)}):
        one = job("second", ran(1.0, 9.0, "k1"), number=2, **more)
        assert types_beside(run([first, one]), one) == set()


def test_fastest_first_gives_each_type_a_weight_in_that_order():
    args = Namespace(what="mix", seeds=[1], jobs=3, minutes=1.0, scale=1.0, plain=1, shares=[50])
    for fastest_first, weights in ((False, [1, 1, 1]), (True, [1, 2, 3])):
        args.fastest_first = fastest_first
        for one in planned(args):
            groups = one.layout.groups
            assert [group.gpu_type for group in groups] == ["v100", "p100", "k80"]
            assert [group.weight for group in groups] == weights
