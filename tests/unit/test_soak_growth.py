"""A soak says what grows without bound and what ended by itself: planted here."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.soak.daemon import Daemon
from benchmarks.soak.leftovers import Exchange, Journal, Work, read_exchange
from benchmarks.soak.memory import Memory
from benchmarks.soak.watched import Watched, join
from slurm_hadar.controller.journal.decision_history import MOST_DECISIONS


def weighed(seconds, mb):
    """A life that is weighed every two seconds; ``mb``: its weight by its age."""
    memory = Memory()
    for second in range(0, seconds, 2):
        memory.note(1, float(second), mb(second))
    return memory


def a_leak(kb_a_tick, tick_s=2.0):
    """Memory comes in blocks of 256 kB; the libraries and the first jobs take 10 MB."""
    return lambda s: 60 + 10 * min(1, s / 200) + kb_a_tick / 1024 * s / tick_s // 0.25 * 0.25


@pytest.mark.parametrize("seconds", [80, 120, 1200])
def test_memory_that_levels_off_is_fine(seconds):
    # In a short life the first jobs take less.
    whole = a_leak(0)
    assert not weighed(seconds, lambda s: whole(s) if seconds > 1000 else 60 + s / 60).wrong()


@pytest.mark.parametrize("seconds", [80, 1200])
def test_memory_that_does_not_grow_is_fine(seconds):
    assert not weighed(seconds, lambda _: 60.0).wrong()
    # One block more or less.
    assert not weighed(seconds, lambda s: 60.0 + 0.25 * (s % 14 == 0)).wrong()


@pytest.mark.parametrize(("kb_a_tick", "seconds"), [(6, 1200), (4, 3600), (300, 80)])
def test_a_planted_leak_is_reported(kb_a_tick, seconds):
    memory = weighed(seconds, a_leak(kb_a_tick))
    assert "grew by" in memory.wrong()[0]


def test_one_step_is_no_leak_and_many_are():
    for seconds in (60, 80, 100, 1200):
        for at_s in range(0, seconds, 5):
            assert not weighed(seconds, lambda s, at_s=at_s: 60.0 + 0.9 * (s > at_s)).wrong()
    assert weighed(1200, lambda s: 60.0 + 0.9 * (s // 160)).wrong()


def test_the_longest_life_is_weighed():
    memory = weighed(1200, lambda s: 60.0 + s / 100)
    for second in range(2000, 4000, 2):
        memory.note(2, float(second), 60.0)
    assert not memory.wrong()


def test_a_life_too_short_to_be_weighed_is_reported():
    assert "too short" in weighed(20, lambda _: 60.0).wrong()[0]


WORK = Work(jobs=10, starts=15, ticks=50, kills=3)
JOURNAL = Journal({"hint": 9, "move": 4}, 4, 0, {"journal": 40, "told": 60, "steering": 9}, 0.3, 0)
EXCHANGE = Exchange({"plan": 9, "steer": 9, "progress": 4, "heartbeat": 1}, ())


def test_a_journal_and_a_folder_that_grow_with_the_jobs_are_fine():
    assert not JOURNAL.wrong(WORK) and not EXCHANGE.wrong(WORK)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"still_open": 1}, "1 open entries"),
        ({"left_when_old": 2}, "2 that it never forgets"),
        ({"actions": {"hint": 811}}, "811 hints in 50 ticks; at most 810"),
        ({"rows": {"journal": 70}}, "70 rows of journal"),
        ({"rows": {"steering": 11}}, "11 rows of steering"),
        ({"rows": {"told": 501}}, "501 rows of told"),
        ({"rows": {"policy": 65}}, "65 rows of policy"),
        ({"size_mb": 1.5}, "has 1.5 MB"),
    ],
)
def test_a_journal_that_grows_with_more_than_the_jobs_is_reported(change, says):
    assert says in replace(JOURNAL, **change).wrong(WORK)[0]


def test_a_job_on_which_the_decision_goes_to_and_fro_does_not_fill_the_disk():
    larger = replace(JOURNAL, rows={"told": 10 * MOST_DECISIONS + 1}, size_mb=0.3)
    assert "2001 rows of told" in larger.wrong(replace(WORK, ticks=9999))[0]
    assert not replace(larger, rows={"told": 10 * MOST_DECISIONS}).wrong(replace(WORK, ticks=9999))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"files": {"steer": 11}}, "11 files of steer"),
        ({"files": {"nonsense": 1}}, "1 files of nonsense"),
        ({"left_when_old": ("plan.7.json",)}, "for ever: plan.7.json"),
    ],
)
def test_a_folder_that_keeps_too_much_is_reported(change, says):
    assert says in replace(EXCHANGE, **change).wrong(WORK)[0]


def test_what_ended_jobs_left_is_gone_when_it_is_old(tmp_path):
    """And what is never removed is reported."""
    known = ("heartbeat.json", "plan.7.json", "steer.7_1.json", ".plan.7.json." + "0" * 16)
    for name in (*known, "strange.7.json"):
        (tmp_path / name).write_text("{}")
    found = read_exchange(tmp_path)
    assert found.files == {"heartbeat": 1, "plan": 1, "steer": 1, "aside": 1, "strange": 1}
    assert found.left_when_old == ("strange.7.json",)


def test_a_thread_that_ends_by_a_fault_is_reported():
    def work():
        raise KeyError("lost")

    threads = [Watched("the faults", work), Watched("the others", lambda: None)]
    for thread in threads:
        thread.start()
    join([*threads, Watched("never started", work)])
    assert threads[0].wrong == ["the thread of the faults ended: KeyError('lost')"]
    assert not threads[1].wrong


def test_no_controller_begins_when_the_soak_is_over(tmp_path):
    site = tmp_path / "hadar.toml"
    site.write_text(f'version = 1\n[site]\nstate_dir = "{tmp_path}"\n')
    box: Any = SimpleNamespace(config_path=site, env={})
    daemon = Daemon(box, tmp_path)
    daemon.stop()
    daemon.start("hadar")
    assert not daemon.alive() and not daemon.lives and not daemon.ended
