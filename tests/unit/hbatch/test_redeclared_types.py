"""A job that its owner opens to other GPU types later."""

from dataclasses import replace
from typing import Any

import pytest
from hand_made import request_of

from slurm_hadar import config as configuration
from slurm_hadar.cli.redeclared_types import left_out, may_be_moved_there, with_other_types
from slurm_hadar.domain.declaration import Declaration, decode, encode
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import UNTYPED, GpuRequest, Job, JobState
from slurm_hadar.domain.steering import Steering

SITE = configuration.parse(
    """
[partitions.groups]
gpu = ["volta", "k80"]
[gpu_types.v100]
feature = "volta"
memory_gb = 16
[gpu_types.k80]
memory_gb = 12
""",
    "test",
)
K80 = Declaration(types=("k80",))
ANY = Declaration(types=("any",))


def job(declared=K80, state=JobState.PENDING, **more):
    usual: dict[str, Any] = {"features": "k80", "partitions": ("gpu",)}
    usual["request"] = GpuRequest(per_node={UNTYPED: 1})
    return Job("1", 1, 7, "ann", "x", state, state.name, declaration=declared, **{**usual, **more})


def changed(one, declared, steered=None):
    return with_other_types(one, declared, SITE, steered)


def test_a_waiting_job_gets_what_hbatch_would_write():
    assert changed(job(), ANY) == (ANY, {"Features": ""})
    other = replace(K80, types=("v100",))
    assert changed(job(), other) == (other, {"Features": "volta"})
    assert changed(job(ANY, features=""), K80) == (K80, {})
    more = replace(K80, types=("k80", "v100"), gpu_mem=14 * 1024)
    assert changed(job(), more)[1] == {"Features": "volta"}


def test_the_owners_own_constraint_stays():
    own = replace(K80, constraint="k80")
    assert changed(job(own), replace(ANY, constraint="k80"))[1] == {}
    # He changed it since.
    assert changed(job(features="k80&fast"), ANY) == (ANY, {})
    typed = job(request=GpuRequest(per_node={"k80": 1}))
    assert changed(typed, ANY) == (ANY, {})


def test_a_list_of_hbatchs_is_opened_too_and_the_owners_is_not():
    listed = job(replace(K80, partitions=("gpu",)), features="", partitions=("k80",))
    opened = replace(ANY, partitions=("gpu",))
    assert changed(listed, opened)[1] == {"Partition": "volta,k80"}
    assert changed(replace(listed, partitions=("volta",)), opened)[1] == {}
    own = job(replace(K80, partitions=("k80",)), features="", partitions=("k80",))
    assert changed(own, ANY)[1] == {}


def test_a_list_that_omits_a_type_for_its_speed_is_opened_by_naming_it():
    before = replace(ANY, partitions=("gpu",), listed=("volta",))
    listed = job(before, features="", partitions=("volta",))
    named = replace(before, types=("k80", "v100"))
    now = replace(named, listed=("volta", "k80"))
    assert changed(listed, named) == (now, {"Partition": "volta,k80"})
    # One that the owner asked for, or changed since, is none of hbatch's.
    assert changed(replace(listed, partitions=("other",)), named)[1] == {}
    own = Steering(foreign=("Partition",))
    assert changed(listed, named, own)[1] == {}


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_types_any_again_says_which_type_it_omits_for_its_speed_and_how_to_have_it(state):
    steered = Steering(was={"Partition": "volta"}, wrote={"Partition": "volta"})
    again = replace(ANY, partitions=("gpu",), listed=("volta",))
    one = job(again, state, features="", partitions=("volta",))
    assert changed(one, again, steered)[1] == {}
    when = "" if state is JobState.PENDING else "once it waits again "
    assert left_out(one, again, SITE, steered, ()) == (
        "its list of partitions stays volta, without k80: types=any omits types on which the job "
        f"would be far slower; {when}run: hadar set 1 types=v100,k80"
    )
    # Of a list that the owner made nothing but the list itself can be changed.
    own = Steering(foreign=("Partition",))
    assert "run: scontrol update" in left_out(
        one, again, SITE, replace(steered, foreign=own.foreign), ()
    )


V100 = Declaration(types=("v100",), partitions=("gpu",))
BOTH = Declaration(types=("k80", "v100"), partitions=("gpu",))


@pytest.mark.parametrize("shown", [("volta",), ("k80",)])
def test_a_list_that_the_controller_has_ordered_is_opened_too(shown):
    steered = Steering(was={"Partition": "volta"}, wrote={"Partition": ",".join(shown)})
    listed = job(V100, features="", partitions=shown)
    assert changed(listed, BOTH, steered)[1] == {"Partition": "volta,k80"}
    # Of another list hbatch is not the author.
    other = Steering(was={"Partition": "volta,other"}, wrote={"Partition": "volta"})
    assert changed(listed, BOTH, other)[1] == {}


@pytest.mark.parametrize("wrote", ["volta,k80", "k80,volta"])
@pytest.mark.parametrize("now", [ANY, V100, BOTH])
def test_a_second_change_before_the_controller_has_seen_the_first_one_is_written(wrote, now):
    # The record of the controller is of the list before the first change.
    steered = Steering(was={"Partition": "volta,k80"}, wrote={"Partition": wrote})
    before = replace(K80, partitions=("gpu",), listed=("k80",))
    listed = job(before, features="", partitions=("k80",))
    declared = replace(now, partitions=("gpu",), listed=("k80",))
    expected = ("volta",) if now is V100 else ("volta", "k80")
    written = replace(declared, listed=expected)
    assert changed(listed, declared, steered) == (written, {"Partition": ",".join(expected)})
    # What is not written is said.
    said = left_out(listed, declared, SITE, steered, ())
    assert said.startswith("its list of partitions stays k80, without v100; run: ")


def test_a_first_change_to_the_list_that_the_controller_wrote_is_taken_back_too():
    steered = Steering(was={"Partition": "volta,k80"}, wrote={"Partition": "k80"})
    opened = replace(ANY, partitions=("gpu",))
    for written in (("volta", "k80"), ("k80",)):
        before = replace(K80, partitions=("gpu",), listed=written)
        listed = job(before, features="", partitions=("k80",))
        assert changed(listed, opened, steered)[1] == {"Partition": "volta,k80"}


@pytest.mark.parametrize(
    ("one", "steered", "says"),
    [
        (
            job(BOTH, partitions=("other",)),
            None,
            "stays other, without v100 and k80; run: scontrol",
        ),
        (job(BOTH, partitions=("gpu",)), None, ""),
        (job(BOTH, partitions=("k80", "volta")), None, ""),
        (job(BOTH, JobState.RUNNING, partitions=("volta",)), None, ""),
        (
            job(BOTH, JobState.RUNNING, partitions=("volta",)),
            Steering(was={"Partition": "volta"}),
            "stays volta, without k80; once it waits again run: scontrol update JobId=1 "
            "Partition=volta,k80",
        ),
    ],
)
def test_a_declared_type_that_the_list_leaves_out_is_said(one, steered, says):
    said = left_out(one, BOTH, SITE, steered, ())
    assert says in said and bool(says) == bool(said)
    assert left_out(one, BOTH, SITE, steered, ("Partition",)) == ""


def test_of_a_running_job_the_list_is_that_of_its_former_types():
    # Slurm shows the partition in which it runs, and gives its list back when it is requeued.
    one = job(replace(BOTH, types=("v100",)), JobState.RUNNING, partitions=("volta",))
    said = left_out(one, BOTH, SITE, Steering(), ())
    assert said.startswith("its list of partitions stays volta, without k80; once it waits again")
    assert left_out(replace(one, partitions=("gpu",)), BOTH, SITE, None, ()) == ""


NOW = 1_000_000.0
MOVABLE = replace(BOTH, checkpoint="yes")


@pytest.mark.parametrize(
    ("declared", "more", "steered", "moves"),
    [
        (MOVABLE, {}, None, True),
        (MOVABLE, {}, Steering(was={"Partition": "gpu"}), True),
        # It is moved within the list that it was submitted with, or that its owner made.
        (MOVABLE, {}, Steering(was={"Partition": "volta"}), False),
        (MOVABLE, {}, Steering(foreign=("Partition",)), False),
        (MOVABLE, {"requeue": False}, None, False),
        (MOVABLE, {"expedited": True}, None, False),
        (MOVABLE, {"reservation": "maintenance"}, None, False),
        (MOVABLE, {"state": JobState.PENDING}, None, False),
        (replace(MOVABLE, pin=True), {}, None, False),
        (replace(MOVABLE, checkpoint="restart"), {}, None, False),
        (replace(MOVABLE, checkpoint="restart", lose=600.0), {"start_s": NOW - 60}, None, True),
        (replace(MOVABLE, checkpoint="restart", lose=600.0), {"start_s": NOW - 700}, None, False),
        (BOTH, {}, None, False),
    ],
)
def test_a_running_job_may_be_moved_to_a_type_that_its_list_leaves_out(
    declared, more, steered, moves
):
    before = replace(declared, types=("v100",))
    shown = {"state": JobState.RUNNING, "features": "", "partitions": ("volta",), **more}
    assert may_be_moved_there(job(before, **shown), declared, SITE, steered, NOW) == moves


@pytest.mark.parametrize(
    ("state", "features", "steered"),
    [
        (JobState.RUNNING, "k80", Steering()),
        (JobState.PENDING, "k80", Steering(was={"Features": "k80"}, wrote={"Features": "k80"})),
    ],
)
def test_of_a_job_that_cannot_be_changed_now_it_is_recorded(state, features, steered):
    one = job(state=state, features=features)
    declared, fields = changed(one, ANY, steered)
    assert fields == {} and declared.added == "k80"
    assert decode(encode(declared)) == declared
    open_ = replace(one, declaration=declared)
    assert request_of(open_, steered).constraint == ""
    # Another one that the owner sets later is his.
    assert request_of(replace(open_, features="fast"), Steering()).constraint == "fast"
    assert changed(open_, replace(declared, types=("v100",)), steered)[0].added == "k80"


def test_types_that_the_site_does_not_have_are_an_error():
    with pytest.raises(UsageError, match="types=h100"):
        changed(job(), Declaration(types=("h100",)))


@pytest.mark.parametrize(
    ("types", "names", "says"),
    [
        (
            ("v100", "k80"),
            ("volta",),
            "stays volta, without k80; run: scontrol update JobId=1 Part",
        ),
        (("v100", "k80"), ("volta", "k80"), ""),
        (("k80",), ("volta", "other"), ""),
        (("any",), ("volta",), ""),
    ],
)
def test_a_typed_list_that_keeps_a_job_from_a_declared_type_is_named(types, names, says):
    one = job(Declaration(types=("v100",)), features="", partitions=names)
    said = left_out(one, Declaration(types=types), SITE, None, ())
    assert says in said and bool(said) == bool(says)
    there = replace(one, state=JobState.RUNNING)
    assert left_out(there, Declaration(types=types), SITE, None, ()) == ""
