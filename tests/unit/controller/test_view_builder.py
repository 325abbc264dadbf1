"""From what Slurm shows to what a policy sees."""

import warnings
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hand_made import (
    CONFIG,
    NOW,
    RATES,
    config,
    dictate,
    job,
    look,
    node,
    nodes,
    observation,
    ordinary,
    partitions_of,
    running,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.controller.snapshot import restart_costs, view_builder
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory, placed
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.controller.snapshot.work import ESTIMATED, explained
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.node import Reservation
from slurm_hadar.domain.steering import Steering, merge
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import open_rates

ANY = Declaration(types=("any",), checkpoint="yes")
MODEL = Declaration(types=("any",), model="resnet18", batch=(64, 64), samples=10_000_000)


def usable(shown, kind=None):
    """GPUs that managed jobs may use, by node."""
    view = shown.view
    columns = [view.types.index(kind)] if kind else range(len(view.types))
    return {
        name: int(view.nodes.gpus[row, list(columns)].sum())
        for row, name in enumerate(view.nodes.names)
    }


def open_nodes(shown, id_="1"):
    """Nodes that are open to a job."""
    view = shown.view
    mask = view.jobs.groups[view.jobs.ids.index(id_)]
    return {
        name for name, group in zip(view.nodes.names, view.nodes.group, strict=True) if mask[group]
    }


def possible(shown, id_="1"):
    """(type, count) that a job may run on."""
    view = shown.view
    rate = view.jobs.rate[view.jobs.ids.index(id_)]
    return {(view.types[r], view.counts[c]) for r, c in zip(*rate.nonzero(), strict=True)}


# -- capacity ----------------------------------------------------------------------------------


def test_what_others_hold_is_not_there_and_what_we_hold_is():
    found = nodes(v1=2, k1=1)
    shown = look(observation([running("1", {"v1": {"v100": 1}})], found))
    assert usable(shown) == {"v1": 1, "v2": 2, "p1": 2, "p2": 2, "k1": 1, "k2": 2}


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "MAINTENANCE", "RESERVED"])
def test_a_node_that_is_closed_offers_nothing(state):
    found = nodes()
    found[0] = replace(found[0], state=state, usable=False)
    assert usable(look(observation([job()], found)))["v1"] == 0


def test_a_drained_node_still_has_what_our_job_holds_there():
    found = nodes(v1=1)
    found[0] = replace(found[0], state="MIXED+DRAIN", usable=False)
    shown = look(observation([running("1", {"v1": {"v100": 1}})], found))
    assert usable(shown)["v1"] == 1 and shown.view.jobs.held.tolist() != []


def test_an_active_reservation_closes_its_nodes_and_a_past_one_does_not():
    now = Reservation("now", ("v1",), NOW - 10, NOW + 3600)
    past = Reservation("past", ("v2",), NOW - 3600, NOW - 10)
    shown = look(observation([job()], reservations=(now, past)))
    assert usable(shown)["v1"] == 0 and usable(shown)["v2"] == 2


def test_a_coming_reservation_closes_its_nodes_to_jobs_that_would_run_into_it():
    soon = Reservation("soon", ("v1",), NOW + 3600, NOW + 7200)
    long, short, endless = (
        job("1", time_limit_s=7200.0),
        job("2", time_limit_s=1800.0),
        job("3", time_limit_s=inf),
    )
    shown = look(observation([long, short, endless], reservations=(soon,)))
    assert "v1" not in open_nodes(shown, "1") and "v2" in open_nodes(shown, "1")
    assert "v1" in open_nodes(shown, "2")
    assert "v1" not in open_nodes(shown, "3") and "v2" in open_nodes(shown, "3")


def test_a_rival_above_all_of_ours_takes_its_gpus_first():
    rival = ordinary(features="k80", request=GpuRequest(per_node={UNTYPED: 2}))
    assert sum(usable(look(observation([rival, job()])), "k80").values()) == 2
    lower = replace(rival, priority=1)
    assert sum(usable(look(observation([lower, job()])), "k80").values()) == 4


RIVAL = st.builds(
    lambda prio, gpus, count, features, n: {
        "priority": prio,
        "request": GpuRequest(**{gpus: {UNTYPED: count}}),
        "features": features,
        "node_count": n,
        "tasks": n,
    },
    prio=st.integers(1, 3000),
    gpus=st.sampled_from(["per_node", "per_job", "per_task"]),
    count=st.integers(1, 4),
    features=st.sampled_from(["", "k80", "v100|p100", "[a|b]"]),
    n=st.integers(1, 3),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(RIVAL, max_size=6),
    st.fixed_dictionaries({n: st.integers(0, 4) for n in ("v1", "v2", "p1", "p2", "k1", "k2")}),
    st.integers(0, 2),
)
def test_capacity_is_never_negative_nor_more_than_there_is(rivals, used, ours):
    found = nodes(**used)
    mine = [running(str(n), {"v1": {"v100": 1}}) for n in range(1, min(ours, used["v1"]) + 1)]
    others = [ordinary(str(10 + n), **more) for n, more in enumerate(rivals)]
    shown = look(observation([job("99"), *mine, *others], found))
    view = shown.view
    assert (view.nodes.gpus >= 0).all() and (view.nodes.cpus >= 0).all()
    assert (view.nodes.mem_mb >= 0).all()
    for name, there in usable(shown).items():
        assert there <= sum(shown_gpus(found, name).values())


def shown_gpus(found, name):
    return next(n.gpus for n in found if n.name == name)


# -- what a job may run on ---------------------------------------------------------------------


def test_types_counts_and_memory_are_the_owners_word():
    listed = job("1", declaration=replace(ANY, types=("v100", "k80"), gpus=(1, 2)))
    large = job("2", declaration=replace(ANY, gpu_mem=14 * 1024))
    typed = job("3", request=GpuRequest(per_node={"p100": 2}))
    shown = look(observation([listed, large, typed]))
    assert possible(shown, "1") == {("v100", 1), ("v100", 2), ("k80", 1), ("k80", 2)}
    assert possible(shown, "2") == {("v100", 1), ("p100", 1)}
    assert possible(shown, "3") == {("p100", 2)}


def test_a_type_too_slow_for_the_time_limit_is_not_offered():
    kinds = ("k80", "p100", "v100")
    rate, _ = RATES.rates((None, "resnet18", 64), kinds, (1,))
    seconds = {kind: MODEL.samples / rate[r, 0] for r, kind in enumerate(kinds)}
    limit = (seconds["v100"] + seconds["k80"]) / 2
    expected = {(k, 1) for k in kinds if seconds[k] <= limit - 30}
    assert ("v100", 1) in expected and ("k80", 1) not in expected
    shown = look(observation([job(declaration=MODEL, time_limit_s=limit)]))
    assert possible(shown) == expected
    # Half of it is done: now the slow one would do as well.
    half = progress("1", samples=int(MODEL.samples * 0.9))
    assert ("k80", 1) in possible(
        look(observation([job(declaration=MODEL, time_limit_s=limit)], progress={"1": half}))
    )


def left_s(attained=0.0, samples=0, rates=RATES, **more):
    """Seconds that a job which declares 10 samples has left on the k80 where it runs."""
    short = replace(MODEL, samples=10, **more)
    one = running("1", {"k1": {"k80": 1}}, declaration=short)
    said = {"1": progress("1", samples=samples)} if samples else {}
    view = take_snapshot(
        observation([one], progress=said), CONFIG, rates, ControllerHistory({"1": attained})
    ).view
    return float(view.jobs.left[0] / view.jobs.rate[0, view.types.index("k80"), 0])


def test_a_job_that_does_more_than_it_declares_is_of_unknown_length():
    assert left_s(attained=0.0) < 1.0
    # An hour on one GPU is more than 10 samples on any, whatever the job itself tells.
    assert left_s(attained=3600.0) >= 3600.0
    assert left_s(attained=3600.0, samples=2) >= 3600.0
    assert left_s(samples=100_000) > 100.0
    # It may tell too little, but not too much: some work beyond its word is no matter.
    assert left_s(samples=12) < 1.0


def unreported(ran_s, before_s=0.0, samples=100_000, said=None, **more):
    """Samples left of a job on one k80, without reports but ``said``, and the reason of a plan."""
    declared = replace(MODEL, samples=samples, **{"checkpoint": "signal", **more})
    one = running("1", {"k1": {"k80": 1}}, declaration=declared, start_s=NOW - ran_s)
    past = ControllerHistory({"1": ran_s + before_s})
    shown = take_snapshot(observation([one], progress=said or {}), CONFIG, RATES, past)
    plan = explained(dictate(shown.view, {}), shown.view.jobs.ids, shown.work)
    return float(shown.view.jobs.left[0]), plan.waiting["1"]


def test_without_reports_the_rest_falls_by_the_expected_speed():
    """It stayed the whole declared work: a job ended "in 2 min" for as long as it ran."""
    rate = float(RATES.rates((None, "resnet18", 64), ("k80",), (1,))[0][0, 0])
    left, reason = unreported(100.0)
    assert left == pytest.approx(100_000 - 100 * rate) and reason.endswith(ESTIMATED)
    # What it saved before its last start counts at the slowest speed, here the k80's own.
    assert unreported(60.0, 40.0)[0] == pytest.approx(left)
    assert unreported(60.0, 40.0, checkpoint="restart")[0] == pytest.approx(100_000 - 60 * rate)
    # Past its expected end a tenth of what it ran is left, so that the end never stands at now.
    assert unreported(100_000 / rate * 1.2)[0] == pytest.approx(100_000 * 1.2 / 10)
    # Far beyond it the declaration counts no more, as ever; nor is one estimated that reports.
    left, reason = unreported(100_000 / rate * 2)
    assert left >= 2 * 100_000 and ESTIMATED not in reason
    left, reason = unreported(100.0, said={"1": progress("1", samples=500)})
    assert left == 100_000 - 500 and ESTIMATED not in reason


def test_nobody_elses_reports_make_a_job_one_of_unknown_length():
    rates = open_rates(CONFIG)
    for kind in ("k80", "p100", "v100"):
        for uid in (2001, 2002, 2003):
            assert rates.record(RateSample("resnet18", kind, 1, 64, 1e7, 600.0, uid=uid))
    slowest = RATES.rates((None, "resnet18", 64), ("k80", "p100", "v100"), (1,))[0].min()
    assert left_s(attained=10.0 / slowest, rates=rates) < 1.0


@pytest.mark.parametrize("model", ["resnet18", "of-my-own"])
def test_what_strangers_report_excludes_no_job_from_a_type(model):
    kinds, rates = ("k80", "p100", "v100"), open_rates(CONFIG)
    mine = job(declaration=replace(MODEL, model=model))
    for kind in kinds:
        for uid in (2001, 2002, 2003):
            assert rates.record(RateSample(model, kind, 1, 64, 1e-6, 600.0, uid=uid))
    slowest = MODEL.samples / RATES.rates((None, "resnet18", 64), kinds, (1,))[0].min()
    mine = replace(mine, time_limit_s=slowest * 1.2 + 60.0)
    assert possible(take_snapshot(observation([mine]), CONFIG, rates, ControllerHistory())) == {
        (k, 1) for k in kinds
    }
    # What its owner measured does, of a model that a table knows or not.
    for kind, rate in (("k80", 1e-6), ("v100", 1e5)):
        assert rates.record(RateSample(model, kind, 1, 64, rate, 600.0, uid=mine.uid))
    shown = possible(take_snapshot(observation([mine]), CONFIG, rates, ControllerHistory()))
    assert ("k80", 1) not in shown


def test_an_inferred_speed_has_an_error_and_excludes_no_job_from_a_type_or_count():
    rates = open_rates(CONFIG)
    mine = job(declaration=replace(MODEL, model="of-my-own", gpus=(1, 2), checkpoint="yes"))
    for gpus, rate in ((1, 100.0), (2, 101.0)):
        rates.record(RateSample("of-my-own", "v100", gpus, 64, rate, 600.0, uid=mine.uid))
    asked = [(mine.uid, "of-my-own", 64)]
    inferred = rates.rates_for(asked, ("k80",), (2,))[0].item()
    # As of a job without a declared batch.
    estimated = rates.rates((mine.uid, "of-my-own", None), ("k80",), (2,))[0].item()
    assert inferred < 0.9 * estimated
    mine = replace(mine, time_limit_s=MODEL.samples / estimated * 1.05 + 60.0)
    shown = take_snapshot(observation([mine]), CONFIG, rates, ControllerHistory())
    assert ("k80", 2) in possible(shown)
    view = shown.view
    error = view.jobs.prospects.rate_error[0]
    k80, v100 = view.types.index("k80"), view.types.index("v100")
    columns = [view.counts.index(gpus) for gpus in (1, 2)]
    assert view.jobs.rate[0, k80, columns[1]] == inferred
    assert (error[v100, columns] < 0.05).all() and error[k80, columns[1]] > 0.2
    assert np.isnan(error[view.jobs.rate[0] == 0]).all()


def counted(uid=1000, **more):
    """Samples that a waiting job of 1,000 declared ones counts as, user 1000 having understated
    his work 3 times, and the words of a plan on it."""
    mine = job(uid=uid, declaration=replace(MODEL, samples=1000), **more)
    shown = look(observation([mine]), past=ControllerHistory(understated={1000: 3.0}))
    plan = explained(dictate(shown.view, {}), shown.view.jobs.ids, shown.work)
    return float(shown.view.jobs.total[0]), plan.waiting["1"]


def test_declarations_of_an_owner_who_understated_his_work_count_for_more():
    total, words = counted()
    assert total == 3000.0 and "counts 3.0 times" in words
    assert counted(uid=1001) == (1000.0, "not now")


def test_no_declaration_makes_a_job_longer_than_none_would():
    kinds, slow = ("k80", "p100", "v100"), replace(MODEL, samples=100_000)
    least = RATES.rates((None, "resnet18", 64), kinds, (1,))[0].min()
    tight = job(declaration=slow, time_limit_s=100_000 / least + 31.0)
    undeclared = replace(tight, declaration=replace(slow, samples=0))
    unknown = look(observation([undeclared])).view.jobs.total[0]
    shown = look(observation([tight]), past=ControllerHistory(understated={1000: 30.0}))
    assert 100_000 < shown.view.jobs.total[0] == unknown < 3_000_000
    # It is kept from no type where it is in time as declared.
    assert possible(shown) == {(kind, 1) for kind in kinds}


def progress(id_, **more):
    usual = {
        "job": id_,
        "time": NOW,
        "restarts": 0,
        "host": "v1",
        "pid": 1,
        "in_step": False,
        "started": NOW - 100,
        "model": "resnet18",
        "samples": 0,
        "rate": 0.0,
        "window_s": 0.0,
        "batch": 64,
        "gpus": 1,
    }
    return Progress(**{**usual, **more})


def test_a_job_whose_work_fits_nowhere_is_left_to_slurm_with_the_reason():
    shown = look(observation([job(declaration=MODEL, time_limit_s=60.0), job("2")]))
    assert list(shown.schedulable) == ["2"] and "time limit" in shown.excluded["1"]


def test_a_job_that_saves_may_have_any_type_where_its_work_fits_in_no_limit():
    """Its owner goes on from its checkpoint, so a faster type brings it further."""
    long = replace(MODEL, samples=10**15, checkpoint="yes")
    for one in (job(declaration=long), running("1", {"k1": {"k80": 1}}, declaration=long)):
        jobs = look(observation([one])).view.jobs
        assert (jobs.rate[0, :, 0] > 0).all()
        # What is declared beyond the limit makes it no more important.
        assert jobs.left[0] <= jobs.rate[0].max() * one.time_limit_s
        assert jobs.total[0] == pytest.approx(jobs.left[0])
    fits = job(declaration=replace(MODEL, samples=1000))
    assert look(observation([fits])).view.jobs.left[0] == 1000


def of_measured_speeds(observed):
    """What is possible for job 1, whose owner measured 160 samples/s per V100, half of that per
    P100 and a quarter per K80."""
    rates = open_rates(CONFIG)
    for kind, rate in (("v100", 160.0), ("p100", 80.0), ("k80", 40.0)):
        for gpus in (1, 2, 3, 4):
            rates.record(RateSample("mine", kind, gpus, 64, rate * gpus, 600.0, uid=1000))
    return possible(take_snapshot(observed, CONFIG, rates, ControllerHistory()))


@pytest.mark.parametrize("number", [2, 3])
def test_a_number_of_gpus_that_no_node_has_lets_no_work_fit(number):
    # In its limit of two hours the work fits on so many V100 and not on fewer.
    samples = int(160 * (number - 0.5) * 7200)
    saves = Declaration(types=("any",), model="mine", batch=(64, 64), samples=samples, gpus=(1, 4))
    one = job(declaration=replace(saves, checkpoint="signal"))
    large = [node("v1", 4), node("p1"), node("k1")]
    assert {kind for kind, _ in of_measured_speeds(observation([one], large))} == {"v100"}
    found = of_measured_speeds(observation([one]))
    if number == 2:
        assert found == {("v100", 2)}
    else:
        # As of one whose work fits nowhere, which its owner carries on from its checkpoint.
        assert found == {(kind, count) for kind in ("v100", "p100", "k80") for count in (1, 2)}
    # Nodes that only a reservation closes have them; those of other partitions do not.
    until = Reservation("r", ("v1",), NOW - 60, NOW + 600)
    reserved = observation([one], [*large, node("v2")], reservations=(until,))
    assert {kind for kind, _ in of_measured_speeds(reserved)} == {"v100"}
    closed = [replace(large[0], partitions=("other",)), *large[1:]]
    assert ("k80", 2) in of_measured_speeds(observation([one], closed))


def test_several_nodes_have_their_gpus_together_and_a_request_beyond_all_of_them_stays():
    spread = Declaration(types=("any",), checkpoint="yes", gpus=(1, 8), nodes=(1, 2))
    one = job(declaration=spread, request=GpuRequest(per_job={UNTYPED: 1}), time_limit_s=inf)
    assert max(count for _, count in possible(look(observation([one])))) == 4
    beyond = job(declaration=replace(spread, nodes=None, gpus=(3, 4)), time_limit_s=inf)
    assert {count for _, count in possible(look(observation([beyond])))} == {3, 4}


def test_a_job_in_the_middle_of_a_move_is_not_let_go():
    late = job("1", declaration=MODEL, time_limit_s=60.0)
    shown = look(observation([late, job("2")]), past=ControllerHistory(moving={"1": {}}))
    assert list(shown.schedulable) == ["2"] and not shown.excluded


def test_where_a_job_runs_is_possible_whatever_the_tables_say():
    late = running("1", {"k1": {"k80": 1}}, declaration=MODEL, time_limit_s=60.0)
    shown = look(observation([late]))
    assert possible(shown) == {("k80", 1)} and not shown.excluded


def test_no_time_limit_is_no_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listed = replace(MODEL, types=("v100", "k80"))
        shown = look(
            observation([job(time_limit_s=inf), job("2", declaration=listed, time_limit_s=inf)])
        )
    assert len(possible(shown, "2")) == 2
    assert np.isfinite(shown.view.jobs.total).all()


def test_nodes_that_the_owner_excludes_are_closed_to_him_alone():
    shown = look(observation([job(excluded_nodes=("k1", "v2")), job("2")]))
    assert open_nodes(shown, "1") == {"v1", "p1", "p2", "k2"}
    assert open_nodes(shown, "2") == {"v1", "v2", "p1", "p2", "k1", "k2"}


def test_the_owners_constraint_closes_nodes():
    assert open_nodes(look(observation([job(features="k80|p100")]))) == {"p1", "p2", "k1", "k2"}


GROUPED = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')


def test_a_job_stays_in_the_partitions_that_it_asked_for():
    for site in (CONFIG, GROUPED):
        assert open_nodes(look(observation([job(partitions=("k80",))]), site)) == {"k1", "k2"}
        both = look(observation([job(partitions=("k80", "v100"))]), site)
        assert open_nodes(both) == {"k1", "k2", "v1", "v2"}


@pytest.mark.parametrize(
    ("site", "left"),
    [(CONFIG, {"v2", "p1", "p2", "k1", "k2"}), (GROUPED, {"v2", "p1", "p2"})],
)
def test_partitions_that_are_down_are_closed(site, left):
    """One that stands for others may be up while one of these is down."""
    found = [n for n in nodes() if n.name != "v1"]
    parts = [replace(p, state="UP" if p.name != "k80" else "DOWN") for p in partitions_of(found)]
    listed = job(partitions=("k80", "p100"))
    assert open_nodes(look(observation([listed], found, parts), site)) == {"p1", "p2"}
    grouped = look(observation([job()], found, parts), site)
    assert open_nodes(grouped) == left


# -- odd clusters ------------------------------------------------------------------------------


def test_a_cluster_without_gpus_leaves_everything_to_slurm():
    bare = [replace(node("v1"), gpus={}, features=())]
    shown = look(observation([job()], bare))
    assert not shown.schedulable and shown.excluded


def test_a_cluster_without_jobs_or_nodes():
    assert look(observation([], [])).view.jobs.ids == ()
    assert look(observation([job()], [])).schedulable == {}


def test_gpus_without_a_type_are_named_by_the_sites_feature():
    from slurm_hadar.controller.observation.observed import typed

    bare = replace(node("v1"), gpus={UNTYPED: 4}, gpus_used={UNTYPED: 1}, features=("volta",))
    site = config('[gpu_types.a100]\nfeature = "volta"\n')
    named = typed(bare, site)
    assert named.gpus == {"a100": 4} and named.gpus_used == {"a100": 1}
    assert typed(bare, CONFIG).gpus == {UNTYPED: 4}
    held = running("1", {"v1": {UNTYPED: 2}})
    assert placed(held, observation([held], [named]).nodes) == {"v1": {"a100": 2}}


def test_gpus_of_a_type_that_nobody_knows_any_more_stop_nothing():
    """gres.conf was changed under a running job."""
    here = running("1", {"k1": {"titan": 1}})
    shown = look(observation([here, job("2")]))
    assert "2" in shown.schedulable


def test_a_job_that_was_sent_on_holds_its_place_for_a_while():
    def job_sent(at, **more):
        comment = merge("", Steering({"k80": 2}, {"k1": {"k80": 2}}, at))
        return job(admin_comment=comment, reason="None", eligible_s=at, start_s=0.0, **more)

    fresh = look(observation([job_sent(NOW - 5)]))
    assert fresh.schedulable["1"].starting and fresh.schedulable["1"].held == {"k1": {"k80": 2}}
    assert not look(observation([job_sent(NOW - 500)])).schedulable["1"].held
    # A node took it down since, and it must not start yet.
    late = look(observation([job_sent(NOW - 5, restarts=1, not_before_s=NOW + 30)]))
    assert not late.schedulable["1"].starting
    # Somebody else was faster, and no other node has two of them.
    gone = look(observation([job_sent(NOW - 5)], nodes(k1=1, k2=1)))
    assert gone.schedulable["1"].held == {"k1": {"k80": 1}, "k2": {"k80": 1}}
    assert not look(observation([job_sent(NOW - 5)], nodes(k1=2, k2=1))).schedulable["1"].held


def test_a_job_in_the_middle_of_a_move_keeps_where_it_is_going():
    past = ControllerHistory(moving={"1": {"v1": {"v100": 1}}})
    for state in (
        running("1", {"k1": {"k80": 1}}),
        job("1", restarts=1, reason="Cleaning"),
        job("1", restarts=1, reason="ReqNodeNotAvail"),
    ):
        target = look(observation([state]), past=past).schedulable["1"]
        assert target.starting and target.held == {"v1": {"v100": 1}}


def test_a_partition_that_gives_whole_nodes_is_left_to_slurm():
    parts = [replace(p, exclusive=p.name == "gpu") for p in partitions_of(nodes())]
    shown = look(observation([job(), job("2", partitions=("k80",))], partitions=parts))
    assert "whole nodes" in shown.excluded["1"] and "2" in shown.schedulable


@pytest.fixture
def fault(monkeypatch):
    """A fault of ours that shows with jobs of the model ``sick`` only, or with all."""

    def planted(models=("sick",)):
        def brought_up(one):
            if one.declaration.model in models:
                raise ZeroDivisionError("a fault")
            return 30.0

        monkeypatch.setattr(restart_costs, "first_guess_s", brought_up)

    return planted


def test_a_fault_that_one_jobs_data_brings_up_leaves_that_job_alone_only(fault):
    fault()
    sick = job("1", declaration=replace(MODEL, model="sick"))
    slow = job("3", declaration=replace(MODEL, samples=10**15))
    shown = look(observation([sick, job("2", declaration=MODEL), slow]))
    assert set(shown.schedulable) == set(shown.view.jobs.ids) == {"2"}
    why = "its data raises an internal error of slurm-hadar (ZeroDivisionError)"
    assert shown.excluded["1"] == why and "time limit" in shown.excluded["3"]
    assert shown.faults == (f"job 1 is left alone: {why}",)
    assert look(observation([job("2", declaration=MODEL)])).faults == ()


def test_a_fault_of_no_one_job_is_not_hidden(fault):
    fault(("sick", "resnet18"))
    sick = job("1", declaration=replace(MODEL, model="sick"))
    with pytest.raises(ZeroDivisionError):
        look(observation([sick, job("2", declaration=MODEL)]))
    with pytest.raises(ZeroDivisionError):
        look(observation([sick]))


@pytest.mark.parametrize(
    ("sick", "found"), [({7}, {7}), ({0, 999}, {0, 999}), (set(range(30)), set())]
)
def test_a_few_jobs_with_a_fault_are_found_among_many_in_few_pictures(sick, found):
    made = []

    def make(some):
        made.append(len(some))
        if sick & {int(id_) for id_ in some}:
            raise ValueError

    faults = view_builder._faults(make, {str(number): None for number in range(1000)})
    assert {int(id_) for id_ in faults} == found
    # Each fault costs two whole pictures' work, and one more finds that there is one.
    assert sum(made) <= 1000 * (1 + 2 * len(sick)) and len(made) <= 1 + 20 * len(sick)


def test_a_policy_knows_whose_jobs_they_are():
    view = look(observation([job("1", uid=1001), job("2", uid=1002), job("3", uid=1001)])).view
    owner = dict(zip(view.jobs.ids, view.jobs.owner.tolist(), strict=True))
    assert owner == {"1": 1001, "2": 1002, "3": 1001}


def test_a_policy_gets_restarts_and_from_when_a_job_may_be_moved():
    guards = CONFIG.guards.model_copy(update={"min_between_moves_s": 600.0})
    site = CONFIG.model_copy(update={"guards": guards})
    saves = Declaration(types=("any",), checkpoint="yes", model="resnet18", samples=1_000_000)
    place = {"v1": {"v100": 1}}
    jobs = [
        running("1", place, declaration=saves, start_s=NOW - 100.0, restarts=2),
        running("2", {"v2": {"v100": 1}}, declaration=saves, start_s=NOW - 900.0),
        running("3", {"p1": {"p100": 1}}, declaration=replace(saves, pin=True)),
        job("4"),
    ]
    view = look(observation(jobs), site).view
    at = [view.jobs.ids.index(id_) for id_ in "1234"]
    found = view.jobs.prospects.take(at)
    assert found.movable_from_s.tolist() == [NOW + 500.0, NOW - 300.0, inf, 0.0]
    assert view.jobs.movable[at].tolist() == [False, True, False, True]
    assert ((found.movable_from_s <= view.now) == view.jobs.movable[at]).all()
    assert found.restarts.tolist() == [2, 0, 0, 0]
    assert found.work_unknown.tolist() == [False, False, False, True]
    assert found.rate_error.shape == view.jobs.rate.shape and np.isnan(found.rate_error).all()


def test_a_view_knows_when_the_time_limit_ends_a_running_job():
    short = running("1", {"k1": {"k80": 1}}, start_s=NOW - 3000, time_limit_s=7200.0)
    late = running("2", {"v1": {"v100": 1}}, start_s=NOW - 3000, time_limit_s=600.0)
    free = running("3", {"p1": {"p100": 1}}, start_s=NOW - 3000, time_limit_s=inf)
    shown = look(observation([short, late, free, job("4")])).view.jobs
    assert dict(zip(shown.ids, shown.limit_s.tolist(), strict=True)) == {
        "1": 4200.0, "2": 0.0, "3": inf, "4": inf
    }  # fmt: skip
