"""Jobs that are longer than their time limit: who is requeued before it, when, and how often."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hand_made import (
    NOW,
    RATES,
    as_cluster,
    config,
    dictate,
    job,
    look,
    nodes,
    observation,
    partitions_of,
    running,
)
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.checks.check_cluster import partition_findings
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import tick_text
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.controller.snapshot.chaining import NONE, ChainRecord
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.declaration import parse
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.slurm.traffic import Traffic

SITE = config('[partitions]\nchain = ["gpu"]\n[partitions.groups]\ngpu = ["v100", "k80"]\n')
HERE = {"k1": {"k80": 1}}


def declared(*words):
    return parse(("types=any", *words), "here")


def runs(*words, left=3600.0, **more):
    known = declared(*(words or ("checkpoint=yes", "max_requeues=3")))
    return running("1", HERE, **{"declaration": known, "end_s": NOW + left, **more})


def report(samples, restarts=0, finished=False):
    return Progress("1", NOW, restarts, "k1", 1, False, NOW, "", samples, 0.0, 0.0, 0, 0,
                    finished=finished)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "more", "why"),
    [
        (("checkpoint=yes", "max_requeues=3"), {}, ""),
        (("checkpoint=signal", "max_requeues=3"), {"partitions": ("v100", "k80")}, ""),
        (("checkpoint=yes",), {}, None),
        (("checkpoint=yes", "max_requeues=0"), {}, None),
        (("checkpoint=yes", "max_requeues=3", "off=yes"), {}, None),
        (("checkpoint=yes", "max_requeues=3"), {"partitions": ("p100",)}, "partition p100"),
        (("checkpoint=yes", "max_requeues=3"), {"partitions": ("gpu", "p100")}, "partition p100"),
        (("checkpoint=restart", "max_requeues=3"), {}, "checkpoint=yes or checkpoint=signal"),
        (("max_requeues=3",), {}, "checkpoint=yes or checkpoint=signal"),
        (("checkpoint=yes", "max_requeues=3", "pin=yes"), {}, "pinned"),
        (("checkpoint=yes", "max_requeues=3"), {"requeue": False}, "--no-requeue"),
        (("checkpoint=yes", "max_requeues=3"), {"time_limit_s": 240.0}, "shorter than twice"),
        (("checkpoint=signal", "signal=B:USR1@9", "max_requeues=3"), {"time_limit_s": 60.0}, ""),
    ],
)
def test_only_who_asked_where_the_site_allows_it(words, more, why):
    found = chaining.why_not(runs(*words, **more), SITE, NONE)
    assert found == why if not why else why in found
    # By default no site does.
    assert chaining.why_not(runs(*words, **more), config(), NONE) != ""


def test_a_partition_counts_where_all_that_it_stands_for_do():
    groups = '[partitions.groups]\ngpu = ["v100", "k80"]\n'
    both = config(f'[partitions]\nchain = ["v100", "k80"]\n{groups}')
    one = config(f'[partitions]\nchain = ["v100"]\n{groups}')
    # Slurm may start a job before the partition that it named is replaced.
    started = runs("checkpoint=yes", "max_requeues=3", partitions=("gpu",))
    assert chaining.why_not(started, both, NONE) == ""
    assert "partition gpu" in chaining.why_not(started, one, NONE)
    assert chaining.allowed_partitions(both) == {"gpu", "v100", "k80"}
    assert chaining.allowed_partitions(one) == {"v100"}


def test_its_owners_number_and_attempts_without_progress_bound_it():
    asked = ChainRecord(requests=3, asked=2)
    assert chaining.why_not(runs(restarts=2), SITE, asked) == ""
    assert chaining.why_not(runs(restarts=3), SITE, asked) == "max_requeues=3 is reached"
    assert "no progress" in chaining.why_not(runs(restarts=1), SITE, ChainRecord(idle=2))


def test_two_attempts_in_a_row_without_progress_count_and_a_third_with_it_begins_anew():
    record = NONE
    for attempt, (samples, idle) in enumerate([(0, 1), (10, 0), (10, 1), (10, 2)]):
        record = record.asked_again(runs(restarts=attempt), report(samples, attempt))
        assert (record.idle, record.requests, record.asked) == (idle, attempt + 1, attempt)
    # The same attempt once more.
    again = record.asked_again(runs(restarts=3), report(10, 3))
    assert again == record and again.done(runs(restarts=3)) == 3
    # What is not known is no standstill: no report, one of another attempt, or no positions in it.
    first = runs("checkpoint=signal", "max_requeues=3")
    for reported in (None, report(0, 7), report(0)):
        assert NONE.asked_again(first, reported).idle == 0


@given(
    left=st.floats(1, 10_000),
    interval_s=st.floats(1, 600),
    limit=st.integers(1, 1000).map(lambda minutes: minutes * 60.0),
    grace=st.none() | st.integers(1, 900),
)
def test_a_job_is_asked_while_it_can_still_save_and_not_in_its_first_quarter(
    left, interval_s, limit, grace
):
    signal = f"signal=B:USR1@{grace}" if grace else "signal=B:USR1"
    one = runs("checkpoint=signal", signal, "max_requeues=3", left=min(left, limit))
    one = replace(one, time_limit_s=limit)
    wait_s = grace or SITE.moving.ack_wait_s
    in_s = chaining.due(one, SITE, NONE, interval_s, NOW)
    if limit < 2 * (wait_s + 10):
        assert in_s is None
        return
    # The tick that is the next one after this moment comes early enough for a save.
    assert in_s is not None and in_s >= 0
    spare = one.end_s - NOW - in_s - wait_s
    assert in_s == 0 or spare >= min(interval_s, limit / 4)
    if one.end_s - NOW > 0.75 * limit + 1:
        assert in_s > 0
    # Asked once, and again only while a save would be in time.
    asked = ChainRecord(requests=1, asked=0)
    again = chaining.due(one, SITE, asked, interval_s, NOW)
    assert again is None if one.end_s - NOW < wait_s else again is None or again == in_s


def test_plans_count_with_all_attempts():
    """An hour's limit for work of three and a half hours on the fastest type."""
    speed = float(RATES.rates((1000, "resnet50", None), ("v100",), (1,))[0][0, 0])
    words = ("model=resnet50", "checkpoint=yes", f"samples={int(3.5 * 3600 * speed)}")
    waits = job("1", time_limit_s=3600.0, declaration=declared(*words))
    asked = replace(waits, declaration=declared(*words, "max_requeues=4"))

    def hours(one, site=SITE, past=None):
        """Of its work that count, on the fastest type."""
        jobs = look(observation([one]), site, past).view.jobs
        return jobs.left[0] / jobs.rate[0].max() / 3600

    assert hours(waits) < 1 and hours(asked, config()) < 1
    assert hours(asked) == pytest.approx(3.5, rel=0.01)
    # Of which two are over.
    past = ControllerHistory(chains={"1": ChainRecord(requests=2, asked=1)})
    assert hours(replace(asked, restarts=2), past=past) < 3


@pytest.fixture
def controller(tmp_path):
    cluster = SimpleNamespace(
        traffic=Traffic(lambda: NOW), queries=Counter(), read_config=lambda: {}
    )

    def stays(view, memory):
        return dictate(view, {"1": {"k80": 1}}), memory

    with closing(Store.open(tmp_path / "state")) as store:
        found: Any = Controller(SITE, cluster, store, RATES, 0, lambda: NOW, decide=stays)

        def look_at(shown, reported=None):
            progress = {} if reported is None else {"1": reported}
            found.observe = lambda: observation(
                [shown], nodes(k1=1), steering={}, progress=progress
            )
            return found.plan()

        found.look_at = look_at
        yield found


@pytest.mark.parametrize(
    ("shown", "reported", "asked"),
    [
        (runs(left=100), report(10), True),
        (runs(left=3000), report(10), False),
        (runs("checkpoint=yes", left=100), report(10), False),
        (runs("checkpoint=signal", "max_requeues=1", left=100), None, True),
        # It does not listen yet, or is at its end.
        (runs(left=100, restarts=1), report(10), False),
        (runs(left=100), report(10, finished=True), False),
    ],
)
def test_a_tick_asks_jobs_whose_time_ends(controller, shown, reported, asked):
    plan = controller.look_at(shown, reported)
    found = plan.diff.of(Kind.CHAIN)
    assert [action.job.id for action in found] == (["1"] if asked else [])
    # It is no move, of which a job has so many.
    assert all(action.steering.moves == 0 for action in found)
    assert any("before its time limit" in one for one in tick_text.format_plan(plan)) >= asked


def test_the_decision_says_what_becomes_of_it_at_its_limit(controller):
    def said(shown):
        plan = controller.look_at(shown, report(10))
        return plan.plan.placements["1"].reason

    assert said(runs()).endswith("; requeued before its time limit ends (0 of 3 requeues so far)")
    assert "requeue" not in said(runs("checkpoint=yes"))
    assert "pinned" in said(runs("checkpoint=yes", "max_requeues=3", "pin=yes"))


def test_a_job_that_moves_is_requeued_once(controller):
    controller._decider._decide = lambda view, memory: (dictate(view, {"1": {"v100": 1}}), memory)
    (action,) = controller.look_at(runs(left=100), report(10)).diff.actions
    assert action.kind is Kind.MOVE


class Takes:
    def __init__(self):
        self.sent = []

    def apply(self, updates):
        self.sent += [dict(update.fields) for update in updates]
        return [None for _ in updates]


def test_a_requeue_is_counted_in_the_journal_and_may_start_as_soon_as_it_is_its_turn(tmp_path):
    with closing(Store.open(tmp_path / "state")) as store:
        chain = {"requests": 2, "idle": 0, "samples": 10, "asked": 0}
        details = {"restarts": 0, "fields": {}, "gpus": {}, "save": "abc", "chain": chain}
        entry = store.begin("1", "move", "asked", NOW - 12, details)
        store.begin("2", "move", "asked", NOW - 12, {"restarts": 0, "gpus": {"v100": 1}})
        store.advance(entry, "requeued", NOW - 10.5)
        waits = job("1", restarts=1, submit_s=NOW - 10, eligible_s=NOW + 111)
        cluster = Takes()
        context = ActionContext(as_cluster(cluster), store, SITE, clock=lambda: NOW)
        advance(context, {"1": waits}, {}, NOW)
        assert cluster.sent == [{"StartTime": "now"}]
        (ended,) = store.history("1")
        assert ended.outcome == "stopped"
        found = chaining.records(store.entries_with("move", "chain"))
        assert found == {"1": ChainRecord(2, 0, 10, 0)}
        # It takes none of the moves that a job may have.
        assert store.counts("move", "requeued") == {"1": 1}
        assert store.counts("move", "requeued", without=chaining.DETAIL) == {}
        assert found["1"].done(waits) == 2 and found["1"].done(replace(waits, restarts=0)) == 1


def test_check_names_partitions_that_are_not_there():
    site = config('[partitions]\nchain = ["gpu", "long"]\n')
    there = partitions_of(nodes())
    found = [one.what for one in partition_findings(site, {}, there, nodes())]
    assert "partitions.chain: this Slurm has no partition long" in found
