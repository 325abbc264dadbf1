"""When a job was submitted is known after a requeue too, which Slurm counts as a submission."""

import os
from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import CONFIG, NOW, RATES, as_cluster, dictate, job, nodes, observation, running
from looking import Looking
from test_taking_turns import Slurm

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration

DECLARED = Declaration(types=("any",), checkpoint="yes", model="ResNet-50", gpus=(1, 1))
SUBMITTED = NOW - 50_000


class Signals(Slurm):
    def signal(self, *_):
        self.sent.append("signal")


@pytest.fixture
def controller(tmp_path):
    (tmp_path / "exchange").mkdir()
    site = CONFIG.site.model_copy(
        update={
            "mode": "act",
            "rights": "operator",
            "exchange_dir": tmp_path / "exchange",
            "state_dir": tmp_path / "state",
        }
    )
    moving = CONFIG.moving.model_copy(update={"min_run_s": 0.0})
    with closing(Store.open(tmp_path / "state")) as store:
        slurm, known = Signals(), CONFIG.model_copy(update={"site": site, "moving": moving})

        def moves(view, memory):
            return dictate(view, {"1": {"k80": 1}} if "1" in view.jobs.ids else {}), memory

        yield Looking(
            known, as_cluster(slurm), store, RATES, os.getuid(), lambda: NOW, lambda _: None, moves
        )


def arrival(controller, one):
    controller.shown = observation([one], nodes())
    jobs = controller.snapshot(controller.shown).view.jobs
    return jobs.arrival_s[jobs.rows["1"]]


def test_a_moved_job_is_as_old_as_before(controller):
    here = running("1", {"v1": {"v100": 1}}, declaration=DECLARED, submit_s=SUBMITTED)
    assert arrival(controller, here) == SUBMITTED
    controller.tick()
    (entry,) = controller.store.open_entries()
    assert entry.details["arrival_s"] == SUBMITTED
    controller.store.end(entry.id, "moved", NOW)
    again = replace(here, restarts=1, submit_s=NOW - 5)
    assert arrival(controller, again) == SUBMITTED
    # Also after the next move, whatever becomes of the entry of the first.
    assert controller.learning.history({}, {}, NOW).arrival_s(again) == SUBMITTED


def test_a_new_job_of_the_same_number_is_as_old_as_slurm_says(controller):
    controller.store.begin("1", "move", "asked", NOW - 9000, {"arrival_s": SUBMITTED})
    new = job("1", declaration=DECLARED, submit_s=NOW - 5)
    assert arrival(controller, new) == NOW - 5


@pytest.mark.parametrize("kept", [None, "x", {}, NOW + 9])
def test_nothing_but_an_earlier_time_is_taken(controller, kept):
    controller.store.begin("1", "move", "asked", NOW - 9000, {"arrival_s": kept})
    assert arrival(controller, job("1", declaration=DECLARED, restarts=1, submit_s=NOW)) == NOW
