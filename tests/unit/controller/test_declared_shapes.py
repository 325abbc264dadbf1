"""Jobs that run with some GPU counts only: what every policy plans for them."""

from dataclasses import replace

import pytest
from hand_made import CONFIG, job, look, node, observation, running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.domain.declaration import parse
from slurm_hadar.domain.job import UNTYPED, GpuRequest

NODES = {"v1": 8, "v2": 6, "p1": 8, "k1": 5}
KINDS = {"v1": "v100", "v2": "v100", "p1": "p100", "k1": "k80"}
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def declared(counts, *more):
    text = ",".join(map(str, counts))
    return parse((f"gpus={text}", "types=any", "checkpoint=yes", *more), "here")


@st.composite
def clusters(draw):
    """Jobs with lists of counts, some of which run; by id what each may have."""
    free, jobs, may = dict(NODES), [], {}
    for number in range(1, draw(st.integers(1, 5)) + 1):
        counts = sorted(draw(st.sets(st.sampled_from([1, 2, 3, 4, 8]), min_size=2, max_size=3)))
        known = draw(st.booleans())
        work = ("model=resnet50", f"samples={draw(st.integers(1, 10**7))}") if known else ()
        by_job = draw(st.booleans())
        more = ("nodes=1-2",) if by_job else ()
        least = {UNTYPED: counts[0]}
        request = GpuRequest(per_job=least) if by_job else GpuRequest(per_node=least)
        own = {"declaration": declared(counts, *work, *more), "request": request,
               "priority": draw(st.integers(1, 3))}  # fmt: skip
        name, count = draw(st.sampled_from(sorted(NODES))), draw(st.sampled_from(counts))
        if draw(st.booleans()) and count <= free[name]:
            free[name] -= count
            jobs.append(running(str(number), {name: {KINDS[name]: count}}, **own))
        else:
            jobs.append(job(str(number), **own))
        may[str(number)] = counts
    found = [
        node(name, gpus, gpus_used={KINDS[name]: gpus - free[name]}) for name, gpus in NODES.items()
    ]
    return observation(jobs, found), may


@pytest.mark.parametrize("name", policies.names())
@given(drawn=clusters(), preempt=st.booleans())
@FEW
def test_every_policy_plans_with_the_counts_of_the_list_alone(name, drawn, preempt):
    shown, may = drawn
    guards = CONFIG.guards.model_copy(update={"preempt": preempt})
    view = look(shown, CONFIG.model_copy(update={"guards": guards})).view
    plan, _ = policies.get(name)(view, {})
    for id_, placement in plan.placements.items():
        assert placement.copies == 1 and placement.gpu_count in may[id_]


def test_a_range_would_be_planned_otherwise():
    """Else the property above would say nothing."""
    here = {"k1": {"k80": 4}}
    wide = running("1", here, declaration=declared([4, 8]), request=GpuRequest({UNTYPED: 4}))
    wide = replace(wide, declaration=parse(("gpus=4-8", "types=any", "checkpoint=yes"), "here"))
    listed = replace(wide, declaration=declared([4, 8]))
    found = [node("v2", 6), node("k1", 5, gpus_used={"k80": 4})]
    counts = []
    for one in (wide, listed):
        view = look(observation([one], found)).view
        plan, _ = policies.get("hadar")(view, {})
        counts.append(plan.placements["1"].gpu_count)
    assert counts == [6, 4]
