"""Whatever a policy wants: who takes no part in the exchanges has no more ahead than before."""

from dataclasses import replace

import numpy as np
import pytest
from hand_made import RATES, config, nodes, observation, ordinary, running
from hand_made import job as any_job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar import policies
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.lent_places import Memory
from slurm_hadar.controller.actuation.pending.priority_exchange import exchange, in_own_places
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.controller.snapshot.view_builder import take_snapshot
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, Job
from slurm_hadar.domain.steering import Steering

FEW = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
MODELS = ("resnet18", "resnet50", "transformer")


@st.composite
def queues(draw):
    """Jobs that wait: of three users, managed or not, with equal priorities now and then."""
    found = []
    for number in range(1, draw(st.integers(3, 9)) + 1):
        usual = {
            "priority": 10_000 + 100 * draw(st.integers(0, 9)),
            "nice": draw(st.sampled_from([0, 0, 50, -30])),
            "uid": (uid := draw(st.integers(1000, 1002))),
            "user": f"u{uid}",
            "request": GpuRequest(per_node={UNTYPED: draw(st.integers(1, 2))}),
            "cpus": draw(st.integers(1, 2)),
            "mem_per_node_mb": draw(st.sampled_from([0, 1000, 2000])),
            "time_limit_s": draw(st.sampled_from([3600.0, 7200.0])),
        }
        samples = draw(st.sampled_from([0, 10_000, 300_000, 2_000_000]))
        declared = Declaration(
            model=draw(st.sampled_from(MODELS)), types=("any",), checkpoint="yes", samples=samples
        )
        if draw(st.integers(0, 3)) == 0:
            found.append(ordinary(str(number), **usual))
        else:
            more = draw(st.sampled_from([{}, {}, {}, {"external": True}, {"array_job_id": number}]))
            found.append(any_job(str(number), declaration=declared, **usual, **more))
    return found


def asks(job):
    memory = job.mem_per_node_mb or 1e9
    return [job.request.per_node[UNTYPED], job.cpus, memory, job.time_limit_s]


def order(jobs):
    """Slurm's: the priority, then the number."""
    return sorted(jobs, key=lambda job: (-job.priority, job.raw_id))


def ahead(jobs, of):
    return jobs[: [job.id for job in jobs].index(of)]


def asks_no_more(now, before):
    """Whether each of some jobs can be laid on one of those before that asks for as much."""
    from scipy.optimize import linear_sum_assignment

    if not now:
        return True
    larger = np.array(
        [
            [float(any(x > y for x, y in zip(asks(a), asks(b), strict=True))) for b in before]
            for a in now
        ]
    )
    if not before:
        return False
    rows, columns = linear_sum_assignment(larger)
    return len(rows) == len(now) and larger[rows, columns].sum() == 0


def takes_no_part(job):
    return not job.managed or job.external or job.array_job_id


class Site:
    """A queue from tick to tick: what Slurm shows, and what the controller keeps."""

    def __init__(self, name, level, jobs, free):
        more = f'[controller]\npolicy = "{name}"\n[queue]\nexchange = "{level}"\n'
        self.site, self.decide, self.state = config(more), policies.get(name), {}
        self.jobs, self.nodes = {job.id: job for job in jobs}, nodes(**free)
        self.own = {job.id: job.nice for job in jobs}
        self.memory, self.steering, self.gone = Memory(), {}, []
        self.changed = set()

    def tick(self):
        shown = observation(
            [*self.jobs.values(), *self.gone],
            self.nodes,
            steering=self.steering,
            nice_changed=frozenset(self.changed),
        )
        self.changed = set()
        view = take_snapshot(shown, self.site, RATES, ControllerHistory())
        view = in_own_places(view, shown, self.memory)
        plan, self.state = self.decide(view.view, self.state)
        places = exchange(view, plan, HintInput(shown, self.site), self.memory)
        self.memory = places.memory
        for id_, job in self.jobs.items():
            own = self.own[id_]
            nice = int(places.nices.get(id_, own))
            self.jobs[id_] = replace(job, nice=nice, priority=job.priority + job.nice - nice)
            was, wrote = ({"Nice": str(own)}, {"Nice": str(nice)}) if nice != own else ({}, {})
            foreign = self.steering.get(id_, Steering()).foreign
            assert not (foreign and was), (id_, "its author's Nice was written anew")
            self.steering[id_] = Steering(time=shown.now, was=was, wrote=wrote, foreign=foreign)
        return view

    def set_back(self, id_):
        """Its owner gives it the Nice that it was submitted with."""
        job, own = self.jobs[id_], self.own[id_]
        if job.nice != own:
            self.jobs[id_] = replace(job, nice=own, priority=job.priority + job.nice - own)
            self.steering[id_] = Steering(time=self.steering[id_].time, foreign=("Nice",))
            self.changed.add(id_)

    def start(self, id_):
        """Slurm starts it from the place that it has."""
        job = self.jobs.pop(id_)
        self.gone.append(running(id_, {"v1": {"v100": 1}}, nice=job.nice, priority=job.priority))


@pytest.mark.parametrize("name", policies.names())
@given(
    jobs=queues(),
    level=st.sampled_from(["association", "account", "all"]),
    free=st.fixed_dictionaries({name: st.integers(0, 2) for name in ("v1", "v2", "p1", "k1")}),
    starts=st.lists(st.integers(0, 8), max_size=2),
)
@FEW
def test_who_takes_no_part_never_has_more_ahead(name, jobs, level, free, starts):
    before = order(jobs)
    started: list[tuple[Job, set[str]]]
    site, started = Site(name, level, jobs, free), []
    for start in (*starts, None):
        site.tick()
        now = order(site.jobs.values())
        for one in filter(takes_no_part, now):
            assert site.jobs[one.id].nice == site.own[one.id]
            had = ahead(before, one.id)
            passed = [job for job, behind in started if one.id in behind]
            assert asks_no_more([*ahead(now, one.id), *passed], had), (one.id, now)
        if start is None or start >= len(now):
            break
        one = now[start]
        started.append((one, {job.id for job in now[start + 1 :]}))
        site.start(one.id)


@pytest.mark.parametrize("name", policies.names())
@given(
    jobs=queues(),
    level=st.sampled_from(["association", "account", "all"]),
    resets=st.lists(st.sets(st.integers(1, 9), max_size=4), min_size=1, max_size=3),
)
@FEW
def test_nobody_gains_a_place_by_setting_back_a_nice(name, jobs, level, resets):
    before, site = order(jobs), Site(name, level, jobs, {})
    site.tick()
    for ids in resets:
        for id_ in map(str, ids):
            if id_ in site.jobs:
                site.set_back(id_)
        off = {site.jobs[id_].uid for id_ in site.changed}
        site.tick()
        now = order(site.jobs.values())
        assert all(one.nice == site.own[one.id] for one in now if one.uid in off)
        for one in filter(takes_no_part, now):
            assert asks_no_more(ahead(now, one.id), ahead(before, one.id)), (one.id, now)


def test_the_exchanges_that_are_judged_take_place():
    """Else the property above would say nothing."""
    known = Declaration(model="resnet50", types=("any",), checkpoint="yes", samples=100_000)
    long = any_job("1", declaration=known, priority=900, mem_per_node_mb=1000)
    short = replace(long, id="2", raw_id=2, priority=700, declaration=replace(known, samples=1000))
    changed = []
    for name in policies.names():
        site = Site(name, "association", [long, short], {})
        site.tick()
        changed.append(site.jobs["2"].nice < 0)
    assert all(changed), dict(zip(policies.names(), changed, strict=True))
