"""Copies live, under HadarE and the default policy: on nodes of different types, and a change of
their number."""

import pytest
from trainings import moves_of, start_sandbox

from slurm_hadar.domain import steering
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.slurm import pending
from slurm_hadar.slurm.interface import Update

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SLOWER = {"a1": "v100", "b1": "p100", "c1": "k80"}
"""The first of a job's nodes has its script, and cannot be cut off: the fastest ones come first."""


def started(make_sandbox, tmp_path, policy="hadare", **options):
    layout = Layout(tuple(NodeGroup(name[0], 1, SLOWER[name], 1) for name in SLOWER))
    settings = {"controller": {"policy": policy}}
    return start_sandbox(make_sandbox, tmp_path, settings, layout, **options)


def test_a_job_that_runs_is_forked_onto_a_node_of_another_type_and_ends_exact(
    make_sandbox, tmp_path, slurm_prefix
):
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    fill = [site.ordinary(f"-w{name}", "--gres=gpu:1") for name in SLOWER]
    site.until(lambda: all(site.runs(id_)() for id_ in fill), ticks=False)
    # What it trains on one node must not be the end of it.
    site.pace(0.25)
    samples = 1500
    id_ = site.train(samples, "fork=1-2 restart_cost=1", "-p", "gpu")
    # Copies may need nodes of several partitions, so it keeps its owner's.
    assert len(site.tick().done) == 0
    assert site.job(id_).partitions == ("gpu",)
    site.cluster.cancel(fill[:1])
    site.until(site.runs(id_, "a1"), ticks=False)
    assert site.job(id_).partitions == ("gpu",)
    site.until(site.trained(id_, 50), ticks=False)
    assert len(site.tick().done) == 0
    site.pace(1.0)
    site.cluster.cancel(fill[1:])
    site.until(site.runs(id_, "a1", "b1"))
    job = site.job(id_)
    assert {kind for gpus in job.gpus.values() for kind in gpus} == {"v100", "p100"}
    # Nodes of two types are together in no partition but its owner's.
    assert job.partitions == ("gpu",)
    assert dict(job.request.per_node) == {"": 1} and job.tasks == 2 and job.restarts == 1
    assert [move.outcome for move in moves_of(site.store, id_)] == ["moved"]
    was = steering.decode(job.admin_comment).was
    assert was["NumNodes"] == "1-1" and was["ReqNodeList"] == ""
    assert "Partition" not in was
    plan = site.plan(id_)
    assert plan.copies == 2 and plan.gpus == {"v100": 1, "p100": 1}
    assert sorted(plan.shares) == pytest.approx([1 / 3, 2 / 3], abs=0.01)
    site.until(site.trained(id_, restarts=1), ticks=False)
    assert len(site.tick().done) == 0
    segments = site.ends_exact(id_, samples)
    sizes = {(segment.attempt, segment.gpus) for segment in segments}
    assert (1, 1) in sizes and (2, 2) in sizes


def test_the_number_of_copies_changes_by_an_ordinary_move(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, policy="timetable")
    filler = site.ordinary("-wa1", "--gres=gpu:1")
    site.until(site.runs(filler), ticks=False)
    # What it trains here must not be the end of it.
    site.pace(0.25)
    samples = 2000
    # Slurm starts it in the two copies that its owner asks for.
    id_ = site.train(samples, "fork=1-3 restart_cost=1", "-N2")
    site.until(site.runs(id_, "b1", "c1"))
    site.until(site.trained(id_, 50))
    assert site.job(id_).restarts == 0
    site.pace(1.0)
    site.cluster.cancel([filler])
    site.until(site.runs(id_, "a1", "b1", "c1"))
    assert site.job(id_).restarts == 1
    assert [move.outcome for move in moves_of(site.store, id_)] == ["moved"]
    assert site.plan(id_).copies == 3 and len(site.plan(id_).shares) == 3
    segments = site.ends_exact(id_, samples)
    sizes = {(segment.attempt, segment.gpus) for segment in segments}
    assert (1, 2) in sizes and (2, 3) in sizes


def test_an_ordinary_job_gets_a_node_back_at_once_on_which_a_copy_runs(make_sandbox, tmp_path):
    """Plain Slurm would have had that node free for it."""
    site = started(make_sandbox, tmp_path, policy="timetable")
    # What it trains until the other runs must not be the end of it.
    site.pace(0.1)
    samples = 2000
    id_ = site.train(samples, "fork=1-3 restart_cost=1")
    site.until(site.runs(id_), ticks=False)
    site.until(site.trained(id_), ticks=False)
    site.until(site.runs(id_, *SLOWER))
    site.until(site.trained(id_, restarts=1), ticks=False)
    other = site.ordinary("-wc1", "--gres=gpu:1")
    site.until(site.runs(other))
    site.until(lambda: site.job(id_).slurm_state == "RUNNING" and site.job(id_).restarts == 2)
    site.pace(1.0)
    assert len(site.job(id_).nodes) == 1
    segments = site.ends_exact(id_, samples)
    assert {(segment.attempt, segment.gpus) for segment in segments} >= {(2, 3), (3, 1)}


def forked(make_sandbox, folder, samples, **options):
    """A training that was submitted for one node and moved to three, and waits again, as its owner
    requeued it: its request is still that of the move."""
    site = started(make_sandbox, folder, **options)
    site.pace(0.25)
    id_ = site.train(samples, "fork=1-3 restart_cost=1")
    site.until(site.runs(id_), ticks=False)
    site.until(site.trained(id_), ticks=False)
    site.until(site.runs(id_, *SLOWER))
    site.until(site.trained(id_, 200, restarts=1), ticks=False)
    site.pace(1.0)
    site.cluster.requeue([id_])
    site.until(lambda: site.job(id_).slurm_state == "PENDING", ticks=False)
    # While a node is still cleaned up there is nothing that a tick could plan the job for.
    site.strands_nothing()
    assert site.job(id_).required_nodes == tuple(SLOWER)
    return site, id_


@pytest.mark.each_slurm
def test_a_job_that_slurm_starts_during_the_tick_keeps_its_nodes(
    make_sandbox, tmp_path, slurm_prefix, monkeypatch
):
    """Slurm takes a number of nodes that is meant for a waiting job for a wish to give some back.

    What is sent to one that waits are hints and what a move left in its request.
    """
    # Slurm may start what was requeued within a minute, so that it is not known to wait on.
    samples = 1500
    site, id_ = forked(make_sandbox, tmp_path, samples, slurm_prefix=slurm_prefix, cred_expire_s=30)
    sent: list[Update]
    apply, sent = site.cluster.apply, []

    def late(updates):
        if not sent:
            site.box.run("scontrol", "update", f"JobId={id_}", "StartTime=now")
            site.until(site.runs(id_), ticks=False)
        sent.extend(updates)
        return apply(updates)

    monkeypatch.setattr(site.cluster, "apply", late)
    report = site.tick()
    assert not [said for said in report.messages if "hint" in said]
    assert site.store.history(id_)[0].outcome == "not needed: it had begun"
    (action,) = report.diff.actions
    assert action.fields["NumNodes"] == "1-1" and action.job.id in report.refused
    # What would have cut nodes off was not sent.
    assert [dict(update.fields) for update in sent] == [{"StartTime": "now+60"}]
    assert site.job(id_).nodes == tuple(SLOWER)
    segments = site.ends_exact(id_, samples, ticks=False)
    assert max(segment.gpus for segment in segments if segment.attempt == 3) == 3


class Died(BaseException):
    """Nobody in the controller catches this."""


@pytest.mark.parametrize("another", [True, False])
def test_a_controller_that_dies_before_the_second_update_of_a_hint_holds_nothing(
    make_sandbox, tmp_path, monkeypatch, another
):
    samples = 1500
    site, id_ = forked(make_sandbox, tmp_path, samples)
    sent: list[Update]
    apply, sent = site.cluster.apply, []

    def last(updates):
        if sent:
            raise Died
        sent.extend(updates)
        return apply(updates)

    monkeypatch.setattr(pending, "_AHEAD_S", 20)
    site.box.run("scontrol", "update", f"JobId={id_}", "StartTime=now+19")
    monkeypatch.setattr(site.cluster, "apply", last)
    with pytest.raises(Died):
        site.tick()
    assert [dict(update.fields) for update in sent] == [{"StartTime": "now+20"}]
    monkeypatch.setattr(site.cluster, "apply", apply)
    if another:
        site.tick()
    site.until(site.runs(id_), ticks=False)
    assert len(site.job(id_).nodes) == (1 if another else 3)
    site.ends_exact(id_, samples, ticks=False)


def test_another_policy_leaves_the_copies_that_its_owner_asked_for(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, policy="fifo")
    id_ = site.train(600, "fork=1-3 restart_cost=1", "-N2")
    site.until(site.runs(id_), ticks=False)
    site.until(site.trained(id_), ticks=False)
    assert len(site.job(id_).nodes) == 2
    assert len(site.tick().done) == 0
    segments = site.ends_exact(id_, 600)
    assert {segment.attempt for segment in segments} == {1}
    assert max(segment.gpus for segment in segments) == 2
