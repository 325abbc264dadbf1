"""A policy says that a job cannot be moved now: the controller says why."""

from dataclasses import replace
from typing import Any

import pytest
from hand_made import CONFIG, look, observation, running

from slurm_hadar import policies
from slurm_hadar.controller.decider import Decider
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest

DECLARED = Declaration(types=("any",), checkpoint="yes", model="ResNet-50", gpus=(1, 1))
TWO = GpuRequest(per_node={UNTYPED: 2})


class Store:
    def policy_state(self, policy):
        return {}


def reason(one):
    shown = look(observation([one]))
    assert shown.staying == {}
    decide = policies.get("timetable")
    store: Any = Store()
    decider = Decider(CONFIG, None, store, None, decide)
    return decider.ask(shown).plan.placements["1"].reason


@pytest.mark.parametrize(
    ("where", "declared", "request_", "why"),
    [
        (
            {"k1": {"k80": 2}},
            DECLARED,
            TWO,
            "it has 2 GPUs and gpus=1 is declared; hadar set 1 gpus=2",
        ),
        (
            {"k1": {"k80": 1}, "v1": {"v100": 1}},
            replace(DECLARED, gpus=None, nodes=(1, 2)),
            GpuRequest(per_job={UNTYPED: 2}),
            "its nodes have GPUs of different types (1 x k80 and 1 x v100)",
        ),
    ],
)
def test_why_a_job_stays_that_has_what_it_may_not_ask_for(where, declared, request_, why):
    one = running("1", where, declaration=declared, request=request_, time_limit_s=1e9)
    assert reason(one).endswith(f"; it cannot be moved now: {why}")


def test_a_job_that_declares_its_work_is_not_called_one_of_unknown_work():
    for samples, says in ((0, "Its work is not known"), (50_000, "Its speed is not known")):
        declared = replace(DECLARED, model="never_measured", samples=samples)
        said = reason(running("1", {"k1": {"k80": 1}}, declaration=declared))
        assert says in said
        assert ("end unknown until its speed is measured" in said) == (samples > 0)
