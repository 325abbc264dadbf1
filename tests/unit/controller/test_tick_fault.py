"""The state file keeps why the latest tick failed, for a status without a process to ask."""

import os
import sqlite3
from types import SimpleNamespace
from typing import Any

import pytest
from hand_made import CONFIG, NOW, RATES, config

from slurm_hadar.controller.journal import tick_fault
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.tick import Controller, _Mode
from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.reports.formats import moment
from slurm_hadar.slurm.traffic import Traffic


@pytest.fixture
def store(tmp_path):
    found = Store.open(tmp_path / "state")
    yield found
    found.close()


def test_a_tick_keeps_its_fault_until_one_comes_to_its_end(store, monkeypatch):
    slurm = SimpleNamespace(traffic=Traffic(), queries={})
    controller = Controller(CONFIG, slurm, store, RATES, os.getuid(), clock=lambda: NOW)

    def fails():
        raise HadarError("the heartbeat cannot be written (no space)")

    monkeypatch.setattr(controller.rules, "begin_tick", lambda _: None)
    monkeypatch.setattr(controller, "_tick", fails)
    with pytest.raises(HadarError, match="no space"):
        controller.tick()
    said = f"the tick at {moment(NOW)} failed: the heartbeat cannot be written (no space)"
    assert tick_fault.latest(store) == said
    monkeypatch.setattr(controller, "_whole_pass", lambda *_: None)
    controller._pass(_Mode(False, keep=False), ())
    assert tick_fault.latest(store) == said, "a plan is no tick"
    controller._pass(_Mode(True), ())
    assert tick_fault.latest(store) == ""


def test_a_policy_that_there_is_not_is_said_with_its_key(store):
    slurm: Any = SimpleNamespace(traffic=Traffic(), queries={})
    with pytest.raises(UsageError, match=r"^controller\.policy: there is no policy 'luck'"):
        Controller(config("[controller]\npolicy = 'luck'"), slurm, store, RATES, os.getuid())


@pytest.mark.parametrize("kept", [{"what": 5, "time_s": 1.0}, {"what": "x"}, {"what": "", "a": []}])
def test_what_is_no_fault_is_none(store, kept):
    store.keep_policy_state("fault", kept)
    assert tick_fault.latest(store) == ""


def test_where_the_file_itself_cannot_be_written_the_tick_says_its_own_fault():
    def fails(*_):
        raise sqlite3.OperationalError("database or disk is full")

    full: Any = SimpleNamespace(keep_policy_state=fails)
    tick_fault.keep(full, "x", NOW)
