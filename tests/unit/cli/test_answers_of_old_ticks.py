"""``hadar explain`` and ``doctor`` where the controller knows what its last tick saw only."""

from typing import Any

import pytest

from slurm_hadar import config as configuration
from slurm_hadar.cli import doctor, status
from slurm_hadar.controller.presentation import job_report, without_controller
from slurm_hadar.domain.errors import UnknownJobError, UsageError
from slurm_hadar.reports import text
from slurm_hadar.reports.job_report import NOT_SHOWN, JobReport
from slurm_hadar.reports.text import Explanation, StatusRow

NOW = 1_000_000.0
SITE = configuration.parse("", "test")
SHOWN = Explanation(StatusRow("5", "ann", "n", "PENDING"))


@pytest.fixture
def answers(monkeypatch):
    """What the controller answers, and what Slurm shows to the owner; errors are raised."""
    found: dict[str, Any] = {"controller": None, "slurm": None}

    def say(who):
        if isinstance(found[who], Exception):
            raise found[who]
        return found[who]

    for module in (status, doctor):
        monkeypatch.setattr(module, "cluster_of", lambda site: None)
        monkeypatch.setattr(module, "answered", lambda *_: say("controller"))
        monkeypatch.setattr(module, "asks_a_controller", lambda site: True)
    monkeypatch.setattr(without_controller, "explain", lambda *_: say("slurm"))
    monkeypatch.setattr(job_report, "of_owner", lambda *_: say("slurm"))
    return found


@pytest.mark.parametrize("refusal", [UnknownJobError("no job 5"), UsageError("5 is not managed")])
def test_a_job_that_the_last_tick_did_not_see_is_asked_for_in_slurm(answers, refusal):
    answers.update(controller=refusal, slurm=SHOWN)
    assert status.explanation(SITE, "5") is SHOWN
    answers.update(slurm=UnknownJobError("of yours"))
    with pytest.raises(type(refusal), match=str(refusal)):
        status.explanation(SITE, "5")


def test_doctor_asks_slurm_before_it_says_that_a_job_is_gone(answers):
    gone, there = JobReport("5", NOT_SHOWN, NOW), JobReport("5", "PENDING", NOW + 30)
    answers.update(controller=gone, slurm=there)
    assert doctor._report(SITE, "5") is there
    answers.update(slurm=None)
    assert doctor._report(SITE, "5") is gone
    answers.update(controller=UnknownJobError("no job 5"), slurm=there)
    assert doctor._report(SITE, "5") is there
    answers.update(slurm=None)
    with pytest.raises(UnknownJobError, match="no job 5"):
        doctor._report(SITE, "5")


@pytest.mark.parametrize(("age_s", "says"), [(1.0, ""), (31.0, "As of 31 s ago: ")])
def test_an_old_answer_says_how_old_it_is(age_s, says):
    lines = [str(line) for line in text.age_line(NOW - age_s, NOW)]
    assert (lines[0].startswith(says) if lines else not says) and bool(lines) is bool(says)
    assert text.age_line(0.0, NOW) == []
