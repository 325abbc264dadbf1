"""``plan.JOB.json`` of a move that was not carried out does not promise the other GPUs for ever."""

import errno
import os
from dataclasses import replace

import pytest
from hand_made import NOW, as_cluster, config, job, observation, running

from slurm_hadar.controller.actuation import apply, repair
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext, ask_to_save
from slurm_hadar.controller.actuation.running.moves import advance
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.plan_file import JobPlan, read_plan, write_plan
from slurm_hadar.exchange.progress import Ack, Progress
from slurm_hadar.slurm.traffic import Traffic

TO_V100 = {"gpus": {"v100": 1}, "save": "abc", "restarts": 0, "fields": {"Features": "v100"}}
OFF = Declaration(off=True)
HERE = running("1", {"k1": {"k80": 1}})
SAVED = Progress(
    "1", NOW, 0, "k1", 1, False, NOW, "m", 1, 1.0, 60.0, 64, 1, ack=Ack("abc", NOW - 1, 1)
)


class Slurm:
    """Refuses requeues, takes updates."""

    def __init__(self):
        self.traffic = Traffic()

    def requeue(self, ids):
        return [SlurmError("Requested operation is not permitted") for _ in ids]

    def apply(self, updates):
        return [None for _ in updates]

    def read_jobs(self, _):
        return []

    def read_mail_types(self, _):
        return {}

    def release(self, _):
        pass


@pytest.fixture
def context(tmp_path):
    (tmp_path / "exchange").mkdir()
    site = config(f'[site]\nexchange_dir = "{tmp_path}/exchange"\n')
    store = Store.open(tmp_path / "state")
    write_plan(site.site.exchange_dir, JobPlan("1", gpus={"v100": 1}, save="abc"))
    yield ActionContext(as_cluster(Slurm()), store, site)
    store.close()


def plan(context):
    return read_plan(context.config.site.exchange_dir, "1", (os.getuid(),))


def test_after_a_refused_requeue_it_names_what_the_job_has(context):
    context.store.begin("1", "move", "asked", NOW - 10, TO_V100)
    (said,) = advance(context, {"1": HERE}, {"1": SAVED}, NOW).messages
    assert "the requeue was refused" in said
    assert (plan(context).gpus, plan(context).save) == ({"k80": 1}, "")


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (job("1", restarts=1, held=True, priority=0), "held while it moved"),
        (job("1", declaration=OFF), "no longer managed"),
    ],
)
def test_where_no_plan_follows_there_is_none(context, shown, says):
    context.store.begin("1", "move", "asked", NOW - 10, TO_V100)
    (said,) = advance(context, {"1": shown}, {}, NOW).messages
    assert says in said and plan(context) is None


def test_a_running_job_that_is_no_longer_managed_reads_what_it_has(context):
    context.store.begin("1", "move", "asked", NOW - 10, TO_V100)
    (said,) = advance(context, {"1": replace(HERE, declaration=OFF)}, {}, NOW).messages
    assert "no longer managed" in said
    assert (plan(context).gpus, plan(context).save) == ({"k80": 1}, "")


def unwritable(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("shown", "progress", "opened_s"),
    [
        (HERE, {}, NOW - 9999),
        (HERE, {"1": SAVED}, NOW - 10),
        (replace(HERE, declaration=OFF), {}, NOW - 10),
    ],
)
def test_one_that_cannot_be_corrected_is_reported_and_removed(
    context, monkeypatch, shown, progress, opened_s
):
    """Nothing follows it: the move has ended."""
    context.store.begin("1", "move", "asked", opened_s, TO_V100)
    monkeypatch.setattr(apply, "write_plan", unwritable)
    first, second = advance(context, {"1": shown}, progress, NOW).messages
    assert "its plan file cannot be written" in first and "plan file" not in second
    assert not context.store.open_entries() and plan(context) is None


def test_a_signal_that_is_refused_corrects_the_plan_too(context, monkeypatch):
    def refused(*_):
        raise SlurmError("no such step")

    def write_first(*args):
        monkeypatch.setattr(apply, "write_plan", unwritable)
        return write_plan(*args)

    context.cluster.signal = refused
    monkeypatch.setattr(apply, "write_plan", write_first)
    action = Action(Kind.MOVE, HERE, {}, Steering({"v100": 1}, time=NOW), "faster")
    sent = ask_to_save(context, action, None, NOW)
    assert [("given up" in one, "cannot be written" in one) for one in sent.messages] == [
        (True, False),
        (False, True),
    ]
    assert plan(context) is None


def test_a_placement_that_is_undone_takes_its_plan_with_it(context):
    steered = {"1": Steering({"v100": 1}, time=NOW, was={"Features": "k80"})}
    placed = observation(
        [job(held=True, reason="BadConstraints", features="v100")], steering=steered
    )
    assert "its owner's request" in repair.undo_impossible_placements(context, placed)[0]
    assert plan(context) is None
