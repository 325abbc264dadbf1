"""How a placement is said to Slurm, on top of what the owner asked for."""

from dataclasses import replace

import pytest
from hand_made import (
    CONFIG,
    NOW,
    carried_out,
    config,
    decide,
    hinted,
    job,
    observation,
    only,
    request_of,
    running,
)

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.resource_request import resource_request
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.declaration_values import MOST_COUNTS
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering, decode, merge

ANY = Declaration(types=("any",), checkpoint="yes")


def updated(job_, placement, found=None, site=CONFIG):
    """The fields, and the job as it stands after them."""
    if not isinstance(placement, Placement):
        placement = Placement(placement)
    shown = observation([job_], found)
    want = request_of(job_, shown.steered(job_.id))
    assert not isinstance(want, str), want
    fields = job_updates.fields(SchedulableJob(job_, want), placement, shown, site)
    was = job_updates.originals(job_, fields, shown.steered(job_.id).was)
    ours = Steering(gpus=placement.gpus, nodes=placement.nodes, time=NOW, was=was)
    return fields, carried_out(job_, Action(Kind.MOVE, job_, fields, ours, ""))


def test_the_type_goes_over_the_owners_own_constraint():
    plain = job(features="ib|bigmem")
    fields, then = updated(plain, {"v100": 1})
    assert fields["Features"] == "(ib|bigmem)&v100"
    again, _ = updated(then, {"k80": 1})
    assert again["Features"] == "(ib|bigmem)&k80"
    same, _ = updated(then, {"v100": 1})
    assert same == {}


def test_a_constraint_that_names_the_type_already_needs_no_word():
    assert updated(job(features="k80"), {"k80": 1})[0] == {}


def test_a_constraint_survives_where_its_type_is_not_steered():
    """A typed request needs no feature, so the owner's constraint is not among what we changed."""
    typed = job(features="v100", request=GpuRequest(per_node={"v100": 1}))
    steered = replace(typed, admin_comment=merge("", Steering(gpus={"v100": 1}, time=NOW)))
    want = request_of(steered, decode(steered.admin_comment))
    assert want.constraint == "v100" and want.types == ("v100",)


@pytest.mark.parametrize("constraint", ["[v100|k80]", "v100*2", "[v100*1&k80*1]", "a,b"])
def test_a_constraint_that_only_slurm_can_read_is_left_to_slurm(constraint):
    shown = observation([job(features=constraint)])
    assert decide(shown, {"1": {"p100": 1}}).actions == ()
    here = running("1", {"k1": {"k80": 1}}, features=constraint)
    assert decide(observation([here]), {"1": {"p100": 1}}).actions == ()


def test_the_number_of_gpus_changes_in_the_form_that_the_owner_used():
    some = replace(ANY, gpus=(1, 2))
    per_node, then = updated(job(declaration=some), {"k80": 2})
    assert per_node["TresPerNode"] == "gpu:2"
    assert request_of(then, decode(then.admin_comment)).count == 1
    per_job, then = updated(
        job(declaration=some, request=GpuRequest(per_job={UNTYPED: 1})), {"k80": 2}
    )
    assert per_job["TresPerJob"] == "gpu:2" and "TresPerNode" not in per_job
    assert request_of(then, decode(then.admin_comment)).counts == (1, 2)
    assert updated(then, {"k80": 2})[0] == {}


MIXED = Placement({"v100": 2, "k80": 1}, {"v1": {"v100": 2}, "k1": {"k80": 1}})
SPREAD = replace(ANY, nodes=(1, 2))


def test_mixed_types_name_their_nodes_and_everything_that_goes_with_them():
    fields, then = updated(job(declaration=SPREAD, request=GpuRequest(per_job={UNTYPED: 3})), MIXED)
    assert fields == {
        "NumNodes": "2-2",
        "NumTasks": "2",
        "NumCPUs": "2-2",
        "ReqNodeList": "k1,v1",
    }
    # What we named ourselves is not the owner's wish.
    want = request_of(then, decode(then.admin_comment))
    assert not isinstance(want, str) and want.nodes == 1 and want.mixable
    assert updated(then, MIXED)[0] == {}


def test_what_an_earlier_placement_changed_goes_back_with_the_next():
    mixed = updated(job(declaration=SPREAD, request=GpuRequest(per_job={UNTYPED: 3})), MIXED)[1]
    fields, then = updated(mixed, {"k80": 3})
    assert then.required_nodes == () and then.features == "k80"
    assert (then.node_count, then.tasks, then.cpus) == (1, 1, 1)
    assert fields["ReqNodeList"] == ""


@pytest.mark.parametrize(
    "request_",
    [GpuRequest(per_node={"v100": 2}), GpuRequest(per_job={"v100": 2})],
)
def test_a_typed_request_is_never_written(request_):
    spread = Placement({"v100": 2}, {"v1": {"v100": 1}, "v2": {"v100": 1}})
    for placement in (Placement({"v100": 2}), spread):
        fields, _ = updated(job(declaration=SPREAD, request=request_), placement)
        assert not {"TresPerJob", "TresPerNode", "Features"} & set(fields)


def test_gpus_per_task_are_counted_by_task_and_stay():
    asked = job(request=GpuRequest(per_task={UNTYPED: 2}), tasks=1)
    assert request_of(asked, Steering()).counts == (2,)
    assert updated(asked, {"v100": 2})[0] == {"Features": "v100"}


def test_gpus_on_several_nodes_are_counted_together_and_stay():
    asked = job(request=GpuRequest(per_node={UNTYPED: 2}), node_count=2)
    want = request_of(asked, Steering())
    assert (want.counts, want.nodes, want.mixable) == ((4,), 2, False)
    assert updated(asked, {"v100": 4})[0] == {"Features": "v100"}


# -- partitions --------------------------------------------------------------------------------


def test_the_owners_partition_is_kept_where_it_has_the_place():
    assert "Partition" not in updated(job(partitions=("gpu", "k80")), {"v100": 1})[0]


GROUPED = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')


def test_with_a_partition_per_type_the_places_own_comes_first_and_no_feature_is_asked_for():
    fields, then = updated(job(), {"k80": 1}, site=GROUPED)
    assert fields == {"Partition": "k80,v100,p100"}
    assert updated(then, {"p100": 1}, site=GROUPED)[0] == {"Partition": "p100,v100,k80"}
    assert job_updates.undo_fields(then, decode(then.admin_comment)) == {"Partition": "gpu"}


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"types": ("v100", "k80")}, "v100,k80"),
        ({"types": ("any",), "gpu_mem": 14 * 1024}, "v100,p100"),
        ({"types": ("v100",)}, "v100"),
    ],
)
def test_a_moved_job_names_no_partition_of_a_type_that_its_owner_does_not_accept(
    declared, expected
):
    """Where its place is gone Slurm starts it in another partition of the list."""
    asked = replace(ANY, partitions=("gpu",), **declared)
    here = running("1", {"k1": {"k80": 1}}, partitions=("k80",), declaration=asked)
    action = only(decide(observation([here]), {"1": {"v100": 1}}, GROUPED), Kind.MOVE)
    assert action.fields == {"Partition": expected}


def test_a_list_of_the_owners_own_is_put_in_order():
    assert updated(job(partitions=("v100", "k80")), {"k80": 1})[0] == {"Partition": "k80,v100"}
    assert updated(job(partitions=("v100", "k80")), {"v100": 1})[0] == {}


def test_a_partition_that_stands_for_no_others_is_kept_with_the_type_as_a_feature():
    assert updated(job(), {"k80": 1})[0] == {"Features": "k80"}
    assert updated(job(partitions=("gpu", "k80")), {"v100": 1})[0] == {"Features": "v100"}


def test_a_job_that_runs_is_still_known_to_be_open_to_all_partitions_that_it_asked_for():
    """Slurm shows only the one in which it runs."""
    asked = replace(ANY, partitions=("gpu",))
    here = running("1", {"k1": {"k80": 1}}, partitions=("k80",), declaration=asked)
    action = only(decide(observation([here]), {"1": {"v100": 1}}, GROUPED), Kind.MOVE)
    assert action.fields == {"Partition": "v100,p100,k80"}
    # Its owner sent it elsewhere since.
    elsewhere = replace(here, partitions=("other",))
    assert request_of(elsewhere, Steering(), GROUPED).partitions == ("other",)
    # He chose one of them while it waited.
    his = Steering(foreign=("Partition",))
    assert request_of(here, his, GROUPED).partitions == ("k80",)


# -- what cannot be steered --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"request": GpuRequest()}, "no GPU"),
        ({"required_nodes": ("v1",)}, "names its nodes"),
        ({"reservation": "r"}, "reservation"),
        ({"exclusive": True}, "--exclusive=user"),
        ({"request": GpuRequest(per_job={"v100": 1, "k80": 1})}, "several GPU types"),
        ({"features": "[a|b]"}, "constraint"),
        # -G4 -n4, -n8 --gpus-per-task=1, -N2 --gpus=2: Slurm chooses over how many nodes.
        ({"request": GpuRequest(per_job={UNTYPED: 4}), "tasks": 4}, "several nodes or tasks"),
        ({"request": GpuRequest(per_task={UNTYPED: 1}), "tasks": 8}, "several nodes or tasks"),
        ({"request": GpuRequest(per_job={UNTYPED: 2}), "node_count": 2}, "several nodes or tasks"),
    ],
)
def test_what_cannot_be_steered_says_why(more, says):
    found = resource_request(job(**more), Steering())
    assert isinstance(found, str) and says in found


def test_a_wide_range_of_counts_is_thinned():
    wide = job(declaration=replace(ANY, gpus=(1, 1000)))
    counts = request_of(wide, Steering()).counts
    assert len(counts) <= MOST_COUNTS and counts[0] == 1 and counts[-1] == 1000
    assert list(counts) == sorted(set(counts))


def test_a_placement_in_words():
    mixed = job_updates.placement_text({"v100": 2, "k80": 1}, ["v1", "v2", "k1"])
    assert mixed == "1 x k80 + 2 x v100 on k1,v[1-2]"
    assert job_updates.placement_text({"v100": 2}) == "2 x v100"


FORKS = replace(ANY, fork=(1, 4))
COPIES = Placement(
    {"v100": 2, "k80": 1},
    {"v1": {"v100": 1}, "v2": {"v100": 1}, "k1": {"k80": 1}},
    copies=3,
    shares=(0.4, 0.4, 0.2),
)


def test_copies_are_one_task_with_its_gpus_on_each_of_their_nodes():
    forked = job(declaration=FORKS, cpus=4, cpus_per_task=4, features="ib")
    fields, then = updated(forked, COPIES)
    assert fields == {
        "NumNodes": "3-3",
        "NumTasks": "3",
        "NumCPUs": "12-12",
        "ReqNodeList": "k1,v[1-2]",
    }
    assert updated(then, COPIES)[0] == {}
    fewer, after_that = updated(
        then, replace(COPIES, nodes={"v1": {"v100": 1}, "k1": {"k80": 1}}, copies=2)
    )
    assert fewer == {"NumNodes": "2-2", "NumTasks": "2", "NumCPUs": "8-8", "ReqNodeList": "k1,v1"}
    alone, last = updated(after_that, {"k80": 1})
    assert alone == {
        "NumNodes": "1-1",
        "NumTasks": "1",
        "NumCPUs": "4-4",
        "ReqNodeList": "",
        "Features": "ib&k80",
    }
    assert job_updates.undo_fields(last, decode(last.admin_comment)) == {"Features": "ib"}
    assert request_of(then, decode(then.admin_comment)).count == 1


def test_copies_are_taken_back_whole():
    _, then = updated(job(declaration=FORKS, cpus=2), COPIES)
    assert job_updates.undo_fields(then, decode(then.admin_comment)) == {
        "NumNodes": "1-1",
        "NumTasks": "1",
        "NumCPUs": "2-2",
        "ReqNodeList": "",
    }


def test_a_range_of_nodes_is_said_away_where_one_copy_is_meant():
    """Of ``-N1-3`` Slurm shows 1 on one release and 3 on another, and takes 3 where it may."""
    for shown in (1, 3):
        fields, then = updated(job(declaration=FORKS, node_count=shown), {"k80": 1})
        assert fields["NumNodes"] == "1-1"
        assert request_of(then, decode(then.admin_comment)).nodes == 1


def test_a_job_that_may_be_forked_keeps_the_gpus_of_a_copy():
    both = replace(FORKS, gpus=(1, 4))
    want = request_of(job(declaration=both, request=GpuRequest(per_node={UNTYPED: 2})), Steering())
    assert want.counts == (2,) and want.copies == (1, 4)
    per_job = job(declaration=both, request=GpuRequest(per_job={UNTYPED: 2}))
    assert request_of(per_job, Steering()).copies == (1, 1)


SENT = "[hadarplan;t=1;on=v100:3;was.NumNodes=1-1;was.NumTasks=1;was.NumCPUs=1-1;was.ReqNodeList=]"


def two_copies(*names):
    gpus = {name: {"v100" if name[0] == "v" else "p100": 1} for name in names}
    kinds = [next(iter(one)) for one in gpus.values()]
    return Placement({kind: kinds.count(kind) for kind in kinds}, gpus, copies=2, shares=(0.5, 0.5))


def test_the_nodes_of_copies_are_said_in_full_whatever_slurm_shows():
    # It was sent to three nodes a moment ago; Slurm still shows the two of the life before.
    waits = job(
        declaration=FORKS,
        node_count=2,
        tasks=3,
        cpus=3,
        restarts=1,
        required_nodes=("p1", "v1", "v2"),
        admin_comment=SENT,
    )
    placement = two_copies("v1", "v2")
    want = request_of(waits, decode(SENT))
    fields = job_updates.fields(
        SchedulableJob(waits, want), placement, observation([waits]), CONFIG
    )
    fields = job_updates.in_full(placement, fields, decode(SENT).was)
    assert fields["ReqNodeList"] == "v[1-2]" and fields["NumNodes"] == "2-2"
    # The owner's one node comes back too, though Slurm shows one already.
    back = hinted(decide(observation([replace(waits, node_count=1)]), {}))["1"]
    assert back["ReqNodeList"] == "" and back["NumNodes"] == "1-1"
