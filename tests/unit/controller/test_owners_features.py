"""Features that a job's owner sets after the submit hold, as its constraint, also through moves."""

from dataclasses import replace

import pytest
from hand_made import NOW, config, decide, hinted, job, look, observation, only, running

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.snapshot.resource_request import resource_request
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering, merge

GROUPS = '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'
SITE = config(GROUPS)
LIST = ("v100", "k80")
OWN = Declaration(types=("any",), checkpoint="yes", constraint="v100|k80")
TYPES = Declaration(types=LIST, checkpoint="yes", partitions=("gpu",), listed=LIST)


def constraint(declared, features, steered=None, site=SITE, **more):
    one = job(declaration=declared, features=features, **more)
    found = resource_request(one, steered or Steering(), site)
    assert not isinstance(found, str), found
    return found.constraint


@pytest.mark.parametrize("declared", [OWN, TYPES, replace(TYPES, listed=(), partitions=())])
@pytest.mark.parametrize("features", ["k80", "v100|p100", "ib"])
def test_other_features_than_those_of_the_submit_are_the_owners(declared, features):
    assert constraint(declared, features) == features


def test_features_that_its_owner_takes_away_are_gone():
    assert constraint(OWN, "") == ""


@pytest.mark.parametrize(
    ("declared", "features"),
    [
        (OWN, "v100|k80"),
        (TYPES, ""),
        # By hbatch or a plugin, where there is no list; or by us, where the list was taken back.
        (TYPES, "v100|k80"),
        (replace(TYPES, types=("k80", "v100")), "v100|k80"),
        (Declaration(gpu_mem=14 * 1024), "v100|p100"),
        (replace(OWN, types=("v100",), constraint="ib"), "ib"),
        # By a plugin beside an owner's constraint, and by us.
        (replace(OWN, types=("v100",), constraint="ib"), "v100&ib"),
        (replace(OWN, types=LIST, constraint="ib"), "(v100|k80)&ib"),
        (replace(OWN, types=LIST, constraint="ib"), "ib&(v100|k80)"),
        (replace(OWN, types=("v100",), constraint="a|b"), "(a|b)&v100"),
        # For types that its owner declared before.
        (replace(TYPES, types=("k80",), added="v100|k80"), "v100|k80"),
    ],
)
def test_what_stands_for_the_types_is_no_constraint(declared, features):
    assert constraint(declared, features) == declared.constraint


@pytest.mark.parametrize("declared", [OWN, TYPES])
def test_what_a_move_wrote_is_not_the_owners(declared):
    own = declared.constraint
    moved = Steering(was={"Features": own}, wrote={"Features": "k80"})
    assert constraint(declared, "k80", moved) == own
    # What its owner had set before that is.
    moved = replace(moved, was={"Features": "k80|p100"})
    assert constraint(declared, "k80", moved) == "k80|p100"


def test_a_type_of_unknown_memory_counts_as_hbatch_counts_it():
    site = config(GROUPS + "[gpu_types.a100]\n")
    declared = Declaration(gpu_mem=20 * 1024)
    assert constraint(declared, "a100", site=site) == ""
    assert constraint(declared, "k80", site=site) == "k80"


@pytest.mark.parametrize("declared", [OWN, TYPES])
@pytest.mark.parametrize("site", [SITE, config()])
def test_no_move_changes_them(declared, site):
    where = {"partitions": ("k80",)} if site is SITE else {}
    here = running("1", {"k1": {"k80": 1}}, declaration=declared, features="k80", **where)
    target = look(observation([here]), site).schedulable["1"]
    assert target.request.constraint == "k80"
    for action in decide(observation([here]), {"1": {"k80": 2}}, site).of(Kind.MOVE):
        assert "Features" not in action.fields
    # The policy sees no place of another type for it.
    view = look(observation([here]), site).view
    open_to_it = view.jobs.groups[view.jobs.ids.index("1")]
    named = zip(view.nodes.names, view.nodes.group, strict=True)
    assert {name for name, group in named if open_to_it[group]} == {"k1", "k2"}


def test_a_job_that_waits_keeps_them():
    was, wrote = {"Partition": "v100,k80"}, {"Partition": "k80,v100"}
    ours = merge("", Steering(time=NOW - 9, was=was, wrote=wrote))
    one = job(declaration=TYPES, features="k80", partitions=("k80", "v100"), admin_comment=ours)
    assert "Features" not in hinted(decide(observation([one]), {}, SITE)).get("1", {})
    site = config()
    wide = job(declaration=replace(TYPES, partitions=()), features="k80|p100", restarts=1)
    here = replace(wide, state=running("1", {}).state, nodes=("k1",), gpus={"k1": {"k80": 1}})
    move = only(decide(observation([here]), {"1": {"p100": 1}}, site), Kind.MOVE)
    assert move.fields["Features"] == "(k80|p100)&p100"
    assert move.steering.was["Features"] == "k80|p100"
