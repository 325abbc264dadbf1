"""One controller at a time."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from hand_made import config, job
from missing import needs_root

from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.expired_lists import active_controller_message, controller_is_active
from slurm_hadar.controller.lock import (
    identity_of,
    me,
    newest_heartbeat,
    only_one,
    process_name,
    rival,
    rival_in,
    say_stopped,
    taken_over,
    takes_over_from,
)
from slurm_hadar.controller.observation.exchange_folder import ExchangeFolder
from slurm_hadar.controller.presentation.overview import controller_state
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.heartbeat import NAME, Writer, read_heartbeat, write_heartbeat
from slurm_hadar.exchange.plan_file import JobPlan, read_plan, write_plan

HOLD = """
import sys
from pathlib import Path
from slurm_hadar.controller.actuation.apply import ActionContext
from slurm_hadar.controller.lock import only_one
with only_one(Path(sys.argv[1]), 0):
    print("held", flush=True)
    sys.stdin.read()
"""
NAMED = """
import sys
from slurm_hadar.controller.lock import process_name
print(process_name(), flush=True)
sys.stdin.read()
"""


def takes_over(site, now):
    return takes_over_from(newest_heartbeat(site), me(site), now)


def test_a_second_one_leaves_or_waits(tmp_path):
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "s")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(HadarError, match="another hadar is running"),
            only_one(tmp_path / "s", 0),
        ):
            pass
        later = threading.Timer(0.5, other.stdin.close)
        later.start()
        began = time.monotonic()
        with only_one(tmp_path / "s", 120):
            assert time.monotonic() - began < 60
        later.join()
        assert other.wait(60) == 0


def test_a_killed_one_leaves_no_lock(tmp_path):
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "s")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes, text=True) as other:
        assert other.stdout.readline() == "held\n"
        other.kill()
        other.wait(60)
        with only_one(tmp_path / "s", 5):
            pass


def beat(folder, **more):
    content = {
        "version": 1,
        "host": "elsewhere",
        "pid": 1,
        "mode": "act",
        "time": time.time(),
        "interval_s": 10.0,
    }
    (folder / NAME).write_text(json.dumps({**content, **more}))


def test_a_fresh_heartbeat_of_another_host_that_acts_is_a_rival(tmp_path):
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    assert rival(site, time.time()) is None
    beat(tmp_path)
    assert rival(site, time.time()) == "elsewhere"
    assert rival(site, time.time() + 61) is None
    beat(tmp_path, mode="observe")
    assert rival(site, time.time()) is None
    write_heartbeat(tmp_path, "act", 10.0)
    assert rival(site, time.time()) is None


def test_who_stops_in_order_leaves_its_place_at_once(tmp_path):
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    say_stopped(site)
    assert not (tmp_path / NAME).exists(), "no controller ran"
    beat(tmp_path)
    say_stopped(site)
    assert rival(site, time.time()) == "elsewhere", "it is another controller's"
    assert controller_is_active(site)
    write_heartbeat(tmp_path, "act", 10.0)
    say_stopped(site)
    assert rival(site, time.time()) is None
    found = read_heartbeat(tmp_path, site.controller_uid)
    assert found.mode == "stopped" and controller_state(found, time.time()).state == "stopped"
    # Lists that wait for a GPU type are widened by others from now on.
    assert controller_is_active(site) is False


def test_a_heartbeat_of_somebody_else_stops_nobody(tmp_path):
    needs_root("it gives a file to another user")
    beat(tmp_path)
    os.chown(tmp_path / NAME, 65534, 65534)
    assert rival(config(f'[site]\nexchange_dir = "{tmp_path}"\n'), time.time()) is None


def test_who_takes_over_looks_twice(tmp_path):
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    assert takes_over(site, time.time()), "two may begin at once"
    beat(tmp_path)
    assert takes_over(site, time.time())
    write_heartbeat(tmp_path, "act", 10.0)
    assert not takes_over(site, time.time())
    assert takes_over(site, time.time() + 61)


def test_a_tick_that_outlived_its_heartbeat_sends_nothing_more(tmp_path):
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    assert taken_over(site, time.time()) == ""
    write_heartbeat(tmp_path, "act", 10.0)
    assert taken_over(site, time.time()) == ""
    assert "heartbeat of this tick has expired" in taken_over(site, time.time() + 61)
    beat(tmp_path)
    assert taken_over(site, time.time()) == "a controller on elsewhere took over meanwhile"
    assert taken_over(site, time.time() + 61), "who took over may have died since"


@pytest.mark.parametrize(
    "taken_over_before", ["nothing", "the file aside", "the look", "the rename"]
)
def test_a_plan_that_a_stopped_controller_was_writing_takes_no_later_plans_place(
    tmp_path, taken_over_before
):
    """It was stopped at some point of the write, and another host's controller has taken over."""
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    write_heartbeat(tmp_path, "act", 10.0)

    def another_takes_over():
        beat(tmp_path)
        ExchangeFolder(tmp_path).remove_unfinished()
        write_plan(tmp_path, JobPlan("1", gpus={"v100": 2}, batch=16))

    def look():
        if taken_over_before == "the look":
            another_takes_over()
        found = taken_over(site, time.time())
        if taken_over_before == "the rename":
            another_takes_over()
        return found

    context = ActionContext(None, None, site, taken_over=look)
    if taken_over_before == "the file aside":
        another_takes_over()
    complaint = context.write_plan(job("1"), JobPlan("1", gpus={"k80": 1}, save="nonce"))
    plan = read_plan(tmp_path, "1", {os.getuid()})
    if taken_over_before == "nothing":
        assert complaint is None and plan.save == "nonce"
    else:
        assert "its plan file cannot be written" in complaint
        assert (dict(plan.gpus), plan.batch, plan.save) == ({"v100": 2}, 16, "")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("ahead_s", "interval_s", "alive"),
    [
        (0, 10, True), (61, 10, True), (599, 10, True), (601, 10, False), (3600, 10, False),
        (1e10, 10, False), (601, 600, True), (1831, 600, False), (-1829, 600, True),
        (-1831, 600, False), (-10_000, 1e9, True), (-10_831, 1e9, False), (10_831, 1e9, False),
    ],
)  # fmt: skip
def test_a_heartbeat_is_fresh_for_a_while_only_in_both_directions(
    tmp_path, ahead_s, interval_s, alive
):
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    now = time.time()
    beat(tmp_path, time=now + ahead_s, interval_s=interval_s)
    assert rival(site, now) == ("elsewhere" if alive else None)


def test_of_two_whose_clocks_differ_one_acts(tmp_path):
    site = config(f'[site]\nexchange_dir = "{tmp_path}"\n')
    now, apart = time.time(), 400.0
    beat(tmp_path, time=now)
    assert rival(site, now + apart) is None, "the one ahead takes over"
    beat(tmp_path, time=now + apart)
    assert rival(site, now) == "elsewhere", "the other one steps back"


def two_folders(folder):
    """Two controllers on this host, a state folder each, and one exchange folder."""
    (folder / "x").mkdir()
    sites = []
    for name in ("one", "two"):
        with only_one(folder / name, 0):
            pass
        sites.append(
            config(f'[site]\nexchange_dir = "{folder}/x"\nstate_dir = "{folder}/{name}"\n')
        )
    return sites


def test_two_state_folders_on_one_host_are_two_controllers(tmp_path):
    one, two = two_folders(tmp_path)
    now = time.time()
    write_heartbeat(tmp_path / "x", "act", 10.0, writer=Writer(me(one).identity))
    assert rival(one, now) is None and not takes_over(one, now) and not taken_over(one, now)
    assert "another state folder" in rival(two, now)
    assert "another state folder" in taken_over(two, now)
    assert rival(two, now + 61) is None and takes_over(two, now + 61)
    # Without a process that stays, one that was killed cannot be known from one of a timer.
    beat = read_heartbeat(tmp_path / "x", os.getuid())
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    killed = replace(beat, pid=int(dead.stdout))
    assert "has ended: without another heartbeat this one acts in 59 s" in rival_in(
        killed, me(two), beat.time + 1
    )
    assert "ended" not in rival_in(beat, me(two), now)
    write_heartbeat(tmp_path / "x", "act", 10.0, writer=Writer(me(two).identity))
    assert "another state folder" in taken_over(one, now)
    # A controller of an earlier release has none, and this host's was no other before the upgrade.
    write_heartbeat(tmp_path / "x", "act", 10.0)
    assert rival(two, now) is None and not taken_over(two, now)


@contextmanager
def named_daemon(folder):
    """A process that stays, with its heartbeat in ``folder``."""
    argv = [sys.executable, "-c", NAMED]
    with subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, text=True) as daemon:
        name = daemon.stdout.readline().strip()
        write_heartbeat(folder, "act", 10.0, writer=Writer("of the lost folder", name))
        yield replace(read_heartbeat(folder, os.getuid()), pid=daemon.pid)
        daemon.kill()


def test_a_daemon_that_has_ended_on_this_machine_is_not_waited_for(tmp_path):
    """Its state folder was lost with it, so that the new controller is another one by its name."""
    _, two = two_folders(tmp_path)
    with named_daemon(tmp_path / "x") as beat:
        assert len(beat.process.split()) == 3
        assert "another state folder" in rival_in(beat, me(two), beat.time), "it is alive"
    assert rival_in(beat, me(two), beat.time) is None
    assert takes_over_from(beat, me(two), beat.time), "and a second look follows"
    # Its number may be another process's by now, and on another machine it says nothing.
    assert rival_in(replace(beat, pid=1), me(two), beat.time) is None
    boot, space, started = beat.process.split()
    for elsewhere in (f"other {space} {started}", f"{boot} pid:[1] {started}", ""):
        assert rival_in(replace(beat, process=elsewhere), me(two), beat.time) is not None
    assert rival_in(replace(beat, host="elsewhere"), me(two), beat.time) == "elsewhere"


def test_lists_are_widened_at_once_where_the_controller_of_this_host_was_killed(tmp_path):
    _, two = two_folders(tmp_path)
    with named_daemon(tmp_path / "x") as beat:
        # The file itself has the number of the process that wrote it, which is this one.
        written = json.loads((tmp_path / "x" / NAME).read_text())
        (tmp_path / "x" / NAME).write_text(json.dumps({**written, "pid": beat.pid}))
        assert controller_is_active(two) is True, "it is alive"
    assert controller_is_active(two) is False
    # Of another host, and of a tick that ends by itself, its age decides, and that is said.
    for more in ({"host": "elsewhere"}, {"process": ""}):
        (tmp_path / "x" / NAME).write_text(
            json.dumps({**written, "pid": beat.pid, "time": time.time() - 5, **more})
        )
        assert controller_is_active(two) is True
        found = re.search(r"is (\d+) s old\); .* again in (\d+) s$", active_controller_message(two))
        assert int(found[1]) >= 5 and 59 <= int(found[1]) + int(found[2]) <= 61


@pytest.mark.parametrize("hidden", [PermissionError, FileNotFoundError])
def test_a_daemon_that_the_kernel_hides_is_waited_for(tmp_path, monkeypatch, hidden):
    """SELinux or hidepid: what cannot be read says nothing, and a number that is in use may be the
    daemon's."""
    _, two = two_folders(tmp_path)
    read = Path.read_text

    def hiding(path, *args, **more):
        if str(path) == f"/proc/{observation.pid}/stat":
            raise hidden(f"{path}")
        return read(path, *args, **more)

    with named_daemon(tmp_path / "x") as observation:
        monkeypatch.setattr(Path, "read_text", hiding)
        assert "another state folder" in rival_in(observation, me(two), observation.time)
    assert rival_in(observation, me(two), observation.time) is None, "no process has its number"


def test_a_process_whose_proc_is_of_another_namespace_has_no_name(monkeypatch):
    """Its own number and those that /proc shows do not fit."""
    assert process_name()
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    assert process_name() == ""


def test_a_daemon_whose_state_folder_was_lost_does_not_wait_for_itself(tmp_path):
    _, two = two_folders(tmp_path)
    own = Writer("of the lost folder", process_name())
    write_heartbeat(tmp_path / "x", "act", 10.0, writer=own)
    assert rival(two, time.time()) is None


def test_an_identity_lasts_and_a_copy_of_the_folder_has_another_one(tmp_path):
    two_folders(tmp_path)
    mine = identity_of(tmp_path / "one")
    with only_one(tmp_path / "one", 0):
        assert identity_of(tmp_path / "one") == mine != identity_of(tmp_path / "two")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with only_one(tmp_path / "copy", 0):
        assert identity_of(tmp_path / "copy") not in ("", mine)
    for damage in (b"", b"\xff" * 50, b"0" * 99, b"0" * 32 + b" " + b"9" * 20):
        (tmp_path / "one" / "identity").write_bytes(damage)
        assert identity_of(tmp_path / "one") == ""
