"""A job whose owner asks for what its shorter list of partitions does not have gets the partition
that the owner typed."""

from dataclasses import replace

import pytest
from hand_made import NOW, after, config, decide, hinted, job, nodes, observation

from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.steering import Steering, merge
from slurm_hadar.slurm.waiting_age import AgePriority

SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
LIST = ("v100", "p100")
ANY = Declaration(model="resnet50", types=("any",), partitions=("gpu",), listed=LIST)
K1 = {"required_nodes": ("k1",)}
FOUR = {"request": GpuRequest(per_node={UNTYPED: 4})}
K80 = {"request": GpuRequest(per_node={"k80": 1})}
AGED = AgePriority(weight=10_000, most_s=10_000.0, is_forgotten=True)


def short(declared=ANY, **more):
    """A job with the list that hbatch made without the type that is far slower."""
    return job(**{"declaration": declared, "partitions": LIST, **more})


def unequal():
    return [replace(one, gpus={"k80": 4}) if one.name == "k1" else one for one in nodes()]


def seen(one, **more):
    return replace(observation([one], unequal()), **more)


@pytest.mark.parametrize("more", [K1, FOUR])
def test_it_has_the_partition_that_its_owner_typed(more):
    # Also one that loses its age by the update: it would never start.
    old = {"submit_s": NOW - 900, "eligible_s": NOW - 900}
    for shown in (seen(short(**more)), seen(short(**more, **old), age=AGED)):
        done = decide(shown, {}, SITE)
        assert hinted(done)["1"] == {"Partition": "gpu"}
        later = after(shown, done)
        assert hinted(decide(later, {}, SITE)) == {}, "it stays so"
    free = replace(later.jobs["1"], required_nodes=(), request=GpuRequest(per_node={UNTYPED: 1}))
    again = hinted(decide(replace(later, jobs={"1": free}), {}, SITE))
    assert again["1"] == {"Partition": "v100,p100"}, "it is steered again"


def test_a_request_for_a_type_that_the_list_omits_gets_the_partition_of_the_type():
    shown = seen(short(**K80))
    done = decide(shown, {}, SITE)
    assert hinted(done)["1"] == {"Partition": "gpu"}
    assert hinted(decide(after(shown, done), {}, SITE))["1"] == {"Partition": "k80"}


@pytest.mark.parametrize("more", [K1, FOUR])
def test_also_where_the_controller_shortened_the_list(more):
    ours = Steering(time=NOW - 10, was={"Partition": "gpu"}, wrote={"Partition": "v100"})
    for kept in (ours, replace(ours, until=NOW + 600)):
        one = short(replace(ANY, listed=()), **more)
        one = replace(one, partitions=("v100",), admin_comment=merge("", kept))
        assert hinted(decide(seen(one), {}, SITE))["1"] == {"Partition": "gpu"}


@pytest.mark.parametrize("more", [K1, FOUR])
def test_types_that_its_owner_names_stay(more):
    some = replace(ANY, types=LIST)
    assert hinted(decide(seen(short(some, **K1)), {}, SITE)) == {}
    # And those that the list omits come back.
    more_types = replace(ANY, types=("v100", "k80"), listed=("v100",))
    one = short(more_types, **more)
    sent = hinted(decide(seen(replace(one, partitions=("v100",))), {}, SITE))
    assert sent["1"] == {"Partition": "gpu", "Features": "v100|k80"}


def test_a_list_with_the_nodes_that_its_owner_names_stays():
    assert hinted(decide(seen(short(required_nodes=("v1",))), {}, SITE)) == {}


def test_a_list_that_its_owner_wrote_stays():
    theirs = merge("", Steering(time=NOW - 10, foreign=("Partition",)))
    assert hinted(decide(seen(short(**K1, admin_comment=theirs)), {}, SITE)) == {}


@pytest.mark.parametrize(
    "kept", [None, Steering(was={"Partition": "gpu"}, wrote={"Partition": "v100,p100"})]
)
def test_a_list_of_partitions_that_are_not_alike_any_more_goes_back(kept):
    """The job would wait in a partition with another limit than the one that its owner typed."""
    one = short(admin_comment=merge("", kept) if kept else "")
    shown = observation([one])
    assert "1" not in hinted(decide(shown, {}, SITE))
    limits = {
        name: replace(part, max_time_s=300.0) if name == "k80" else part
        for name, part in shown.partitions.items()
    }
    other = replace(shown, partitions=limits)
    assert hinted(decide(other, {}, SITE))["1"] == {"Partition": "gpu"}
    named = replace(one, declaration=replace(ANY, types=LIST))
    sent = hinted(decide(replace(other, jobs={"1": named}), {}, SITE))
    assert sent["1"] == {"Partition": "gpu", "Features": "v100|p100"}
