"""What a tick sees of jobs."""

from dataclasses import replace

import pytest
from hand_made import (
    CONFIG,
    NOW,
    as_cluster,
    config,
    job,
    node,
    nodes,
    observation,
    ordinary,
    request_of,
    running,
)
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.observation.observed import (
    _left_alone,
    may_come_from_opt_in,
    opted_in,
    read,
    remember,
)
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.controller.snapshot.pending_demand import (
    competes_for_gpus,
    free_now,
    pending_demand,
    rank,
    unmanaged_jobs,
)
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import JustStartedError, SlurmError
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.steering import Steering, merge

OPT_IN = config('[wrapper]\ndefault_types = "v100,k80"\n').model_copy(
    update={"partitions": config().partitions.model_copy(update={"opt_in": ("gpu",)})}
)


def test_a_partition_opts_jobs_in_that_say_nothing_themselves():
    silent = opted_in(ordinary(), OPT_IN, ("gpu",))
    assert silent.managed and silent.declaration.types == ("v100", "k80")
    assert not silent.declaration.checkpoint
    assert not opted_in(ordinary(partitions=("v100",)), OPT_IN, ("v100",)).managed
    off = job(declaration=Declaration(off=True))
    assert opted_in(off, OPT_IN, off.partitions) is off
    broken = ordinary(declaration_error="unknown key")
    assert not opted_in(broken, OPT_IN, broken.partitions).managed
    assert not opted_in(replace(ordinary(), state=JobState.FINISHED), OPT_IN, ("gpu",)).managed


def test_the_constraint_of_a_job_that_its_partition_opts_in_is_its_owners():
    """Neither hbatch nor a plugin wrote it for the site's default types."""
    silent = opted_in(ordinary(features="ssd"), OPT_IN, ("gpu",))
    want = request_of(silent, Steering())
    assert want.types == ("v100", "k80") and want.constraint == "ssd"
    on_k80 = Placement({"k80": 1}, {"k1": {"k80": 1}})
    sent = job_updates.fields(SchedulableJob(silent, want), on_k80, observation([silent]), OPT_IN)
    assert "ssd" in sent["Features"] and "k80" in sent["Features"]
    # As it was before an earlier placement, not as that left it.
    ours = Steering(was={"Features": "ssd"})
    moved = replace(silent, features="ssd&k80")
    assert request_of(moved, ours).constraint == "ssd"


def test_a_job_of_another_user_is_nobody_of_ours_in_per_user_mode():
    left = _left_alone(job(), "another user's job")
    assert not left.managed and left.declaration_error == "another user's job"


def test_what_we_did_is_read_from_managed_jobs_only():
    ours = merge("note", Steering({"k80": 1}, time=NOW))
    jobs = {
        "1": job("1", admin_comment=ours),
        "2": ordinary("2", admin_comment=ours),
        "3": job("3", admin_comment="note"),
        "4": job("4", admin_comment="[hadarplan;on=k80:x]"),
    }
    assert list(remember(jobs)) == ["1"]


# -- claims ------------------------------------------------------------------------------------


def test_claims_are_taken_in_slurms_order():
    jobs = [ordinary(str(n), priority=p) for n, p in enumerate((5, 9, 7))]
    shown = observation(jobs)
    assert [j.priority for j in unmanaged_jobs(shown, [])] == [9, 7, 5]
    assert [j.id for j in unmanaged_jobs(shown, ["1"])] == ["2", "0"]
    assert rank(jobs[0], shown) == (1, 5)


@pytest.mark.parametrize(
    ("reason", "claims_gpus"),
    [
        ("Priority", True),
        ("No_suitable_topology_unit_found", True),
        ("SomethingNewIn27.05", True),
        ("Dependency", False),
        ("JobHeldUser", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("ReqNodeNotAvail,_UnavailableNodes:k1", False),
    ],
)
def test_a_reason_that_is_not_known_is_taken_for_may_start_soon(reason, claims_gpus):
    assert bool(unmanaged_jobs(observation([ordinary("1", reason=reason)]), [])) is claims_gpus


@pytest.mark.parametrize(
    "reason",
    [
        *("PartitionInactive", "PartitionDown", "ReqNodeNotAvail, Reserved for maintenance"),
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher "
        "priority partitions",
    ],
)
def test_the_reason_of_one_partition_of_a_list_does_not_stand_for_the_others(reason):
    """Slurm shows the reason of one; the job may start in the other."""
    nodes = [node("k1", partitions=("k80",), usable=False), node("v1", partitions=("v100",))]

    def competes(*names, state="UP", **more):
        there = {
            "k80": Partition(
                "k80", ("k1",), state="DOWN" if reason.startswith("Partition") else "UP"
            ),
            "v100": Partition("v100", ("v1",), state=state),
        }
        waits = ordinary("1", partitions=names, reason=reason, **more)
        shown = replace(observation([waits], nodes), partitions=there)
        assert bool(unmanaged_jobs(shown, [])) is competes_for_gpus(waits, shown)
        return competes_for_gpus(waits, shown)

    assert competes("v100", "k80")
    assert not competes("k80")
    # Slurm may mean that it keeps the nodes for a job ahead.
    behind = reason.endswith("priority partitions")
    assert behind or not competes("v100", "k80", state="DOWN")
    assert behind or not competes("v100", "k80", node_count=2)
    assert not competes("v100", "k80", required_nodes=("k1",))


def test_a_job_of_an_opt_in_partition_may_stand_in_those_that_we_gave_it():
    both = config('[partitions]\nopt_in = ["gpu"]\n[partitions.groups]\ngpu = ["v100", "k80"]\n')
    assert may_come_from_opt_in(ordinary(partitions=("k80", "v100")), both)
    assert not may_come_from_opt_in(ordinary(partitions=("k80", "p100")), both)
    assert not may_come_from_opt_in(ordinary(partitions=("k80",)), OPT_IN)
    assert not may_come_from_opt_in(job(partitions=("k80",)), both)


def test_a_claim_takes_whole_nodes_of_a_gang_or_nothing():
    found = [node("k1", gpus_used={"k80": 1}), node("k2")]
    gang = ordinary(request=GpuRequest(per_node={UNTYPED: 2}), node_count=2)
    free = free_now(observation([], found))
    assert pending_demand(gang, observation([], found), free) is None and free["k2"] == {"k80": 2}
    one = replace(gang, node_count=1)
    assert pending_demand(one, observation([], found), free).gpus == {"k2": {"k80": 2}}
    assert free == {"k1": {"k80": 1}, "k2": {"k80": 0}}


@given(
    st.lists(
        st.tuples(st.sampled_from([UNTYPED, "v100", "k80"]), st.integers(1, 5), st.integers(1, 3)),
        max_size=8,
    )
)
def test_claims_never_take_more_than_is_free(wishes):
    found = [node("v1", gpus=4), node("v2", gpus=3, gpus_used={"v100": 1}), node("k1", gpus=2)]
    shown = observation([], found)
    free, there = free_now(shown), free_now(shown)
    taken = 0
    for number, (kind, count, gang) in enumerate(wishes):
        rival = ordinary(str(number), request=GpuRequest(per_node={kind: count}), node_count=gang)
        got = pending_demand(rival, shown, free)
        if got is not None:
            assert len(got.gpus) == gang
            assert all(sum(row.values()) == count for row in got.gpus.values())
            taken += gang * count
    left = sum(sum(row.values()) for row in free.values())
    assert taken + left == sum(sum(row.values()) for row in there.values())
    assert all(n >= 0 for row in free.values() for n in row.values())


class Shown:
    """A cluster that shows these jobs and nodes."""

    def __init__(self, jobs, shown):
        self.read_jobs = lambda ids, most: jobs
        self.read_nodes = lambda: shown
        self.read_partitions = list
        self.read_reservations = list
        self.slurm_version = (24, 11, 5)


def test_a_job_on_a_node_that_is_not_shown_means_a_part_of_an_answer():
    here = running("1", {"k1": {"k80": 1}})
    assert read(as_cluster(Shown([here], nodes())), NOW, CONFIG, 0).jobs == {"1": here}
    rest = [one for one in nodes() if one.name != "k1"]
    with pytest.raises(SlurmError, match="job 1 on node k1"):
        read(as_cluster(Shown([here], rest)), NOW, CONFIG, 0)
    others = replace(here, declaration=None)
    assert read(as_cluster(Shown([others], rest)), NOW, CONFIG, 0).jobs == {"1": others}


@pytest.mark.parametrize(("unknown", "acts"), [(6, False), (4, False), (3, True), (0, True)])
def test_a_slurmctld_that_has_just_started_is_waited_for(unknown, acts):
    shown = [
        replace(one, state="UNKNOWN", usable=False) if number < unknown else one
        for number, one in enumerate(nodes())
    ]
    shown.append(replace(node("k9"), gpus={}, state="UNKNOWN"))
    if acts:
        assert len(read(as_cluster(Shown([job()], shown)), NOW, CONFIG, 0).nodes) == 7
        return
    with pytest.raises(JustStartedError, match="has just started") as said:
        read(as_cluster(Shown([job()], shown)), NOW, CONFIG, 0)
    assert said.value.retry


def test_free_gpus_are_computed_once_and_a_copy_leaves_them_alone():
    found = observation([], nodes(k1=2, k2=2))
    first = free_now(found)
    free, first["k1"]["k80"] = dict(first["k1"]), -1
    assert found.free_gpus is found.free_gpus
    assert free["k80"] >= 0 and free_now(found)["k1"] == free
    assert replace(found, nodes={}).free_gpus == {}
