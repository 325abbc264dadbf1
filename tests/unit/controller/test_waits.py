"""When a job would start on each type, and when it is worth to wait for one."""

from dataclasses import replace
from math import inf

import pytest
from hand_made import (
    NOW,
    RATES,
    config,
    decide,
    hinted,
    job,
    look,
    nodes,
    observation,
    ordinary,
    running,
)

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.pending import queue_head
from slurm_hadar.controller.presentation.job_explanation import changed
from slurm_hadar.controller.snapshot.waits import expected_waits, far_slower, run_times
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.reports.formats import moment

GROUPS = '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'
SITE = config("[queue]\nmax_wait_s = 1000\n" + GROUPS)
OFF = config(GROUPS)
V100, K80 = (
    float(RATES.rates((None, "resnet18", 64), (kind,), (1,))[0][0, 0]) for kind in ("v100", "k80")
)
WORK = int(V100 * 100)
"""Samples of 100 s on a V100."""
DECLARED = Declaration(
    model="resnet18", types=("v100", "p100", "k80"), batch=(64, 64), samples=WORK, checkpoint="yes"
)


def full(left_s, others_s=100_000.0):
    """Jobs of others on all GPUs; those on V100s end in about ``left_s`` and the rest later."""

    def limit(seconds):
        # It has run for no time.
        return {"time_limit_s": seconds * 2.25, "start_s": NOW, "declaration": None, "uid": 7}

    found = []
    for number, name in enumerate(("v1", "v2", "p1", "p2", "k1", "k2"), 50):
        kind = {"v": "v100", "p": "p100", "k": "k80"}[name[0]]
        found.append(
            running(str(number), {name: {kind: 2}}, **limit(left_s if name[0] == "v" else others_s))
        )
    return found, nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=2)


def waits(jobs, found):
    shown = observation(jobs, found)
    return expected_waits(shown, look(shown, SITE))


def test_a_free_gpu_needs_no_wait_and_one_in_use_is_waited_for():
    busy, found = full(60)
    assert waits([job("1", declaration=DECLARED)], nodes())["1"]["v100"] == 0
    expected = waits([job("1", declaration=DECLARED), *busy], found)["1"]
    assert expected["v100"] == pytest.approx(60, rel=0.01)
    assert expected["k80"] == pytest.approx(100_000, rel=0.01)


def test_those_who_are_ahead_come_first():
    busy, found = full(60)
    first = [ordinary(str(n), priority=5000, features="", time_limit_s=225.0) for n in range(2, 6)]
    expected = waits([job("1", declaration=DECLARED), *first, *busy], found)["1"]
    # Four of four V100s are theirs for 100 s more.
    assert expected["v100"] == pytest.approx(160, rel=0.01)


@pytest.mark.parametrize("is_managed", [True, False])
def test_those_who_are_ahead_take_nodes_of_their_own_partitions_only(is_managed):
    """Jobs that ask for a full partition do not make the others look full."""
    busy, _ = full(60)
    v100, found = busy[:2], nodes(v1=2, v2=2)
    usual = {"priority": 5000, "time_limit_s": 22_500.0, "partitions": ("v100",)}
    if is_managed:
        usual |= {"declaration": replace(DECLARED, types=("any",))}
    ahead = [(job if is_managed else ordinary)(str(n), **usual) for n in range(2, 8)]
    expected = waits([job("1", declaration=DECLARED), *ahead, *v100], found)["1"]
    assert expected["p100"] == expected["k80"] == 0 < expected["v100"]
    anywhere = [replace(one, partitions=("gpu",)) for one in ahead]
    assert waits([job("1", declaration=DECLARED), *anywhere, *v100], found)["1"]["p100"] > 0


def test_work_takes_as_long_as_the_type_is_slow():
    shown = observation([job("1", declaration=DECLARED)])
    snapshot = look(shown, SITE)
    times = run_times(snapshot.schedulable["1"], snapshot)
    assert times["v100"] == pytest.approx(100, rel=0.01)
    assert times["k80"] == pytest.approx(100 * V100 / K80, rel=0.01)
    assert 3 * times["v100"] < times["k80"] < 4 * times["v100"]


def sent(left_s, one=None, site=SITE, more=()):
    busy, found = full(left_s)
    one = one or job("1", declaration=DECLARED)
    return (
        hinted(decide(observation([one, *busy, *more], found), {}, site))
        .get("1", {})
        .get("Partition")
    )


def test_types_on_which_it_would_end_later_are_left_out_while_it_waits():
    # It takes 341 s on a K80, and little more than 100 s on a P100.
    assert sent(10) == sent(200) == "v100,p100"
    assert sent(300) == sent(100_000) == "v100,p100,k80"


def shortened(job_, left_s=10):
    busy, found = full(left_s)
    shown = observation([job_, *busy], found)
    (action,) = decide(shown, {}, SITE).of(Kind.HINT)
    return action


def test_a_shortened_list_keeps_its_deadline_and_its_end():
    action = shortened(job("1", declaration=DECLARED))
    ours = action.steering
    assert ours.until == NOW - 60 + 1000
    assert ours.ends == pytest.approx(NOW + 10 + 100, rel=0.01)
    assert f"waits for v100 until {moment(ours.until)}" in action.reason
    waits = job("1", declaration=DECLARED, partitions=("v100", "p100"))
    notes = changed(waits, observation([waits], steering={"1": ours}), SITE)
    assert notes[-1].startswith(f"Partition: it waits for v100 until {moment(ours.until)}")
    assert moment(ours.ends) in notes[-1]
    # A list that leaves nothing out has none.
    wide = shortened(job("1", declaration=replace(DECLARED, wait=0.0))).steering
    assert (wide.until, wide.ends) == (0, 0)


def test_a_shortened_list_that_sinks_back_in_the_queue_is_widened(monkeypatch):
    ours = shortened(job("1", declaration=DECLARED)).steering
    waits = job("1", declaration=DECLARED, partitions=("v100", "p100"))
    monkeypatch.setattr(queue_head, "records_with_lists", lambda depth: 2)
    busy, found = full(10)
    shown = replace(observation([waits, *busy], found, steering={"1": ours}), queue_depth=2)
    assert hinted(decide(shown, {}, SITE))["1"]["Partition"] == "gpu"
    wide = replace(ours, until=0.0, ends=0.0)
    shown = replace(shown, steering={"1": wide})
    assert hinted(decide(shown, {}, SITE)) == {}


def test_it_waits_no_longer_than_the_site_lets_it():
    assert sent(10, site=OFF) == "v100,p100,k80"
    old = job("1", declaration=DECLARED, eligible_s=NOW - 1001)
    assert sent(10, old) == "v100,p100,k80"
    nearly = job("1", declaration=DECLARED, eligible_s=NOW - 995)
    assert sent(10, nearly) == "v100,p100,k80"


def test_the_owners_word_counts_instead_of_the_sites():
    patient = job("1", declaration=replace(DECLARED, wait=1000.0))
    assert sent(10, patient, site=OFF) == "v100,p100"
    old = replace(patient, eligible_s=NOW - 1001)
    assert sent(10, old, site=OFF) == "v100,p100,k80"
    never = job("1", declaration=replace(DECLARED, wait=0.0))
    assert sent(10, never) == "v100,p100,k80"


def test_nobody_waits_for_a_type_where_slurm_starts_jobs_in_strict_order():
    busy, found = full(10)
    for in_order in (False, True):
        shown = replace(
            observation([job("1", declaration=DECLARED), *busy], found), in_order=in_order
        )
        list_ = hinted(decide(shown, {}, SITE))["1"]["Partition"]
        assert list_ == ("v100,p100,k80" if in_order else "v100,p100")


def test_a_job_that_did_not_say_how_long_it_runs_never_waits_for_a_type():
    unknown = job("1", declaration=replace(DECLARED, samples=0))
    assert sent(10, unknown) == "v100,p100,k80"
    nothing = job("1", declaration=Declaration(), partitions=("gpu",))
    assert set((sent(10, nothing) or "v100,p100,k80").split(",")) == {"v100", "p100", "k80"}


def test_nobody_waits_for_a_type_that_a_job_behind_wants_which_is_not_managed():
    behind = ordinary("9", priority=1)
    assert sent(10, more=[behind]) == "v100,p100,k80"
    elsewhere = ordinary("9", priority=1, request=GpuRequest(per_node={"k80": 1}))
    assert sent(10, more=[elsewhere]) == "v100,p100"
    other = ordinary("9", priority=1, partitions=("k80",), request=GpuRequest({UNTYPED: 1}))
    assert sent(10, more=[other]) == "v100,p100"


def test_gpus_of_several_nodes_make_no_place_for_a_job_of_one():
    two, four = (GpuRequest(per_node={UNTYPED: count}) for count in (2, 4))
    one = job("1", declaration=DECLARED, request=two)
    # One GPU is free on each node: one job of one GPU runs on each, others end in 100 s.
    busy = [
        running(str(50 + n), {name: {"v100": 1}}, declaration=None, uid=7, start_s=NOW,
                time_limit_s=225.0)
        for n, name in enumerate(("v1", "v2"))
    ]  # fmt: skip
    found = waits([one, *busy], nodes(v1=1, v2=1))["1"]
    assert found["v100"] == pytest.approx(100, rel=0.01)
    assert waits([replace(one, request=four)], nodes())["1"]["v100"] == inf
    large = replace(DECLARED, nodes=(1, 2))
    spread = job("1", declaration=large, request=GpuRequest(per_job={UNTYPED: 4}))
    assert waits([spread], nodes())["1"]["v100"] == 0


@pytest.mark.parametrize(
    "more", [{"excluded_nodes": ("v1", "v2")}, {"cpus": 40}, {"mem_per_node_mb": 300_000}]
)
def test_no_type_is_waited_for_on_whose_nodes_the_job_does_not_fit(more):
    larger = [
        replace(n, cpus=64, memory_mb=512_000) if n.name[0] != "v" else n for n in full(10)[1]
    ]
    shown = waits([job("1", declaration=DECLARED, **more), *full(10)[0]], larger)["1"]
    assert shown["v100"] == inf and shown["k80"] < inf
    busy, _ = full(10)
    one = job("1", declaration=DECLARED, **more)
    assert hinted(decide(observation([one, *busy], larger), {}, SITE)) == {}


def test_a_job_is_not_expected_on_a_type_that_its_list_leaves_out():
    """Each of the first four ends sooner on a K80 that is free than on a V100 in 10,000 s, but
    leaves these out: they are far slower."""
    busy, _ = full(10_000)
    found = nodes(v1=2, v2=2, p1=2, p2=2)
    busy = [one for one in busy if one.id not in ("54", "55")]
    far = config("[queue]\nmax_wait_s = 1000\n" + GROUPS)
    any_type = Declaration(model="resnet50", types=("any",), samples=1000)
    first = [job(str(n), declaration=any_type, priority=5000 - n) for n in range(2, 6)]
    shown = observation([job("1", declaration=DECLARED), *first, *busy], found)
    snapshot = look(shown, far)
    assert set(far_slower(snapshot.schedulable["2"], snapshot, ("v100", "k80"), shown)) == {"k80"}
    assert far_slower(snapshot.schedulable["1"], snapshot, ("v100", "k80"), shown) == set()
    assert expected_waits(shown, snapshot)["1"]["k80"] == 0
