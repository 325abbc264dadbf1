"""Exchanged places while jobs gain priority by age, which Slurm counts at different times.

A model of Slurm: the age in a job's priority is that of its last count, which is the later of the
last computation of all priorities and the last update of the job.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from hand_made import NOW, config, dictate, look, nodes, ordinary, seen
from hand_made import job as any_job
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.controller.actuation.pending.counted_ages import as_counted
from slurm_hadar.controller.actuation.pending.lent_places import Memory, owners_nice
from slurm_hadar.controller.actuation.pending.priority_exchange import exchange
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.waiting_age import AgePriority
from slurm_hadar.slurm.waiting_priorities import CountedPriority

FULL = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=2)
SITE = config('[queue]\nexchange = "association"\n')
PERIOD_S, TICK_S = 60, 5
APART = 350
"""Points between any two jobs, so that a tick after a computation can tell their sides: more than
the age of a tick and of an update that arrives late."""
FEW = settings(max_examples=30, deadline=None)


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


@dataclass
class Slurm:
    """``jobs`` by number; ``first``: the managed ones that the policy would start now."""

    age: AgePriority
    jobs: dict[str, Waits] = field(default_factory=dict)
    now: float = NOW
    memory: Memory = field(default_factory=Memory)
    first: tuple[str, ...] = ()
    steering: dict[str, Steering] = field(default_factory=dict)

    def points(self, id_, at=None):
        job = self.jobs[id_]
        return self.age.points((job.counted if at is None else at) - job.since)

    def shown(self, id_):
        return int(self.jobs[id_].base + self.points(id_) - self.jobs[id_].nice)

    def plain(self, id_):
        """Its priority without any exchange, were all ages counted now."""
        return int(self.jobs[id_].base + self.points(id_, self.now))

    def order(self):
        return sorted(self.jobs, key=lambda id_: (-self.shown(id_), int(id_)))

    def own_order(self):
        return sorted(self.jobs, key=lambda id_: (-self.plain(id_), int(id_)))

    def order_untouched(self):
        """As Slurm would show it had nobody updated a job."""

        def key(id_):
            job = self.jobs[id_]
            return -int(job.base + self.points(id_, job.untouched)), int(id_)

        return sorted(self.jobs, key=key)

    def computes_all(self):
        for job in self.jobs.values():
            job.counted = job.untouched = self.now

    def submit(self, id_, base, ours, since=None):
        since = self.now if since is None else since
        self.jobs[id_] = Waits(base, since, since, since, ours=ours)

    def tick(self):
        """The jobs that the controller sends a Nice, and what it says."""
        counted = {
            int(id_): [CountedPriority(self.shown(id_), round(self.points(id_)))]
            for id_ in self.jobs
        }
        shown = {}
        for id_, one in self.jobs.items():
            times = {"submit_s": one.since, "eligible_s": one.since, "accrue_s": one.since}
            known = {"priority": self.shown(id_), "nice": one.nice, **times}
            declared = Declaration(model="resnet50", types=("any",), checkpoint="yes", samples=1000)
            shown[id_] = (
                any_job(id_, declaration=declared, mem_per_node_mb=1000, **known)
                if one.ours
                else ordinary(id_, **known)
            )
        shown, ages = as_counted(shown, counted)
        observed = seen(
            list(shown.values()), FULL, steering=self.steering, now=self.now, age=self.age,
            counted_ages=ages,
        )  # fmt: skip
        view = look(observed)
        plan = dictate(view.view, {id_: {"v100": 1} for id_ in self.first if id_ in self.jobs})
        found = exchange(view, plan, observed, SITE, self.memory)
        self.memory, sent = found.memory, []
        for id_, one in self.jobs.items():
            nice = int(found.nices.get(id_, owners_nice(shown[id_], observed)))
            if nice != one.nice:
                assert one.ours
                one.nice, one.counted = nice, self.now
                sent.append(id_)
            differs = nice != 0
            self.steering[id_] = Steering(
                time=self.now,
                was={"Nice": "0"} if differs else {},
                wrote={"Nice": str(nice)} if differs else {},
            )
        return sent

    def wanted(self):
        """The own order with the exchanges of the last tick."""
        lent = self.memory.lent
        owners = {one.own: id_ for id_, one in lent.items()}
        gets = {owners.get(one.held, id_): id_ for id_, one in lent.items()}
        return [gets.get(id_, id_) for id_ in self.own_order()]

    def nobody_is_overtaken(self):
        """Whether no other job has more of the exchanging ones ahead than without an exchange."""

        def ahead(order, id_):
            return sum(self.jobs[one].ours for one in order[: order.index(id_)])

        now, own, untouched = self.order(), self.own_order(), self.order_untouched()
        others = [id_ for id_, job in self.jobs.items() if not job.ours]
        return all(ahead(now, id_) <= max(ahead(own, id_), ahead(untouched, id_)) for id_ in others)


def by_age(most_s=3600.0, weight=100_000):
    return AgePriority(weight, most_s, float(PERIOD_S))


def run(slurm, seconds, offset, arrivals=(), look_at=lambda slurm, what: None):
    """Ticks from now on; all priorities are computed ``offset`` s from now first. Yields for each
    tick (s from now, s since the last computation, whether a job came, the jobs that got a
    Nice)."""
    begin, came, computed, last = slurm.now, False, -PERIOD_S + offset, 0
    for second in range(seconds):
        slurm.now = begin + second
        if (second - offset) % PERIOD_S == 0:
            slurm.computes_all()
            computed = second
            look_at(slurm, "computed")
        for at, id_, base in arrivals:
            if at == second:
                slurm.submit(id_, base, ours=False)
                came = True
        if second % TICK_S == 0:
            sent = slurm.tick()
            look_at(slurm, "tick")
            yield second, computed > last or second == 0, came, sent
            came, last = False, second


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


@given(found=queues(apart=APART))
@FEW
def test_a_nice_is_right_from_the_tick_after_a_computation_on(found):
    slurm, offset = found
    right, sent_at = [], []

    def watch(slurm, what):
        assert slurm.nobody_is_overtaken(), (what, slurm.now - NOW)
        if what == "computed":
            right.append(slurm.order() == slurm.wanted())

    for second, after_computation, _, sent in run(slurm, 5 * PERIOD_S, offset, look_at=watch):
        if sent:
            sent_at.append(second)
            assert after_computation, second
    # The exchanges of the first tick hold; what could not begin then begins after one computation.
    assert all(right[1:]) and all(second <= offset + TICK_S for second in sent_at), sent_at
    mine = [id_ for id_ in slurm.own_order() if slurm.jobs[id_].ours]
    firsts = [id_ for id_ in mine if id_ in slurm.first]
    assert [id_ for id_ in slurm.order() if id_ in firsts] == [
        id_ for id_ in slurm.order() if slurm.jobs[id_].ours
    ][: len(firsts)]


@given(
    found=queues(),
    arrivals=st.lists(
        st.tuples(st.integers(1, 100), st.sampled_from([100_000, 101_000, 103_000, 109_000])),
        max_size=4,
    ),
)
@FEW
def test_nobody_is_overtaken_however_close_jobs_are(found, arrivals):
    slurm, offset = found
    come = [(at, str(20 + number), base) for number, (at, base) in enumerate(arrivals)]

    def watch(slurm, what):
        assert slurm.nobody_is_overtaken(), (what, slurm.now - NOW)

    for second, after_computation, came, sent in run(slurm, 240, offset, come, watch):
        assert not sent or after_computation or came, second


def as_was_seen():
    """A long job, 10 s later one of another user, 30 s later a short one of the first user, and
    others behind."""
    slurm = Slurm(by_age(), first=("3",))
    for id_, since, ours in (("1", 110, True), ("2", 100, False), ("3", 80, True)):
        slurm.submit(id_, 10_000, ours, NOW - since)
    slurm.submit("4", 10_000, False, NOW - 73)
    slurm.submit("5", 10_000, False, NOW - 61)
    slurm.computes_all()
    return slurm


def test_each_job_gets_one_nice_where_a_tick_is_worth_much_age():
    for late in range(TICK_S):
        slurm, orders, sent = as_was_seen(), [], []
        slurm.now += late

        def watch(slurm, what, orders=orders):
            if slurm.memory.lent:
                orders.append(slurm.order())

        for *_, names in run(slurm, 600, PERIOD_S - late, look_at=watch):
            sent += names
        assert sorted(sent) == ["1", "3"]
        assert set(map(tuple, orders)) == {("3", "2", "1", "4", "5")}


def test_an_exchange_that_would_be_wrong_until_ages_are_counted_again_waits_for_that():
    """By what Slurm shows 50 s after its last computation, job 1 could not get behind job 2 without
    falling behind jobs 4 and 5."""
    slurm = as_was_seen()
    slurm.now += 50
    found = [(second, sent) for second, *_, sent in run(slurm, 200, 12) if sent]
    assert [(second, sorted(sent)) for second, sent in found] == [(15, ["1", "3"])]
    assert slurm.order() == ["3", "2", "1", "4", "5"]


def test_jobs_with_the_most_age_there_is_are_not_overtaken():
    """A job that grows no older gives its place to one that does."""
    slurm = Slurm(by_age(most_s=600.0, weight=16_000), first=("4",))
    for id_, since, ours in (("1", 900, False), ("2", 800, True), ("3", 300, False)):
        slurm.submit(id_, 10_000 - int(id_), ours, NOW - since)
    slurm.submit("4", 10_000, True, NOW - 200)
    slurm.computes_all()

    def watch(slurm, what):
        assert slurm.nobody_is_overtaken(), (what, slurm.now - NOW)

    for second, after_computation, _, sent in run(slurm, 900, PERIOD_S, look_at=watch):
        assert not sent or after_computation, second


def test_an_update_of_another_job_between_two_computations_changes_no_nice():
    """It shows that job with its age of then, ahead of job 1, which goes before it."""
    slurm = as_was_seen()
    slurm.tick()
    slurm.now += 20
    slurm.jobs["4"].counted = slurm.now
    assert slurm.order() == ["3", "2", "4", "1", "5"] and slurm.tick() == []
    slurm.computes_all()
    assert slurm.order() == ["3", "2", "1", "4", "5"] and slurm.tick() == []


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


def test_nothing_changes_in_a_tick_in_which_slurm_does_not_say_the_ages():
    slurm = as_was_seen()
    slurm.tick()
    jobs = [
        any_job(id_, priority=slurm.shown(id_), nice=slurm.jobs[id_].nice) for id_ in ("1", "3")
    ]
    shown = seen(jobs, FULL, steering=slurm.steering, counted_ages=None)
    view = look(shown)
    found = exchange(view, dictate(view.view, {}), shown, SITE, slurm.memory)
    assert found.nices == {id_: str(slurm.jobs[id_].nice) for id_ in ("1", "3")}
    assert found.memory == slurm.memory and "no places are exchanged" in found.said[0]


def test_a_job_that_was_counted_later_than_the_others_gets_one_nice_all_the_same():
    """As where its list of partitions has just been set: by what Slurm showed, job 1 got the Nice
    444 or 1222 in place of 833, and stood on a wrong side of others after the next computation."""
    for late in ("1", "3"):
        slurm, orders = as_was_seen(), []
        slurm.now += 14
        slurm.jobs[late].counted = slurm.now

        def watch(slurm, what, orders=orders):
            orders.append(slurm.order())

        found = [sent for *_, sent in run(slurm, 200, 46, look_at=watch) if sent]
        assert [sorted(sent) for sent in found] == [["1", "3"]]
        assert set(map(tuple, orders)) == {("3", "2", "1", "4", "5")}
        assert abs(slurm.jobs["1"].nice - 833) <= 2
