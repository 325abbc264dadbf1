"""Tasks that an owner declares, in the view and in what hare makes of them."""

import pytest
from hand_made import job, look, observation

from slurm_hadar import policies
from slurm_hadar.domain.declaration import Declaration, parse


def view_with(**more):
    declared = Declaration(types=("any",), checkpoint="yes", **more)
    return look(observation([job(declaration=declared)])).view


@pytest.mark.parametrize(
    ("fork", "tasks", "wanted"), [((1, 3), 7, 7), ((1, 1), 7, 1), ((1, 3), 1, 1)]
)
def test_tasks_are_dealt_over_copies_only(fork, tasks, wanted):
    assert view_with(fork=fork, tasks=tasks).jobs.tasks.tolist() == [wanted]


def test_a_declared_round_is_dealt_over_types():
    view = view_with(fork=(1, 3), tasks=7, model="resnet18", batch=(56, 56), samples=10**5)
    plan, _ = policies.get("hare")(view, {})
    placed = plan.placements["1"]
    assert placed.copies == len(placed.shares) == len(placed.nodes) > 1
    assert all(abs(7 * share - round(7 * share)) < 1e-9 for share in placed.shares)


def test_tasks_are_written_as_a_key():
    assert parse(["fork=1-3", "tasks=7"], "here").tasks == 7
