"""What is changed of jobs that wait: the order of their partitions, and nothing else."""

from dataclasses import replace

import hand_made
import pytest
from hand_made import (
    CONFIG,
    NOW,
    after,
    carried_out,
    config,
    decide,
    hinted,
    job,
    look,
    nodes,
    observation,
    only,
    ordinary,
    running,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.pending import queue_head
from slurm_hadar.controller.actuation.pending.queue_head import has_capacity
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.steering import Steering, decode, merge
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.waiting_age import AgePriority

SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
ANY = Declaration(model="resnet50", types=("any",), checkpoint="yes")
ALL = Declaration(model="resnet50", types=("v100", "p100", "k80"), checkpoint="yes")


def record(was, wrote=None, at=NOW - 10, **more):
    """AdminComment of a job that was steered."""
    return merge("", Steering(time=at, was=was, wrote=wrote or {}, **more))


def hint(one, want=None, site=SITE, found=None, **more):
    return hinted(decide(observation([one], found), want or {}, site, **more)).get(one.id, {})


# -- the order -------------------------------------------------------------------------------


def test_a_job_prefers_the_types_on_which_it_is_faster():
    assert hint(job(declaration=ALL)) == {"Partition": "v100,p100,k80"}
    turned = job(declaration=ALL, partitions=("k80", "v100"))
    assert hint(turned) == {"Partition": "v100,k80"}


def test_the_place_that_the_policy_has_for_it_comes_first():
    assert hint(job(declaration=ALL), {"1": {"k80": 1}}) == {"Partition": "k80,v100,p100"}


def test_a_type_whose_nodes_have_to_boot_comes_last():
    """Slurm takes the first partition that has a free GPU, and wakes a node for it."""

    def order(asleep, **used):
        found = [replace(one, asleep=one.name in asleep) for one in nodes(**used)]
        return hint(job(declaration=ALL), found=found)["Partition"]

    assert order(("v1", "v2")) == "p100,k80,v100"
    assert order(("v1", "v2", "p1", "p2", "k1", "k2")) == "v100,p100,k80"
    # Slurm takes a node that is awake first.
    assert order(("v1",)) == "v100,p100,k80"
    assert order(("v1",), v2=2) == "p100,k80,v100"


def test_types_on_which_it_would_be_far_slower_are_left_out_unless_its_owner_names_them():
    any_type = hint(job(declaration=ANY))["Partition"].split(",")
    assert any_type == ["v100", "p100"]
    assert set(hint(job(declaration=ALL))["Partition"].split(",")) == {"v100", "p100", "k80"}


def closed(*names):
    """The partitions of the tests, of which these start no jobs (State=INACTIVE)."""
    return {name: Partition(name, tuple(n.name for n in nodes() if name in n.partitions),
                            state="INACTIVE" if name in names else "UP")
            for name in ("gpu", "v100", "p100", "k80")}  # fmt: skip


@pytest.mark.parametrize("inactive", [("k80",), ("p100", "k80")])
def test_a_partition_that_starts_no_jobs_leaves_the_list(inactive):
    """Slurm ends the jobs whose list names it when it is removed; its reason says nothing of the
    others."""
    waits = job(declaration=replace(ALL, partitions=("gpu",)),
                partitions=("v100", "p100", "k80"), reason="PartitionInactive")  # fmt: skip
    shown = replace(observation([waits]), partitions=closed(*inactive))
    done = decide(shown, {}, SITE)
    assert hinted(done)["1"] == {"Partition": "gpu"}
    assert hinted(decide(after(shown, done), {}, SITE)) == {}
    # Slurm cut it at the submit, where hbatch recorded the whole list.
    listed = replace(waits.declaration, listed=waits.partitions)
    left = tuple(name for name in waits.partitions if name not in inactive)
    kept = record({"Partition": "gpu"}, {"Partition": ",".join(left)})
    cut = replace(waits, declaration=listed, partitions=left, admin_comment=kept)
    for reason, down in (("Resources", inactive), ("PartitionDown", {*inactive, *left})):
        for more in ({}, {"age": ENFORCED}):
            shown = observation([replace(cut, reason=reason)])
            shown = replace(shown, partitions=closed(*down), **more)
            assert hinted(decide(shown, {}, SITE))["1"] == {"Partition": "gpu"}


def test_a_closed_partition_of_a_type_that_the_job_does_not_use_changes_nothing():
    """It names other types, or is far slower there."""
    for declared in (replace(ALL, types=("v100", "p100")), ANY):
        waits = job(declaration=replace(declared, partitions=("gpu",)), partitions=("gpu",))
        shown = replace(observation([waits]), partitions=closed("k80"))
        assert hinted(decide(shown, {}, SITE))["1"] == {"Partition": "v100,p100"}


def test_in_its_owners_partition_it_waits_for_the_types_that_it_names():
    some = replace(ALL, types=("v100", "k80"), partitions=("gpu",), listed=("v100", "k80"))
    kept = record({"Partition": "gpu"}, {"Partition": "v100"})
    waits = job(declaration=some, partitions=("v100",), admin_comment=kept)
    shown = replace(observation([waits]), partitions=closed("k80"))
    assert hinted(decide(shown, {}, SITE))["1"] == {"Partition": "gpu", "Features": "v100|k80"}


@pytest.mark.parametrize("partitions", ["v100,p100,k80", "gpu"])
def test_a_partition_that_starts_jobs_again_returns_to_the_list(partitions):
    waits = job(
        declaration=replace(ALL, partitions=("gpu",)), partitions=tuple(partitions.split(","))
    )
    down = replace(observation([waits]), partitions=closed("k80"))
    done = decide(down, {}, SITE)
    assert hinted(done).get("1", {"Partition": "gpu"}) == {"Partition": "gpu"}
    later = replace(after(down, done), now=NOW + 1000, partitions=closed("k80"))
    assert hinted(decide(later, {}, SITE)) == {}
    up = replace(later, partitions=closed())
    assert hinted(decide(up, {}, SITE))["1"] == {"Partition": "v100,p100,k80"}
    # Not to one whose owner wrote the list meanwhile.
    theirs = replace(up.jobs["1"], partitions=("v100", "p100"))
    theirs = replace(theirs, admin_comment=record({}, foreign=("Partition",)))
    assert hinted(decide(replace(up, jobs={"1": theirs}, steering={}), {}, SITE)) == {}


@pytest.mark.parametrize("listed", [("gpu",), ("v100", "k80")])
def test_a_job_that_is_managed_again_has_its_owners_features_beside_its_list(listed):
    """Its opt-out wrote these beside the partition that its owner typed, in place of a list. Jobs
    behind one with such features wait for Slurm's backfill."""
    declared = replace(ALL, types=("v100", "k80"), partitions=("gpu",), added="v100|k80")
    for own in ("", "ib"):
        has = f"({declared.added})&{own}" if own else declared.added
        again = replace(declared, constraint=own, added=has)
        waits = job(declaration=again, partitions=listed, features=has)
        shown = observation([waits], [replace(n, features=(*n.features, "ib")) for n in nodes()])
        done = decide(shown, {}, SITE)
        sent = hinted(done)["1"]
        assert sent["Features"] == own and sent.get("Partition", "v100,k80") == "v100,k80"
        (action,) = done.of(Kind.HINT)
        assert "Features" not in action.steering.was
        assert hinted(decide(after(shown, done), {}, SITE)) == {}
    # What its owner wrote since stays.
    theirs = job(declaration=declared, partitions=listed, features="v100")
    assert "Features" not in hint(theirs)


def test_an_array_in_its_owners_partition_stays_there():
    """Slurm's backfill starts its tasks in one partition of a list in each pass."""
    whole = {"array_job_id": 1, "array_tasks": "0-3", "partitions": ("gpu",)}
    array = job("1_0", declaration=replace(ALL, partitions=("gpu",)), **whole)
    assert hint(array) == {}
    # One task of it alone, one that may not use all types, and one whose owner has it wait.
    assert hint(replace(array, array_tasks="")) == {"Partition": "v100,p100,k80"}
    some = replace(array.declaration, types=("v100", "p100"))
    assert hint(replace(array, declaration=some)) == {"Partition": "v100,p100"}
    waits = replace(array.declaration, wait=600.0)
    assert "Partition" in hint(replace(array, declaration=waits))
    # A list that it has stays, and is ordered.
    listed = replace(array, partitions=("k80", "v100", "p100"))
    assert hint(listed) == {"Partition": "v100,p100,k80"}


def test_a_list_of_an_owners_own_is_not_changed_for_a_partition_that_is_down():
    """Its owner named it, so no age is lost for that: it may be up again soon."""
    old = {"submit_s": NOW - 900, "eligible_s": NOW - 900, "reason": "PartitionDown"}
    waits = job(declaration=ALL, partitions=("v100", "p100", "k80"), **old)
    shown = replace(observation([waits]), partitions=closed("k80"), age=ENFORCED)
    assert hinted(decide(shown, {}, config())) == {}


def test_a_partition_that_the_site_removes_leaves_the_list_of_a_job_that_has_waited_long():
    waits = job(
        declaration=replace(ALL, partitions=("gpu",)),
        partitions=("v100", "p100", "k80"),
        reason="PartitionInactive",
        submit_s=NOW - 900,
        eligible_s=NOW - 900,
    )
    shown = replace(observation([waits]), partitions=closed("k80"), age=ENFORCED)
    assert hinted(decide(shown, {}, SITE)) == {}
    without = config('[partitions.groups]\ngpu = ["v100", "p100"]\n')
    assert hinted(decide(shown, {}, without))["1"] == {"Partition": "v100,p100"}


ENFORCED = AgePriority(weight=10_000, most_s=10_000.0, is_forgotten=True)
"""A point for each second: a site that enforces limits."""
FREE = AgePriority(weight=10_000, most_s=10_000.0, period_s=300.0)
"""The same without limits."""


@pytest.mark.parametrize(
    ("age", "waited_s", "other", "sent"),
    [
        (ENFORCED, 0.5, 1000, True),
        (ENFORCED, 60, 1, False),
        (ENFORCED, 60, 1001, False),
        (ENFORCED, 600, 1, False),
        (AgePriority(1000, 604_800.0, is_forgotten=True), 60, 1000, True),
        (FREE, 600, 1000, True),
        (FREE, 600, 1001, False),
        (FREE, 600, 1300, False),
        (FREE, 600, 1301, True),
        (FREE, 60, 1100, True),
        (AgePriority(), 600, 1000, True),
    ],
)
def test_no_order_changes_places(age, waited_s, other, sent):
    """Slurm computes the priority at an update of the partitions: without the age, or with more of
    it than others have."""
    times = {"submit_s": NOW - waited_s, "eligible_s": NOW - waited_s}
    one = job(declaration=ALL, partitions=("k80", "v100"), priority=1000, **times)
    neighbour = ordinary("2", partitions=("v100",), priority=other, reason="Resources")
    shown = replace(observation([one, neighbour]), age=age)
    assert hinted(decide(shown, {}, SITE)).get("1", {}) == (
        {"Partition": "v100,k80"} if sent else {}
    )
    # One that makes the job wait is widened all the same.
    narrow = record({"Partition": "v100,p100,k80"}, {"Partition": "v100"}, until=NOW - 1)
    short = job(declaration=ALL, partitions=("v100",), admin_comment=narrow, **times)
    shown = replace(observation([short, neighbour]), age=age)
    assert "k80" in hinted(decide(shown, {}, SITE))["1"]["Partition"]


def test_an_age_that_an_update_took_is_counted_again():
    times = {"submit_s": NOW - 600, "eligible_s": NOW - 600}
    narrow = record({"Partition": "v100,p100,k80"}, {"Partition": "v100"}, until=NOW - 1)
    short = job(declaration=ALL, partitions=("v100",), admin_comment=narrow, **times)
    (action,) = decide(replace(observation([short]), age=ENFORCED), {}, SITE).of(Kind.HINT)
    names = action.fields["Partition"]

    def later(waited_s, ours=action.steering):
        text = merge("", ours)
        wide = replace(short, partitions=tuple(names.split(",")), admin_comment=text)
        shown = observation([wide])
        after = replace(shown, age=ENFORCED, now=NOW + waited_s)
        return decide(after, {}, SITE).of(Kind.HINT)

    # Slurm has to find the time again in a scheduling pass.
    assert later(5) == []
    (again,) = later(20)
    assert again.fields == {"Partition": names}
    assert "count its age again" in again.reason
    assert later(40, again.steering) == []
    # Nothing to count where no limit is enforced.
    (action,) = decide(observation([short]), {}, SITE).of(Kind.HINT)
    assert later(20, action.steering) == []


@pytest.mark.parametrize("submitted", [("v100", "p100", "k80"), ("gpu",)])
def test_a_time_limit_that_seems_too_short_takes_no_type_out_of_the_list(submitted):
    """On k80 it would take 1.6 times as long as its limit; plain Slurm would start it there."""
    short = replace(ALL, batch=(64, 64), samples=70_000)
    listed = job(declaration=short, partitions=submitted, time_limit_s=900.0)
    shown = observation([listed])
    rows = look(shown, SITE).view.jobs
    kinds = look(shown, SITE).view.types
    assert rows.rate[0, kinds.index("k80"), 0] == 0 < rows.rate[0, kinds.index("v100"), 0]
    names = hint(listed).get("Partition", ",".join(submitted)).split(",")
    assert names == ["v100", "p100", "k80"]


def test_a_list_stays_while_a_limit_keeps_its_job_waiting():
    """An update would take its age, and its place from it."""
    ordered = record({"Partition": "k80,v100"}, {"Partition": "v100,k80"})
    times = {"submit_s": NOW - 600, "eligible_s": NOW - 600}
    one = job(declaration=ALL, partitions=("v100", "k80"), admin_comment=ordered, **times)
    at_limit = replace(one, reason="QOSMaxGRESPerUser")
    assert hinted(decide(replace(observation([at_limit]), age=ENFORCED), {}, SITE)) == {}
    free = hinted(decide(observation([at_limit]), {}, SITE))
    assert free == {"1": {"Partition": "k80,v100"}}


def test_no_type_is_taken_out_of_the_list_that_the_job_was_submitted_with():
    """By hbatch's table it was not far slower there; Slurm may be about to start it there."""
    listed = job(declaration=ANY, partitions=("k80", "p100", "v100"))
    assert hint(listed)["Partition"].split(",") == ["v100", "p100", "k80"]
    without = job(declaration=ANY, partitions=("p100", "v100"))
    assert hint(without)["Partition"].split(",") == ["v100", "p100"]


LISTED = replace(ANY, batch=(64, 64), partitions=("gpu",), listed=("v100", "p100"))
"""Of hbatch, which left k80 out by its table."""


def measured(monkeypatch, *rates, uid=1000):
    """Its owner, or another user, ran the model at these speeds, type -> samples/s."""
    known = open_rates(CONFIG)
    monkeypatch.setattr(hand_made, "RATES", known)
    for kind, rate in rates:
        assert known.record(RateSample("resnet50", kind, 1, 64, rate, 600.0, uid=uid))


def test_a_type_that_a_table_left_out_comes_back_by_measured_speeds(monkeypatch):
    waits = job(declaration=LISTED, partitions=("v100", "p100"))
    assert hint(waits) == {}
    measured(monkeypatch, ("v100", 635.0), ("k80", 637.0))
    shown = observation([waits])
    sent = decide(shown, {}, SITE)
    (action,) = sent.of(Kind.HINT)
    assert set(action.fields["Partition"].split(",")) == {"v100", "p100", "k80"}
    assert "measured speeds" in action.reason
    # It is as if it had been submitted so: what is measured later takes no type out again.
    measured(monkeypatch, ("v100", 635.0), ("k80", 6.0))
    later = after(shown, sent)
    names = hinted(decide(later, {}, SITE)).get("1", action.fields)["Partition"]
    assert set(names.split(",")) == {"v100", "p100", "k80"}
    assert set(look(later, SITE).schedulable["1"].request.partitions) == {"v100", "p100", "k80"}


def test_a_type_that_others_measured_or_that_is_slow_stays_out(monkeypatch):
    waits = job(declaration=LISTED, partitions=("v100", "p100"))
    measured(monkeypatch, ("v100", 635.0), ("k80", 637.0), uid=2001)
    assert hint(waits) == {}
    measured(monkeypatch, ("v100", 635.0), ("k80", 635.0 / 4.1))
    assert "k80" not in hint(waits).get("Partition", "")
    measured(monkeypatch, ("v100", 635.0), ("k80", 635.0 / 3.9))
    assert "k80" in hint(waits)["Partition"]


@pytest.mark.parametrize(
    "more",
    [
        {"partitions": ("v100",)},
        {"declaration": replace(LISTED, types=("v100", "p100"))},
        {"declaration": replace(LISTED, partitions=("v100", "p100"))},
        {"declaration": replace(LISTED, gpu_mem=16 * 1024)},
        {"declaration": replace(LISTED, listed=())},
        {"features": "v100|p100", "declaration": replace(LISTED, constraint="v100|p100")},
        {"admin_comment": record({}, foreign=("Partition",))},
    ],
)
def test_no_type_comes_back_that_its_owner_left_out(monkeypatch, more):
    """A list of v100 alone is not the one that hbatch recorded."""
    measured(monkeypatch, ("v100", 635.0), ("p100", 635.0), ("k80", 637.0))
    waits = job(**{"declaration": LISTED, "partitions": ("v100", "p100"), **more})
    assert set(hint(waits).get("Partition", "v100").split(",")) <= {*waits.partitions}


def test_a_type_comes_back_where_an_update_costs_places_only_while_it_is_free(monkeypatch):
    measured(monkeypatch, ("v100", 635.0), ("k80", 637.0))
    times = {"submit_s": NOW - 600, "eligible_s": NOW - 600}
    waits = job(declaration=LISTED, partitions=("v100", "p100"), **times)

    def sent(found):
        return hinted(decide(replace(observation([waits], found), age=ENFORCED), {}, SITE))

    assert "k80" in sent(nodes())["1"]["Partition"]
    assert sent(nodes(k1=2, k2=2)) == {}


@pytest.mark.parametrize("model", ["resnet50", "of-my-own"])
def test_what_strangers_report_keeps_no_type_out_of_the_list(monkeypatch, model):
    rates = open_rates(CONFIG)
    monkeypatch.setattr(hand_made, "RATES", rates)
    mine = job(declaration=replace(ANY, model=model))
    before = set(hint(mine)["Partition"].split(","))
    for uid in (2001, 2002, 2003):
        for kind, rate in (("v100", 1e-6), ("k80", 1e5)):
            assert rates.record(RateSample(model, kind, 1, 64, rate, 600.0, uid=uid))
    assert set(hint(mine)["Partition"].split(",")) == before
    for kind, rate in (("v100", 1e-6), ("k80", 100.0)):
        assert rates.record(RateSample(model, kind, 1, 64, rate, 600.0, uid=mine.uid))
    assert "v100" not in hint(mine)["Partition"].split(",")


def test_a_guess_keeps_no_type_out_of_the_list(monkeypatch):
    """Its owner measured one type; what the others would give is estimated from that."""
    rates = open_rates(CONFIG)
    monkeypatch.setattr(hand_made, "RATES", rates)
    mine = job(declaration=replace(ANY, model="of-my-own"))
    assert rates.record(RateSample("of-my-own", "k80", 1, 64, 1e-3, 600.0, uid=mine.uid))
    assert rates.record(RateSample("of-my-own", "p100", 1, 64, 1e3, 600.0, uid=mine.uid))
    assert set(hint(mine)["Partition"].split(",")) == {"p100", "v100"}


def test_only_the_types_that_its_owner_declared_are_in_the_list():
    some = replace(ANY, types=("k80", "p100"))
    assert hint(job(declaration=some)) == {"Partition": "p100,k80"}


SMALL, LARGE = {"cpus": 16, "memory_mb": 64_000}, {"cpus": 32, "memory_mb": 256_000}
TYPED = ("k80", "p100", "v100")


def unequal(**more):
    """K80s have larger nodes than the faster GPUs."""
    sizes = {"v": (2, SMALL), "p": (2, SMALL), "k": (4, LARGE)}
    return [
        replace(hand_made.node(name, sizes[name[0]][0], **sizes[name[0]][1]), **more.get(name, {}))
        for name in ("v1", "p1", "k1")
    ]


def four(count=4):
    return {"request": GpuRequest(per_node={UNTYPED: count})}


@pytest.mark.parametrize(
    "more",
    [
        four(),
        {"cpus": 24},
        {"least_cpus": 24},
        {"mem_per_node_mb": 128_000},
        {"mem_per_cpu_mb": 16_000, "cpus": 8},
        {"excluded_nodes": ("v1", "p1")},
        # Whether it fits is not known.
        {"odd": True},
        {"per_gpu": True},
    ],
)
@pytest.mark.parametrize("asked", [("gpu",), TYPED])
def test_a_slow_type_is_left_out_only_where_the_job_fits_one_that_is_kept(asked, more):
    """Slurm refuses a list in which it fits nowhere, or lets it wait for ever."""
    listed = hint(job(declaration=ANY, partitions=asked), found=unequal())["Partition"].split(",")
    # A list that its owner, or hbatch, wrote keeps all that it names.
    assert {*listed} == ({*TYPED} if asked == TYPED else {"v100", "p100"})
    sent = hint(job(declaration=ANY, partitions=asked, **more), found=unequal())
    if more.keys() & {"odd", "per_gpu"}:
        assert {*sent["Partition"].split(",")} == {*TYPED}
    else:
        # Slurm holds some jobs whose list is changed to one with a partition that cannot have them.
        assert sent == {}


@pytest.mark.parametrize(
    "closed", [{"usable": False}, {"features": ("other",)}, {"gpus": {"v100": 1}}]
)
def test_only_nodes_count_that_it_may_use(closed):
    own = "v100|p100|k80"
    one = job(declaration=replace(ANY, constraint=own), features=own, **four(2))
    assert {*hint(one, found=unequal())["Partition"].split(",")} == {"v100", "p100"}
    few = {key: {kind: 1} for key, kind in (("v1", "v100"), ("p1", "p100"))}
    shut = {name: {**closed, "gpus": few[name]} if "gpus" in closed else closed for name in few}
    assert "k80" in hint(one, found=unequal(**shut)).get("Partition", "k80").split(",")


def test_a_time_limit_that_is_short_leaves_out_no_type_on_which_alone_it_fits():
    """By plain Slurm it would run there, as far as its limit lets it."""
    long = replace(ANY, batch=(64, 64), samples=10**6)
    one = {"declaration": long, "partitions": ("gpu",), "time_limit_s": 3600.0}
    fits = hint(job(**one), found=unequal())["Partition"].split(",")
    assert "k80" not in fits, "it would be too slow there"
    assert hint(job(**one, **four()), found=unequal()) == {}
    drained = unequal(v1={"usable": False}, p1={"usable": False})
    assert "k80" in hint(job(**one), found=drained).get("Partition", "k80").split(",")


@pytest.mark.parametrize("list_", [("v100",), ("v100", "p100")])
def test_a_list_of_ours_in_which_it_fits_no_more_is_taken_back(list_):
    done = record({"Partition": "gpu"}, {"Partition": ",".join(list_)})
    one = job(declaration=ALL, partitions=list_, admin_comment=done)
    unfit = {"excluded_nodes": ("p1",)}
    assert set(hint(one, found=unequal())["Partition"].split(",")) == {*TYPED}
    assert hint(replace(one, **unfit), found=unequal()) == {"Partition": "gpu"}


def test_a_list_of_hbatchs_in_which_it_fits_no_more_is_its_owners_partition_again():
    by_hbatch = replace(ALL, partitions=("gpu",))
    made = job(declaration=by_hbatch, partitions=TYPED, excluded_nodes=("p1",))
    assert hint(made, found=unequal()) == {"Partition": "gpu"}


def test_nodes_that_may_not_be_used_now_are_no_reason_to_leave_a_job_unsteered():
    drained = unequal(v1={"usable": False}, p1={"usable": False})
    assert {*hint(job(declaration=ANY), found=drained)["Partition"].split(",")} == {*TYPED}


@pytest.mark.parametrize("reason", ["PartitionConfig", "BadConstraints"])
def test_a_job_that_fits_nowhere_in_its_list_has_its_owners_at_the_next_tick(reason):
    done = record({"Partition": "gpu"}, {"Partition": "v100,p100"})
    one = job(declaration=ANY, partitions=("v100", "p100"), admin_comment=done, reason=reason)
    refused = {"1": Refusals(3, NOW - 1)}
    assert hint(one, refused=refused) == {"Partition": "gpu"}
    back = replace(one, partitions=("gpu",))
    assert hint(back, refused=refused) == {}, "nothing more is sent to it"


SOME = replace(ALL, types=("v100", "p100"))


def test_types_that_only_a_list_said_are_features_once_it_is_taken_back():
    """Else Slurm would start it on a type that its owner excluded."""
    some = replace(SOME, partitions=("gpu",))
    first = replace(
        observation([job(declaration=some, partitions=("v100", "p100"))]), queue_depth=0
    )
    done = decide(first, {}, SITE)
    assert hinted(done)["1"] == {"Partition": "gpu", "Features": "v100|p100"}
    second = replace(after(first, done), queue_depth=0)
    assert decide(second, {}, SITE).actions == ()
    third = decide(replace(second, queue_depth=100), {}, SITE)
    assert hinted(third)["1"] == {"Partition": "v100,p100"}


def test_nothing_but_the_partitions_of_a_waiting_job_is_ever_changed():
    elastic = job(declaration=replace(ALL, gpus=(1, 2)))
    assert hint(job(declaration=replace(ALL, fork=(1, 2))), {"1": {"v100": 2}}) == {}
    assert set(hint(elastic, {"1": {"v100": 2}})) == {"Partition"}


@pytest.mark.parametrize(
    "one",
    [
        job(partitions=("v100",)),
        job(request=GpuRequest(per_node={"v100": 1, "k80": 1})),
        job(declaration=Declaration(off=True)),
        job(required_nodes=("v1",)),
        job(held=True, priority=0),
        job(reason="Dependency", dependency="afterok:3"),
        job(eligible_s=NOW + 100, reason="BeginTime"),
        ordinary("1"),
    ],
)
def test_what_cannot_be_ordered_is_left_as_it_is(one):
    assert hint(one, {"1": {"v100": 1}}) == {}


def test_a_site_with_one_partition_for_all_types_gets_no_hints():
    assert hint(job(declaration=ALL), {"1": {"k80": 1}}, CONFIG) == {}


def test_a_second_look_sends_nothing():
    first = observation([job(declaration=ALL), job("2", declaration=ANY)])
    done = decide(first, {"1": {"k80": 1}}, SITE)
    assert len(done.of(Kind.HINT)) == 2
    assert decide(after(first, done), {"1": {"k80": 1}}, SITE).actions == ()


def shallow(jobs, depth=14):
    """Where Slurm looks at so few jobs that lists may name 7 partitions, in a burst 10."""
    return replace(observation(jobs), queue_depth=depth)


def test_how_many_partitions_lists_may_name_goes_by_what_slurm_looks_at():
    many = [job(str(n), declaration=ALL, priority=1000 - n) for n in range(1, 101)]
    for depth, lists in ((100, 16), (20, 3), (5, 0), (1000, 66)):
        assert len(hinted(decide(shallow(many, depth), {}, SITE))) == lists
    numbers = [
        (queue_head.most_records(n), queue_head.records_with_lists(n)) for n in (100, 20, 10**6)
    ]
    assert numbers == [(50, 75), (10, 15), (200, 300)]


def test_lists_are_for_the_head_of_the_queue():
    many = [job(str(n), declaration=ALL, priority=1000 - n) for n in range(1, 6)]
    assert set(hinted(decide(shallow(many), {}, SITE))) == {"1", "2"}
    lists = [replace(one, partitions=("v100", "p100", "k80")) for one in many]
    assert has_capacity(shallow([*lists[:2], *many[2:]])) and not has_capacity(shallow(lists[:3]))
    # Slurm does not look at these.
    for away in ({"held": True, "priority": 0}, {"eligible_s": NOW + 60}, {"reason": "Dependency"}):
        assert has_capacity(shallow([*lists[:2], replace(lists[2], **away)]))
    # One that sank a little keeps the list that it has: nothing is sent for it.
    sunk = replace(
        lists[4],
        admin_comment=record({"Partition": "gpu"}, {"Partition": "v100,p100,k80"}),
    )
    assert "5" not in hinted(decide(shallow([*many[:4], sunk]), {}, SITE))


def test_lists_deep_in_the_queue_are_taken_back(monkeypatch):
    """As after a burst of submissions between two ticks: hbatch gave each of them its list."""
    said = replace(ALL, partitions=("gpu",))
    names = ("v100", "p100", "k80")
    many = [job(str(n), declaration=said, partitions=names, priority=1000 - n) for n in range(1, 8)]
    first = shallow(many)
    done = decide(first, {}, SITE)
    assert hinted(done) == {str(n): {"Partition": "gpu"} for n in range(4, 8)}
    assert all(not action.steering.was for action in done.actions), "it is its owner's again"
    assert "near" in done.actions[0].reason
    assert decide(replace(after(first, done), queue_depth=14), {}, SITE).actions == ()
    monkeypatch.setattr(queue_head, "MOST_TAKEN_BACK", 2)
    assert set(hinted(decide(first, {}, SITE))) == {"4", "5"}


def test_a_list_of_its_owner_is_never_taken_back():
    names = ("v100", "p100", "k80")
    by_hand = job(declaration=ALL, partitions=names)
    typed = job("2", declaration=replace(ALL, partitions=names), partitions=names)
    later = job("3", declaration=replace(ALL, partitions=("open",)), partitions=names)
    assert hinted(decide(shallow([by_hand, typed, later], 0), {}, SITE)) == {}


# -- whose a field is ------------------------------------------------------------------------


def test_what_we_changed_is_taken_back_where_slurm_keeps_the_job_waiting():
    was, wrote = {"Partition": "gpu"}, {"Partition": "v100,p100"}
    stuck = job(
        declaration=ANY,
        partitions=("v100", "p100"),
        reason="Licenses",
        admin_comment=record(was, wrote),
    )
    shown = observation([stuck])
    action = only(decide(shown, {}, SITE), Kind.HINT)
    assert action.fields == was
    then = replace(carried_out(stuck, action), reason="Licenses")
    assert decode(then.admin_comment).was == {}
    assert decide(observation([then]), {}, SITE).actions == ()


def test_what_a_move_left_behind_is_taken_back_when_the_job_does_not_start():
    was = {"Features": "a|b", "Partition": "gpu", "TresPerNode": "gpu:1"}
    ours = Steering(gpus={"k80": 2}, time=NOW - 900, was=was)
    late = job(
        features="(a|b)&k80",
        partitions=("k80",),
        request=GpuRequest(per_node={UNTYPED: 2}),
        reason="Resources",
        restarts=1,
        admin_comment=merge("", ours),
    )
    assert hint(late, site=CONFIG) == was
    # As long as it is on its way nothing is sent.
    on_its_way = replace(late, admin_comment=merge("", replace(ours, time=NOW - 5)))
    assert decide(observation([on_its_way]), {}).actions == ()


def operators():
    return config('[site]\nrights = "operator"\n[partitions.groups]\ngpu = ["v100", "k80"]\n')


def test_a_list_that_slurm_cut_at_the_submit_is_not_its_owners():
    """It takes a job of several partitions without those that are DRAIN, and says nothing."""
    listed = ("k80", "v100", "p100")
    declared = Declaration(types=("any",), partitions=("gpu",), listed=listed)
    cut = {"1": job(partitions=listed[1:], declaration=declared)}
    found = steering_store.cut_lists({}, cut, ("k80",))
    assert found["1"].was == {"Partition": "gpu"}
    assert steering_store.without_foreign(found, cut, operators(), (), NOW) == found
    # The partition is up again: the list is still the one that was kept.
    assert not steering_store.cut_lists(found, cut, ())
    # With the partition up, or in another order, or with one more: it is its owner's.
    for partitions, closed in (
        (listed[1:], ()),
        (("p100", "v100"), ("k80",)),
        (("v100",), ("k80",)),
    ):
        other = {"1": job(partitions=partitions, declaration=declared)}
        assert not steering_store.cut_lists({}, other, closed)
        found = steering_store.without_foreign({}, other, operators(), (), NOW)
        assert found["1"].foreign == ("Partition",)


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("typed", ["gpu", "k80,v100"])
def test_a_list_that_slurm_cut_at_our_update_is_not_its_owners(sure, typed):
    """As where one was set to DRAIN while the job was moved there."""
    listed = {"Partition": "v100,k80"}
    steered = Steering(time=NOW - 5, was={"Partition": typed})
    known = {"1": replace(steered, wrote=listed) if sure else replace(steered, unsure=listed)}
    cut = {"1": job(partitions=("k80",), restarts=1)}
    found = steering_store.cut_lists(known, cut, ("v100",))
    assert found["1"].was == {"Partition": typed}
    assert steering_store.without_foreign(found, cut, operators(), (), NOW) == found
    # The partition is up again: the list is still the one that was kept.
    assert not steering_store.cut_lists(found, cut, ())
    # With the partition up, or none left out, or another one there: as it is.
    for partitions, closed in ((("k80",), ()), (("v100", "k80"), ("v100",)), (("p",), ("v100",))):
        other = {"1": job(partitions=partitions, restarts=1)}
        assert not steering_store.cut_lists(known, other, closed)
    # Of a list that stood for a while the owner took it.
    assert not steering_store.cut_lists(known, cut, ("v100",), NOW - 4)


def test_a_field_that_somebody_else_changed_is_his():
    known = {"1": Steering(time=NOW - 60, was={"Partition": "gpu"}, wrote={"Partition": "a,b"})}
    for partitions in (("b", "a"), ("gpu",), ("c",)):
        found = steering_store.without_foreign(
            known, {"1": job(partitions=partitions)}, operators(), set(), NOW
        )
        assert found["1"].foreign == ("Partition",) and not found["1"].was
    ours = {"1": job(partitions=("a", "b"))}
    assert steering_store.without_foreign(known, ours, operators(), set(), NOW) == known
    # Slurm itself puts the one first in which a job ran, and an update may be on its way.
    requeued = {"1": job(partitions=("b", "a"), restarts=1)}
    assert steering_store.without_foreign(known, requeued, operators(), set(), NOW) == known
    assert steering_store.without_foreign(known, {"1": job()}, operators(), {"1"}, NOW) == known


@pytest.mark.parametrize(
    ("partitions", "again"), [(("v100", "k80"), True), (("k80", "v100"), False), (("k80",), False)]
)
def test_a_list_that_the_owner_opens_to_the_declared_types_is_ordered_again(partitions, again):
    """As hadar set writes and records it; each other list stays as it is."""
    known = Steering(
        time=NOW - 60,
        was={"Partition": "p100"},
        wrote={"Partition": "gpu"},
        until=NOW + 9,
        ends=9.0,
    )
    declared = Declaration(types=("any",), partitions=("gpu",), listed=("v100", "k80"))
    one = job(partitions=partitions, declaration=declared)
    (found,) = steering_store.without_foreign(
        {"1": known}, {"1": one}, operators(), set(), NOW
    ).values()
    assert not found.was and not found.wrote
    assert (found.foreign, found.until) == (((), 0.0) if again else (("Partition",), NOW + 9))


def test_a_foreign_field_is_neither_changed_nor_put_back():
    his = job(
        declaration=ALL,
        partitions=("k80", "v100"),
        admin_comment=record({}, foreign=("Partition",)),
    )
    assert hint(his, {"1": {"v100": 1}}) == {}
    # His list may name another type first, so a move would only restart it where it is.
    here = running("1", {"k1": {"k80": 1}}, admin_comment=his.admin_comment)
    assert decide(observation([here]), {"1": {"v100": 1}}, SITE).actions == ()


def test_the_nice_of_a_move_goes_when_the_job_runs_and_not_before():
    ours = record({"Nice": "5", "Features": ""}, {"Nice": "-900", "Features": "k80"})
    here = running("1", {"k1": {"k80": 1}}, nice=-900, admin_comment=ours)
    action = only(decide(observation([here]), {"1": {"k80": 1}}), Kind.HINT)
    assert action.fields == {"Nice": "5"}
    assert action.steering.was == {"Features": ""}
    his = replace(here, nice=7)
    assert decide(observation([his]), {"1": {"k80": 1}}).actions == ()
    # It waits still, and others start before it otherwise.
    moved = record({"Nice": "5", "Features": ""}, {"Nice": "-900", "Features": "k80"}, moves=1)
    waits = job("1", nice=-900, features="k80", restarts=1, admin_comment=moved)
    assert "Nice" not in hint(waits, site=CONFIG)


def test_the_mails_that_a_move_switched_off_are_on_again_when_the_job_runs():
    ours = record({"MailType": "BEGIN,END", "Features": ""}, {"MailType": "END", "Features": "k80"})
    here = running("1", {"k1": {"k80": 1}}, admin_comment=ours)
    action = only(decide(observation([here]), {"1": {"k80": 1}}), Kind.HINT)
    assert action.fields == {"MailType": "BEGIN,END"} and action.steering.was == {"Features": ""}
    # The next move does not restore them either, nor does what is sent while it waits.
    (move,) = decide(observation([here]), {"1": {"v100": 1}}).of(Kind.MOVE)
    assert "MailType" not in move.fields
    waits = job("1", features="k80", restarts=1, admin_comment=ours)
    assert "MailType" not in hint(waits, site=CONFIG)


# -- refusals --------------------------------------------------------------------------------


def test_a_refused_hint_is_tried_again_less_and_less_often():
    def sent(number, ago_s):
        refused = {"1": Refusals(number, NOW - ago_s)}
        return bool(hint(job(declaration=ALL), refused=refused))

    assert sent(1, 61) and not sent(1, 59)
    assert sent(3, 241) and not sent(3, 239)
    assert sent(99, 86_401) and not sent(99, 86_399)


# -- begin times of earlier releases ---------------------------------------------------------

LEASED = replace(ANY, lease=True)


@pytest.mark.parametrize("site", [CONFIG, SITE])
def test_a_lease_of_an_earlier_release_ends_at_once(site):
    old = job(declaration=LEASED, eligible_s=NOW + 250, reason="BeginTime")
    renewed = job("2", eligible_s=NOW + 250, reason="BeginTime", submit_s=NOW - 9000,
                  admin_comment="[hadarplan;t=999990;lease=1]")  # fmt: skip
    for one in (old, renewed, replace(old, reason="JobArrayTaskLimit")):
        action = only(decide(observation([one]), {}, site), Kind.HINT)
        assert action.fields["StartTime"] == "now" and not action.steering.leased
        then = decide(observation([carried_out(one, action)]), {}, site).actions
        assert not any("StartTime" in later.fields for later in then)


def test_a_begin_time_of_the_owner_stands():
    his = job(declaration=ANY, eligible_s=NOW + 100, reason="BeginTime")
    later = job("2", declaration=LEASED, eligible_s=NOW + 86_400, reason="BeginTime")
    released = job("3", declaration=LEASED, eligible_s=NOW + 100, reason="BeginTime",
                   admin_comment=record({}))  # fmt: skip
    held = job("4", declaration=LEASED, eligible_s=NOW + 100, held=True, priority=0)
    assert decide(observation([his, later, released, held]), {}, SITE).actions == ()


# -- it comes to rest ------------------------------------------------------------------------

JOBS = st.lists(
    st.builds(
        lambda lease, typed, types, counts, count, priority, part, constraint, reason: {
            "declaration": Declaration(
                types=types, lease=lease, gpus=(1, 2) if counts else None, checkpoint="yes"
            ),
            "request": GpuRequest(per_node={"v100" if typed else UNTYPED: count}),
            "eligible_s": NOW + 200 if lease else NOW - 5,
            "reason": "BeginTime" if lease else reason,
            "priority": priority,
            "partitions": part,
            "features": constraint,
        },
        lease=st.booleans(),
        typed=st.booleans(),
        types=st.sampled_from([("any",), ("k80", "p100"), ()]),
        counts=st.booleans(),
        count=st.integers(1, 2),
        priority=st.integers(1, 5000),
        part=st.sampled_from([("gpu",), ("v100",), ("gpu", "k80"), ("k80", "p100")]),
        constraint=st.sampled_from(["", "", "v100|k80", "p100"]),
        reason=st.sampled_from(["Priority", "Resources", "Dependency", "QOSGrpGRES"]),
    ),
    max_size=8,
)
USED = st.fixed_dictionaries({name: st.integers(0, 2) for name in ("v1", "v2", "p1", "k1", "k2")})


@pytest.mark.parametrize("site", [CONFIG, SITE], ids=["one partition", "one per type"])
@settings(max_examples=50, deadline=None)
@given(JOBS, USED)
def test_a_second_tick_sends_nothing(site, described, used):
    first = observation([job(str(n), **more) for n, more in enumerate(described, 1)], nodes(**used))
    done = decide(first, site=site)
    assert all(set(a.fields) <= {"Partition", "StartTime", "Features"} for a in done.actions)
    shown = {id_: replace(one, reason=first.jobs[id_].reason) if one.reason == "None" else one
             for id_, one in after(first, done).jobs.items()}  # fmt: skip
    second = observation(list(shown.values()), list(first.nodes.values()), now=NOW + 1)
    third = after(second, decide(second, site=site))
    assert [(a.kind, a.job.id, dict(a.fields)) for a in decide(third, site=site).actions] == []
