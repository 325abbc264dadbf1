"""What the views say of a job and of a node, without a browser."""

import json
import re
from dataclasses import replace

import pytest

from slurm_hadar.reports.cluster import HIDDEN, ClusterView, JobTimeline, NodeRow, Stay
from slurm_hadar.reports.job_report import JobReport, Problem
from slurm_hadar.reports.status import ControllerState, Overview
from slurm_hadar.reports.text import Explanation, StatusRow
from slurm_hadar.web import drawing, rendering
from slurm_hadar.web.feed import Shown
from slurm_hadar.web.page_query import choice_of


def shown(rows=(), nodes=()):
    overview = Overview(1.0, "controller", ControllerState("acts"), rows=list(rows))
    return Shown(ClusterView(overview, list(nodes)))


def cells(node):
    """The colour of each of its GPUs."""
    page = rendering.nodes(shown(nodes=[node]), choice_of("nodes", {}))
    return re.findall(r'class="gpu (\w+)"', page.lists["nodes"][f"node-{node.name}"])


@pytest.mark.parametrize("ids", [("10", "20", "30"), ("7_1", "7_2", "8"), ("9", "19", "8")])
def test_the_jobs_of_a_node_have_different_colours(ids):
    held = NodeRow("k1", "MIXED", True, {"k80": 4}, {"k80": 3}, dict.fromkeys(ids, 1))
    assert len(set(cells(held))) == 4 and cells(held)[3] == "free"


def test_a_job_has_one_colour_on_all_its_nodes_and_others_jobs_have_none():
    both = [
        NodeRow(name, "MIXED", True, {"k80": 2}, {"k80": 2}, {HIDDEN: 1, "864308": 1})
        for name in ("k1", "k2")
    ]
    first, second = map(cells, both)
    assert first == second and first[0] == "held" != first[1]


def test_a_node_that_changes_is_drawn_anew():
    before = NodeRow("k1", "MIXED", True, {"k80": 2}, {"k80": 1}, {"5": 1}, ("gpu",), 0.5)
    changes = [
        NodeRow("k1", "MIXED", True, {"k80": 2}, {"k80": 2}, {"5": 2}, ("gpu",), 0.5),
        NodeRow("k1", "MIXED", True, {"k80": 2}, {"k80": 1}, {"6": 1}, ("gpu",), 0.5),
        NodeRow("k1", "MIXED", True, {"k80": 2}, {"k80": 1}, {"5": 1}, ("gpu",), 0.7),
        NodeRow("k1", "DOWN", False, {"k80": 2}, {"k80": 1}, {"5": 1}, ("gpu",), 0.5),
    ]
    pages = [
        rendering.nodes(shown(nodes=[one]), choice_of("nodes", {})).lists["nodes"]["node-k1"]
        for one in (before, *changes)
    ]
    assert len(set(pages)) == 5


def test_a_job_page_says_what_the_queue_says_is_planned():
    queued = StatusRow("5", "ann", "n", "RUNNING", {"k80": 1}, "k1", {"v100": 2}, reason="why")
    explained = Explanation(StatusRow("5", "ann", "n", "RUNNING", {"k80": 1}, "k1"))
    report = JobReport("5", "RUNNING", 1.0, now=["RUNNING on 1 x k80: why"])
    now = rendering.job(shown([queued]), choice_of("job", {"job": "5"}), report, explained)
    text = now.singles["job-now"]
    assert "<dt>Planned</dt><dd>2 v100</dd>" in text
    # It stands in the report already.
    assert text.count("why") == 1


def test_an_ordinary_job_has_its_name_and_no_problems():
    why = Problem("it did not opt in, so it is never changed", ("hbatch SCRIPT",))
    facts = (("Name", "plain (ann)"), ("Partition", "gpu"))
    report = JobReport("5", "RUNNING", 1.0, facts, now=["RUNNING"], problems=[why])
    page = rendering.job(shown(), choice_of("job", {"job": "5"}), report, None)
    assert "<dt>Name</dt><dd>plain (ann)</dd>" in page.singles["job-now"]
    assert "<h2>Not managed</h2>" in page.singles["job-problems"]


def test_an_open_job_page_gets_and_loses_what_the_controller_knows():
    row = StatusRow("5", "ann", "n", "RUNNING", {"k80": 1}, "k1")
    report, explained = JobReport("5", "RUNNING", 1.0, now=["RUNNING"]), Explanation(row)
    choice = choice_of("job", {"job": "5"})
    known = rendering.job(shown([row]), choice, report, explained)
    silent = rendering.job(replace(shown([row]), alone=True), choice, None, None)
    assert set(known.singles) == set(silent.singles)
    lost = json.loads(silent.since(known))["set"]
    assert "No controller answers" in lost["job-now"]
    for name in ("job-problems", "job-speed", "job-decision", "job-moves", "job-events"):
        assert f'id="{name}"' in known.singles[name] and "hidden" not in known.singles[name]
        assert lost[name] == f'<section id="{name}" hidden></section>'
        assert name in json.loads(known.since(silent))["set"]


def test_a_label_of_the_timeline_stands_near_its_bars():
    stays = [Stay("1", "ann", "n", {"v100": 1}, "v1", 30_000.0, 80_000.0),
             Stay("2", "ann", "n", {"v100": 1}, "v1", 80_000.0, 86_400.0, True)]  # fmt: skip
    late, early = drawing.draw(JobTimeline(0.0, 86_400.0, 0.0, stays), 1).rows
    assert (late.anchor, late.x) == ("end", drawing.WIDTH - drawing.MARGIN)
    assert (early.anchor, early.x) == ("start", early.bars[0].x)
