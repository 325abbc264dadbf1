"""Exchanged places while jobs gain priority by age, which Slurm counts at different times.

A model of Slurm: the age in a job's priority is that of its last count, which is the later of the
last computation of all priorities and the last update of the job.
"""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from hand_made import NOW, config, dictate, look, nodes, observation, ordinary
from hand_made import job as any_job
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.lent_places import (
    Memory,
    as_state,
    owners_nice,
    remembered,
)
from slurm_hadar.controller.actuation.pending.owners_nices import given_back
from slurm_hadar.controller.actuation.pending.priority_exchange import exchange, notes
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.observation.counted_ages import as_counted
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.waiting_age import AgePriority
from slurm_hadar.slurm.waiting_priorities import CountedPriority

FULL = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=2)
SITE = config('[queue]\nexchange = "association"\n')
PERIOD_S, TICK_S = 60, 5
APART = 1800
"""Points between any two jobs: more than the age of a period."""
FEW = settings(max_examples=25, deadline=None)


@dataclass
class Waits:
    """A job of the model. ``base``: its priority without age and Nice; ``untouched``: when it was
    counted last but for updates. Times in s."""

    base: int
    since: float
    counted: float
    untouched: float
    nice: int = 0
    ours: bool = False
    started: float = inf
    before: tuple[str, ...] = ()
    """Jobs that it stood ahead of without an exchange when it started."""
    gpus: int = 1
    held: bool = False
    out: bool = False
    """Whether it has opted out."""
    over: bool = False
    """Whether it was cancelled before it started."""
    seen_out: bool = False
    """Whether the last tick saw it held, or opted out."""

    @property
    def may_start(self):
        return self.started == inf and not (self.held or self.over)


@dataclass
class Slurm:
    """``jobs`` by number; ``first``: the managed ones that the policy would start now."""

    age: AgePriority
    jobs: dict[str, Waits] = field(default_factory=dict)
    now: float = NOW
    memory: Memory = field(default_factory=Memory)
    first: tuple[str, ...] = ()
    steering: dict[str, Steering] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """What the last tick said of jobs that did not get the place which they are to have."""
    refuses: tuple[str, ...] = ()
    """Jobs of which it takes no update."""
    refused: tuple[str, ...] = ()
    shows_ended: bool = True
    """Whether it shows cancelled jobs that the last tick saw held, or opted out."""
    in_doubt: bool = False
    """Whether it hid one with another's place, of which it had refused the update: that one may
    have started from there, for all that the controller can know."""

    def points(self, id_, at=None):
        job = self.jobs[id_]
        return self.age.points((job.counted if at is None else at) - job.since)

    def shown(self, id_):
        return int(self.jobs[id_].base + self.points(id_) - self.jobs[id_].nice)

    def plain(self, id_):
        """Its priority without any exchange, were all ages counted now."""
        return int(self.jobs[id_].base + self.points(id_, self.now))

    def order(self):
        """All jobs, those that have started first."""

        def key(id_):
            return self.jobs[id_].started, -self.shown(id_), int(id_)

        return sorted(self.jobs, key=key)

    def start_first(self):
        """The first job that waits starts."""
        first = next((id_ for id_ in self.order() if self.jobs[id_].may_start), None)
        if first is not None:
            orders = self.own_order(), self.order_untouched()
            behind = {id_ for order in orders for id_ in order[order.index(first) + 1 :]}
            self.jobs[first].started, self.jobs[first].before = self.now, tuple(behind)

    def own_order(self):
        return sorted(self.jobs, key=lambda id_: (-self.plain(id_), int(id_)))

    def order_untouched(self):
        """The order in Slurm if the controller had updated no job."""

        def key(id_):
            job = self.jobs[id_]
            return -int(job.base + self.points(id_, job.untouched)), int(id_)

        return sorted(self.jobs, key=key)

    def owner_updates(self, number):
        """Some field of a job, as its owner may. Not of one with another's place: of the two jobs
        that had exchanged theirs its owner could have updated the other one as well."""
        job = list(self.jobs.values())[number % len(self.jobs)]
        if not job.nice:
            job.counted = job.untouched = self.now

    def computes_all(self):
        for job in self.jobs.values():
            job.counted = job.untouched = self.now

    def submit(self, id_, base, ours, since=None):
        since = self.now if since is None else since
        self.jobs[id_] = Waits(base, since, since, since, ours=ours)

    def tick(self, knows_ages=True):
        """The jobs that the controller sends a Nice, and what it says."""
        shown = {}
        for id_, one in self.jobs.items():
            times = {"submit_s": one.since, "eligible_s": one.since, "accrue_s": one.since}
            known = {"priority": self.shown(id_), "nice": one.nice, **times}
            known["request"] = GpuRequest(per_node={UNTYPED: one.gpus})
            if one.held:
                known |= {"held": True, "priority": 0, "reason": "JobHeldUser"}
            if one.started < inf:
                known |= {"state": JobState.FINISHED, "nodes": ("v1",), "start_s": one.started}
            if one.over:
                if one.seen_out and not self.shows_ended:
                    self.in_doubt |= one.nice < 0
                    continue
                known |= {"state": JobState.FINISHED, "priority": 0}
            declared = Declaration(model="resnet50", types=("any",), checkpoint="yes", samples=1000)
            shown[id_] = (
                any_job(id_, declaration=declared, mem_per_node_mb=1000, **known)
                if one.ours and not one.out
                else ordinary(id_, **known)
            )
        ages = {int(id_): float(int(self.points(id_))) for id_ in self.jobs}
        observed = observation(
            list(shown.values()), FULL, steering=self.steering, now=self.now, age=self.age,
            counted_ages=ages if knows_ages else {}, priority_returns=True,
        )  # fmt: skip
        view = look(observed)
        plan = dictate(view.view, {id_: {"v100": 1} for id_ in self.first if id_ in self.jobs})
        refused = {id_: Refusals(1, self.now) for id_ in self.refused}
        found = exchange(view, plan, HintInput(observed, SITE, refused), self.memory)
        self.notes = notes(found, observed)
        for one in self.jobs.values():
            one.seen_out = one.seen_out if one.over else one.held or one.out
        back = given_back(observed, refused, found.nices)
        restored = {action.job.id: int(action.fields["Nice"]) for action in back}
        self.memory, sent = remembered(json.loads(json.dumps(as_state(found.memory)))), []
        assert self.memory == found.memory
        for id_, one in self.jobs.items():
            if one.started < inf or one.over or id_ in self.refused:
                continue
            nice = restored.get(id_, one.nice)
            if not (one.held or one.out):
                nice = int(found.nices.get(id_, owners_nice(shown[id_], observed)))
            if nice != one.nice:
                assert one.ours
                sent.append((id_, nice))
        self.refused = tuple(id_ for id_, _ in sent if id_ in self.refuses) or self.refused
        if {*self.refused} & {id_ for id_, _ in sent}:
            # The controller takes the others back.
            return []
        for id_, nice in sent:
            self.jobs[id_].nice, self.jobs[id_].counted = nice, self.now
            differs = nice != 0
            self.steering[id_] = Steering(
                time=self.now,
                was={"Nice": "0"} if differs else {},
                wrote={"Nice": str(nice)} if differs else {},
            )
        return [id_ for id_, _ in sent]

    def no_unmanaged_job_is_overtaken(self):
        """Whether no other job has more GPUs of the exchanging ones ahead than without an exchange,
        those counted that have started since it came."""

        def ahead(order, id_):
            before = (self.jobs[one] for one in order[: order.index(id_)])
            return sum(one.gpus for one in before if one.ours and one.may_start)

        ours = [job for job in self.jobs.values() if job.ours]
        own, untouched = self.own_order(), self.order_untouched()
        for id_, job in self.jobs.items():
            if not job.ours and job.started == inf:
                gone = sum(one.gpus for one in ours if job.since < one.started < inf)
                would = sum(one.gpus for one in ours if id_ in one.before)
                most = would + max(ahead(own, id_), ahead(untouched, id_))
                if gone + ahead(self.order(), id_) > most:
                    return False
        return True


def by_age(most_s=3600.0, weight=100_000):
    return AgePriority(weight, most_s, float(PERIOD_S))


def run(slurm, seconds, offset, arrivals=(), starts=(), updates=()):
    """Run a tick every TICK_S for ``seconds``. Slurm computes all priorities ``offset`` s from
    now first. At each of ``starts`` (s) the first job starts; ``updates`` by owners are (s, job).
    Asserts each second that no unmanaged job is overtaken. Yields (s, jobs with a new Nice)."""
    begin = slurm.now
    for second in range(seconds):
        slurm.now = begin + second
        if (second - offset) % PERIOD_S == 0:
            slurm.computes_all()
            assert slurm.no_unmanaged_job_is_overtaken(), f"{second} s, all counted"
        for number in [job for at, job in updates if at == second]:
            slurm.owner_updates(number)
        for _ in range(starts.count(second)):
            slurm.start_first()
        for at, id_, base in arrivals:
            if at == second:
                slurm.submit(id_, base, ours=False)
        if second % TICK_S == 0:
            sent = slurm.tick()
            assert slurm.no_unmanaged_job_is_overtaken(), f"{second} s, {sent} sent"
            yield second, sent


@st.composite
def queues(draw, apart=0):
    """A queue as Slurm has it between two computations: jobs that came while it waited."""
    slurm = Slurm(by_age())
    offset = draw(st.integers(1, PERIOD_S))
    number = draw(st.integers(3, 8))
    for id_ in range(1, number + 1):
        since = NOW - draw(st.integers(1, 200))
        base = 100_000 + draw(st.sampled_from([0, 0, 0, 1000, 3000]))
        slurm.submit(str(id_), base, draw(st.booleans()), since)
        job = slurm.jobs[str(id_)]
        job.counted = job.untouched = max(since, NOW - PERIOD_S + offset)
    places = sorted(slurm.plain(id_) for id_ in slurm.jobs)
    if any(b - a < apart for a, b in pairwise(places)):
        for at, id_ in enumerate(reversed(slurm.own_order())):
            slurm.jobs[id_].base += (apart + 1) * at
    slurm.first = tuple(draw(st.sets(st.sampled_from(sorted(slurm.jobs)), max_size=3)))
    return slurm, offset


@given(
    found=queues(apart=APART),
    starts=st.lists(st.integers(1, 290), max_size=5),
    updates=st.lists(st.tuples(st.integers(0, 290), st.integers(0, 9)), max_size=3),
)
@FEW
def test_no_unmanaged_job_is_overtaken_where_places_are_far_apart(found, starts, updates):
    slurm, offset = found
    for _ in run(slurm, 5 * PERIOD_S, offset, starts=starts, updates=updates):
        pass


@given(found=queues(apart=APART))
@FEW
def test_far_from_others_places_are_exchanged_once_all_ages_are_of_one_moment(found):
    slurm, offset = found
    ticks_with_updates = [second for second, sent in run(slurm, 6 * PERIOD_S, offset) if sent]
    assert all(second < 4 * PERIOD_S for second in ticks_with_updates)
    ours = [id_ for id_ in slurm.order() if slurm.jobs[id_].ours]
    firsts = [id_ for id_ in ours if id_ in slurm.first]
    assert ours[: len(firsts)] == firsts


@given(
    found=queues(),
    arrivals=st.lists(
        st.tuples(st.integers(1, 100), st.sampled_from([100_000, 101_000, 103_000, 109_000])),
        max_size=4,
    ),
    starts=st.lists(st.integers(1, 200), max_size=5),
    updates=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9)), max_size=3),
)
@FEW
def test_no_unmanaged_job_is_overtaken_however_close_jobs_are(found, arrivals, starts, updates):
    slurm, offset = found
    come = [(at, str(20 + number), base) for number, (at, base) in enumerate(arrivals)]
    for _ in run(slurm, 240, offset, come, starts, updates):
        pass


KINDS = ("hold", "release", "cancel", "opt out", "more", "start", "refuse", "first")


@dataclass
class People:
    """What owners do to jobs that wait."""

    slurm: Slurm

    def does(self, kind, number, ticked):
        """One act; whether it was done."""
        slurm = self.slurm
        ids = [id_ for id_, job in slurm.jobs.items() if job.ours and job.started == inf]
        if kind == "start":
            # Between an act and the next tick nothing is promised.
            return ticked and slurm.start_first() is None
        if not ids:
            return False
        # Those with another's place first.
        id_ = sorted(ids, key=lambda id_: slurm.jobs[id_].nice == 0)[number % len(ids)]
        job = slurm.jobs[id_]
        if kind == "first":
            slurm.first = (id_,)
        elif job.over or (job.nice > 0 and self.places_are_used):
            # Its place was used, and counts for what it asked for then.
            return False
        elif kind == "refuse":
            # Of one that is in the line Slurm has no reason to.
            if job.nice >= 0:
                return False
            job.held, slurm.refuses = True, (id_,)
        elif kind == "more":
            job.gpus = 3 - job.gpus
        else:
            job.held = (job.held or kind == "hold") and kind != "release"
            if kind == "release":
                # What Slurm refused of it was refused while it was held.
                slurm.refused = tuple(one for one in slurm.refused if one != id_)
                slurm.refuses = tuple(one for one in slurm.refuses if one != id_)
            job.out = job.out or kind == "opt out"
            job.over = kind == "cancel"
        return True

    @property
    def places_are_used(self):
        return any(job.started < inf and job.nice < 0 for job in self.slurm.jobs.values())


@st.composite
def lines(draw):
    """A queue without ages, of jobs with one or two GPUs."""
    slurm = Slurm(by_age(weight=0), shows_ended=draw(st.booleans()))
    for number in range(1, draw(st.integers(3, 7)) + 1):
        base = 100_000 - 10 * draw(st.integers(0, 9))
        slurm.submit(str(number), base, draw(st.sampled_from([True, True, False])), NOW - 100)
        slurm.jobs[str(number)].gpus = draw(st.integers(1, 2))
    slurm.first = tuple(draw(st.sets(st.sampled_from(sorted(slurm.jobs)), min_size=1, max_size=2)))
    return slurm


@given(
    slurm=lines(),
    acts=st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.booleans()),
        min_size=4,
        max_size=12,
    ),
)
@settings(max_examples=60, deadline=None)
def test_whatever_owners_do_no_place_is_had_twice_and_none_is_lost(slurm, acts):
    people, ticked = People(slurm), True
    slurm.tick()
    for kind, number, ticks in acts:
        if people.does(kind, number, ticked):
            ticked = False
        if ticks or kind == "start":
            slurm.now += TICK_S
            slurm.tick()
            ticked = True
            if not slurm.refuses:
                slurm.refused = ()
            slurm.refuses = ()
            assert slurm.no_unmanaged_job_is_overtaken(), (kind, number)
    slurm.refused = slurm.refuses = ()
    for _ in range(2):
        slurm.now += TICK_S
        slurm.tick()
    assert slurm.no_unmanaged_job_is_overtaken()
    if any(job.started < inf for job in slurm.jobs.values()) or slurm.in_doubt:
        return
    # No place was used: each job has its own, or that of another one that waits as well.
    assert not slurm.memory.lost
    for id_, job in slurm.jobs.items():
        if job.nice and not job.over:
            owner = slurm.memory.lent[id_].place_of
            assert job.may_start and not job.out and owner != id_ and slurm.jobs[owner].may_start


def test_a_job_that_is_released_gives_its_place_back_whatever_slurm_refused_before():
    """The Nice that ends its exchange was refused while it was held. Its partner is held then."""
    slurm = Slurm(by_age(weight=0), first=("3",))
    for id_, ours in (("1", True), ("2", False), ("3", True)):
        slurm.submit(id_, 100_000 - 10 * int(id_), ours, NOW - 100)
    people = People(slurm)
    slurm.tick()
    assert slurm.order() == ["3", "2", "1"]
    assert people.does("refuse", 1, ticked=True) and slurm.refuses == ("3",)
    slurm.now += TICK_S
    slurm.tick()
    assert slurm.refused == ("3",)
    slurm.jobs["1"].held = True
    assert people.does("release", 1, ticked=True) and not slurm.jobs["3"].held
    slurm.now += TICK_S
    slurm.tick()
    assert slurm.no_unmanaged_job_is_overtaken() and slurm.order() == ["1", "2", "3"]


def four_users(apart):
    """A long job, one of another user, a short one of the first user, and others behind."""
    slurm = Slurm(by_age(), first=("3",))
    for id_, ours in (("1", True), ("2", False), ("3", True), ("4", False), ("5", False)):
        slurm.submit(id_, 10_000, ours, NOW - 300 - apart * (5 - int(id_)))
    slurm.computes_all()
    return slurm


def test_places_are_exchanged_in_the_first_tick_after_slurm_has_counted_all_ages():
    """Before, the jobs are too near to each other for what an update does to their ages."""
    slurm = four_users(apart=15)
    slurm.now += 30
    found = [(second, sorted(sent)) for second, sent in run(slurm, 600, 32) if sent]
    assert found == [(35, ["1", "3"])] and slurm.order() == ["3", "2", "1", "4", "5"]


def test_no_places_are_exchanged_next_to_a_job_that_came_at_nearly_the_same_time():
    slurm = four_users(apart=2)
    assert not any(sent for _, sent in run(slurm, 600, 32))
    (said,) = slurm.notes.items()
    assert said[0] == "3" and said[1].startswith("; it is to have an earlier place in the queue, ")


def test_a_job_that_its_owner_has_updated_exchanges_after_the_next_count():
    """Its priority includes more age than those of other jobs. No job may get that extra age."""
    slurm = four_users(apart=120)
    slurm.now += 40
    slurm.owner_updates(2)
    found = [(second, sent, sorted(slurm.notes)) for second, sent in run(slurm, 300, 32)]
    assert [second for second, sent, _ in found if sent] == [35]
    # Until then it is said of the job that waits for it.
    assert [said for second, _, said in found if second < 35] == [["3"]] * 7
    assert not any(said for second, _, said in found if second >= 35)


def test_nothing_begins_and_what_stands_stays_where_the_ages_are_not_known():
    slurm = four_users(apart=120)
    assert slurm.tick(knows_ages=False) == []
    assert sorted(slurm.tick()) == ["1", "3"]
    slurm.now += 300
    slurm.computes_all()
    assert slurm.tick(knows_ages=False) == [] and slurm.jobs["3"].nice < 0


def test_a_job_that_slurm_counted_since_it_was_read_has_the_priority_of_its_age():
    jobs = {id_: any_job(id_, priority=1000) for id_ in ("1", "2", "3", "4")}
    counted = {
        1: [CountedPriority(1001, 300)],
        2: [CountedPriority(1500, 800)],
        3: [CountedPriority(700, 290), CountedPriority(999, 290)],
    }
    shown, ages = as_counted(jobs, counted)
    assert [one.priority for one in shown.values()] == [1000, 1500, 1000, 1000]
    assert ages == {1: 300, 2: 800, 3: 290}


def test_a_job_at_its_greatest_age_is_not_overtaken_by_the_job_with_its_place():
    slurm = Slurm(by_age(most_s=600.0, weight=16_000), first=("4",))
    for id_, base, since, ours in (
        ("1", 30_000, 900, False), ("2", 20_000, 800, True), ("3", 14_000, 300, False),
        ("4", 10_000, 200, True), ("5", 0, 200, False),
    ):  # fmt: skip
        slurm.submit(id_, base, ours, NOW - since)
    slurm.computes_all()
    sent = [second for second, sent in run(slurm, 900, PERIOD_S) if sent]
    assert slurm.order() == ["1", "4", "3", "2", "5"] and 1 < len(sent) < 12
