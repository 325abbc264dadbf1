"""A job gets no request back with which Slurm starts it on a GPU type that its owner excludes."""

from dataclasses import replace
from typing import Any

import pytest
from hand_made import NOW, as_cluster, config, decide, hinted, job, look, observation, running

from slurm_hadar.controller.actuation import actions, job_updates
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.restored_request import (
    fitting_list,
    restored,
    within_types,
)
from slurm_hadar.controller.actuation.running import chain_requeues, requeued_job
from slurm_hadar.controller.expired_lists import widen
from slurm_hadar.controller.presentation.job_explanation import undo
from slurm_hadar.controller.retire import ordinary, requeue_text
from slurm_hadar.domain import declaration
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import GpuRequest
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.steering import Steering, merge

SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
SITE = SITE.model_copy(update={"guards": SITE.guards.model_copy(update={"preempt": True})})
LIST = ("v100", "k80")
SOME = Declaration(types=LIST, checkpoint="yes", partitions=("gpu",), listed=LIST)
MOVED = Steering(time=NOW - 600, moves=1, was={"Partition": "gpu"}, wrote={"Partition": "k80,v100"})
FEATURES = {"Partition": "gpu", "Features": "v100|k80"}


def waiting(declared=SOME, known=MOVED, **more):
    usual = {"restarts": 1, "partitions": ("k80", "v100"), "admin_comment": merge("", known)}
    return job(**{"declaration": declared, **usual, **more})


EXCLUDED: list[dict[str, Any]] = [
    {"reason": "Dependency", "dependency": "afterany:3"},
    {"required_nodes": ("v1",)},
    {"reason": "QOSMaxJobsPerUserLimit"},
]


@pytest.mark.parametrize("more", EXCLUDED)
def test_a_moved_job_that_is_not_steered_any_more_keeps_the_list_of_its_types(more):
    shown = observation([waiting(**more)])
    assert look(shown, SITE).excluded
    assert hinted(decide(shown, {}, SITE)) == {}


@pytest.mark.parametrize("more", EXCLUDED)
def test_a_list_that_lacks_an_accepted_type_is_that_of_the_submit_again(more):
    short = replace(MOVED, wrote={"Partition": "k80"}, until=NOW + 60)
    shown = observation([waiting(known=short, partitions=("k80",), **more)])
    assert hinted(decide(shown, {}, SITE))["1"] == {"Partition": "v100,k80"}
    # Where it is not recorded, features say the types.
    old = waiting(replace(SOME, listed=()), short, partitions=("k80",), **more)
    assert hinted(decide(observation([old]), {}, SITE))["1"] == FEATURES


def test_memory_excludes_a_type_as_well():
    large = Declaration(gpu_mem=14 * 1024, partitions=("gpu",), listed=("v100", "p100"))
    shown = waiting(large, partitions=("p100", "v100"), **EXCLUDED[0])
    assert hinted(decide(observation([shown]), {}, SITE)) == {}


def test_who_accepts_all_types_has_the_owners_partition_again():
    any_ = replace(SOME, types=("any",), listed=("v100", "p100", "k80"))
    shown = waiting(any_, partitions=("k80", "v100", "p100"), **EXCLUDED[0])
    assert hinted(decide(observation([shown]), {}, SITE))["1"] == {"Partition": "gpu"}


@pytest.mark.parametrize(
    ("known", "more", "fields"),
    [
        # Features of the types, or of the owner, that exclude the others already.
        (replace(MOVED, was={**MOVED.was, "Features": "v100|k80"}), {}, FEATURES),
        (MOVED, {"features": "v100"}, {"Partition": "gpu"}),
        (MOVED, {"features": "(v100|k80)&ib"}, {"Partition": "gpu"}),
        (MOVED, {"features": "ib"}, {**FEATURES, "Features": "ib&(v100|k80)"}),
        (MOVED, {"features": "ib|ssd"}, {**FEATURES, "Features": "(ib|ssd)&(v100|k80)"}),
        # A move by feature whose partition is the owner's.
        (
            replace(MOVED, was={"Partition": "gpu", "Features": ""}),
            {"partitions": ("gpu",), "features": "k80"},
            {"Features": "v100|k80"},
        ),
        # What only Slurm can read stays; types come beside features that the owner set since, but
        # for features of excluded types alone.
        (MOVED, {"features": "[ib*2]"}, {}),
        (MOVED, {"features": "p100"}, {}),
        (
            replace(MOVED, foreign=("Features",)),
            {"features": "ib"},
            {**FEATURES, "Features": "ib&(v100|k80)"},
        ),
        (replace(MOVED, foreign=("Features",)), {"features": ""}, FEATURES),
        (replace(MOVED, foreign=("Features",)), {"features": "v100"}, {"Partition": "gpu"}),
        # A list that its owner typed, before the types were declared.
        (
            replace(MOVED, was={"Partition": "v100,p100,k80"}),
            {},
            {"Partition": "v100,p100,k80", "Features": "v100|k80"},
        ),
        # The request names its type.
        (MOVED, {"request": GpuRequest(per_node={"v100": 1})}, {"Partition": "gpu"}),
    ],
)
def test_features_say_the_types_beside_the_owners_partition(known, more, fields):
    one = waiting(known=known, **more)
    undo_ = job_updates.undo_fields(one, known)
    assert within_types(one, known, undo_, SITE, keeps_list=False) == fields
    back = replace(
        one,
        partitions=tuple(fields.get("Partition", ",".join(one.partitions)).split(",")),
        features=fields.get("Features", one.features),
    )
    again = replace(known, was={})
    assert within_types(back, again, fields, SITE, keeps_list=False) == fields


def test_a_group_whose_members_are_no_types_has_features_too():
    site = config('[partitions.groups]\ngpu = ["fast", "slow"]\n')
    one = waiting(replace(SOME, listed=()), partitions=("fast",))
    assert restored(one, MOVED, site) == FEATURES


def test_a_job_that_stops_waits_with_the_list_of_its_types():
    here = running("1", {"k1": {"k80": 1}}, declaration=SOME, partitions=("k80",),
                   admin_comment=merge("", MOVED), time_limit_s=1000.0)  # fmt: skip
    shown = observation([here])
    target = look(shown, SITE).schedulable["1"]
    stop = actions.stop(target, "why", shown, SITE)
    assert stop.fields == {"Partition": "v100,k80"}
    assert chain_requeues._action(here, shown, SITE).fields == stop.fields
    assert actions.stop(
        replace(target, job=replace(here, declaration=replace(SOME, listed=()))), "", shown, SITE
    ).fields == FEATURES  # fmt: skip


def test_a_job_whose_move_ended_keeps_its_types_though_its_request_cannot_be_read():
    fields, _ = requeued_job.accepted_request(waiting(required_nodes=("v1",)), MOVED, {}, SITE)
    assert fields == {}


def test_a_list_past_its_deadline_is_widened_to_the_accepted_types():
    late = replace(MOVED, wrote={"Partition": "k80"}, until=NOW - 1, ends=NOW)
    sent: list[dict[str, str]]
    one, sent = waiting(known=late, partitions=("k80",)), []

    class Slurm:
        def apply(self, updates):
            sent.extend(dict(update.fields) for update in updates)
            return [None for _ in updates]

    def within(job_, steered, fields):
        return within_types(job_, steered, fields, SITE)

    slurm = as_cluster(Slurm())
    widen(slurm, [one], {"1": late}, NOW, within)
    assert sent == [{"Partition": "v100,k80"}]
    only_k80 = replace(one, declaration=replace(SOME, types=("k80",)))
    assert not widen(slurm, [only_k80], {"1": late}, NOW, within).sent and len(sent) == 1


@pytest.mark.parametrize("known", [MOVED, Steering()])
def test_an_optout_gives_the_owners_partition_with_features_of_the_types(known):
    one = waiting(known=known, comment=declaration.merge("mine", SOME))
    update = ordinary(one, known, NOW, SITE)
    fields = dict(update.fields)
    comment = fields.pop("Comment")
    assert fields == FEATURES
    left = declaration.decode(comment)
    assert (left.off, left.listed, left.added) == (True, (), "v100|k80")
    # A second one leaves it so, and what hadar set makes of it knows whose features these are.
    back = waiting(left, known, partitions=("gpu",), features="v100|k80", comment=comment)
    by_feature = replace(known, was={**known.was, "Features": ""})
    fields = dict(ordinary(back, by_feature, NOW, SITE).fields)
    assert "Features" not in fields and fields.get("Partition", "gpu") == "gpu"
    again = declaration.parse(["off=no", "types=k80"], "job 1", left)
    target = look(observation([replace(back, declaration=again)]), SITE).schedulable["1"]
    assert target.request.constraint == "" and target.request.types == ("k80",)


@pytest.mark.parametrize("more", [{}, *EXCLUDED])
@pytest.mark.parametrize("foreign", [(), ("Features",)])
def test_a_waiting_job_whose_features_are_gone_gets_the_list_of_its_types(more, foreign):
    """It waits in its owner's partition, which features beside it limited to some types."""
    known = Steering(time=NOW - 60, foreign=foreign)
    shown = observation([waiting(known=known, partitions=("gpu",), restarts=0, **more)])
    assert hinted(decide(shown, {}, SITE))["1"] == {"Partition": "v100,k80"}
    its_own = observation(
        [waiting(known=known, partitions=("gpu",), features="k80", **EXCLUDED[0])]
    )
    assert hinted(decide(its_own, {}, SITE)) == {}


@pytest.mark.parametrize("more", [*EXCLUDED, {}, {"held": True, "priority": 0}])
def test_partitions_that_its_owner_set_stay_with_features_of_the_types(more):
    known = Steering(time=NOW - 60, foreign=("Partition",))
    shown = observation([waiting(known=known, partitions=("gpu",), restarts=0, **more)])
    assert hinted(decide(shown, {}, SITE))["1"] == {"Features": "v100|k80"}
    # Once, and until its owner sets others again.
    ours = replace(known, was={"Features": ""}, wrote={"Features": "v100|k80"})
    for names, fields in ((("gpu",), {}), (("v100",), {"Features": ""})):
        back = waiting(known=ours, partitions=names, features="v100|k80", restarts=0, **more)
        undone = fields if "held" not in more else {}
        assert hinted(decide(observation([back]), {}, SITE)).get("1", {}) == undone


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        # Its owner chose nothing but excluded types.
        ({"partitions": ("p100",)}, {}),
        ({"partitions": ("gpu",), "features": "p100"}, {}),
        ({"partitions": ("gpu",), "features": "k80"}, {}),
        # The owner's features stay, and the types come beside them.
        ({"partitions": ("gpu",), "features": "ib"}, {"Features": "ib&(v100|k80)"}),
        ({"features": "v100|p100"}, {"Features": "(v100|p100)&(v100|k80)"}),
        # A partition over all nodes that is in no group of the site.
        ({"partitions": ("debug",)}, {"Features": "v100|k80"}),
        ({"partitions": ("v100", "p100")}, {"Features": "v100"}),
    ],
)
@pytest.mark.parametrize("foreign", [("Partition",), ("Partition", "Features")])
def test_no_partition_or_feature_of_its_owner_opens_an_excluded_type(more, fields, foreign):
    known = Steering(time=NOW - 60, foreign=foreign)
    one = waiting(known=known, restarts=0, **{"partitions": ("gpu",), **more})
    debug = Partition("debug", ("v1", "p1", "k1"))
    shown = observation([one], partitions=[*observation([]).partitions.values(), debug])
    assert hinted(decide(shown, {}, SITE)) == ({"1": fields} if fields else {})


def test_a_list_that_was_narrowed_for_features_is_wide_again_without_them():
    """Slurm says BadConstraints, or the scheduler has not looked at it yet."""
    for reason in ("BadConstraints", "Priority"):
        one = waiting(known=Steering(), partitions=LIST, features="k80", restarts=0, reason=reason)
        (action,) = decide(observation([one]), {}, SITE).of(Kind.HINT)
        assert dict(action.fields) == {"Partition": "k80"}
        assert action.steering.was["Partition"] in ("gpu", "v100,k80")
        assert action.steering.wrote["Partition"] == "k80"
        free = replace(one, partitions=("k80",), features="", reason="Priority",
                       admin_comment=merge("", action.steering))  # fmt: skip
        assert set(hinted(decide(observation([free]), {}, SITE))["1"]["Partition"].split(",")) == {
            *LIST
        }


@pytest.mark.parametrize(
    ("features", "names"),
    [
        ("k80", ("k80",)),
        ("v100|p100", ("v100",)),
        ("k80&ib", ("k80",)),
        # No type is left, or only Slurm can read it.
        ("p100", ()),
        ("[k80*2]", LIST),
    ],
)
def test_a_list_fits_the_features_that_its_owner_has_set(features, names):
    for known in (Steering(), MOVED):
        assert fitting_list(waiting(known=known), known, features, SITE) == names
    his = replace(MOVED, was={}, wrote={}, foreign=("Partition",))
    assert fitting_list(waiting(known=his), his, features, SITE) == ()


def test_the_commands_that_give_a_request_back_by_hand_say_the_types():
    here = running("1", {"k1": {"k80": 1}}, declaration=SOME, partitions=("k80",), requeue=True,
                   admin_comment=merge("", MOVED))  # fmt: skip
    said = requeue_text(here, MOVED, SITE, (24, 11, 5))
    assert "Partition=gpu" in said and "Features=v100|k80" in said.replace("'", "")
    (line,) = [
        one for one in undo(waiting(), observation([waiting()]), SITE) if "Partition=" in one
    ]
    assert "Partition=gpu" in line and "Features=v100|k80" in line.replace("'", "")
