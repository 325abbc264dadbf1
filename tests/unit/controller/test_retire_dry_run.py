"""``hadar retire``, and ``--dry-run`` beside a running controller, without its lock."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import config, job, observation, running

from slurm_hadar.cli import common
from slurm_hadar.cli import retire as command
from slurm_hadar.controller.lock import only_one
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain import declaration
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.heartbeat import NAME, Writer, write_heartbeat
from slurm_hadar.slurm.traffic import Traffic


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A site with one steered job and a controller that runs, and a Slurm that takes nothing."""
    known = config(
        f'[site]\nrights = "user"\nstate_dir = "{tmp_path}/state"\n'
        f'exchange_dir = "{tmp_path}/exchange"\n'
        '[partitions.groups]\ngpu = ["v100", "k80"]\n'
    )
    (tmp_path / "exchange").mkdir()
    write_heartbeat(tmp_path / "exchange", "act", 10.0, writer=Writer("another"))
    declared = job().declaration
    waiting = job("7", comment=declaration.merge("mine", declared), partitions=("v100",))
    shown = Observation(
        now=1.0,
        jobs={"7": waiting},
        nodes={},
        partitions={},
        steering={"7": Steering(was={"Partition": "gpu"})},
    )
    monkeypatch.setattr(Controller, "observe", lambda _: shown)
    monkeypatch.setattr(command, "refuse_root", lambda _: None)
    monkeypatch.setattr(command, "load", lambda _: known)
    monkeypatch.setattr(command, "_LOCK_WAIT_S", 0.0)
    monkeypatch.setattr(
        "slurm_hadar.controller.observation.accounting_limits.refuse_root", lambda _: None
    )
    slurm = SimpleNamespace(traffic=Traffic(), queries={}, read_config=dict)
    monkeypatch.setattr(common, "cluster_of", lambda _: slurm)
    monkeypatch.setattr(
        "slurm_hadar.controller.observation.accounting_limits.AccountingLimits.begin_tick",
        lambda *_: None,
    )
    return known


def content(folder):
    """Name -> what a file holds, its mode and when it was written last."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


def test_it_says_what_each_job_would_get_beside_a_controller(site, capsys):
    # A controller that runs has made all tables.
    with common.reader_of(site):
        pass
    with only_one(site.site.state_dir, 0):
        folders = (site.site.state_dir, site.site.exchange_dir)
        before = [content(one) for one in folders]
        assert "hadar.sqlite" in before[0]
        command.retire(dry_run=True, config=None, as_json=False)
        said = capsys.readouterr().out
        assert said.startswith("1 managed job would be given back to Slurm\n")
        assert "  7  " in said and "Comment='mine'" in said and "Partition='gpu'" in said
        command.retire(dry_run=True, config=None, as_json=True)
        found = json.loads(capsys.readouterr().out)["result"]
        assert (found["changed"], found["jobs"]) == (False, ["7"])
        assert found["would_set"] == {"7": {"Comment": "mine", "Partition": "gpu"}}
        assert [content(one) for one in folders] == before, "nothing is written"
        with pytest.raises(HadarError, match="another hadar is running"):
            command.retire(dry_run=False, config=None, as_json=False)
    with pytest.raises(HadarError, match="is active and would manage them again"):
        command.retire(dry_run=False, config=None, as_json=False)


SENTENCE = (
    "job 8 runs, and Slurm changes its request only while it waits: if it is ever requeued, give "
    "it its own with: scontrol update JobId=8 Partition=gpu Gres=gpu:1"
)


def test_it_says_how_each_running_job_gets_its_request_back(site, monkeypatch, capsys):
    """Slurm changes no request of a job that runs: the last chance to say it."""
    was = {"Partition": "gpu", "TresPerNode": "gpu:1"}
    both = [running("8", {"v1": {"v100": 2}}), running("9", {"k1": {"k80": 1}})]
    shown = replace(observation(both, steering={"8": Steering(was=was)}), slurm_version=(22, 5, 8))
    monkeypatch.setattr(Controller, "observe", lambda _: shown)
    slurm = SimpleNamespace(
        traffic=Traffic(),
        queries={},
        read_config=dict,
        apply=lambda updates: [None for _ in updates],
    )
    monkeypatch.setattr(common, "cluster_of", lambda _: slurm)
    for dry_run in (True, False):
        if not dry_run:
            (site.site.exchange_dir / NAME).unlink()
        command.retire(dry_run=dry_run, config=None, as_json=False)
        assert capsys.readouterr().out.splitlines()[3:] == [SENTENCE]
        command.retire(dry_run=dry_run, config=None, as_json=True)
        assert json.loads(capsys.readouterr().out)["result"]["after_requeue"] == [SENTENCE]
