"""Copies in a plan, and what the controller makes of them."""

from dataclasses import replace

import pytest
from hand_made import config, decide, job, look, nodes, observation, running

from slurm_hadar import policies
from slurm_hadar.controller.snapshot.forks import within_allowed_copies
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.placement import Placement, Plan

FORKED = Placement(
    gpus={"v100": 1, "k80": 1},
    nodes={"k1": {"k80": 1}, "v1": {"v100": 1}},
    copies=2,
    shares=(0.2, 0.8),
    reason="as it pays",
)


def view_with(fork):
    declared = Declaration(types=("any",), checkpoint="yes", fork=fork)
    return look(observation([job(declaration=declared)])).view


@pytest.mark.parametrize("fork", [(1, 1), (1, 4), (2, 8)])
def test_the_view_says_how_many_copies_the_owner_allows(fork):
    assert view_with(fork).jobs.copies.tolist() == [fork[1]]


def test_a_job_that_may_not_be_forked_is_left_as_it_is():
    plan = within_allowed_copies(Plan({"1": FORKED}, {"2": "no room"}), view_with((1, 1)))
    assert not plan.placements
    assert plan.waiting["1"] == "the plan forks it into 2 copies, it may have 1"
    assert plan.waiting["2"] == "no room"


def test_a_running_job_that_may_not_be_forked_stays_where_it_is():
    view = look(observation([running("1", {"v1": {"v100": 1}})])).view
    placement = within_allowed_copies(Plan({"1": FORKED}), view).placements["1"]
    assert (placement.gpus, placement.copies) == ({"v100": 1}, 1)
    assert placement.nodes == {"v1": {"v100": 1}}
    assert "it may have 1" in placement.reason


def test_copies_that_are_allowed_stay():
    plan = within_allowed_copies(Plan({"1": FORKED}), view_with((1, 2)))
    assert plan.placements["1"] == FORKED


def test_copies_without_their_nodes_are_not_laid():
    plan = within_allowed_copies(Plan({"1": replace(FORKED, shares=())}), view_with((1, 2)))
    assert plan.waiting["1"] == "the plan does not say where its copies are"


def test_plans_without_copies_stay_as_they_are():
    plan = Plan({"1": Placement(gpus={"v100": 1})})
    assert within_allowed_copies(plan, view_with((1, 1))) is plan


def test_work_that_only_several_copies_do_in_time_counts_in_full_where_there_are_copies():
    declared = Declaration(
        model="resnet18", types=("any",), checkpoint="yes", fork=(1, 4), samples=10**8
    )
    for policy, there in (("hadare", True), ("hadar", False)):
        site = config(f'[controller]\npolicy = "{policy}"\n')
        shown = look(observation([job(declaration=declared, time_limit_s=18_000.0)]), site)
        assert bool(shown.view.jobs.left[0] == 10**8) is there


def test_the_speed_and_size_of_a_copy_are_those_of_its_node():
    declared = Declaration(types=("any",), checkpoint="yes", fork=(1, 4))
    both = {"v1": {"v100": 1}, "k1": {"k80": 1}}
    runs = running("1", both, declaration=declared, tasks=2, cpus=8, mem_per_cpu_mb=1000)
    jobs = look(observation([runs], nodes(v1=1, k1=1))).view.jobs
    assert jobs.cpus_per_gpu.tolist() == [4.0] and jobs.mem_per_gpu_mb.tolist() == [4000.0]
    assert len(jobs.held) == 2 and (jobs.rate[0, :, 0] > 0).all()


@pytest.mark.parametrize("asked", [("v100", "p100", "k80"), ("k80", "gpu"), ("gpu",)])
def test_copies_are_on_nodes_of_one_partition(asked):
    """Slurm runs a job in one: it was moved to two types for ever, and started on one again."""
    site = config('[controller]\npolicy = "hadare"\n')
    declared = Declaration(
        model="resnet18",
        samples=10**6,
        types=("any",),
        checkpoint="yes",
        fork=(1, 6),
        restart_cost=1,
        partitions=asked,
    )
    one = running("1", {"k1": {"k80": 1}}, declaration=declared, partitions=asked[:1])
    (action,) = decide(observation([one], nodes(k1=1)), site=site).actions
    there = action.placement
    assert there.copies > 1
    assert set(there.gpus) == ({"v100", "p100", "k80"} if "gpu" in asked else {"v100"})


def test_copies_outside_the_largest_partition_stay_where_they_are():
    site = config('[controller]\npolicy = "hadare"\n')
    declared = Declaration(
        model="resnet18",
        types=("any",),
        checkpoint="yes",
        fork=(1, 2),
        partitions=("v100", "k80"),
    )
    one = running("1", {"k1": {"k80": 1}, "k2": {"k80": 1}}, declaration=declared)
    one = replace(one, partitions=("k80",), node_count=2)
    found = decide(observation([one], nodes(k1=1, k2=1, v1=2, v2=2)), site=site)
    assert not found.actions and not found.deferred


@pytest.mark.parametrize(
    ("tasks", "how"), [(1, "stays in 2 copies: "), (4, "stays: tasks of a round dealt ")]
)
def test_copies_that_cannot_be_moved_now_are_copies(tasks, how):
    """Only a job with ``tasks`` has the tasks of a round dealt."""
    site = config("").model_copy(update={"guards": config("").guards.model_copy(
        update={"min_between_moves_s": 9000.0})})  # fmt: skip
    declared = Declaration(
        model="resnet18", types=("any",), checkpoint="yes", fork=(1, 4), tasks=tasks
    )
    both = {"v1": {"v100": 1}, "k1": {"k80": 1}}
    runs = running("1", both, declaration=declared, tasks=2, cpus=2)
    shown = look(observation([runs], nodes(v1=1, k1=1)), site)
    plan, _ = policies.get("timetable")(shown.view, {})
    reason = plan.placements["1"].reason
    assert reason.startswith(how) and "; it cannot be moved now" in reason
