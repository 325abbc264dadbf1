"""A list that takes the age from a waiting job's priority is sent so that its place stays."""

from dataclasses import dataclass, field, replace

import pytest
from hand_made import NOW, config, decide, hinted, job, seen

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.pending import age_compensation
from slurm_hadar.controller.actuation.pending.hint_updates import restored
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering, decode
from slurm_hadar.slurm.waiting_age import AgePriority
from slurm_hadar.slurm.waiting_priorities import CountedPriority

AGE = AgePriority(weight=10_000, most_s=10_000.0, period_s=300.0, is_forgotten=True)
"""A point for each second."""
SITE = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')
ALL = Declaration(types=("v100", "p100", "k80"), model="resnet50", partitions=("gpu",))
SINCE = NOW - 600
LIST = "v100,p100,k80"


@dataclass
class Slurm:
    """One job with a priority of 400 beside its age, which was counted ``lag_s`` ago. It finds the
    time of an update of the partitions again ``finds_s`` later."""

    lag_s: float = 60.0
    finds_s: float = 3.0
    now: float = NOW
    nice: int = 100
    partition: str = "gpu"
    accrue_s: float = SINCE
    age: int = 0
    state: JobState = JobState.PENDING
    seen: list[int] = field(default_factory=list)
    later: list = field(default_factory=list)

    def __post_init__(self):
        self.age = round(self.now - self.lag_s - SINCE)

    @property
    def priority(self):
        return 400 + self.age - self.nice

    def shown(self):
        return job(
            "1",
            self.state,
            declaration=ALL,
            partitions=tuple(self.partition.split(",")),
            priority=self.priority,
            nice=self.nice,
            accrue_s=self.accrue_s,
            submit_s=SINCE,
            eligible_s=SINCE,
        )

    def read_priorities(self):
        part = self.age / AGE.most_s
        return {1: [CountedPriority(self.priority, self.age, part)]}

    def read_jobs(self, ids):
        assert list(ids) == ["1"]
        return [self.shown()]

    def apply(self, updates):
        ((fields),) = [dict(update.fields) for update in updates]
        self.nice = int(fields.get("Nice", self.nice))
        if "Partition" in fields:
            self.partition, self.accrue_s, self.age = fields["Partition"], 0.0, 0
            self.found_s = self.now + self.finds_s
        elif self.accrue_s:
            self.age = round(self.now - SINCE)
        self.seen.append(self.priority)
        return [None]

    def sleep(self, for_s):
        self.now += for_s
        if not self.accrue_s and self.now >= self.found_s:
            self.accrue_s = SINCE
        for change in self.later:
            change(self)
        self.seen.append(self.priority)


@pytest.fixture
def store(tmp_path):
    (tmp_path / "exchange").mkdir()
    found = Store.open(tmp_path / "state")
    yield found
    found.close()


def tick(slurm, store, tmp_path):
    site = config(
        f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n'
        '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'
    )
    known = decode(store.steerings(["1"]).get("1", "")) or Steering()
    shown = replace(seen([slurm.shown()], steering={"1": known}), age=AGE, keeps_ages=True)
    hints = decide(shown, {}, SITE).of(Kind.HINT)
    aged = age_compensation.need(hints, shown)
    context = ActionContext(slurm, store, site, clock=lambda: slurm.now)
    return age_compensation.send(context, aged, shown, slurm.sleep), aged


def kept(store):
    return decode(store.steerings(["1"])["1"])


def test_its_priority_never_changes_until_its_age_counts_again(store, tmp_path):
    slurm = Slurm()
    before = slurm.priority
    sent, aged = tick(slurm, store, tmp_path)
    assert len(aged) == 1 and sent.said == () and not sent.refused
    assert slurm.partition == LIST and slurm.nice == 100
    *waits, last = slurm.seen
    assert len(waits) == 1 + slurm.finds_s and set(waits) == {before}
    # Of that moment, as at any update.
    assert last == before + slurm.lag_s + slurm.finds_s
    ours = kept(store)
    assert ours.was == {"Partition": "gpu"} and ours.wrote == {"Partition": LIST}
    assert not ours.age_lost
    assert not decide(
        replace(seen([slurm.shown()], steering={"1": ours}), age=AGE, keeps_ages=True), {}, SITE
    ).actions


@pytest.mark.parametrize(("lag_s", "sent"), [(270.0, True), (280.0, False), (400.0, False)])
def test_nothing_is_sent_where_slurm_counts_all_ages_soon(store, tmp_path, lag_s, sent):
    """It would count this one beside the Nice that stands for it."""
    slurm = Slurm(lag_s=lag_s)
    done, _ = tick(slurm, store, tmp_path)
    assert (slurm.partition == LIST) is sent and ("1" in done.refused) is not sent


def test_nothing_is_sent_where_slurm_does_not_tell_the_ages(store, tmp_path):
    slurm = Slurm()
    slurm.read_priorities = dict
    assert "1" in tick(slurm, store, tmp_path)[0].refused

    def fails():
        raise SlurmError("sprio gave no answer within 30 s", retry=True)

    slurm.read_priorities = fails
    done, _ = tick(slurm, store, tmp_path)
    assert done.said[0].startswith("the lists of 1 jobs stay: their ages are not known: sprio")
    assert slurm.partition == "gpu" and slurm.seen == []


def test_a_nice_that_its_owner_sets_meanwhile_is_the_owners(store, tmp_path):
    slurm = Slurm(later=[lambda one: setattr(one, "nice", 7)])
    tick(slurm, store, tmp_path)
    assert slurm.nice == 7 and slurm.partition == LIST


def test_an_age_that_slurm_does_not_find_is_counted_by_a_later_tick(store, tmp_path):
    slurm = Slurm(finds_s=100.0)
    tick(slurm, store, tmp_path)
    assert slurm.nice == 100 and kept(store).age_lost


@pytest.mark.parametrize("begins", [False, True])
def test_the_next_tick_restores_the_nice_of_one_that_died(store, tmp_path, begins):
    class Died(BaseException):
        pass

    def dies(_):
        raise Died

    slurm = Slurm(later=[dies])
    with pytest.raises(Died):
        tick(slurm, store, tmp_path)
    assert slurm.nice == 100 - 540
    ours = kept(store)
    assert ours.was["Nice"] == "100" and ours.wrote["Nice"] == "-440"
    if begins:
        slurm.state = JobState.RUNNING
        shown = replace(slurm.shown(), nodes=("v1",), gpus={"v1": {"v100": 1}}, start_s=NOW)
        actions = decide(seen([shown], steering={"1": ours}), {}, SITE).of(Kind.HINT)
    else:
        actions = restored(["1"], {}, seen([slurm.shown()], steering={"1": ours}), config(), {})
    (action,) = actions
    assert action.fields["Nice"] == "100"


@pytest.mark.parametrize(
    ("more", "ours", "keeps"),
    [
        ({}, Steering(), True),
        ({"array_tasks": "3-9"}, Steering(), False),
        # It has another job's place, or its author's.
        ({}, Steering(was={"Nice": "0"}, wrote={"Nice": "100"}), False),
        ({}, Steering(foreign=("Nice",)), False),
    ],
)
def test_whose_age_is_kept(more, ours, keeps):
    one = replace(Slurm().shown(), **more)
    shown = replace(seen([one], steering={"1": ours}), age=AGE, keeps_ages=True)
    steering = replace(ours, age_lost=True)
    action = Action(Kind.HINT, one, {"Partition": LIST}, steering, "its order of preference")
    assert age_compensation.need([action], shown) == ([action] if keeps else [])
    assert age_compensation.need([action], replace(shown, keeps_ages=False)) == []
    exchanges = replace(action, fields={**action.fields, "Nice": "3"})
    assert age_compensation.need([exchanges], shown) == []


def test_a_list_is_ordered_however_long_its_job_has_waited_where_its_age_is_kept():
    shown = replace(seen([Slurm().shown()]), age=AGE)
    assert hinted(decide(shown, {}, SITE)) == {}
    assert hinted(decide(replace(shown, keeps_ages=True), {}, SITE)) == {"1": {"Partition": LIST}}


@pytest.mark.parametrize(("ahead", "sent"), [(1000, False), (1199, False), (1201, True)])
def test_it_passes_no_other_in_the_end(ahead, sent):
    """Slurm counts its age of that moment, and others' every 300 s."""
    mine = Slurm().shown()
    other = job("2", declaration=None, partitions=("v100",), priority=ahead, submit_s=SINCE)
    mine = replace(mine, priority=900)
    shown = replace(seen([mine, other]), age=AGE, keeps_ages=True)
    assert ("1" in hinted(decide(shown, {}, SITE))) is sent
