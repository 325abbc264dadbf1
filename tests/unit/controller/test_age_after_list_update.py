"""A list that takes the age from a waiting job's priority is sent so that its place stays."""

from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hand_made import NOW, as_cluster, config, decide, dictate, hinted, job, look, observation

from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.actuation.pending import age_after_list_update, list_updates
from slurm_hadar.controller.actuation.pending.hint_updates import (
    Hint,
    HintInput,
    Wait,
    restored,
    updates,
)
from slurm_hadar.controller.actuation.pending.hints import hints
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
    since: float = SINCE
    age: int = 0
    state: JobState = JobState.PENDING
    held: bool = False
    array_tasks: str = ""
    observation: list[int] = field(default_factory=list)
    later: list = field(default_factory=list)

    def __post_init__(self):
        self.accrue_s = self.since
        self.age = round(self.now - self.lag_s - self.since)

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
            held=self.held,
            array_tasks=self.array_tasks,
            accrue_s=self.accrue_s,
            submit_s=self.since,
            eligible_s=self.since,
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
            self.age = round(self.now - self.since)
        self.observation.append(self.priority)
        return [None]

    def sleep(self, for_s):
        self.now += for_s
        if not self.accrue_s and self.now >= self.found_s:
            self.accrue_s = self.since
        for change in self.later:
            change(self)
        self.observation.append(self.priority)


@pytest.fixture
def store(tmp_path):
    (tmp_path / "exchange").mkdir()
    found = Store.open(tmp_path / "state")
    yield found
    found.close()


def tick(slurm, store, tmp_path, *others):
    site = config(
        f'[site]\nrights = "operator"\nexchange_dir = "{tmp_path}/exchange"\n'
        '[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n'
    )
    known = decode(store.steerings(["1"]).get("1", "")) or Steering()
    jobs = [slurm.shown(), *others]
    shown = replace(observation(jobs, steering={"1": known}), age=AGE, keeps_ages=True)
    hints = decide(shown, {}, SITE).of(Kind.HINT)
    aged = age_after_list_update.need(hints, shown)
    context = ActionContext(as_cluster(slurm), store, site, clock=lambda: slurm.now)
    return age_after_list_update.send(context, aged, shown, slurm.sleep), aged


def kept(store):
    return decode(store.steerings(["1"])["1"])


def test_its_priority_never_changes_until_its_age_counts_again(store, tmp_path):
    slurm = Slurm()
    before = slurm.priority
    sent, aged = tick(slurm, store, tmp_path)
    assert len(aged) == 1 and sent.messages == () and not sent.refused
    assert slurm.partition == LIST and slurm.nice == 100
    *waits, last = slurm.observation
    assert len(waits) == 1 + slurm.finds_s and set(waits) == {before}
    # Of that moment, as at any update.
    assert last == before + slurm.lag_s + slurm.finds_s
    ours = kept(store)
    assert ours.was == {"Partition": "gpu"} and ours.wrote == {"Partition": LIST}
    assert not ours.age_lost
    assert not decide(
        replace(observation([slurm.shown()], steering={"1": ours}), age=AGE, keeps_ages=True),
        {},
        SITE,
    ).actions


@pytest.mark.parametrize("dies", [False, True])
def test_a_job_with_the_place_of_another_keeps_that(store, tmp_path, dies):
    slurm = Slurm()
    before = slurm.priority
    ours = Steering(was={"Nice": "0", "Partition": "gpu"}, wrote={"Nice": "100", "Partition": LIST})
    one = slurm.shown()
    action = Action(Kind.HINT, one, {"Partition": LIST}, replace(ours, age_lost=True), "it fits")
    shown = replace(observation([one], steering={"1": ours}), age=AGE, keeps_ages=True)
    assert age_after_list_update.need([action], shown) == [action]
    site = config(f'[site]\nexchange_dir = "{tmp_path}/exchange"\n')
    context = ActionContext(as_cluster(slurm), store, site, clock=lambda: slurm.now)
    if dies:
        slurm.later = [lambda _: 1 / 0]
        with pytest.raises(ZeroDivisionError):
            age_after_list_update.send(context, [action], shown, slurm.sleep)
        assert kept(store).was["Nice"] == "0" and kept(store).wrote["Nice"] == "-440"
        return
    assert not age_after_list_update.send(context, [action], shown, slurm.sleep).refused
    assert slurm.partition == LIST and slurm.nice == 100 and min(slurm.observation) == before
    assert kept(store).was["Nice"] == "0" and kept(store).wrote["Nice"] == "100"


@pytest.mark.parametrize(("lag_s", "sent"), [(270.0, True), (280.0, False), (400.0, False)])
def test_nothing_is_sent_where_slurm_counts_all_ages_soon(store, tmp_path, lag_s, sent):
    """It would count this one beside the Nice that stands for it."""
    slurm = Slurm(lag_s=lag_s)
    done, _ = tick(slurm, store, tmp_path)
    assert (slurm.partition == LIST) is sent and ("1" in done.refused) is not sent


def test_nothing_is_sent_where_slurm_does_not_tell_the_ages(store, tmp_path, monkeypatch):
    slurm = Slurm()
    monkeypatch.setattr(slurm, "read_priorities", dict)
    assert "1" in tick(slurm, store, tmp_path)[0].refused

    def fails():
        raise SlurmError("sprio gave no answer within 30 s", retry=True)

    monkeypatch.setattr(slurm, "read_priorities", fails)
    done, _ = tick(slurm, store, tmp_path)
    assert done.messages[0].startswith("the lists of 1 jobs stay: their ages are not known: sprio")
    assert slurm.partition == "gpu" and slurm.observation == []


def test_a_nice_that_its_owner_sets_meanwhile_is_the_owners(store, tmp_path):
    slurm = Slurm(later=[lambda one: setattr(one, "nice", 7)])
    tick(slurm, store, tmp_path)
    assert slurm.nice == 7 and slurm.partition == LIST


@pytest.mark.parametrize("released", [False, True])
def test_a_job_that_its_owner_holds_meanwhile_has_the_owners_nice_at_once(
    store, tmp_path, released
):
    def hold(slurm):
        slurm.held = slurm.now < NOW + 2 or not released

    slurm = Slurm(finds_s=100.0, later=[hold])
    tick(slurm, store, tmp_path)
    assert slurm.nice == 100 and kept(store).was == {"Partition": "gpu"}
    assert kept(store).age_lost and slurm.now == NOW + 1


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
        actions = decide(observation([shown], steering={"1": ours}), {}, SITE).of(Kind.HINT)
    else:
        actions = restored(
            ["1"], {}, HintInput(observation([slurm.shown()], steering={"1": ours}), config())
        )
    (action,) = actions
    assert action.fields["Nice"] == "100"


@pytest.mark.parametrize(
    ("more", "ours", "keeps"),
    [
        ({}, Steering(), True),
        ({"array_tasks": "3-9"}, Steering(), False),
        # Another job's place in the queue.
        ({}, Steering(was={"Nice": "0"}, wrote={"Nice": "100"}), True),
        # The Nice for the age that its requeue took, and one of another user's.
        ({"restarts": 1}, Steering(was={"Nice": "0"}, wrote={"Nice": "100"}), False),
        ({}, Steering(foreign=("Nice",)), False),
        # A preference of a list, for which it is asked whether there is an age.
        ({"array_tasks": "3-9"}, Steering(was={"Partition": "gpu"}), True),
        ({"array_tasks": "3-9"}, Steering(was={"Partition": "gpu"}, until=NOW), False),
    ],
)
def test_whose_age_is_kept(more, ours, keeps):
    one = replace(Slurm().shown(), **more)
    shown = replace(observation([one], steering={"1": ours}), age=AGE, keeps_ages=True)
    steering = replace(ours, age_lost=True)
    action = Action(Kind.HINT, one, {"Partition": LIST}, steering, "its order of preference")
    assert age_after_list_update.need([action], shown) == ([action] if keeps else [])
    assert age_after_list_update.need([action], replace(shown, keeps_ages=False)) == []
    exchanges = replace(action, fields={**action.fields, "Nice": "3"})
    assert age_after_list_update.need([exchanges], shown) == []


def test_a_list_is_ordered_however_long_its_job_has_waited_where_its_age_is_kept():
    shown = replace(observation([Slurm().shown()]), age=AGE)
    assert hinted(decide(shown, {}, SITE)) == {}
    assert hinted(decide(replace(shown, keeps_ages=True), {}, SITE)) == {"1": {"Partition": LIST}}


def test_no_list_takes_the_age_of_a_young_job_that_nothing_keeps():
    """One that comes meanwhile with a little more priority would start first."""
    one = Slurm(partition="k80,v100,p100").shown()
    one = replace(one, submit_s=NOW - 60, eligible_s=NOW - 60)
    shown = replace(observation([one]), age=AGE)
    assert hinted(decide(shown, {}, SITE)) == {}
    fresh = replace(one, submit_s=NOW - 0.5, eligible_s=NOW - 0.5)
    shown = replace(observation([fresh]), age=AGE)
    assert hinted(decide(shown, {}, SITE)) == {"1": {"Partition": LIST}}


@pytest.mark.parametrize(("lag_s", "goes"), [(60.0, True), (30.0, False)])
def test_a_young_array_gets_a_list_while_slurm_has_counted_no_age(store, tmp_path, lag_s, goes):
    slurm = Slurm(lag_s=lag_s, since=NOW - 60, partition="k80,v100,p100", array_tasks="3-9")
    before = slurm.priority
    sent, aged = tick(slurm, store, tmp_path)
    assert len(aged) == 1 and bool(sent.refused) is not goes
    assert (slurm.partition == LIST) is goes and slurm.priority == before


def test_a_young_job_passes_none_that_is_older(store, tmp_path):
    slurm = Slurm(lag_s=30.0, since=NOW - 60)
    other = job("2", partitions=("v100",), priority=slurm.priority + 20, submit_s=NOW - 90)
    sent, aged = tick(slurm, store, tmp_path, other)
    assert len(aged) == 1 and sent.refused == {"1"} and slurm.partition == "gpu"
    sent, _ = tick(slurm, store, tmp_path, replace(other, priority=slurm.priority + 70))
    assert not sent.refused and slurm.partition == LIST


def test_a_young_job_keeps_its_priority(store, tmp_path):
    slurm = Slurm(lag_s=30.0, since=NOW - 90)
    before = slurm.priority
    sent, aged = tick(slurm, store, tmp_path)
    assert len(aged) == 1 and not sent.refused and slurm.partition == LIST and slurm.nice == 100
    assert min(slurm.observation) == before


def test_a_job_whose_age_was_never_counted_gets_its_list_at_once(store, tmp_path):
    """Its priority has no age that the update could take, however soon Slurm counts all."""
    slurm = Slurm(lag_s=60.0, since=NOW - 60)
    before = slurm.priority
    sent, _ = tick(slurm, store, tmp_path)
    assert slurm.partition == LIST and slurm.observation == [before] and not sent.refused
    assert not kept(store).age_lost


@pytest.mark.parametrize(("ahead", "sent"), [(1000, False), (1199, False), (1201, True)])
def test_it_passes_no_other_in_the_end(ahead, sent):
    """Slurm counts its age of that moment, and others' every 300 s."""
    mine = Slurm().shown()
    other = job("2", declaration=None, partitions=("v100",), priority=ahead, submit_s=SINCE)
    mine = replace(mine, priority=900)
    shown = replace(observation([mine, other]), age=AGE, keeps_ages=True)
    assert ("1" in hinted(decide(shown, {}, SITE))) is sent


SHORT = Steering(was={"Partition": "gpu"}, wrote={"Partition": "v100"}, until=NOW + 60, ends=NOW)
ORDERED = Steering(was={"Partition": "gpu"}, wrote={"Partition": "k80,v100"})
MIXED = Steering(was={"Partition": "gpu"}, wrote={"Partition": "v100,k80"})
LISTS = [
    ("gpu", Steering()),
    ("k80,v100,p100", Steering()),
    ("k80,v100", ORDERED),
    ("v100,k80", MIXED),
    ("v100", SHORT),
    ("v100,old", Steering()),
]
"""The partitions of a job, and what is kept of them."""
PLACES = [({}, None), ({}, "200"), ({"Nice": "0"}, None), ({"Nice": "0"}, "100"),
          ({"Nice": "0"}, "300")]  # fmt: skip
"""The owner's Nice where another one is ours, and the Nice that an exchange gives in this tick."""


def hints_for(one, ours, nice, excluded, deep, site=SITE):
    observed = replace(
        observation([one], steering={"1": ours}),
        age=AGE,
        keeps_ages=True,
        queue_depth=0 if deep else 100,
    )
    shown = look(observed, site)
    if excluded:
        shown = replace(shown, schedulable={}, excluded={"1": "it opted out"})
    plan = dictate(shown.view, {"1": {"v100": 1}})
    nices = {"1": nice} if nice else {}
    return observed, hints(shown, plan, HintInput(observed, site), nices)


CASES = list(product((60, 600), (False, True), (False, True), ({}, {"mem_per_node_mb": 10**6})))
"""For how many seconds the job has waited, whether it is excluded, whether it is deep in the queue,
and what it asks for besides, with which it fits or does not."""


@pytest.mark.parametrize(("was", "nice"), PLACES)
@pytest.mark.parametrize(("names", "listed"), LISTS)
def test_no_list_takes_an_age_that_nothing_keeps(names, listed, was, nice):
    """A list is sent with the Nice for the age, or it waits for the Nice of an exchange."""
    own = replace(listed, was={**listed.was, **was}, time=NOW - 60)
    own = replace(own, wrote={**own.wrote, "Nice": "100"} if was else own.wrote)
    for case in CASES:
        waited_s, excluded, deep, more = case
        since = NOW - waited_s
        one = replace(Slurm(partition=names).shown(), submit_s=since, eligible_s=since, **more)
        observed, actions = hints_for(one, own, nice, excluded, deep)
        for action in actions:
            changes = action.fields.get("Partition", names) != names
            if "Nice" in action.fields:
                assert not changes and "Features" not in action.fields, case
                assert not action.steering.age_lost, case
                # The deadline of a list is that of the list which the job has.
                assert action.steering.until == own.until, case
            elif changes:
                kept = age_after_list_update.need([action], observed) == [action]
                assert kept, case


def test_a_nice_goes_first_and_the_list_at_the_next_tick():
    ours = Steering(was={"Nice": "0"}, wrote={"Nice": "100"}, time=NOW - 60)
    one = Slurm().shown()
    _, (action,) = hints_for(one, ours, None, excluded=False, deep=False)
    assert dict(action.fields) == {"Nice": "0"}
    then = replace(one, nice=0, priority=one.priority + 100)
    observed, (action,) = hints_for(then, action.steering, None, excluded=False, deep=False)
    assert dict(action.fields) == {"Partition": LIST}
    assert age_after_list_update.need([action], observed) == [action]


def test_a_list_that_stays_has_no_deadline():
    """With one it would be widened at any price at the next tick."""
    ours = Steering(was={"Nice": "0"}, wrote={"Nice": "100"}, time=NOW - 60)
    observed = replace(
        observation([Slurm().shown()], steering={"1": ours}), age=AGE, keeps_ages=True
    )
    hint = Hint(("v100",), "200", Wait(NOW + 60, NOW + 600))
    (action,) = updates(["1"], {"1": hint}, {}, HintInput(observed, config()))
    assert dict(action.fields) == {"Nice": "200"} and action.steering.until == 0


def test_what_keeps_a_list_as_it_is_can_be_said():
    mine = replace(Slurm().shown(), priority=900)
    near = job("2", declaration=None, partitions=("v100",), priority=1000, submit_s=SINCE)
    for others, stays in (([near], {"1"}), ([replace(near, priority=2000)], set())):
        observed = replace(observation([mine, *others]), age=AGE, keeps_ages=True)
        found: set[str]
        shown, found = look(observed, SITE), set()
        hints(shown, dictate(shown.view, {}), HintInput(observed, SITE), {}, found)
        assert found == stays
    assert "stays as it is" in list_updates.notes({"1"})["1"]
    # A list that the job has is not one that stays away.
    has = replace(mine, partitions=("v100", "p100", "k80"))
    observed, found = replace(observation([has, near]), age=AGE, keeps_ages=True), set()
    shown = look(observed, SITE)
    hints(shown, dictate(shown.view, {}), HintInput(observed, SITE), {}, found)
    assert found == set()
