"""HadarE live: copies on nodes of different types, and a change of their number."""

import pytest
from trainings import SPEEDS, moves_of, start_sandbox

from slurm_hadar.domain import steering
from slurm_hadar.runtime.plan_file import write_plan
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.slurm import pending

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SLOWER = {"a1": "v100", "b1": "p100", "c1": "k80"}
"""The first of a job's nodes has its script, and cannot be cut off: the fastest ones come first."""


def started(make_sandbox, tmp_path, policy="hadare", **options):
    return start_sandbox(make_sandbox, tmp_path, {"controller": {"policy": policy}}, **options)


def test_a_fork_job_starts_on_nodes_of_different_types_and_ends_exact(
    make_sandbox, tmp_path, slurm_prefix
):
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    id_ = site.train(800, "fork=1-2")
    first, second = site.tick(), site.tick()
    assert len(first.done) == 1 and len(second.done) == 0
    site.until(site.runs(id_, "v1", "p1"), ticks=False)
    job = site.job(id_)
    assert {kind for gpus in job.gpus.values() for kind in gpus} == {"v100", "p100"}
    assert dict(job.request.per_node) == {"": 1} and job.tasks == 2
    was = steering.decode(job.admin_comment).was
    assert was["NumNodes"] == "1-1" and was["ReqNodeList"] == ""
    plan = site.plan(id_)
    assert plan.copies == 2 and plan.gpus == {"v100": 1, "p100": 1}
    assert sorted(plan.shares) == pytest.approx([1 / 3, 2 / 3], abs=0.01)
    segments = site.ends_exact(id_, 800)
    assert max(segment.gpus for segment in segments) == 2


def test_the_number_of_copies_changes_by_an_ordinary_move(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path)
    filler = site.ordinary("-wv1", "--gres=gpu:1")
    site.until(site.runs(filler), ticks=False)
    # What it trains here must not be the end of it.
    site.pace(0.25)
    samples = 2000
    id_ = site.train(samples, "fork=1-3 restart_cost=1")
    site.until(site.runs(id_, "p1", "k1"))
    site.until(site.trained(id_, 50))
    site.pace(1.0)
    site.cluster.cancel([filler])
    site.until(site.runs(id_, "v1", "p1", "k1"))
    assert site.job(id_).restarts == 1
    assert [move.outcome for move in moves_of(site.store, id_)] == ["moved"]
    assert site.plan(id_).copies == 3 and len(site.plan(id_).shares) == 3
    segments = site.ends_exact(id_, samples)
    sizes = {(segment.attempt, segment.gpus) for segment in segments}
    assert (1, 2) in sizes and (2, 3) in sizes


def test_a_job_that_slurm_starts_during_the_tick_keeps_its_nodes(
    make_sandbox, tmp_path, slurm_prefix, monkeypatch
):
    """Slurm takes a list of nodes that is meant for a waiting job for a wish to give some back."""
    layout = Layout(tuple(NodeGroup(name[0], 1, SLOWER[name], 1) for name in SLOWER))
    policy = {"controller": {"policy": "hadare"}, "lease": {"length_s": 30}}
    site = start_sandbox(make_sandbox, tmp_path, policy, layout, slurm_prefix=slurm_prefix)
    apply = site.cluster.apply

    def late(updates):
        monkeypatch.setattr(site.cluster, "apply", apply)
        site.box.run("scontrol", "update", f"JobId={id_}", "StartTime=now")
        site.until(site.runs(id_), ticks=False)
        return apply(updates)

    # Its owner gave it all three; it may live with two.
    id_ = site.train(400, "fork=1-2", "-N3")
    write_plan(site.config.site.exchange_dir, id_, gpus=dict.fromkeys(SPEEDS, 1), reason="earlier")
    monkeypatch.setattr(site.cluster, "apply", late)
    report = site.tick()
    assert any("start refused" in said and "no longer pending" in said for said in report.said)
    assert site.job(id_).nodes == tuple(SLOWER)
    assert site.plan(id_).gpus == dict.fromkeys(SPEEDS, 1) and site.plan(id_).reason == "earlier"
    segments = site.ends_exact(id_, 400, ticks=False)
    assert {(segment.attempt, segment.gpus) for segment in segments} == {(1, 3)}


class Died(BaseException):
    """Nobody in the controller catches this."""


@pytest.mark.parametrize("another", [True, False])
def test_a_controller_that_dies_before_the_second_update_of_a_start_holds_nothing(
    make_sandbox, tmp_path, monkeypatch, another
):
    site = started(make_sandbox, tmp_path)
    apply, sent = site.cluster.apply, []

    def last(updates):
        if sent:
            raise Died
        sent.extend(updates)
        return apply(updates)

    monkeypatch.setattr(pending, "_AHEAD_S", 20)
    id_ = site.train(400, "fork=1-2")
    site.box.run("scontrol", "update", f"JobId={id_}", "StartTime=now+19")
    monkeypatch.setattr(site.cluster, "apply", last)
    with pytest.raises(Died):
        site.tick()
    assert [dict(update.fields) for update in sent] == [{"StartTime": "now+20"}]
    monkeypatch.setattr(site.cluster, "apply", apply)
    if another:
        site.tick()
    site.until(site.runs(id_), ticks=False)
    assert len(site.job(id_).nodes) == (2 if another else 1)
    site.ends_exact(id_, 400, ticks=another)


def test_another_policy_gives_it_one_copy(make_sandbox, tmp_path):
    site = started(make_sandbox, tmp_path, policy="fifo")
    # Where Slurm may choose it would take all three nodes.
    id_ = site.train(200, "fork=1-3", "-N1-3")
    site.tick()
    site.until(site.runs(id_), ticks=False)
    assert len(site.job(id_).nodes) == 1
    segments = site.ends_exact(id_, 200)
    assert {segment.gpus for segment in segments} == {1}
