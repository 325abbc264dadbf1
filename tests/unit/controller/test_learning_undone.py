"""What is learned of a tick that the state file did not take."""

from contextlib import closing
from dataclasses import replace

import pytest
from hand_made import CONFIG, NOW, job, observation, running

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.learning import Learning
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.gpu_sampling import GpuUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse
from slurm_hadar.profiles.rates import open_rates

TABLES = ("throughput", "gpu_use", "last_report", "sampled_use", "job_owner", "ended_job")
JOBS = [f"{number}" for number in range(60)]


def a_tick():
    """Jobs that run and report, and one that has ended."""
    gpus = [GpuUse(f"GPU-{n}", "P", 600.0, 0.5, 9.0, 9.0, 99.0, 600.0, 0.0, 0.0) for n in (1, 2)]
    jobs = [
        running(id_, {"v1": {"v100": 2}}, declaration=Declaration(model=f"m{id_}" + "x" * 200))
        for id_ in JOBS
    ]
    ended = job("999", JobState.FINISHED, slurm_state="COMPLETED", end_s=NOW)
    reports = {
        id_: Progress(id_, NOW, 0, "v1", 1, False, NOW, "m", 0, 50.0, 60.0, 64, 2) for id_ in JOBS
    }
    reports["999"] = replace(reports["1"], job="999", samples=10_000)
    uses = {id_: [NodeUse(id_, "v1", 12, NOW - 10, False, tuple(gpus))] for id_ in JOBS}
    return observation([*jobs, ended], progress=reports, gpus=uses)


def content(store):
    """Without the times at which rows were written."""
    found = {}
    for table in TABLES:
        rows = store.connection.execute(f"SELECT * FROM {table}")
        at = [n for n, column in enumerate(rows.description) if column[0] != "changed_s"]
        found[table] = sorted(tuple(row[n] for n in at) for row in rows)
    return found


def test_what_a_full_disk_did_not_take_is_learned_again(tmp_path):
    with closing(Store.open(tmp_path / "other")) as store:
        Learning(store, open_rates(CONFIG, store.connection)).learn(a_tick())
        once = content(store)
    assert all(once.values())
    with closing(Store.open(tmp_path / "state")) as store:
        learning = Learning(store, open_rates(CONFIG, store.connection))
        empty = content(store)
        pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
        store.connection.execute(f"PRAGMA max_page_count={pages + 2}")
        for _ in range(3):
            with pytest.raises(HadarError, match="disk is full"), store.readable_errors():
                learning.learn(a_tick())
            assert content(store) == empty
        store.connection.execute("PRAGMA max_page_count=100000")
        with store.readable_errors():
            learning.learn(a_tick())
        assert content(store) == once


def test_what_ended_meanwhile_is_learned_again(tmp_path, monkeypatch):
    """The disk is full after what the running jobs report was written."""
    with closing(Store.open(tmp_path / "state")) as store:
        learning = Learning(store, open_rates(CONFIG, store.connection))
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(learning.earlier_jobs._table, "change", lambda *_: 1 // 0)
            learning.learn(a_tick())
        assert not content(store)["ended_job"]
        learning.learn(a_tick())
        assert len(content(store)["ended_job"]) == 1
