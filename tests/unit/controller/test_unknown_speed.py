"""Of a model that was never measured no time and no speed is shown."""

import json
import re
from contextlib import closing
from types import SimpleNamespace

import pytest
from hand_made import CONFIG, NOW, RATES, job, look, nodes, observation, running
from looking import Looking

from slurm_hadar import policies
from slurm_hadar.controller.actuation import action_outcomes
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation.job_explanation import explanation_of, plain
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.steering import Steering
from slurm_hadar.reports import text
from slurm_hadar.slurm.traffic import Traffic

TIME = re.compile(r"ends? (in )?\d")
UNKNOWN = Declaration(types=("any",), model="nobody-knows", samples=10**6, checkpoint="yes")
NO_WORK = Declaration(types=("any",), model="resnet18", checkpoint="yes")
TOLD = Declaration(types=("any",), model="resnet18", samples=10**6, checkpoint="yes")


def crowd(declaration):
    found = nodes(v1=2, k1=1)
    jobs = [
        running("1", {"v1": {"v100": 2}}, declaration=declaration),
        running("2", {"k1": {"k80": 1}}, declaration=declaration),
    ]
    jobs += [job(str(n), declaration=declaration, priority=1000 - n) for n in range(3, 20)]
    return observation(jobs, found)


def reasons(name, declaration):
    plan, _ = policies.get(name)(look(crowd(declaration)).view, {})
    return [*(one.reason for one in plan.placements.values()), *plan.waiting.values()]


@pytest.mark.parametrize("name", policies.names())
@pytest.mark.parametrize("declaration", [UNKNOWN, NO_WORK])
def test_no_policy_tells_when_a_job_ends_of_which_that_is_not_known(name, declaration):
    assert not [reason for reason in reasons(name, declaration) if TIME.search(reason)]


@pytest.mark.parametrize("name", ["hadar", "timetable", "fifo", "ones", "network"])
def test_it_is_reported_where_it_is_known(name):
    assert any(TIME.search(reason) for reason in reasons(name, TOLD))


def explained(tmp_path, one):
    with closing(Store.open(tmp_path / "state")) as store:
        cluster = SimpleNamespace(traffic=Traffic(lambda: NOW))
        controller = Looking(CONFIG, cluster, store, RATES, 0)
        controller.shown = observation([one])
        return explanation_of(controller, one.id)


def test_explain_shows_no_speed_of_an_unknown_model(tmp_path):
    found = explained(tmp_path, job(declaration=UNKNOWN))
    assert found.rates and {row.samples_per_s for row in found.rates} == {None}
    assert {row["samples_per_s"] for row in json.loads(json.dumps(plain(found)))["rates"]} == {None}
    console = text.console(width=100)
    with console.capture() as kept:
        console.print(text.explain(found))
    # Which type is faster is said all the same.
    assert len(re.findall(r"  \d+%  +estimated", kept.get())) == len(found.rates)
    known = explained(tmp_path, job(declaration=TOLD))
    assert all(row.samples_per_s for row in known.rates)


def test_no_speed_is_expected_of_a_move_of_an_unknown_model():
    for declaration, expected in ((UNKNOWN, False), (TOLD, True)):
        here = running("1", {"k1": {"k80": 1}}, declaration=declaration)
        action = Action(Kind.MOVE, here, {}, Steering(gpus={"v100": 1}), "why")
        assert (
            "rate_expected"
            in action_outcomes.expected_effect(look(observation([here])), action, None)
        ) is expected
