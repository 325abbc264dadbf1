"""What is said to waiting jobs, and what is taken back where Slurm refuses it."""

import os

import pytest
from hand_made import NOW, config, job

from slurm_hadar.controller.acts.acting import ActionContext, change_waiting
from slurm_hadar.controller.acts.actions import Action, Kind
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering
from slurm_hadar.runtime.plan_file import read_plan, write_plan

WAITING = job("1")


class Refusing:
    """A cluster of which only the answer to a change is asked."""

    def __init__(self, error):
        self.error = error

    def apply(self, updates):
        return [self.error for _ in updates]


@pytest.fixture
def start(tmp_path):
    """Tell a job to start on two V100s while Slurm answers ``error``; its plan then."""
    folder = tmp_path / "exchange"
    folder.mkdir()
    store = Store.open(tmp_path / "state")
    site = config(f'[site]\nexchange_dir = "{folder}"\n')
    placement = Placement({"v100": 2}, {"v1": {"v100": 2}}, reason="pays", batch=128)
    steering = Steering(gpus=placement.gpus, nodes=placement.nodes, time=NOW)
    action = Action(Kind.START, WAITING, {"StartTime": "now"}, steering, "pays", placement)

    def started(error, **earlier):
        if earlier:
            write_plan(folder, "1", **earlier)
        change_waiting(ActionContext(Refusing(error), store, site), [action], NOW)
        return read_plan(folder, "1", {os.getuid()})

    yield started
    store.close()


def test_a_job_that_is_told_to_start_has_its_plan(start):
    plan = start(None)
    assert dict(plan.gpus) == {"v100": 2} and plan.batch == 128


def test_a_job_that_began_by_itself_is_left_without_a_plan(start):
    """It would have gone by a placement that it never got."""
    assert start(SlurmError("Job is no longer pending execution")) is None


def test_a_job_that_began_as_it_was_told_before_has_that_plan(start):
    earlier = {
        "gpus": {"k80": 4}, "batch": 64, "copies": 2, "shares": (0.25, 0.75), "save": "abc",
        "restarts": 3, "reason": "earlier", "cpus_per_gpu": 2.0,
    }  # fmt: skip
    plan = start(SlurmError("Job is no longer pending execution"), **earlier)
    assert {key: getattr(plan, key) for key in earlier} == earlier


def test_what_slurm_may_have_taken_is_not_taken_back(start):
    plan = start(SlurmError("no answer", retry=True), gpus={"k80": 4})
    assert dict(plan.gpus) == {"v100": 2}
