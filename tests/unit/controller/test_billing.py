"""No job is billed more than its request could be, unless its owner says so."""

from dataclasses import replace

import pytest
from hand_made import config, job, look, node, nodes, observation, partitions_of, running
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.snapshot.billing import as_billed, note, weights
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.records import BillingRule

SITE = config()
RANGE = Declaration(
    model="resnet50", types=("v100",), gpus=(1, 4), batch=(64, 64), checkpoint="yes"
)
ONE = GpuRequest(per_job={UNTYPED: 1})


def priced(text, found=None):
    return [replace(one, billing=text) for one in partitions_of(found or nodes())]


def numbers(declared, billing, rule=BillingRule.SUM, **more):
    """GPU type -> the numbers of GPUs that the job may be given."""
    one = job("1", declaration=declared, request=ONE, **more)
    large = [node(name, gpus=4) for name in ("v1", "p1", "k1")]
    shown = replace(observation([one], large, priced(billing, large)), billing_rule=rule)
    view = look(shown, SITE).view
    return {
        kind: [n for n, rate in zip(view.counts, view.jobs.rate[0, row], strict=True) if rate > 0]
        for row, kind in enumerate(view.types)
    }


def test_more_gpus_that_train_less_each_would_cost_more():
    assert numbers(RANGE, "")["v100"] == [1, 2, 3, 4], "without prices, and the test can fail"
    assert numbers(RANGE, "GRES/gpu=1.0")["v100"] == [1]
    assert numbers(replace(RANGE, cost="any"), "GRES/gpu=1.0")["v100"] == [1, 2, 3, 4]


def test_what_its_request_could_cost_is_that_on_its_dearest_type():
    anywhere = replace(RANGE, types=("any",))
    found = numbers(anywhere, "GRES/gpu=1.0")
    # Four V100s are billed less than one K80 for the same work.
    assert found["v100"] == [1, 2, 3, 4] and found["k80"] == [1]
    dear = numbers(anywhere, "GRES/gpu:v100=9.0,GRES/gpu:k80=1.0,GRES/gpu:p100=1.0")
    assert dear["v100"] == [1] and len(dear["k80"]) > 1


def test_cpus_and_memory_are_billed_with_the_gpus():
    assert numbers(RANGE, "CPU=1.0", cpus=4)["v100"] == [1]
    assert numbers(RANGE, "Mem=0.25G", mem_per_node_mb=4000)["v100"] == [1]
    assert numbers(RANGE, "License/matlab=1")["v100"] == [1, 2, 3, 4], "of no GPU, CPU or memory"


def test_with_max_tres_only_the_dearest_of_it_is_billed():
    """A second on a V100 and its four CPUs is 13 for one of 5 on a K80, and 9 for one of 4."""
    either, prices = replace(RANGE, types=("v100", "k80")), "CPU=1,GRES/gpu:v100=9,GRES/gpu:k80=1"
    found = {rule: numbers(either, prices, rule, cpus=4)["v100"] for rule in BillingRule}
    assert found[BillingRule.SUM] == found[BillingRule.MAX_AND_GRES] == [1, 2, 3]
    assert found[BillingRule.MAX] == [1, 2, 3, 4]


@pytest.mark.parametrize("billing", ["CPU=1.0", "Mem=0.25G", "cpu=0.5,gres/gpu=2"])
def test_a_job_that_is_billed_for_cpus_or_memory_keeps_its_own(billing):
    declared = Declaration(types=("any",), cpus=(2, 8), mem=(1000, 8000))
    found = {one.name: one for one in priced(billing)}
    jobs = {
        "1": job("1", declaration=declared),
        "2": job("2", declaration=replace(declared, cost="any")),
    }
    billed = as_billed(jobs, found, {})
    assert billed["1"].declaration == replace(declared, cpus=None, mem=None)
    assert billed["2"] == jobs["2"]
    free = {one.name: one for one in priced("GRES/gpu=2")}
    assert as_billed(jobs, free, {}) == jobs


def test_the_partition_that_its_owner_asked_for_counts_too():
    declared = Declaration(types=("any",), cpus=(2, 8))
    found = {one.name: one for one in partitions_of(nodes())}
    found["v100"] = replace(found["v100"], billing="CPU=1.0")
    steered = {"1": Steering(was={"Partition": "v100,gpu"})}
    (billed,) = as_billed({"1": job("1", declaration=declared)}, found, steered).values()
    assert billed.declaration.cpus is None


def test_what_a_job_runs_on_stays_possible():
    found = nodes(v1=2)
    grown = running("1", {"v1": {"v100": 2}}, declaration=RANGE, request=ONE)
    view = look(observation([grown], found, priced("GRES/gpu=1.0", found)), SITE).view
    assert view.jobs.rate[0, view.types.index("v100"), view.counts.index(2)] > 0


def test_its_owner_learns_why_it_gets_no_more():
    found = {one.name: one for one in priced("GRES/gpu=1.0")}
    assert "hadar set 1 cost=any" in note(job("1", declaration=RANGE), found)
    assert note(job("1", declaration=replace(RANGE, cost="any")), found) == ""
    assert note(job("1", declaration=replace(RANGE, gpus=None)), found) == ""
    free = {one.name: one for one in partitions_of(nodes())}
    assert note(job("1", declaration=RANGE), free) == ""


def test_weights_as_slurm_writes_them():
    assert weights("CPU=1.0,Mem=0.25G,GRES/gpu=2,GRES/gpu:A100=4.5") == {
        "cpu": 1.0,
        "mem": 0.25 / 1024,
        "gres/gpu": 2.0,
        "gres/gpu:a100": 4.5,
    }
    assert weights("") == weights("CPU=0") == weights("(null)") == {}


@given(
    st.text(max_size=80)
    | st.lists(st.sampled_from("CPU=.,1G/gres:mem-e"), max_size=30).map("".join)
)
def test_any_text_is_read_without_an_error(text):
    assert all(number > 0 for number in weights(text).values())
