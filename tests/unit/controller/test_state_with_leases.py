"""A state file of the release that gave waiting jobs leases, with a move in flight."""

import sqlite3
from pathlib import Path

import pytest
from hand_made import NOW, as_cluster, config, decide, job, nodes, observation

from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store, make_private
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.profiling.users_work import DeclaredWork

DUMP = Path(__file__).with_name("state_with_leases.sql").read_text()
ASKED = [
    job("1", eligible_s=NOW + 270, submit_s=NOW - 30, reason="BeginTime"),
    job("2", restarts=2, submit_s=NOW - 10, eligible_s=NOW + 111, features="k80"),
]


class Takes:
    """A cluster that takes every update."""

    def __init__(self):
        self.sent = []

    def read_jobs(self, ids):
        return [one for one in ASKED if one.id in ids]

    def apply(self, updates):
        self.sent += [(update.job_id, dict(update.fields)) for update in updates]
        return [None for _ in updates]


@pytest.fixture
def context(tmp_path):
    make_private(tmp_path / "state")
    (tmp_path / "exchange").mkdir()
    connection = sqlite3.connect(tmp_path / "state" / "hadar.sqlite")
    connection.executescript(DUMP)
    connection.close()
    site = config(
        f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n'
        "[lease]\nlength_s = 300\n"
    )
    store = Store.open(tmp_path / "state")
    yield ActionContext(as_cluster(Takes()), store, site, ages=True)
    store.close()


def test_it_is_no_new_file_and_its_lease_is_released(context):
    assert not context.store.new and not context.store.notes
    jobs = {one.id: one for one in ASKED}
    steering = steering_store.recall(context.config, context.store, jobs, False)
    assert steering["1"].leased and steering["2"].was == {"Features": "", "Partition": "gpu"}
    shown = observation([ASKED[0]], nodes(), steering={"1": steering["1"]})
    (action,) = decide(shown, {}, context.config).actions
    assert action.job.id == "1" and action.fields == {"StartTime": "now"}
    assert not action.steering.leased


def test_its_move_in_flight_is_carried_to_its_end(context):
    """Its entry does not know what priority the job had."""
    said = advance(context, {one.id: one for one in ASKED}, {}, NOW).messages
    assert said == ("job 2: released, to start on 1 x v100",)
    assert context.cluster.sent == [("2", {"Features": "v100", "StartTime": "now"})]
    assert context.store.open_entries() == []
    assert context.steering_of(ASKED[1]).was == {"Features": "", "Partition": "gpu"}


def columns(connection):
    """Table -> its columns, as (name, type, not null, default, part of the key)."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
    rows = {name: connection.execute(f"PRAGMA table_info({name})") for (name,) in tables}
    return {name: [row[1:] for row in found] for name, found in rows.items()}


def test_that_release_can_go_back_to_what_this_one_wrote(tmp_path):
    """It writes its rows by the number of columns, and refuses a file of a later schema."""
    before = sqlite3.connect(":memory:")
    before.executescript(DUMP)
    store = Store.open(tmp_path / "state")
    DeclaredWork(store.connection)
    found = columns(store.connection)
    assert {name: found[name] for name in columns(before)} == columns(before)
    version = "PRAGMA user_version"
    assert store.connection.execute(version).fetchone() == before.execute(version).fetchone()
    store.close()
    before.close()
