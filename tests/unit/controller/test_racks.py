"""Racks in the controller: the view's numbers, what is said to Slurm, what is learned."""

from dataclasses import replace

import numpy as np
import pytest
from hand_made import (
    NOW,
    as_cluster,
    carried_out,
    config,
    decide,
    job,
    look,
    nodes,
    observation,
    only,
    running,
)

from slurm_hadar import policies
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.observation import racks
from slurm_hadar.controller.snapshot import distance
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.placement import Placement
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.network_tiers import TierRates
from slurm_hadar.profiles.rates import Rates

RACKS = {"v1": "r1", "v2": "r1", "p1": "r2", "p2": "r2", "k1": "r1", "k2": "r2"}
SITE = config('[controller]\npolicy = "network"\n')
WIDE = {"request": GpuRequest(per_node={UNTYPED: 2}), "node_count": 2, "tasks": 2}
BIG = Declaration(model="BERT", types=("any",), checkpoint="yes", batch=(64, 64))


def reported(id_, rate, **more):
    usual = {"restarts": 0, "host": "v1", "pid": 1, "in_step": True, "started": NOW - 900,
             "model": "BERT", "samples": 10, "window_s": 60.0, "batch": 64, "gpus": 4}  # fmt: skip
    return Progress(job=id_, time=NOW, rate=rate, **{**usual, **more})


class Tree:
    """A cluster that counts how often it is asked for its switches."""

    def __init__(self, found):
        self.found, self.asked = found, 0

    def read_topology(self):
        self.asked += 1
        return self.found


def test_switches_are_asked_for_once_a_tick_and_only_where_they_matter():
    tree = Tree(RACKS)
    looking = racks.Topology(as_cluster(tree), True)
    assert looking.read(0.0) == RACKS and looking.read(60.0) == RACKS and tree.asked == 2
    assert racks.Topology(as_cluster(tree), False).read(0.0) == {} and tree.asked == 2
    flat = Tree({})
    looking = racks.Topology(as_cluster(flat), True)
    assert [looking.read(at) for at in (0.0, 60.0, 3599.0)] == [{}, {}, {}] and flat.asked == 1
    looking.read(3601.0)
    assert flat.asked == 2


def test_nodes_on_no_switch_are_racks_of_their_own():
    assert racks.numbers({}, ["a", "b"]).tolist() == [0, 0]
    assert racks.numbers({"a": "s", "b": "s"}, ["a", "x", "b", "y"]).tolist() == [0, 1, 0, 2]
    assert racks.tier_of(["v1"], RACKS) == 0
    assert racks.tier_of(["v1", "v2"], RACKS) == 1
    assert racks.tier_of(["v1", "p1"], RACKS) == 2
    assert racks.tier_of(["x", "y"], RACKS) == racks.tier_of(["v1", "x"], RACKS) == 2


def test_the_view_knows_racks_losses_and_what_nodes_have_in_all():
    big = job(declaration=BIG, **WIDE)
    view = look(observation([big], nodes(v1=2), racks=RACKS), SITE).view
    by_name = dict(zip(view.nodes.names, view.nodes.rack.tolist(), strict=True))
    assert by_name["v1"] == by_name["v2"] == by_name["k1"] != by_name["p1"] == by_name["k2"]
    first = view.nodes.names.index("v1")
    assert view.nodes.gpus[first].sum() == 0 and view.nodes.whole.gpus[first].sum() == 2
    assert view.jobs.network.per_node.tolist() == [2]
    flat = look(observation([big], nodes(v1=2)), SITE).view
    assert flat.jobs.network is None and flat.nodes.whole is None and not flat.nodes.rack.any()


NEAR = Placement({"v100": 4}, {"v1": {"v100": 2}, "v2": {"v100": 2}}, tier="rack")
FAR = Placement({"k80": 4}, {"k1": {"k80": 2}, "k2": {"k80": 2}}, tier="network")
WIDE_RUNNING = {"request": GpuRequest(per_node={UNTYPED: 2}), "tasks": 2}


def wide(nodes, **more):
    """A job that runs on two nodes with two GPUs each."""
    return running("1", nodes, declaration=BIG, **WIDE_RUNNING, **more)


def test_a_job_on_two_nodes_is_sent_to_the_nodes_of_one_rack_by_name():
    waiting = look(observation([job(declaration=BIG, **WIDE)], racks=RACKS), SITE)
    place = policies.get("network")(waiting.view, {})[0].placements["1"]
    assert place.tier == "rack" and set(place.nodes) in ({"v1", "v2"}, {"p1", "p2"})
    here = wide(FAR.nodes)
    action = only(decide(observation([here], racks=RACKS), {"1": place}, SITE), Kind.MOVE)
    assert action.fields["ReqNodeList"] in ("v[1-2]", "p[1-2]")
    assert action.steering.was["ReqNodeList"] == ""
    sent = carried_out(here, action)
    assert job_updates.undo_fields(sent, action.steering)["ReqNodeList"] == ""
    there = wide(place.nodes, required_nodes=sent.required_nodes, features=sent.features,
                 admin_comment=sent.admin_comment)  # fmt: skip
    again = decide(observation([there], racks=RACKS), {"1": place}, SITE)
    assert not again.actions, "a second tick sends nothing"


def test_far_away_and_without_racks_no_node_is_named():
    far = Placement({"v100": 2, "p100": 2}, {"v1": {"v100": 2}, "p1": {"p100": 2}}, tier="network")
    assert not racks.pinned(far, RACKS)
    near = replace(far, tier="rack")
    assert racks.pinned(near, RACKS) and not racks.pinned(near, {})
    action = only(decide(observation([wide(FAR.nodes)]), {"1": NEAR}, SITE), Kind.MOVE)
    assert "ReqNodeList" not in action.fields


def test_a_name_list_goes_when_the_next_place_is_far():
    sent = carried_out(
        wide(FAR.nodes),
        only(decide(observation([wide(FAR.nodes)], racks=RACKS), {"1": NEAR}, SITE), Kind.MOVE),
    )
    there = wide(NEAR.nodes, required_nodes=sent.required_nodes, features=sent.features,
                 admin_comment=sent.admin_comment)  # fmt: skip
    later = observation([there], racks=RACKS, now=NOW + 600)
    fields = only(decide(later, {"1": FAR}, SITE), Kind.MOVE).fields
    assert fields["ReqNodeList"] == "" and fields["Features"] == "k80"


def test_a_running_job_moves_to_nodes_of_its_own_type_in_one_rack():
    same = running("1", {"k1": {"k80": 1}, "k2": {"k80": 1}}, declaration=BIG,
                   request=GpuRequest(per_node={UNTYPED: 1}), tasks=2)  # fmt: skip
    shown = observation([same], racks=RACKS | {"k2": "r1", "k1": "r2"})
    to = Placement({"k80": 2}, {"k1": {"k80": 1}, "k2": {"k80": 1}}, tier="network")
    assert not decide(shown, {"1": to}, SITE).actions
    near = {"v1": {"v100": 1}, "v2": {"v100": 1}}
    moved = replace(to, gpus={"v100": 2}, nodes=near, tier="rack")
    action = only(decide(shown, {"1": moved}, SITE), Kind.MOVE)
    assert action.fields["ReqNodeList"] == "v[1-2]"


def sample(job, rate):
    return RateSample("BERT", "v100", job.gpu_count, 64, rate, 60.0, uid=job.uid)


def test_reports_of_progress_tell_what_the_network_costs():
    rates = Rates(tiers=TierRates())
    near = running("1", {"v1": {"v100": 2}, "v2": {"v100": 2}}, declaration=BIG, **WIDE_RUNNING)
    far = running("2", {"v1": {"v100": 2}, "p1": {"p100": 2}}, declaration=BIG, **WIDE_RUNNING)
    shown = observation([near, far], racks=RACKS)
    assert distance.learn(shown, rates, near, sample(near, 100.0))
    assert not distance.learn(shown, rates, far, sample(far, 25.0))
    assert rates.tiers.factor("BERT", (1000, "v100", 4, 64)).tolist() == [1.0, 1.0, 0.25]
    assert distance.learn(replace(shown, racks={}), rates, far, sample(far, 9.0))


def test_how_much_a_running_job_is_slowed_now():
    rates = Rates(tiers=TierRates())
    rates.tiers.record(RateSample("BERT", "v100", 4, 64, 100.0, 60.0, uid=1000), 1)
    rates.tiers.record(RateSample("BERT", "v100", 4, 64, 50.0, 60.0, uid=1000), 2)
    place = {"v1": {"v100": 2}, "v2": {"v100": 2}}
    far = running("2", place, declaration=BIG, **WIDE_RUNNING)
    shown = observation([far], racks=RACKS | {"v2": "r9"}, progress={"2": reported("2", 20.0)})
    network = look_at(shown, rates)
    assert network.factor[0].tolist() == [1.0, 1.0, 0.5]
    assert network.slowed[0] == pytest.approx(0.2), "others' traffic included"
    silent = look_at(replace(shown, progress={}), rates)
    assert silent.slowed[0] == 0.5
    near = look_at(replace(shown, racks=RACKS), rates)
    assert near.slowed[0] == 1.0 and np.isfinite(near.factor).all()


def look_at(shown, rates):
    targets = list(look(shown, SITE).schedulable.values())
    return distance.trait(shown, rates, targets, ("k80", "p100", "v100"))
