"""What the steps of a tick share is read once."""

from collections import Counter
from typing import Any

import pytest

from benchmarks.fuzz import ticked
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.tick import Controller

QUESTIONS = ("counts_after", "counts_in_vain", "counts_since", "last_times")
"""Of the whole journal, which may hold a month."""


@pytest.mark.parametrize("policy", ["hadar", "timetable"])
def test_a_tick_asks_the_journal_each_question_once(policy, tmp_path, monkeypatch):
    asked, each = Counter[Any](), []
    tick = Controller.tick

    def counted(name):
        real = getattr(Store, name)

        def around(self, *words, **more):
            asked[name, (*words, *more.items())] += 1
            return real(self, *words, **more)

        return around

    def ticking(self):
        asked.clear()
        report = tick(self)
        each.append(dict(asked))
        return report

    for name in QUESTIONS:
        monkeypatch.setattr(Store, name, counted(name))
    monkeypatch.setattr(Controller, "tick", ticking)
    ticked.ticked(ticked.scene(policy), tmp_path)
    assert len(each) == 2
    for questions in each:
        assert {name for name, _ in questions} == set(QUESTIONS)
        assert [question for question, times in questions.items() if times > 1] == []
