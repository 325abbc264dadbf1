"""What the controller did to a job is known until that ends, also after its owner opted it out."""

from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import NOW, RATES, config, job, nodes, observation, quiet_slurm, running

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import observed, steering_store
from slurm_hadar.controller.presentation.job_explanation import explanation_of
from slurm_hadar.controller.presentation.job_report import of_controller
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain import steering
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering

OFF = Declaration(off=True)
OURS = Steering(time=NOW, was={"TresPerNode": "gpu:1"}, wrote={"TresPerNode": "gpu:2"})


@pytest.mark.parametrize("rights", ["sandbox", "operator"])
def test_the_record_of_an_opted_out_job_is_read_and_steers_nothing(tmp_path, monkeypatch, rights):
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nrights = "{rights}"\nexchange_dir = "{tmp_path}/exchange"\n')
    text = steering.merge("", OURS) if rights == "sandbox" else ""
    here = running("1", {"v1": {"v100": 2}}, declaration=OFF, admin_comment=text)
    ended = job("2", JobState.FINISHED, declaration=OFF, admin_comment=text)
    shown = observation([here, ended, job("3")], nodes(), steering={}, slurm_version=(24, 11, 5))
    monkeypatch.setattr(observed, "read", lambda *_: shown)
    with closing(Store.open(tmp_path / "state")) as store:
        if rights == "operator":
            for id_ in ("1", "2"):
                steering_store.keep(site, store, id_, OURS)
        found = Controller(site, quiet_slurm(), store, RATES, 0, lambda: NOW).observe()
    assert found.opted_out == {"1": OURS} and found.steering == {}
    assert found.record_of("1") == OURS and found.record_of("3") == Steering()
    assert found.slurm_version == (24, 11, 5)


@pytest.mark.parametrize("rights", ["sandbox", "operator"])
def test_the_moves_of_an_opted_out_job_are_still_counted(tmp_path, monkeypatch, rights):
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nrights = "{rights}"\nexchange_dir = "{tmp_path}/exchange"\n')
    known = replace(OURS, moves=1)
    text = steering.merge("", known) if rights == "sandbox" else ""
    here = running("1", {"v1": {"v100": 2}}, declaration=OFF, admin_comment=text, restarts=2)
    shown = observation([here], nodes(), steering={}, slurm_version=(24, 11, 5))
    monkeypatch.setattr(observed, "read", lambda *_: shown)
    with closing(Store.open(tmp_path / "state")) as store:
        if rights == "operator":
            steering_store.keep(site, store, "1", known)
        # Of the second one only the journal knows, as Slurm started the job by itself.
        for opened in (NOW - 900, NOW - 300):
            move = store.begin("1", "move", "asked", opened, {"gpus": {"v100": 2}, "restarts": 0})
            store.advance(move, "requeued", opened + 5)
            store.end(move, "moved", opened + 9)
        controller = Controller(site, quiet_slurm(), store, RATES, 0, lambda: NOW)
        assert explanation_of(controller, "1").row.moves == 2
        facts = dict(of_controller(controller, "1").facts)
    assert facts["Moves"] == "2"
