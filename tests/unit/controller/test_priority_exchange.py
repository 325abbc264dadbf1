"""Waiting jobs of ours that have each other's priority, by their Nice."""

from dataclasses import replace

import pytest
from hand_made import NOW, config, dictate, look, nodes, ordinary, running, seen
from hand_made import job as any_job

from slurm_hadar.controller.acts.acting import ActionContext
from slurm_hadar.controller.acts.actions import Action, Kind
from slurm_hadar.controller.acts.confirm_exchange import confirm
from slurm_hadar.controller.acts.hints import hints
from slurm_hadar.controller.acts.priority_exchange import Kept, exchange
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.seen import kept as kept_fields
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import UNTYPED, GpuRequest, JobState
from slurm_hadar.domain.steering import Steering

FULL = nodes(v1=2, v2=2, p1=2, p2=2, k1=2, k2=2)
KNOWN = Declaration(model="resnet50", types=("any",), checkpoint=True, samples=1000)


def site(level="association"):
    return config(f'[queue]\nexchange = "{level}"\n')


def job(id_, priority, **more):
    return any_job(id_, **{"priority": priority, "declaration": KNOWN, **more})


def two(count, **more):
    return {"request": GpuRequest(per_node={UNTYPED: count}), **more}


def nices(jobs, planned=(), level="association", state=None, steering=None, refused=()):
    shown = seen(jobs, FULL, steering=steering or {})
    view = look(shown)
    plan = dictate(view.view, {id_: {"v100": 1} for id_ in planned})
    return exchange(view, plan, shown, site(level), Kept(state or {}, refused))


def wrote(own, nice):
    return Steering(time=NOW - 60, was={"Nice": str(own)}, wrote={"Nice": str(nice)})


def test_the_job_that_the_policy_would_start_has_the_priority_of_the_one_that_it_lets_wait():
    jobs = [job("1", 900), ordinary("9", priority=800), job("2", 700)]
    assert nices(jobs, ["2"]).nices == {"1": "200", "2": "-200"}
    assert nices(jobs, ["1"]).nices == {}
    assert nices(jobs, ["2"], "none").nices == {}


def test_an_own_nice_counts_on():
    jobs = [job("1", 900, nice=50), job("2", 700, nice=5)]
    assert nices(jobs, ["2"]).nices == {"1": "250", "2": "-195"}


@pytest.mark.parametrize(
    "more",
    [
        two(2),
        {"time_limit_s": 9000.0},
        {"cpus": 2},
        {"mem_per_node_mb": 10},
        {"user": "bob", "uid": 1001},
        {"account": "other"},
        {"qos": "high"},
        {"features": "ib"},
        {"excluded_nodes": ("v1",)},
        {"array_job_id": 2, "array_tasks": "0-3"},
        {"restarts": 1},
        {"held": True},
        {"dependency": "afterok:5", "reason": "Dependency"},
        {"reason": "QOSMaxJobsPerUserLimit"},
        {"external": True},
        {"declaration": None},
    ],
)
def test_a_job_that_asks_for_more_or_for_something_else_passes_nobody(more):
    jobs = [job("1", 900), ordinary("9", priority=800), job("2", 700, **more)]
    assert nices(jobs, ["2"]).nices == {}


def test_what_asks_for_more_passes_where_nobody_else_is_between():
    jobs = [ordinary("9", priority=950), job("1", 900), job("2", 700, **two(2))]
    assert nices(jobs, ["2"]).nices == {"1": "200", "2": "-200"}
    # One that may not start yet is passed by nobody.
    later = ordinary("8", priority=800, eligible_s=NOW + 60, reason="BeginTime")
    assert nices([*jobs, later], ["2"]).nices == {"1": "200", "2": "-200"}
    between = ordinary("8", priority=800)
    assert nices([*jobs, between], ["2"]).nices == {}


def test_levels():
    ann, bob = job("1", 900, account="x"), job("2", 700, account="x", user="bob", uid=1001)
    assert nices([ann, bob], ["2"]).nices == {}
    assert nices([ann, bob], ["2"], "account").nices != {}
    other = replace(bob, account="y")
    assert nices([ann, other], ["2"], "account").nices == {}
    assert nices([ann, other], ["2"], "all").nices != {}


def test_nobody_is_passed_for_an_equal_priority():
    """Of two with one priority Slurm takes the lesser number first."""
    # Job 1 would have the priority of 5, and come first of the two.
    jobs = [job("1", 900), ordinary("5", priority=700), job("6", 700)]
    assert nices(jobs, ["6"]).nices == {}
    # Behind all of that priority as it is: nothing changes for 5.
    jobs = [job("4", 900), ordinary("3", priority=700), job("6", 700)]
    assert nices(jobs, ["6"]).nices == {"4": "200", "6": "-200"}


def test_nothing_changes_while_the_order_is_as_wanted():
    jobs = [job("1", 901 - 200, nice=200), ordinary("9", priority=800), job("2", 900, nice=-200)]
    steering = {"1": wrote(0, 200), "2": wrote(0, -200)}
    again = nices(jobs, ["2"], steering=steering)
    assert again.nices == {"1": "200", "2": "-200"}
    # The policy wants it no more.
    assert nices(jobs, ["1"], steering=steering).nices == {}


def test_a_job_whose_partner_started_from_its_place_has_the_partners():
    jobs = [job("1", 900), ordinary("9", priority=800), job("2", 700)]
    state = nices(jobs, ["2"]).state
    steering = {"1": wrote(0, 200), "2": wrote(0, -200)}
    down = job("1", 710, nice=200)
    started = running("2", {"v1": {"v100": 1}}, nice=-200, priority=910)
    for then in ([down, started, jobs[1]], [down, jobs[1]]):
        found = nices(then, ["1"], state=state, steering=steering)
        assert found.nices == {"1": "200"}
        # And so it stays.
        again = nices([down, jobs[1]], ["1"], state=found.state, steering=steering)
        assert again.nices == {"1": "200"}
    # It was cancelled while it waited, or began before Slurm had the new Nice.
    for then in (replace(jobs[2], state=JobState.FINISHED), replace(started, nice=0)):
        assert nices([down, then, jobs[1]], [], state=state, steering=steering).nices == {}


def test_a_nice_of_somebody_else_is_left_alone():
    known = wrote(0, 200)
    shown = job("1", 900, nice=5)
    ours = kept_fields.without_foreign({"1": known}, {"1": shown}, site(), ())
    assert ours["1"].foreign == ("Nice",) and "Nice" not in ours["1"].was
    assert nices([shown, job("2", 700)], ["2"], steering=ours).nices == {}


def test_a_job_that_slurm_refused_takes_no_part():
    jobs = [job("1", 900), job("2", 700)]
    assert nices(jobs, ["2"], refused={"1"}).nices == {}


def test_the_nice_comes_with_the_other_hints_and_goes_back():
    shown = seen([job("1", 900), job("2", 700)], FULL)
    view = look(shown)
    plan = dictate(view.view, {"2": {"v100": 1}})
    first = hints(view, plan, shown, site(), {}, {"1": "200", "2": "-200"})
    assert {a.job.id: dict(a.fields) for a in first} == {
        "1": {"Nice": "200"},
        "2": {"Nice": "-200"},
    }
    assert all(a.steering.was == {"Nice": "0"} for a in first)
    down = job("1", 700, nice=200)
    then = seen([down], FULL, steering={"1": wrote(0, 200)})
    for left_out in ({}, {"1": "it opted out"}):
        found = hints(replace(look(then), left_out=left_out), plan, then, site(), {})
        assert [dict(a.fields) for a in found] == [{"Nice": "0"}] * len(found) and found
        assert found[0].steering.was == {}


class Shown:
    """What Slurm shows after the updates; it takes all of them."""

    def __init__(self, *jobs):
        self.jobs, self.sent = jobs, []

    def read_jobs(self, ids):
        return [job for job in self.jobs if job.id in ids]

    def apply(self, updates):
        self.sent += [(update.job_id, dict(update.fields)) for update in updates]
        return [None] * len(updates)


def actions():
    return [
        Action(Kind.HINT, job(id_, priority), {"Nice": str(nice)}, wrote(0, nice), "it waits")
        for id_, priority, nice in (("1", 900, 200), ("2", 700, -200))
    ]


def confirmed(tmp_path, *jobs, refused=()):
    store = Store.open(tmp_path / "state")
    slurm = Shown(*jobs)
    context = ActionContext(slurm, store, site(), clock=lambda: NOW)
    said = confirm(context, actions(), refused).said
    known = {id_: context.known(job(id_, 1)) for id_ in ("1", "2")}
    store.close()
    return slurm.sent, said, known


def test_an_exchange_that_slurm_carried_out_stands(tmp_path):
    sent, said, _ = confirmed(tmp_path, job("1", 702, nice=200), job("2", 899, nice=-200))
    assert sent == [] and said == ()
    # It began in its new place.
    begun = running("2", {"v1": {"v100": 1}}, nice=-200)
    assert confirmed(tmp_path, job("1", 700, nice=200), begun)[0] == []


@pytest.mark.parametrize(
    "first",
    [
        job("1", 900, nice=0),
        job("1", 900, nice=200),
        running("1", {"v1": {"v100": 1}}, nice=200),
    ],
)
def test_both_have_their_own_nice_again_where_one_was_ignored(tmp_path, first):
    sent, said, known = confirmed(tmp_path, first, job("2", 900, nice=-200))
    assert ("2", {"Nice": "0"}) in sent and len(said) == 1
    assert known["1"].foreign == ("Nice",) or first.state is JobState.RUNNING
    assert known["2"].was == {} and known["2"].foreign == ()


def test_where_one_was_refused_the_other_goes_back(tmp_path):
    sent, _, _ = confirmed(tmp_path, job("1", 900), job("2", 900, nice=-200), refused={"1"})
    assert sent == [("2", {"Nice": "0"})]


def test_a_look_that_fails_is_said(tmp_path):
    class Dead(Shown):
        def read_jobs(self, ids):
            raise SlurmError("slurmctld does not answer")

    store = Store.open(tmp_path / "state")
    said = confirm(ActionContext(Dead(), store, site()), actions(), ()).said
    store.close()
    assert "slurmctld does not answer" in said[0]


def test_what_is_kept_is_not_believed_blindly():
    jobs = [job("1", 900), job("2", 700)]
    for state in ({"jobs": 5, "promised": []}, {"jobs": {"1": [1]}, "promised": {"1": "x"}}):
        assert nices(jobs, ["2"], state=state).nices == {"1": "200", "2": "-200"}
