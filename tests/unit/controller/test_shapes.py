"""Jobs of several nodes, and of whole ones: plans keep to their shapes."""

from dataclasses import replace

import pytest
from hand_made import (
    CONFIG,
    NOW,
    config,
    decide,
    dictate,
    job,
    look,
    node,
    observation,
    ordinary,
    running,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.destinations.host_capacity import FreeHostResources
from slurm_hadar.controller.snapshot import shapes
from slurm_hadar.domain.declaration import Declaration, parse
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.placement import Placement
from slurm_hadar.policies.validity import problems

GPUS = {"v1": 4, "v2": 4, "v3": 8, "p1": 4, "p2": 4, "k1": 2, "k2": 2, "k3": 8}
KINDS = {"v": "v100", "p": "p100", "k": "k80"}
FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def cluster(used=None, cpus=None):
    """Nodes of four, eight and two GPUs; ``used``, ``cpus``: node -> what of it is in use."""
    return [
        node(
            name, gpus,
            gpus_used={KINDS[name[0]]: (used or {}).get(name, 0)},
            cpus=16 if name[0] == "k" else 32,
            cpus_used=(cpus or {}).get(name, 0),
        )
        for name, gpus in GPUS.items()
    ]  # fmt: skip


def declared(*words):
    return parse(("types=any", "checkpoint=yes", *words), "here")


def whole(id_="1", nodes=1, each=4, words=(), **more):
    """A job that has its nodes alone."""
    return job(
        id_,
        **{
            "exclusive": True, "whole_nodes": True, "node_count": nodes, "tasks": nodes,
            "cpus": nodes, "request": GpuRequest(per_node={UNTYPED: each}),
            "declaration": declared(*words), **more,
        },
    )  # fmt: skip


def runs(one, where):
    """The job as Slurm shows it while it runs: with all CPUs of its nodes."""
    gpus = {name: {KINDS[name[0]]: GPUS[name]} for name in where}
    cpus = sum(16 if name[0] == "k" else 32 for name in where)
    if not one.whole_nodes:
        gpus = {name: {KINDS[name[0]]: sum(one.request.per_node.values())} for name in where}
        cpus = one.cpus
    there = running(one.id, gpus)
    return replace(
        one, state=there.state, slurm_state="RUNNING", gpus=gpus, nodes=tuple(where), cpus=cpus,
        start_s=NOW - 1000, eligible_s=NOW - 1000, reason="",
    )  # fmt: skip


def busy(*jobs):
    """The cluster with what these running jobs have in use."""
    used: dict[str, int] = {}
    cpus: dict[str, int] = {}
    for one in jobs:
        for name, gpus in one.gpus.items():
            used[name] = used.get(name, 0) + sum(gpus.values())
            part = (16 if name[0] == "k" else 32) if one.whole_nodes else one.cpus // len(one.gpus)
            cpus[name] = cpus.get(name, 0) + part
    return cluster(used, cpus)


# -- which nodes --------------------------------------------------------------------------------


def open_nodes(observed, id_="1"):
    view = look(observed).view
    row = view.jobs.rows[id_]
    return {n for n, g in zip(view.nodes.names, view.nodes.group, strict=True)
            if view.jobs.groups[row, g]}  # fmt: skip


def test_a_whole_node_has_the_number_of_gpus_that_is_asked_for_and_no_more():
    assert open_nodes(observation([whole()], cluster())) == {"v1", "v2", "p1", "p2"}
    both = whole(words=("gpus=4,8",))
    assert open_nodes(observation([both], cluster())) == {"v1", "v2", "v3", "p1", "p2", "k3"}
    at_least = whole(words=("gpus=2-4",))
    # Slurm starts a request for four GPUs on no node of two.
    assert open_nodes(observation([at_least], cluster())) == {"v1", "v2", "p1", "p2"}


def test_an_ordinary_job_sees_the_nodes_as_before():
    assert open_nodes(observation([whole(), job("2")], cluster()), "2") == set(GPUS)


@pytest.mark.parametrize(
    ("more", "closed"),
    [
        ({"mem_per_node_mb": 300_000}, {"v1", "p1"}),
        # Memory per CPU is given for all CPUs of the node.
        ({"mem_per_cpu_mb": 9_000}, {"v1", "p1"}),
        ({"tasks": 40, "cpus": 40}, {"v1", "p1"}),
        ({"least_cpus": 33}, {"v1", "p1"}),
        ({"mem_per_cpu_mb": 8_000, "tasks": 32, "cpus": 32, "least_cpus": 32}, set()),
    ],
)
def test_a_node_that_is_too_small_is_closed(more, closed):
    observed = observation([whole(**more)], cluster())
    assert {"v1", "p1"} - open_nodes(observed) == closed


def test_a_node_with_cpus_of_a_job_that_no_plan_moves_is_closed():
    other = running("7", {"v2": {"v100": 1}}, cpus=2)
    alone = ordinary("8", cpus=4)
    assert alone.declaration is None
    shown = observation([whole(), other], cluster({"v2": 1}, {"v1": 4, "v2": 2}))
    # Job 7 would leave v2 with its GPU; the four CPUs of v1 belong to an unmanaged job.
    assert open_nodes(shown) == {"v2", "p1", "p2"}


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (whole(each=1), "declare gpus= with the GPUs of whole nodes"),
        (whole(nodes=3), "no 3 nodes of a type have the number of GPUs"),
        (whole(words=("gpus=5,6",)), "declare gpus="),
        (replace(whole(), whole_nodes=False), "--exclusive=user"),
        (whole(words=("fork=1-2",)), "declares fork, nodes or backfill"),
        (runs(whole(), ["v3"]), "whole nodes with 8 GPUs"),
    ],
)
def test_what_is_no_shape_is_left_to_slurm_with_a_reason(one, says):
    shown = look(observation([one], cluster()))
    assert one.id not in shown.schedulable and says in shown.excluded[one.id]


def test_less_than_a_node_is_a_shape_where_gpus_says_so():
    one = whole(each=1, words=("gpus=2,4",))
    assert look(observation([one], cluster())).schedulable["1"].request.counts == (2, 4)


# -- plans --------------------------------------------------------------------------------------


@st.composite
def clusters(draw):
    """Jobs of whole nodes, of several nodes, and ordinary ones; some of them run."""
    left, jobs = dict(GPUS), []
    for number in range(1, draw(st.integers(1, 5)) + 1):
        id_, nodes = str(number), draw(st.integers(1, 2))
        known = draw(st.booleans())
        work = ("model=resnet50", f"samples={draw(st.integers(1, 10**7))}") if known else ()
        kind = draw(st.sampled_from(["whole", "declared", "several", "ordinary"]))
        each = draw(st.sampled_from([2, 4]))
        if kind == "whole":
            one = whole(id_, nodes, each, work)
        elif kind == "declared":
            one = whole(id_, nodes, each, (f"gpus={4 * nodes},{8 * nodes}", *work))
        else:
            nodes = 2 if kind == "several" else 1
            one = job(
                id_, node_count=nodes, tasks=nodes, cpus=nodes, declaration=declared(*work),
                request=GpuRequest(per_node={UNTYPED: each}),
            )  # fmt: skip
        one = replace(one, priority=draw(st.integers(1, 3)))
        letter = draw(st.sampled_from("vpk"))
        fit = [
            n for n in GPUS
            if n[0] == letter
            and (left[n] == GPUS[n] == each if one.whole_nodes else left[n] >= each)
        ]  # fmt: skip
        if kind != "declared" and len(fit) >= nodes and draw(st.booleans()):
            one = runs(one, fit[:nodes])
            for name in fit[:nodes]:
                left[name] -= GPUS[name] if one.whole_nodes else each
        jobs.append(one)
    return observation(jobs, busy(*jobs))


def wrong_shape(observed, shown, id_, placement):
    """Why a placement is not the job's shape: empty where it is."""
    one, want = observed.jobs[id_], shown.schedulable[id_].request
    parts = {name: sum(gpus.values()) for name, gpus in placement.nodes.items()}
    if len(parts) != one.node_count:
        return f"{id_}: {len(parts)} nodes"
    if not one.whole_nodes:
        same = set(parts.values()) == set(one.request.per_node.values())
        return "" if same or one.node_count == 1 else f"{id_}: {parts}"
    if any(GPUS[name] != gpus for name, gpus in parts.items()):
        return f"{id_}: a part of a node, {parts}"
    return "" if sum(parts.values()) in want.counts else f"{id_}: {parts}"


@pytest.mark.parametrize("name", policies.names())
@given(observed=clusters(), preempt=st.booleans())
@FEW
def test_every_plan_keeps_to_the_shapes_and_can_be_carried_out(name, observed, preempt):
    guards = CONFIG.guards.model_copy(update={"preempt": preempt})
    shown = look(observed, CONFIG.model_copy(update={"guards": guards}))
    plan, _ = policies.get(name)(shown.view, {})
    found = shapes.shaped(plan, shown)
    assert found.placements.keys() | found.waiting.keys() == set(shown.view.jobs.ids)
    for id_, placement in found.placements.items():
        assert not wrong_shape(observed, shown, id_, placement)
    # What one that stays still has is not free for a move of another (open_places).
    stay = any(one.reason.startswith("stays: ") for one in found.placements.values())
    if not stay and not problems(shown.view, plan):
        assert not problems(shown.view, found)


def several(each=4, **more):
    return job(node_count=2, tasks=2, cpus=2, request=GpuRequest(per_node={UNTYPED: each}), **more)


@pytest.mark.parametrize(
    ("one", "there", "then"),
    [
        # Eight on one node, five and three, and no nodes at all.
        (several(), {"v3": {"v100": 8}}, 2),
        (several(), {"v3": {"v100": 5}, "v1": {"v100": 3}}, 2),
        (several(), {}, 2),
        (whole(nodes=2), {"v1": {"v100": 4}, "v3": {"v100": 4}}, 2),
        (whole(nodes=1), {"v3": {"v100": 4}}, 1),
    ],
)
def test_a_placement_out_of_shape_is_put_into_it(one, there, then):
    shown = look(observation([one], cluster()))
    plan = dictate(shown.view, {"1": Placement({"v100": 4 * then}, there, reason="so")})
    placement = shapes.shaped(plan, shown).placements["1"]
    assert len(placement.nodes) == then and placement.reason == "so"
    assert all(gpus == {"v100": 4} for gpus in placement.nodes.values())


def test_a_shape_for_which_nothing_is_left_is_not_carried_out():
    out = Placement({"v100": 8}, {"v3": {"v100": 8}}, reason="so")
    others = [running(str(n), {f"v{n - 6}": {"v100": 3}}, cpus=1) for n in (7, 8)]
    waits = look(observation([several(), *others], busy(*others)))
    keep = {one.id: Placement({"v100": 3}, one.gpus, reason="stays") for one in others}
    plan = shapes.shaped(dictate(waits.view, {"1": out, **keep}), waits)
    assert "1" not in plan.placements and "2 nodes with 4 free GPUs" in plan.waiting["1"]
    full = [running(str(n), {name: {KINDS[name[0]]: GPUS[name]}}) for n, name in enumerate(GPUS, 7)]
    waits_for_one = look(observation([several(each=1), *full], busy(*full)))
    little = {"1": Placement({"v100": 2}, {"v3": {"v100": 2}}, reason="so")}
    every = {one.id: Placement(one.gpus[one.nodes[0]], one.gpus, reason="stays") for one in full}
    plan = shapes.shaped(dictate(waits_for_one.view, {**little, **every}), waits_for_one)
    assert plan.waiting["1"] == "no 2 nodes with 1 free GPU each"
    here = runs(several(), ["p1", "p2"])
    stays = look(observation([here, *others], busy(here, *others)))
    placement = shapes.shaped(dictate(stays.view, {"1": out, **keep}), stays).placements["1"]
    assert set(placement.nodes) == {"p1", "p2"} and placement.reason.startswith("stays")


# -- what is sent -------------------------------------------------------------------------------


def test_a_move_pins_whole_nodes_and_leaves_the_request_as_it_is():
    here = runs(whole(nodes=2), ["p1", "p2"])
    there = Placement({"v100": 8}, {"v1": {"v100": 4}, "v2": {"v100": 4}}, reason="so")
    (action,) = decide(observation([here], busy(here)), {"1": there}).of(Kind.MOVE)
    assert dict(action.fields) == {"Features": "v100", "ReqNodeList": "v[1-2]"}
    assert action.steering.was == {"Features": "", "ReqNodeList": ""}


def test_a_larger_node_that_is_declared_changes_no_request():
    here = runs(whole(words=("gpus=4,8",)), ["p1"])
    there = Placement({"v100": 8}, {"v3": {"v100": 8}}, reason="so")
    (action,) = decide(observation([here], busy(here)), {"1": there}).of(Kind.MOVE)
    assert dict(action.fields) == {"Features": "v100", "ReqNodeList": "v3"}


def test_other_nodes_of_the_same_type_are_no_move():
    here = runs(whole(), ["v1"])
    there = Placement({"v100": 4}, {"v2": {"v100": 4}}, reason="so")
    assert not decide(observation([here], busy(here)), {"1": there}).of(Kind.MOVE)


@pytest.mark.parametrize(("here", "there"), [("v3", "k3"), ("k3", "v3")])
def test_a_move_takes_all_cpus_of_a_node_and_waits_where_one_is_in_use(here, there):
    # A node of the one type has twice the CPUs of the other.
    one = runs(whole(each=8), [here])
    kind = KINDS[there[0]]
    plan = {"1": Placement({kind: 8}, {there: {kind: 8}}, reason="so")}
    assert decide(observation([one], busy(one)), plan).of(Kind.MOVE)
    nodes = [replace(n, cpus_used=1) if n.name == there else n for n in busy(one)]
    means = decide(observation([one], nodes), plan)
    assert not means.of(Kind.MOVE) and "CPUs" in means.deferred["1"]
    beside = FreeHostResources(observation([one], busy(one)))
    assert beside.take(one, {}, [there], {here}) and not beside.take(one, {}, [there], {here})


def test_policies_count_what_it_asks_for_and_not_all_that_its_nodes_have():
    one = runs(whole(each=8, tasks=8, cpus=8, mem_per_cpu_mb=100), ["v3"])
    jobs = look(observation([one], busy(one))).view.jobs
    assert jobs.cpus_per_gpu[0] == 1 and jobs.mem_per_gpu_mb[0] == 100


def test_a_waiting_job_gets_an_order_where_each_type_has_its_number_alone():
    named = {"partitions": ("p100", "v100"), "each": 2}
    same = [node(n, 2, cpus=16) for n in ("v1", "v2", "p1", "p2")]
    one = whole(**named, words=("model=resnet50", "samples=1000000"))
    (hint,) = decide(observation([one], same)).of(Kind.HINT)
    assert dict(hint.fields) == {"Partition": "v100,p100"}
    # A partition that may have too little memory for all CPUs of a node is not the only one left.
    per_cpu = replace(one, mem_per_cpu_mb=1000, declaration=declared("model=resnet50"))
    (hint,) = decide(observation([per_cpu], same)).of(Kind.HINT)
    assert set(hint.fields["Partition"].split(",")) == {"v100", "p100"}
    # On eight GPUs it may start, too: a shape that no plan has for it.
    mixed = [*same, node("v3", 8)]
    declares = replace(one, declaration=declared("gpus=2,8", "model=resnet50", "samples=1000000"))
    assert not decide(observation([declares], mixed)).of(Kind.HINT)
    # Nor is a partition left out in which it may start, but not as planned.
    bigger = [node("v1", 4), node("p1", 2, cpus=16)]
    assert not decide(observation([one], bigger)).of(Kind.HINT)


def test_a_job_in_a_group_keeps_the_partition_that_its_owner_named():
    site = config('[partitions.groups]\ngpu = ["v100", "p100"]\n')
    same = [node(n, 2, cpus=16) for n in ("v1", "p1")]
    assert not decide(observation([whole(each=2)], same), site=site).of(Kind.HINT)
    ordinary_one = job("2", request=GpuRequest(per_node={UNTYPED: 2}),
                       declaration=Declaration(types=("any",), checkpoint="yes"))  # fmt: skip
    assert decide(observation([ordinary_one], same), site=site).of(Kind.HINT)
