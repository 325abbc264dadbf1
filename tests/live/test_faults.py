"""What breaks around the controller, tried on a real Slurm: slurmctld, slurmd, munge, disk, clock,
answers of Slurm, files of jobs. After each the jobs are unharmed, and the controller goes on by
itself."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest
import step_processes
from dictated import Dictated
from slurms import need
from trainings import moves_of

from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.presentation import job_report
from slurm_hadar.controller.presentation.tick_text import format_tick
from slurm_hadar.domain.errors import HadarError, SlurmError
from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange import progress
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.slurm.cluster import Update

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

NOBODY = 65534
PARTS = {"jobs": ("squeue", "--json"), "nodes": ("scontrol", "show node")}
PARTS |= {kind: ("scontrol", f"show {kind[:-1]}") for kind in ("partitions", "reservations")}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    need(None)
    guards = {"min_between_moves_s": 0.0, "max_moves_per_tick": 20}
    found = Dictated(tmp_path_factory.mktemp("faults"), {"guards": guards})
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _ends_whole(site):
    yield
    site.faulty.mend()
    site.want = {}
    jobs = site.slurm.read_jobs()
    site.ended(*(job.id for job in jobs if job.state is not JobState.FINISHED))


def munged(site):
    return int((site.box.places.run / "munged.pid").read_text())


@contextmanager
def without_munge(site):
    pid = munged(site)
    os.kill(pid, signal.SIGTERM)
    site.until(lambda: not site.box.places.munge_socket.exists())
    try:
        yield
    finally:
        site.box._daemons.start_munged(60.0)


@contextmanager
def standing_still(pids):
    """Processes that do nothing for a while."""
    try:
        for pid in pids:
            step_processes.stop(pid)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def once(site, point, event):
    """From the next call of the controller's to ``point`` on the cluster, do something after it."""
    cluster = site.controller.cluster
    real = getattr(cluster, point)

    def followed(*arguments):
        answer = real(*arguments)
        setattr(cluster, point, real)
        event()
        return answer

    setattr(cluster, point, followed)


def test_slurmctld_goes_down_between_reading_and_acting(site):
    # It has the CPUs and no GPU: of the GPUs of a job that runs through a start of slurmctld 22.05
    # loses count.
    every = ("-o", "/dev/null", "-N3", "--ntasks-per-node=32")
    busy = site.slurm.submit("#!/bin/sh\nexec sleep 600\n", every)
    site.until(lambda: site.job(busy).state is JobState.RUNNING)
    id_ = site.submit()
    site.want[id_] = {"p100": 1}
    once(site, "read_reservations", site.box.stop_slurmctld)
    report = site.controller.tick()
    assert report.acted and any("not answered" in line for line in report.messages), report.messages
    assert report.refused == {id_} and not report.done
    assert not any(line.startswith(f"update job {id_}") for line in format_tick(report))
    site.box.start_slurmctld()
    assert site.unharmed(id_).state is JobState.PENDING
    # It was no refusal, so the next tick says it again.
    site.until(lambda: site.patient_tick() and site.job(id_).partitions[0] == "p100", 30)
    site.ended(busy)
    site.until(lambda: site.trains(id_))
    site.unharmed(id_)


@pytest.mark.parametrize("kind", ["slurmctld", "munge"])
def test_slurm_goes_down_between_requeue_and_sending_on(site, kind):
    id_ = site.running("k80")
    site.want[id_] = {"v100": 1}
    slurmds = [int(path.read_text()) for path in site.box.places.run.glob("slurmd.*.pid")]
    back = []

    def down():
        # A slurmctld of 22.05 that starts while a job is completing loses count of its GPUs.
        site.until(lambda: site.job(id_).state is JobState.PENDING)
        if kind == "munge":
            pid = munged(site)
            os.kill(pid, signal.SIGTERM)
            site.until(lambda: not site.box.places.munge_socket.exists())
            back.append(lambda: site.box._daemons.start_munged(60.0))
        else:
            site.box.stop_slurmctld()
            back.append(site.box.start_slurmctld)

    once(site, "requeue", down)
    try:
        while not back:
            site.patient_tick()
    except BaseException:
        # The other tests need it too.
        for up in back:
            up()
        raise
    # Until the controller has looked no node shall have reported.
    with standing_still(slurmds if kind == "slurmctld" else []):
        back[0]()
        waits = site.job(id_)
        assert site.patient_tick()
        if kind == "slurmctld":
            assert "has just started" in site.said[-1], "no node has reported yet"
            assert site.job(id_).partitions == waits.partitions
    site.until(lambda: site.patient_tick() and site.where(id_) == {"v100"})
    site.until(lambda: site.trains(id_, 1))
    assert site.unharmed(id_).restarts == 1
    moves = [move.outcome for move in moves_of(site.controller.store, id_)]
    assert moves == ["moved"]


def go_down(site, node):
    site.box.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")


def come_back(site, node):
    # Slurm takes it back by itself as soon as its slurmd tells of itself, and then there is no more
    # to resume.
    with suppress(SlurmError):
        site.box.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    site.until(lambda: all(node.usable for node in site.slurm.read_nodes()))


def test_a_node_that_came_back_is_left_alone_at_first(site):
    """Slurm would take the end of an attempt that is still leaving there for that of the next."""
    at = time.time()
    times = {"after_return_s": 5.0}
    careful = site.another(site.with_settings(moving=times), clock=lambda: at)
    assert careful.observe().nodes["k1"].usable

    def seen_down():
        go_down(site, "k1")
        return not careful.observe().nodes["k1"].usable

    site.until(seen_down)
    come_back(site, "k1")
    at += 4.9
    assert not careful.observe().nodes["k1"].usable
    at += 0.2
    assert careful.observe().nodes["k1"].usable


def test_a_job_of_a_node_that_was_down_between_two_looks_keeps_its_begin_time(site):
    """Slurm delays it until what ran there has left. Nothing is left to be seen of the node."""
    id_ = site.running("k80")
    site.want[id_] = {"v100": 1}
    go_down(site, "k1")
    come_back(site, "k1")
    site.until(lambda: site.job(id_).state is JobState.PENDING)
    begins = site.job(id_).eligible_s
    assert site.controller.tick().done
    waits = site.job(id_)
    assert waits.eligible_s == begins >= waits.submit_s + 90
    assert waits.partitions[0] == "v100", "it is steered all the same"
    found = job_report.of_controller(site.controller, id_)
    assert any(line.startswith("Slurm delays it until ") for line in found.next)
    site.slurm.apply([Update(id_, {"StartTime": "now+2"})])
    site.until(lambda: site.patient_tick() and site.trains(id_, 1))
    assert site.where(id_) == {"v100"}
    assert site.unharmed(id_).restarts == 1


def test_a_job_that_slurm_requeued_in_the_middle_of_a_move_is_not_sent_on_at_once(site):
    """It was no move that ended its attempt, which may still be leaving its node."""
    id_ = site.running("k80")
    site.want[id_] = {"v100": 1}
    careful = site.another(site.with_settings(moving={"settle_s": 0.0, "after_return_s": 600.0}))
    careful.tick()
    (asked,) = careful.store.open_entries()
    go_down(site, "k1")
    come_back(site, "k1")
    site.until(lambda: site.job(id_).state is JobState.PENDING)
    begins = site.job(id_).eligible_s
    careful.tick()
    assert [entry.id for entry in careful.store.open_entries()] == [asked.id]
    waits = site.job(id_)
    assert waits.eligible_s == begins and waits.partitions[0] == "k80"
    found = job_report.of_controller(careful, id_)
    assert any("moving.after_return_s" in line for line in found.next)
    site.until(lambda: site.patient_tick() and site.trains(id_, 1))
    assert site.where(id_) == {"v100"}
    assert site.unharmed(id_).restarts == 1


def test_the_slurmd_of_a_moving_job_is_killed(site):
    id_ = site.running("k80")
    site.want[id_] = {"v100": 1}
    asking = site.another(site.with_settings(moving={"settle_s": 0.0}))
    asking.tick()
    site.box.kill_slurmd("k1")
    for _ in range(4):
        asking.tick()
        time.sleep(0.3)
    assert asking.store.open_entries(), "slurmctld waits for the node, and so does the move"
    site.box.start_slurmd("k1")
    site.until(lambda: asking.tick() and site.trains(id_, 1) and site.where(id_) == {"v100"})
    moves = [move.outcome for move in moves_of(asking.store, id_)]
    # On a slow machine the node is back after Slurm's own begin time, and the job moves once more.
    alone = ["it started by itself before it was placed"] * (len(moves) - 1)
    assert sorted(moves) == [*alone, "moved"] and len(moves) <= 2
    assert site.unharmed(id_).restarts == len(moves)


def test_without_munge_nothing_is_done_and_it_is_said(site):
    id_ = site.running("k80")
    site.want[id_] = {"v100": 1}
    with without_munge(site), pytest.raises(SlurmError) as said:
        site.controller.tick()
    assert "\n" not in str(said.value) and said.value.retry
    assert site.unharmed(id_).restarts == 0
    site.moves(id_, "v100")


def test_an_answer_that_is_none_means_that_nothing_is_done(site):
    fill, runs = [site.plain("-p", kind) for kind in ("k80", "p100", "p100")], site.running("k80")
    waits = site.submit(words=["-p", "k80,p100"])
    site.want = {waits: {"p100": 1}, runs: {"k80": 1}}
    # On a busy machine Slurm has not looked at the new job yet.
    site.until(lambda: site.controller.tick().done)
    known = site.controller.store.steerings([waits, runs])
    # A free GPU that no waiting job can use, and another order for the one that waits.
    site.want = {waits: {"k80": 1}, runs: {"v100": 1}}
    before = {job.id: job for job in site.slurm.read_jobs([waits, runs])}
    for fault in ("garbage", "half", "empty", "fails", "limited"):
        for command, match in PARTS.values():
            site.faulty.set(command, fault, match)
            with pytest.raises(SlurmError) as said:
                site.controller.tick()
            site.faulty.mend()
            assert len(str(said.value)) < 300 and "\n" not in str(said.value)
    assert site.controller.store.steerings([waits, runs]) == known != {}
    after = {job.id: job for job in site.slurm.read_jobs([waits, runs])}
    for id_ in (waits, runs):
        assert after[id_].restarts == 0 and after[id_].partitions == before[id_].partitions
    report = site.controller.tick()
    assert report.acted and len(report.diff.actions) == 2
    site.until(lambda: site.patient_tick() and site.where(runs) == {"v100"})
    site.until(lambda: site.trains(waits))
    site.unharmed(waits), site.unharmed(runs)
    site.ended(*fill)


def test_nodes_of_a_running_job_that_are_not_shown_make_the_answer_a_part(site):
    site.running("k80")
    site.faulty.set("scontrol", "other", "show node")
    with pytest.raises(SlurmError, match="not whole"):
        site.controller.tick()


def test_a_silent_slurm_is_not_waited_for_longer_than_said(site):
    fill, id_ = site.full(), site.submit()
    site.want = {id_: {"p100": 1}}
    hasty = site.another(site.with_settings(slurm={"timeout_s": 4.0}))
    site.faulty.set("squeue", "silence", "--json")
    began = time.monotonic()
    with pytest.raises(SlurmError, match="no answer within 4 s"):
        hasty.tick()
    # The command itself would be silent for an hour.
    assert time.monotonic() - began < 60
    site.faulty.mend()
    site.faulty.set("scontrol", "silence", "update")
    report = hasty.tick()
    assert any("no answer within 4 s" in line for line in report.messages)
    site.faulty.mend()
    site.ended(*fill)
    site.until(lambda: site.patient_tick() and site.where(id_) == {"p100"})
    site.unharmed(id_)


@pytest.mark.parametrize("hours", [1, -1])
def test_the_clock_is_stepped_by_an_hour_and_back(site, hours):
    """The controller's clock; Slurm's times then are an hour off in its eyes."""
    runs = site.running("k80")
    fill, waits = site.full(), site.submit()
    site.want = {runs: {"k80": 1}, waits: {"p100": 1}}
    stepped = site.another(clock=lambda: time.time() + 3600 * hours)
    for _ in range(2):
        stepped.tick()
    assert site.unharmed(runs).restarts == 0 and site.where(runs) == {"k80"}
    site.controller.tick()
    job = site.unharmed(waits)
    # Whatever was said meanwhile: Slurm may start it.
    assert job.state is JobState.PENDING and job.eligible_s <= time.time()
    site.ended(*fill)
    site.until(lambda: site.trains(waits))
    site.want = {waits: {"p100": 1}, runs: {"v100": 1}}
    site.until(lambda: site.controller.tick() and site.where(runs) == {"v100"})
    site.unharmed(waits), site.unharmed(runs)


def test_the_clock_is_stepped_in_the_middle_of_a_move(site):
    id_ = site.running("k80")
    asking = site.another(site.with_settings(moving={"settle_s": 0.0}))
    # In this order: a move that the journal has in an hour from now keeps the job where it is.
    for hours, kind in ((-1, "v100"), (1, "p100")):
        site.want = {id_: {kind: 1}}
        asking.tick()
        (asked,) = asking.store.open_entries()
        began = time.monotonic()
        stepped = site.another(clock=lambda step=3600 * hours: time.time() + step)
        stepped.tick()
        assert time.monotonic() - began < 60
        (entry,) = (e for e in asking.store.history(id_) if e.id == asked.id)
        assert entry.outcome in (None, "moved") or "stays where it is" in entry.outcome
        site.moves(id_, kind)
        site.unharmed(id_)


@contextmanager
def small_disk(folder):
    """A file system of a few MiB, mounted there for a while."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=1777", "hadar-test", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.skip(
            f"no full disk can be made without the right to mount a tmpfs: {done.stderr.strip()}"
        )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    with (folder / "filler").open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"x" * 65536):
            pass


@pytest.mark.parametrize("part", ["state", "exchange"])
def test_the_disk_is_full(site, part):
    folder = site.folder / f"small-{part}"
    with small_disk(folder):
        inside = folder / "hadar"
        inside.mkdir(mode=0o700 if part == "state" else 0o1777)
        inside.chmod(0o700 if part == "state" else 0o1777)
        config = site.with_settings(site={f"{part}_dir": inside})
        if part == "exchange":
            write_wrapper_site(config, site.box.config_path)
        try:
            small = site.another(config)
            id_ = site.submit(first="k80")
            site.want = {id_: {"k80": 1}}
            small.tick()
            site.until(lambda: site.job(id_).state is JobState.RUNNING)
            site.until(lambda: id_ in small.observe().progress)
            site.want = {id_: {"v100": 1}}
            # A file that it replaces meanwhile would make room for another.
            with standing_still([small.observe().progress[id_].pid]):
                fill(folder)
                for _ in range(2):
                    with pytest.raises(HadarError) as said:
                        small.tick()
                    assert "\n" not in str(said.value), said.value
                    assert "full" in str(said.value) or "No space left" in str(said.value)
            # It tells of its progress several times a second.
            time.sleep(0.5)
            assert site.unharmed(id_).restarts == 0
            (folder / "filler").unlink()
            site.until(lambda: small.tick() and site.where(id_) == {"v100"})
            site.unharmed(id_)
            small.store.close()
        finally:
            write_wrapper_site(site.config, site.box.config_path)
            site.slurm.cancel([id_])
            site.until(lambda: site.job(id_).state is JobState.FINISHED)


def hostile(path, kind):
    """Something else in the place of a file of the exchange folder."""
    path.unlink(missing_ok=True)
    if kind == "huge":
        path.write_bytes(b'{"version": 1, "job": "' + b"1" * 5_000_000 + b'"}')
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "nonsense":
        path.write_bytes(os.urandom(3000))
    elif kind == "half":
        path.write_text('{"version": 1, "job": "7", "samples": 12')
    elif kind == "deep":
        path.write_text("[" * 60_000)
    elif kind == "others":
        path.write_text(json.dumps({"version": 1, "job": "1"}))
        os.chown(path, NOBODY, NOBODY)
    else:
        assert kind == "missing"


TYPES = ["v100", "p100", "k80"]
KINDS = ["missing", "huge", "link", "fifo", "folder", "nonsense", "half", "deep", "others"]


def test_whatever_lies_where_a_progress_file_should_be(site):
    id_ = site.running("k80")
    site.want = {id_: {"k80": 1}}
    folder = site.config.site.exchange_dir
    (own,) = progress.own_files(folder, id_, os.getuid())
    pid = site.controller.observe().progress[id_].pid
    for kind in KINDS:
        # The training must not write it anew meanwhile.
        step_processes.stop(pid)
        hostile(own, kind)
        newer = folder / f"progress.{id_}.ffff.json"
        hostile(newer, kind)
        began = time.monotonic()
        report = site.controller.tick()
        assert id_ not in report.observation.progress, kind
        assert not report.done and time.monotonic() - began < 60
        for path in (own, newer):
            path.rmdir() if kind == "folder" else path.unlink(missing_ok=True)
        os.kill(pid, signal.SIGCONT)
        site.until(lambda: id_ in site.controller.observe().progress)
    assert site.unharmed(id_).restarts == 0
    site.moves(id_, "v100")


def test_whatever_others_lay_where_what_was_done_is_kept(site):
    fill, ids, folder = site.full(), {}, site.config.site.exchange_dir
    for kind in KINDS:
        id_ = ids[kind] = site.submit()
        hostile(folder / f"steer.{id_}.json", kind)
        site.want[id_] = {("v100", "p100", "k80")[len(ids) % 3]: 1}
    report = site.controller.tick()
    assert report.acted and len(report.done) == len(KINDS)
    assert all(len(line) < 300 for line in report.messages)
    for id_ in ids.values():
        assert site.unharmed(id_).partitions[0] == next(iter(site.want[id_]))
    assert site.controller.store.steerings(ids.values()).keys() == set(ids.values())
    assert all(steering_store.shared(site.config, id_) is not None for id_ in ids.values())
    assert not site.controller.tick().done
    site.ended(*fill)
    site.until(lambda: sum(site.job(i).state is JobState.RUNNING for i in ids.values()) == 6)


def test_whatever_others_lay_where_a_plan_is_written(site):
    """Three trainings change places with the free GPUs of other types, three times."""
    ids = [site.running(kind) for kind in TYPES]
    folder = site.config.site.exchange_dir
    for turn in range(3):
        for number, id_ in enumerate(ids):
            hostile(folder / f"plan.{id_}.json", KINDS[3 * turn + number])
            site.want[id_] = {TYPES[(number + turn + 1) % 3]: 1}
        site.until(
            lambda: (
                site.patient_tick() and all(site.where(id_) == set(site.want[id_]) for id_ in ids)
            )
        )
        for id_ in ids:
            site.until(lambda id_=id_, turn=turn: site.trains(id_, turn + 1))
            assert site.unharmed(id_).restarts == turn + 1
            plan = read_plan(folder, id_, (os.getuid(),))
            assert plan is not None and dict(plan.gpus) == site.want[id_]


def test_the_daemon_lives_through_all_of_it_and_goes_on(site):
    log = site.folder / "daemon.log"
    toml = site.box.config_path.read_text().replace("[slurm]\n", "[slurm]\ntimeout_s = 3.0\n")
    config = site.folder / "daemon.toml"
    config.write_text(toml)
    with log.open("w") as stream:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "slurm_hadar.cli.main", "run", "--interval", "1"],
            env={**site.env, "HADAR_CONFIG": str(config), "PYTHONUNBUFFERED": "1"},
            stdout=stream,
            stderr=stream,
        )

    def said(words, since):
        return lambda: words in log.read_text()[since:]

    def works_again():
        since = log.stat().st_size
        site.until(said(" sent; read", since))

    try:
        works_again()
        for fault in ("garbage", "half", "empty", "silence"):
            since = log.stat().st_size
            site.faulty.set("squeue", fault, "--json")
            site.until(said("nothing done: squeue", since))
            site.faulty.mend()
            works_again()
        since = log.stat().st_size
        with without_munge(site):
            site.until(said("nothing done", since))
        works_again()
        id_ = site.submit()
        site.until(lambda: site.trains(id_))
        site.unharmed(id_)
        assert daemon.poll() is None
    finally:
        daemon.terminate()
        code = daemon.wait(60)
    assert code == 0 and "Traceback" not in log.read_text(), log.read_text()
