"""``hadar web`` over its socket and its port: who asks, what each user is shown, the JSON API."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import cast
from urllib.parse import parse_qsl

import httpx2 as httpx
import jsonschema
import pytest
from page_service import (
    HADAR,
    HOSTILE,
    ME,
    OTHERS,
    Relay,
    client,
    events,
    rows,
    serving,
    version,
    with_accounting,
)

from benchmarks.page.world import PretendController
from slurm_hadar.cli.status import asked
from slurm_hadar.controller.service.server import HOLD_S, Unchanged, UserServer
from slurm_hadar.demo.show import live_page
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.reports.cluster import JobTimeline, Stay
from slurm_hadar.reports.status import Overview
from slurm_hadar.simulator import live_queue
from slurm_hadar.web import drawing, what_if
from slurm_hadar.web.controller_answers import ControllerAnswers, SilentController
from slurm_hadar.web.feed import PageFeed
from slurm_hadar.web.fragments import PageFragments
from slurm_hadar.web.identity import Callers, RefusedCaller, caller_of
from slurm_hadar.web.page_query import choice_of

PROXIED = f'[web]\nproxy_user = "{ME}"\n'
(FIRST, SECOND, _) = (name for name, _ in OTHERS)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    world = PretendController(folder, 12, 6, more=with_accounting(folder, (1, ME)))
    world.users, world.names = OTHERS, HOSTILE
    with world:
        yield world


@pytest.fixture(scope="module")
def page(world):
    with serving(world) as path, client(path) as found:
        yield found


def test_the_socket_is_in_the_state_folder_and_open_to_every_user(world, page):
    found = world.site.web_socket
    assert found == world.site.site.state_dir / "web.sock"
    assert found.stat().st_mode & 0o777 == 0o666
    assert page.get("/").status_code == 200


def test_the_api_answers_what_the_command_prints(world, page):
    said = page.get("/api/v1/status").json()
    printed = json.loads(json.dumps(asdict(asked(world.site, "status", Overview))))
    assert said == {"version": 1, "command": "status", "result": printed}
    assert len(said["result"]["rows"]) == 12
    for path, command in (("1000", "explain"), ("1000/report", "doctor")):
        found = page.get(f"/api/v1/jobs/{path}").json()
        assert found["command"] == command and found["result"]


def test_each_answer_is_what_the_openapi_document_says(page):
    document = page.get("/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1") and len(document["paths"]) >= 5
    for path, item in document["paths"].items():
        for job, status in (("1000", 200), ("999999", 404), ("x;y", 404)):
            if status != 200 and "{job}" not in path:
                continue
            answer = page.get(path.replace("{job}", job))
            assert answer.status_code == status
            schema = item["get"]["responses"][str(status)]["content"]["application/json"]["schema"]
            jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
    nodes = document["paths"]["/api/v1/nodes"]["get"]["responses"]["200"]["content"]
    with pytest.raises(jsonschema.ValidationError):
        schema = {**nodes["application/json"]["schema"], "components": document["components"]}
        jsonschema.validate({"version": 1, "command": "nodes", "result": [{}]}, schema)


@pytest.mark.parametrize("path", ["/", "/nodes", "/timeline", "/jobs/1000", "/jobs/77", "/x"])
def test_no_page_holds_a_name_that_could_act_and_each_has_a_strict_policy(page, path):
    answer = page.get(path)
    text = answer.text
    assert answer.status_code == (404 if path in ("/jobs/77", "/x") else 200)
    assert "<script>alert" not in text and ' onmouseover="alert' not in text
    assert "\u202e" not in text and "\x00" not in text
    assert not re.search(r"<style|style=|<script(?! src=)|\son\w+=\"", text)
    assert not re.search(r"""(?:href|src)="(?!\.{1,2}/|\?|#)""", text)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    if path == "/":
        assert "&lt;script&gt;alert(1)" in text and "{{ 7*7 }}" in text


@pytest.mark.parametrize("path", ["/?page=0", "/?page=x", "/?sort=rm", "/nodes?colour=9",
                                  "/jobs/1;2", "/timeline?hours=2", "/events?view=all",
                                  "/events?view=job"])  # fmt: skip
def test_an_address_without_sense_is_a_page_that_says_so(page, path):
    answer = page.get(path)
    assert answer.status_code == 404 and "Traceback" not in answer.text
    assert page.post("/").status_code == 405


def test_the_queue_is_paged_filtered_and_sorted(page):
    waiting = [row for row in rows(page) if row["state"] == "PENDING"]
    assert page.get("/?state=PENDING").text.count('<tr id="job-') == len(waiting) < 12
    assert page.get(f"/?user={FIRST}").text.count('<tr id="job-') == 4
    assert page.get("/?text=1003").text.count('<tr id="job-') == 1
    assert page.get("/?user=nobody-such").text.count('<tr id="job-') == 0
    assert re.findall(r'<li id="node-(\w+)"', page.get("/nodes?text=p").text) == ["p2", "p5"]
    assert "of this choice" in page.get("/nodes?text=none-such").text
    first = re.search(r'<tr id="job-(\d+)"', page.get("/?sort=done").text)[1]
    done = {row["id"]: row["done"] or 0 for row in rows(page)}
    assert first == max(done, key=lambda id_: done[id_])


def test_the_timeline_is_drawn_for_the_hours_that_are_asked_for():
    stays = [Stay("1", "ann", "n", {"v100": 1}, "v1", 0.0, 80_000.0),
             Stay("2", "ann", "n", {"v100": 1}, "v1", 70_000.0, 86_400.0, True),
             Stay("3", "ann", "n", {"k80": 1}, "k1", 84_600.0, 86_400.0, True)]  # fmt: skip
    day = JobTimeline(0.0, 86_400.0, 0.0, stays)
    for hours, jobs, first in (
        (24, "321", "24 h ago"),
        (6, "321", "6 h ago"),
        (1, "32", "1 h ago"),
    ):
        drawn = drawing.draw(day, 1, hours)
        assert [row.job for row in drawn.rows] == list(jobs)
        assert drawn.ticks[0][1] == first and drawn.ticks[-1][1] == "now"
        (bar,) = drawn.rows[0].bars
        assert bar.x + bar.width == drawing.WIDTH - drawing.MARGIN
        assert bar.width == pytest.approx((drawing.WIDTH - 20) * 0.5 / hours, abs=0.1)
    assert drawing.draw(day, 1, 1).ticks[1][1] == "50 min ago"


def test_a_header_of_someone_who_is_not_the_proxy_is_no_name(page):
    assert len(rows(page, headers={"X-Remote-User": FIRST})) == 12
    assert ME in page.get("/", headers={"X-Remote-User": FIRST}).text


@pytest.mark.parametrize("private", [(), ("jobs", "nodes")])
def test_two_users_behind_the_proxy_see_what_slurm_shows_them(tmp_path, private):
    world = PretendController(tmp_path, 12, 6, private, PROXIED)
    world.users, world.names = OTHERS, ("secret",)
    with world, serving(world) as path:
        world.moved("1000")
        with client(path) as page:
            assert page.get("/").status_code == 403
            for bad in ("", "no-such-user", f"{FIRST},{SECOND}"):
                assert page.get("/", headers={"X-Remote-User": bad}).status_code == 403
            twice = [("X-Remote-User", FIRST), ("X-Remote-User", SECOND)]
            assert page.get("/", headers=twice).status_code == 403
        for name, own, foreign in ((FIRST, "1000", "1001"), (SECOND, "1001", "1000")):
            with Relay(path, name) as relay, client(relay.url) as page:
                mine = {row["id"] for row in rows(page)}
                assert own in mine and (foreign in mine) == (not private)
                assert page.get(f"jobs/{own}").status_code == 200
                assert page.get(f"jobs/{foreign}").status_code == (404 if private else 200)
                assert page.get(f"api/v1/jobs/{foreign}").status_code == 404
                assert page.get("?user=all").text.count("secret") == (4 if private else 12)
                assert page.get("").text.count('<tr id="job-') == 4
                nodes = page.get("api/v1/nodes").json()["result"]
                assert bool(nodes) == (not private)
                day = page.get("api/v1/timeline").json()["result"]
                names = {one["user"] for one in day["segments"]}
                assert names == {name} if private else FIRST in names and SECOND in names
                assert bool(day["moves"]) == (own == "1000")
                text = page.get("nodes").text + page.get("timeline?user=all").text
                assert (f"jobs/{foreign}" in text) == (not private)


def test_only_the_user_who_started_it_is_served_where_it_may_ask_for_no_other():
    mine = Callers(own_uid=1000, controllers_uid=77)
    assert mine.uid(1000, []) == 1000
    for peer in (0, 77, 1001, None, -1):
        with pytest.raises(RefusedCaller):
            mine.uid(peer, ["root"])


def test_the_owner_of_a_loopback_connection_is_known_while_it_is_open():
    with socket.create_server(("127.0.0.1", 0)) as server:
        for close, uid in ((False, os.getuid()), (True, None)):
            with socket.create_connection(server.getsockname()) as caller:
                answered, _ = server.accept()
                with answered:
                    if close:
                        caller.close()
                        answered.settimeout(60)
                        assert answered.recv(1) == b""
                    assert caller_of(answered) == uid
    left, right = socket.socketpair()
    with left, right:
        assert caller_of(left) == os.getuid()
    with socket.socket(socket.AF_INET6) as other:
        assert caller_of(other) is None


def test_a_port_is_for_a_sandbox_and_knows_its_caller(world, tmp_path):
    with serving(world, "--port", "0") as url, client(url) as page:
        assert url.startswith("http://127.0.0.1:")
        assert f"{ME}, sees all jobs" in page.get("/").text
        assert page.get("/", headers={"Host": "evil.example"}).status_code == 400
        if os.getuid() == 0:
            other = subprocess.run(
                ["/usr/bin/python3", "-c", "import sys, urllib.request as u\n"
                 "print(u.urlopen(sys.argv[1]).read().decode())", f"{url}api/v1/jobs/1000"],
                user=OTHERS[1][1], group=65534, extra_groups=[], capture_output=True, text=True,
                check=False, cwd="/",
            )  # fmt: skip
            assert "404" in other.stderr
    text = world.config_path.read_text().replace('"sandbox"', '"user"')
    site = tmp_path / "site.toml"
    site.write_text(text)
    done = subprocess.run(
        [HADAR, "web", "--config", site, "--port", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "sandbox" in done.stderr and "Traceback" not in done.stderr


def test_only_what_changed_is_sent_and_a_controller_may_come_back(tmp_path):
    world = PretendController(tmp_path, 200, 60)
    with world, serving(world) as path, client(path) as page:
        query = {"view": "queue", "state": "RUNNING", "version": version(page, "/?state=RUNNING")}
        with page.stream("GET", "/events", params=query) as stream:
            heard = events(stream)
            world.tick()
            change = json.loads(next(heard))
            whole = json.loads(json.dumps(change))
            assert change["version"] != query["version"]
            world.tick()
            change = json.loads(next(heard))
            # Two jobs have begun; of the others the rows stay, but for what they have trained.
            assert "pages" in change["set"] and "state" in change["set"]
            assert set(change["lists"].get("rows", {})) <= set(whole["order"]["rows"])
            world.stop()
            stale = json.loads(next(heard))
            assert "Stale since" in stale["set"]["state"] and not stale["lists"]
            assert page.get("/").status_code == 200
            world.start()
            world.tick()
            while "Stale since" in (state := json.loads(next(heard))["set"]["state"]):
                pass
            assert "Controller acts" in state


def test_a_question_for_news_is_answered_at_the_tick(tmp_path):
    world = PretendController(tmp_path, 12, 6)
    source = ControllerAnswers(world.site, os.getuid(), os.getuid())

    async def after(known, happens):
        """What is answered after that has happened, and not before it."""
        waiting = asyncio.create_task(source.latest(known))
        await asyncio.wait({waiting}, timeout=0.5)
        assert not waiting.done()
        happens()
        return await asyncio.wait_for(waiting, HOLD_S / 2)

    async def course():
        with pytest.raises(SilentController):
            await source.latest(None)
        with world:
            first = await source.latest(None)
            second = await after(first, world.tick)
            assert second.observed_s > first.observed_s and not second.failed
            third = await after(second, lambda: world.published.fault("squeue failed"))
            assert third.observed_s == second.observed_s and third.failed
            # What is already there is not waited for.
            assert await asyncio.wait_for(source.latest(first), HOLD_S / 2) == third
            with pytest.raises(SilentController):
                await after(third, world.stop)

    asyncio.run(course())


def test_a_controller_of_before_that_holds_nothing_back_is_asked_at_a_pace(tmp_path):
    world = PretendController(tmp_path, 12, 6)
    asked_at = []

    def at_once(uid, line):
        said = world.published.answer(uid, line)
        asked_at.append(time.monotonic() if b"latest" in line else 0.0)
        return said.reply if isinstance(said, Unchanged) else said

    world.tick()
    old = UserServer(world.site.status_socket, at_once, world.published.close)
    with old, serving(world) as path, client(path) as page:
        query = {"view": "queue", "version": version(page)}
        with page.stream("GET", "/events", params=query) as stream:
            heard, began = events(stream), time.monotonic()
            time.sleep(1.5)
            assert 0 < sum(one > began for one in asked_at) <= 7
            world.tick()
            assert "state" in json.loads(next(heard))["set"]


def test_without_a_controller_it_says_what_to_do(tmp_path):
    world = PretendController(tmp_path, 12, 6)
    with serving(world) as path, client(path) as page:
        answer = page.get("/")
        assert answer.status_code == 503 and "hadar run" in answer.text
        assert page.get("/api/v1/status").json()["error"].startswith("no controller answers")
        world.tick()
        world.start()
        end = time.monotonic() + 20
        while page.get("/").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.2)
        world.stop()


def test_what_if_is_simulated_aside_with_a_limit_and_for_operators_only(tmp_path):
    world = PretendController(tmp_path, 12, 6, more=PROXIED)
    world.users = OTHERS
    with world, serving(world) as path:
        with Relay(path, FIRST) as relay, client(relay.url) as page:
            for address in ("what-if?policy=fifo", "events?view=what-if&policy=fifo"):
                assert page.get(address).status_code == 403
            assert "What if" not in page.get("").text
        with Relay(path, ME) as relay, client(relay.url) as page:
            assert "What if" in page.get("").text
            assert page.get("what-if?policy=no-such").status_code == 404
            assert "being simulated" in page.get("what-if?policy=srtf").text
            end = time.monotonic() + what_if.LONGEST_S
            while "being simulated" in (text := page.get("what-if?policy=srtf").text):
                assert time.monotonic() < end
                time.sleep(0.3)
            assert text.count("12 of 12") == 2


def test_a_simulation_that_takes_too_long_is_ended(monkeypatch):
    model = live_queue.QueueModel(
        types=["a"], counts=[1], ids=["1"], left=[1e9], weight=[1.0], rate=[[[1.0]]],
        max_nodes=[1], copies=[1], tasks=[1], nodes=["n"], gpus=[[1]], rack=[0], round_s=1.0,
    )  # fmt: skip
    monkeypatch.setattr(what_if, "LONGEST_S", 2.0)
    with pytest.raises(HadarError, match="within 2 s, the limit"):
        asyncio.run(what_if._outcome(model, "fifo"))
    monkeypatch.undo()
    monkeypatch.setattr(what_if, "CPU_LIMIT_S", 3)
    with pytest.raises(HadarError, match="within 3 s of CPU time, the limit"):
        asyncio.run(what_if._outcome(model, "fifo"))
    monkeypatch.undo()
    quick = replace(model, left=[3600.0])
    found = asyncio.run(what_if._outcome(quick, "fifo"))
    assert found.finish_h["1"] == pytest.approx(1.0, rel=0.05) and found.finished == 1
    for wrong in (replace(model, ids=[], left=[], rate=[]), replace(model, gpus=[[0]])):
        with pytest.raises(HadarError, match="nothing to simulate"):
            asyncio.run(what_if._outcome(wrong, "fifo"))


def test_a_fault_of_our_own_ends_a_simulation_too(monkeypatch):
    class Feed:
        source = SimpleNamespace(queue_model=None)
        touched = 0

        async def asked(self, _):
            raise RuntimeError

        async def touch(self):
            self.touched += 1

    async def simulated():
        feed = Feed()
        wanted = what_if.WhatIf(cast("PageFeed", feed), "fifo")
        wanted.of("fifo")
        (task,) = wanted._tasks
        with pytest.raises(RuntimeError):
            await task
        return feed.touched, wanted.of("fifo")

    touched, (found,) = asyncio.run(simulated())
    assert touched == 1 and not found.under_way and "a fault of slurm-hadar" in found.problem


def test_one_user_cannot_take_all_connections(tmp_path):
    world = PretendController(tmp_path, 12, 6)
    with world, serving(world) as path:
        held = [socket.socket(socket.AF_UNIX) for _ in range(80)]
        try:
            for one in held:
                one.connect(path)
                one.settimeout(60)
            # Those above the limit are closed, the others wait for a request.
            for one in held[64:]:
                assert one.recv(1) == b""
            held[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert held[0].recv(12) == b"HTTP/1.1 200"
        finally:
            for one in held:
                one.close()
        end = time.monotonic() + 20
        while True:
            with suppress(httpx.RemoteProtocolError, httpx.ReadError), client(path) as page:
                assert page.get("/").status_code == 200
                break
            assert time.monotonic() < end


def test_the_demonstration_has_a_page_of_its_own_while_it_runs(world):
    environment = {**os.environ, "HADAR_CONFIG": str(world.config_path)}
    with live_page(environment) as url, client(url) as page:
        assert len(rows(page)) == 12
    with pytest.raises(httpx.ConnectError), client(url) as page:
        page.get("/")
    with live_page({**environment, "HADAR_CONFIG": "/nowhere"}) as url:
        assert url == ""


def test_without_the_extra_it_says_what_to_install(world):
    code = (
        "import sys; sys.modules['uvicorn'] = None; from slurm_hadar.cli.main import main;"
        "sys.argv[1:] = ['web', '--config', sys.argv[1]]; main()"
    )
    argv = [sys.executable, "-c", code, world.config_path]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'slurm-hadar[web]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_users_open_pages_are_bounded(page):
    held = []
    try:
        for _ in range(17):
            stream = page.stream("GET", "/events", params={"view": "queue"})
            held.append(stream)
            answer = stream.__enter__()
        assert answer.status_code == 503
    finally:
        for one in held:
            one.__exit__(None, None, None)


def test_parts_tell_what_changed_and_no_more():
    old = PageFragments("x", {"a": "1", "b": "2"}, {"l": {"i": "1", "j": "2"}})
    new = PageFragments("x", {"a": "1", "b": "3"}, {"l": {"j": "2", "k": "5"}})
    change = json.loads(new.since(old))
    assert change["set"] == {"b": "3"} and change["lists"] == {"l": {"k": "5"}}
    assert change["order"] == {"l": ["j", "k"]} and change["version"] == new.version
    same = json.loads(old.since(old))
    assert not same["set"] and not same["lists"] and not same["order"]
    assert (
        old.version == PageFragments("y", dict(old.singles), dict(old.lists)).version != new.version
    )


def test_an_address_comes_back_from_its_choice():
    choice = choice_of("queue", {"user": "a&b=c#?", "page": "3", "sort": "moves"})
    assert choice_of("queue", dict(parse_qsl(choice.address()[1:]))) == choice
    assert choice_of("queue", {}).address() == "?"
