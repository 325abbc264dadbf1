"""Interactive jobs are left alone and shown as such; plans count what they ask for."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hand_made import NOW, RATES, config, job, look, node, observation, ordinary, running

from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import interactive, observed
from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.controller.presentation.overview import Sight, Viewer, overview
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.reports.status import SLURM, ControllerState, summary
from slurm_hadar.slurm.traffic import Traffic

SITE = config('[site]\nrights = "sandbox"\n[partitions]\nopt_in = ["gpu"]\n')
HERE = {"k1": {"k80": 1}}


def overview_of(shown):
    state = ControllerState("acts", "here", NOW)
    return overview(Sight(shown, SITE, state, SLURM, {}), Viewer(0, everything=True))


@pytest.mark.parametrize(
    ("name", "batch", "left"),
    [
        ("train", True, False),
        ("train", False, True),
        ("sys/dashboard/sys/jupyter", True, True),
        ("ondemand/sys/dashboard/sys/bc_desktop", True, True),
        ("spawner-jupyterhub", True, True),
        ("jupyter_figures", True, False),
    ],
)
def test_who_is_interactive(name, batch, left):
    assert bool(interactive.why(job(name=name, batch=batch), SITE.guards)) is left
    # The names are the site's.
    other = SITE.guards.model_copy(update={"interactive_names": ()})
    assert bool(interactive.why(job(name=name, batch=batch), other)) is not batch


@pytest.fixture
def controller(tmp_path, monkeypatch):
    cluster = SimpleNamespace(
        traffic=Traffic(lambda: NOW), queries=Counter(), read_config=dict, read_topology=dict
    )
    with closing(Store.open(tmp_path / "state")) as store:
        found = Controller(SITE, cluster, store, RATES, 0, lambda: NOW)

        def look_at(*jobs):
            opted_in = [observed.opted_in(one, SITE, one.partitions) for one in jobs]
            shown = observation(opted_in, steering={})
            monkeypatch.setattr(observed, "read", lambda *_: shown)
            return found

        yield look_at


def test_they_are_shown_as_such_and_nothing_is_sent(controller):
    silent = {"declaration": None, "partitions": ("gpu",)}
    jobs = [
        running("1", HERE, batch=False, **silent),
        job("2", name="sys/dashboard/sys/jupyter", **silent),
        job("3", **silent),
        running("4", HERE, batch=False, declaration=None, partitions=("k80",)),
    ]
    asked = controller(*jobs)
    plan = asked.plan()
    assert set(plan.snapshot.schedulable) == {"3"}
    assert {action.job.id for action in plan.diff.actions} <= {"3"}
    rows = {row.id: row.reason for row in overview_of(plan.observation).rows}
    assert "not steered: it is interactive (salloc or srun)" in rows["1"]
    assert "not steered: it is an interactive session" in rows["2"]
    assert rows.keys() == {"1", "2", "3"} and "interactive" not in rows["3"]
    (line,) = [
        str(one) for one in summary(overview_of(plan.observation), NOW) if "managed" in str(one)
    ]
    assert line.endswith("1 pending; not managed: 2 running, 1 pending (3 interactive)")
    for id_ in ("1", "2"):
        notes = job_explanation.explanation_of(asked, id_).notes
        assert any(note.startswith("Not steered: it is") for note in notes)
    with pytest.raises(UsageError, match=r"it is interactive \(salloc or srun\)"):
        job_explanation.explanation_of(asked, "4")


def test_a_job_that_was_changed_before_it_counted_as_one_stays_managed():
    one = job("1", name="spawner-jupyterhub")
    assert not interactive.applied({"1": one}, SITE.guards, ())["1"].managed
    assert interactive.applied({"1": one}, SITE.guards, {"1"})["1"].managed


@pytest.mark.parametrize("priority", [500, 2000])
def test_plans_count_what_they_wait_for(priority):
    """Where Slurm would start them first, and only there."""
    waits = ordinary("9", batch=False, priority=priority)
    shown = observation([job("1"), waits], [node("k1", 1)])
    view = look(shown, SITE).view
    assert view.nodes.gpus.sum() == (0 if priority > 1000 else 1)
    # What they hold is gone.
    there = replace(running("9", HERE, declaration=None), batch=False)
    shown = observation([job("1"), there], [node("k1", 2, gpus_used={"k80": 1})])
    assert look(shown, SITE).view.nodes.gpus.sum() == 1
