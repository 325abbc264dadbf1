"""The page without a controller: Slurm's own queue, to each user what Slurm would show them."""

import asyncio
import os
import time
from contextlib import closing
from pathlib import Path

import pytest
from page_service import OTHERS

from benchmarks.page.world import PretendController
from slurm_hadar.controller.journal.entry import Decision
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import observed
from slurm_hadar.controller.service.placement_history import PlacementHistory
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.web import feed, without_controller
from slurm_hadar.web.controller_answers import ControllerAnswers
from slurm_hadar.web.feed import PageFeed
from slurm_hadar.web.without_controller import QueueOfSlurm

ME = os.getuid()
(FIRST, FIRST_UID), (SECOND, SECOND_UID), _ = OTHERS


class Slurm:
    """What the page asks of it."""

    def __init__(self, world, monkeypatch):
        self.settings, self.asked, self.fault = {}, 0, None
        self._world = world
        monkeypatch.setattr(observed, "read", self._read)

    def read_config(self):
        return self.settings

    def _read(self, *_):
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return self._world.seen()


@pytest.fixture
def world(tmp_path):
    world = PretendController(tmp_path, 12, 6)
    world.users = OTHERS
    return world


@pytest.fixture
def slurm(world, monkeypatch):
    found = Slurm(world, monkeypatch)
    monkeypatch.setattr(without_controller, "open_cluster", lambda _: found)
    return found


def rows(view):
    return {row.id: row for row in view.overview.rows}


def decide(world, job, reason):
    with closing(Store.open(world.site.site.state_dir)) as store:
        store.decisions.record([Decision(job, time.time() - 600, "waits", reason)])


@pytest.mark.parametrize("private", ["none", "jobs,nodes", "all"])
def test_each_user_sees_what_slurm_would_show_them(world, slurm, private):
    slurm.settings["PrivateData"] = private
    decide(world, "1000", "secret decision on 1000")
    queue = QueueOfSlurm(world.site, ME)
    everything, mine, others = (queue.cluster(uid) for uid in (ME, FIRST_UID, SECOND_UID))
    assert slurm.asked == 1
    assert len(rows(everything)) == 12 and everything.nodes
    assert "OLD, decided 10 min" in rows(everything)["1000"].reason
    assert "secret decision" in rows(mine)["1000"].reason
    assert "secret decision" not in str(others)
    hides = private != "none"
    assert {row.user for row in rows(mine).values()} == (
        {FIRST} if hides else {n for n, _ in OTHERS}
    )
    assert bool(mine.nodes) != hides


def test_the_timeline_is_that_before_the_controllers_end(world, slurm):
    slurm.settings["PrivateData"] = "jobs"
    with closing(Store.open(world.site.site.state_dir)) as store:
        PlacementHistory(store.connection).record(world.seen())
    queue = QueueOfSlurm(world.site, ME)
    for uid, names in ((ME, {name for name, _ in OTHERS}), (FIRST_UID, {FIRST})):
        day = queue.timeline(uid)
        assert {one.user for one in day.segments} == names
        assert all(one.end_s == day.to_s for one in day.segments)


def test_slurm_is_asked_again_after_a_while_and_a_failure_is_not_repeated_at_once(
    world, slurm, monkeypatch
):
    queue = QueueOfSlurm(world.site, ME)
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now)
    slurm.fault = SlurmError("scontrol: no answer")
    for _ in range(3):
        with pytest.raises(SlurmError, match="no answer"):
            queue.cluster(ME)
    assert slurm.asked == 1
    slurm.fault = None
    now += 11
    for _ in range(3):
        queue.cluster(ME)
    assert slurm.asked == 2
    now += queue.again_s + 1
    queue.cluster(ME)
    assert slurm.asked == 3


def test_a_state_file_that_cannot_be_opened_is_said(world, slurm, monkeypatch):
    def refused(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", refused)
    with pytest.raises(HadarError, match="Read-only file system"):
        QueueOfSlurm(world.site, ME).cluster(ME)


def test_a_page_goes_from_the_controller_to_slurm_and_back(world, slurm, monkeypatch):
    monkeypatch.setattr(feed, "_LOOK_S", 0.02)
    pages = PageFeed(ControllerAnswers(world.site, ME, ME), QueueOfSlurm(world.site, ME))

    async def until(wanted):
        async with asyncio.timeout(60):
            while not wanted(shown := await pages.shown(ME)):
                await pages.news(pages.generation, 1.0)
        return shown

    async def course():
        async with pages.looking():
            with world:
                shown = await until(lambda one: one.view.overview.source == "controller")
                assert not shown.alone and not shown.stale_s and not slurm.asked
            shown = await until(lambda one: one.alone)
            # The heartbeat of the one that died is fresh.
            assert shown.view.overview.controller.state == "silent"
            assert len(rows(shown.view)) == 12 and not shown.stale_s
            with world:
                shown = await until(lambda one: not one.alone)
                assert shown.view.overview.controller.alive

    asyncio.run(course())


def test_where_slurm_does_not_answer_either_the_last_answer_stays(world, slurm, monkeypatch):
    monkeypatch.setattr(feed, "_LOOK_S", 0.02)
    slurm.fault = SlurmError("slurmctld is away")
    pages = PageFeed(ControllerAnswers(world.site, ME, ME), QueueOfSlurm(world.site, ME))

    async def course():
        async with pages.looking():
            with pytest.raises(HadarError, match=r"hadar run.*slurmctld is away"):
                await pages.shown(ME)
            with world:
                await pages.news(pages.generation, 20.0)
                await pages.shown(ME)
            async with asyncio.timeout(60):
                while not (shown := await pages.shown(ME)).stale_s:
                    await pages.news(pages.generation, 1.0)
            assert not shown.alone and len(rows(shown.view)) == 12

    asyncio.run(course())
