"""A group of partitions that stops working is reported once, and shown as long as it lasts."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import CONFIG, NOW, RATES, config, node, nodes, observation

from slurm_hadar.controller.announcements import Announcements
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.accounting_limits import AccountingLimits
from slurm_hadar.controller.observation.group_problems import group_news, group_problems
from slurm_hadar.controller.presentation.overview import Sight, Viewer, overview
from slurm_hadar.controller.tick import Controller, _Mode
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.reports.status import CONTROLLER, ControllerState, summary
from slurm_hadar.slurm.traffic import Traffic

GROUP = config('[partitions.groups]\ngpu = ["v100", "p100", "k80"]\n')


def without(*names):
    whole = observation([])
    kept = [one for one in whole.partitions.values() if one.name not in names]
    return replace(whole, partitions={one.name: one for one in kept})


def renamed():
    found = [
        replace(one, gpus={"p100x": 2}, gpus_used={}) if one.name[0] == "p" else one
        for one in nodes()
    ]
    return observation([], found)


@pytest.mark.parametrize(
    ("observed", "says"),
    [
        (without("p100"), "no partition p100, so jobs that ask for gpu stay in it;"),
        (without("p100", "k80"), "no partition p100 and no partition k80, so jobs"),
        (without("gpu"), "this Slurm has no partition gpu;"),
        (renamed(), "partition p100 has the GPU type p100x and another name"),
    ],
)
def test_a_group_that_does_not_work_is_named_with_what_is_missing_and_what_to_do(observed, says):
    (words,) = group_problems(observed, GROUP).values()
    assert words.startswith("partitions.groups.gpu: ") and says in words and "hadar check" in words


def test_a_group_with_other_nodes_than_its_partition_is_told_of():
    whole = observation([])
    smaller = replace(whole.partitions["p100"], nodes=("p1",))
    observed = replace(whole, partitions={**whole.partitions, "p100": smaller})
    (words,) = group_problems(observed, GROUP).values()
    assert "partition gpu has node p2, which no member has, so jobs that ask for gpu stay" in words


def test_groups_that_work_and_no_groups_say_nothing():
    assert group_problems(observation([]), GROUP) == {} == group_problems(without("p100"), CONFIG)


def test_where_slurm_hides_the_nodes_their_types_say_nothing():
    assert group_problems(replace(observation([]), nodes={}), GROUP) == {}


def test_a_tick_tells_of_it_once_and_that_it_is_over():
    looks = [
        observation([]),
        without("p100"),
        without("p100"),
        without("k80"),
        observation([]),
        observation([]),
    ]
    found = [group_problems(one, GROUP) for one in looks]
    said = [group_news(known, now) for known, now in zip([{}, *found], found, strict=False)]
    assert [len(one) for one in said] == [0, 1, 0, 1, 1, 0]
    assert said[4] == ["partitions.groups.gpu works again"]


@pytest.fixture
def store(tmp_path):
    found = Store.open(tmp_path / "state")
    yield found
    found.close()


def announcements(store, rules=None):
    return Announcements(GROUP, store, rules or AccountingLimits(None, GROUP))


def test_it_is_said_with_what_else_is_new(store):
    rules = AccountingLimits(None, GROUP)
    rules._fault, rules._cure = "slurmdbd is silent", "restart it"
    messages = announcements(store, rules).of_cluster(without("p100"))
    assert [one.partition(": ")[0] for one in messages] == [
        "partitions.groups.gpu",
        "slurmdbd is silent",
    ]


LOST = replace(node("v1"), gpus_used={"v100": 2})


@pytest.mark.parametrize(
    ("wrong", "fault", "at_the_end"),
    [
        (without("p100"), "", 1),
        (observation([], [LOST, *nodes()[1:]]), "", 0),
        (observation([]), "slurmdbd is silent", 1),
    ],
    ids=["groups", "lost GPUs", "accounting"],
)
def test_ticks_of_a_timer_say_once_that_something_does_not_work(
    store, wrong, fault, at_the_end, monkeypatch
):
    """Each of them is a process of its own; one that fails has said nothing."""

    def tick(observed, fails=False):
        slurm = SimpleNamespace(traffic=Traffic(), queries={})
        controller = Controller(GROUP, slurm, store, RATES, os.getuid())
        controller.rules._fault = fault if observed is wrong else ""

        def whole(mode, _):
            words = controller._announcements.of_cluster(observed)
            if fails:
                raise SlurmError("no answer")
            return len(words)

        monkeypatch.setattr(controller, "_whole_pass", whole)
        return controller._pass(_Mode(True), ())

    with pytest.raises(SlurmError):
        tick(wrong, fails=True)
    fine = observation([])
    said = [tick(one) for one in (wrong, wrong, fine, fine, wrong)]
    assert said == [1, 0, at_the_end, 0, 1]


def test_why_nothing_is_changed_is_said_when_it_begins_and_when_it_ends(store):
    """By a tick that fails nothing is said."""
    ours = announcements(store)

    def tick(why_not, fails=False):
        words = ours.of_changes(why_not)
        if not fails:
            ours.reported()
        return words

    whys = ("", "a is active", "a is active", "b is active", "", "")
    sent = ("changes are sent again",)
    expected = [(), ("a is active",), (), ("b is active",), sent, ()]
    assert [tick(why) for why in whys] == expected
    assert tick("a is active", fails=True) == tick("a is active") == ("a is active",)


def test_status_shows_it_to_the_operator_as_long_as_it_lasts():
    def shown(observed, viewer):
        known = Sight(observed, GROUP, ControllerState("acts", "here", NOW), CONTROLLER, {})
        lines = [line.plain for line in summary(overview(known, viewer), NOW)]
        return [line for line in lines if line.startswith("Groups")]

    operator, ann = Viewer(0, everything=True), Viewer(1000)
    (line,) = shown(without("p100"), operator)
    assert "this Slurm has no partition p100" in line and "hadar check" in line
    assert not shown(without("p100"), ann) and not shown(observation([]), operator)
