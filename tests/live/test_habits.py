"""Jobs that checkpoint themselves, on a real Slurm: as their scripts are, moved as they declare."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dictated import first_on
from habits import Habits
from shared_steps import HBATCH
from trainings import SMALL_TORCH

from slurm_hadar.controller.actuation.move_steps import NOT_SAVED
from slurm_hadar.controller.alerts.dispatch import AlertSource, look
from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.plugins import programs
from slurm_hadar.profiles.gpu_sampling import GpuUse
from slurm_hadar.profiles.gpu_sampling_files import NodeUse, new_path, write_use
from slurm_hadar.profiles.measured import MeasuredStore

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

SUBMITIT = Path(__file__).with_name("submitit_counts.py")
LIGHTNING = Path(__file__).with_name("lightning_counts.py")
SHOWS = Path(__file__).with_name("shows_its_steps.py")
OWN_LOOPS = Path(__file__).parents[1] / "unit" / "runtime"
REQUEUES_ITSELF = "save; scontrol requeue $SLURM_JOB_ID; sleep 60"


@pytest.fixture(scope="module")
def site(slurm_prefix, tmp_path_factory):
    settings = {
        "guards": {"min_between_moves_s": 0.0},
        # Longer than KillWait, shorter than Slurm waits by itself.
        "moving": {"ack_wait_s": 60.0, "after_return_s": 5.0, "settle_s": 2.0},
        "controller": {"interval_s": 1.0},
        "partitions": {"chain": ["v100", "p100", "k80"]},
    }
    options = {"slurm_prefix": slurm_prefix, "kill_wait_s": 3}
    found = Habits(tmp_path_factory.mktemp("habits"), settings, **options)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def nothing_left(site):
    yield
    site.ended(*site.want)
    site.want.clear()
    site.until(site.all_nodes_answer)


@pytest.mark.each_slurm
def test_a_job_that_saves_and_requeues_itself_on_its_own_signal_is_moved(site):
    id_ = site.script(
        "checkpoint=signal restart_cost=1", "--signal=B:USR1@60", when_asked=REQUEUES_ITSELF
    )
    assert "signal=B:USR1@60" in site.job(id_).comment
    site.moved(id_)
    assert site.ends(id_) == "COMPLETED"
    (_, first, zero), (one, then, saved) = site.begun(id_)
    assert (first, zero, one, then) == ("k1", 0, 1, "v1") and saved > 10
    # Nothing is done twice, and nothing is left out.
    assert site.steps(id_) == list(range(1, 601))
    assert site.lines(id_, "log")[-1] == "done 600"


def test_a_job_that_takes_long_to_leave_costs_no_other_its_place(site):
    """Under the usual limit of requests, which a sandbox does not have: a job that was requeued is
    released as soon as it has left, however long another takes to leave after its signal."""
    slow = site.script(
        "checkpoint=signal signal=B:USR1@60 restart_cost=1",
        when_asked=f"sleep 20; {REQUEUES_ITSELF}",
    )
    quick = site.running("k80", linger=1.5)
    ticking = site.another(
        site.with_settings(
            guards={"max_queries_per_minute": 60},
            moving={"settle_s": 20.0, "after_return_s": 40.0},
            controller={"interval_s": 15.0},
        )
    )
    # What the tests before sent in this minute was no part of it.
    ticking.cluster.traffic._sent.clear()
    site.want[slow] = {"v100": 1}
    ticking.tick()
    site.want[quick] = {"p100": 1}

    def released():
        if not ticking.backoff.why_not_now():
            ticking.tick()
        return site.history(quick) and site.history(quick)[0].outcome

    site.until(released)
    (move,) = site.history(quick)
    took_s = move.changed_s - move.reached_s("requeued")
    print(f"from requeue to release: {took_s:.1f} s")
    assert move.outcome == "moved" and took_s < 5.0, (move, site.said)
    site.until(lambda: site.where(quick) == {"p100"})


def test_another_controller_goes_on_where_the_first_was_killed(site):
    id_ = site.script("checkpoint=signal signal=B:USR1 restart_cost=1", when_asked=REQUEUES_ITSELF)
    site.asked(id_)
    # Nothing ticks: the job saves and requeues itself all the same.
    site.until(lambda: site.state(id_) is JobState.PENDING)
    site.controller = site.another()
    site.moved(id_)
    assert site.ends(id_) == "COMPLETED" and site.steps(id_) == list(range(1, 601))


def test_a_job_that_leaves_with_its_checkpoint_exit_code_is_started_again(site):
    id_ = site.script(
        "checkpoint=signal signal=B:USR1@30 checkpoint_exit_code=85 restart_cost=1",
        when_asked="save; exit 85",
    )
    site.moved(id_)
    assert site.ends(id_) == "COMPLETED"
    assert [restarts for restarts, _, _ in site.begun(id_)] == [0, 1]
    assert site.steps(id_) == list(range(1, 601))


@pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (1, "FAILED")])
def test_a_job_that_ends_when_it_is_asked_is_never_started_again(site, code, state):
    id_ = site.script(
        "checkpoint=signal signal=B:USR1 checkpoint_exit_code=85 restart_cost=1",
        when_asked=f"save; exit {code}",
    )
    site.asked(id_)
    assert site.ends(id_) == state
    for _ in range(5):
        site.patient_tick()
    job = site.job(id_)
    assert job.slurm_state == state and job.restarts == 0 and len(site.begun(id_)) == 1


def test_a_job_that_does_nothing_stays_and_is_asked_less_often(site):
    id_ = site.script("checkpoint=signal signal=B:USR1@3 restart_cost=1", steps=10_000)
    site.asked(id_)
    site.until(lambda: site.patient_tick() and site.history(id_)[0].outcome)
    assert site.history(id_)[0].outcome.startswith(NOT_SAVED)
    job = site.job(id_)
    assert job.state is JobState.RUNNING and job.restarts == 0
    assert len(site.begun(id_)) == 1


def test_a_job_that_may_be_restarted_is_moved_while_little_is_lost(site):
    id_ = site.script("checkpoint=restart lose=60", steps=300)
    site.moved(id_)
    assert site.ends(id_) == "COMPLETED"
    assert [step for _, _, step in site.begun(id_)] == [0, 0]


def test_a_job_that_has_run_longer_than_it_may_lose_stays(site):
    id_ = site.script("checkpoint=restart lose=5", steps=10_000)
    site.until(lambda: site.slurm.read_jobs([id_])[0].start_s < time.time() - 7)
    site.want[id_] = {"v100": 1}
    for _ in range(5):
        site.patient_tick()
    job = site.job(id_)
    assert job.state is JobState.RUNNING and job.restarts == 0 and not site.history(id_)


def test_a_job_that_declares_nothing_of_it_is_never_moved(site):
    id_ = site.script("model=lm", steps=10_000)
    site.want[id_] = {"v100": 1}
    for _ in range(5):
        site.patient_tick()
    assert site.job(id_).restarts == 0 and not site.history(id_)


def test_a_job_that_saves_by_itself_is_moved_right_after_a_checkpoint(site):
    id_ = site.script(
        f"checkpoint=watch:{site.folder}/%j.stat? lose=8 restart_cost=1",
        trap=f"{sys.executable} -m slurm_hadar.runtime.watch &",
        every=150,
        steps=1000,
    )
    site.moved(id_)
    until = len(site.steps(id_))
    assert site.ends(id_) == "COMPLETED"
    (_, _, zero), (_, then, resumed) = site.begun(id_)
    assert (zero, then) == (0, "v1") and resumed >= 150 and resumed % 150 == 0
    # What was done again is what it may lose, at ten steps a second at most.
    steps = site.steps(id_)
    again = len(steps) - 1000
    assert 0 <= again <= 8 * 10 + 20, (again, until)
    assert sorted(set(steps)) == list(range(1, 1001))


def test_a_watched_job_that_has_not_saved_yet_stays(site):
    id_ = site.script(
        "checkpoint=watch:nothing.here lose=1000 restart_cost=1",
        trap=f"{sys.executable} -m slurm_hadar.runtime.watch &",
        steps=10_000,
    )
    site.want[id_] = {"v100": 1}
    site.until(lambda: site.patient_tick() and site.report_of(id_) is not None)
    for _ in range(5):
        site.patient_tick()
    assert site.report_of(id_).checkpoint is None
    assert site.job(id_).restarts == 0 and not site.history(id_)


def test_the_task_prolog_watches_a_script_that_knows_nothing_of_it(site):
    program = site.folder / "task_prolog"
    python, exchange = Path(sys.executable), site.config.site.exchange_dir
    program.write_text(programs.program("task_prolog", python, exchange, os.getuid()))
    own = site.box.places.task_prolog
    kept = own.read_text()
    own.write_text(f"{kept}sh {program}\n")
    try:
        id_ = site.script(
            f"checkpoint=watch:{site.folder}/%j.state lose=60 restart_cost=1",
            trap="trap '' USR1",
            every=50,
            steps=10_000,
        )
    finally:
        own.write_text(kept)
    site.until(lambda: (said := site.report_of(id_)) is not None and said.checkpoint is not None)
    watcher = Path(f"/proc/{site.report_of(id_).pid}")
    assert b"on_node" in (watcher / "cmdline").read_bytes()
    site.moved(id_)
    # Slurm shows it there before its script has come to its first line.
    site.until(lambda: [restarts for restarts, _, _ in site.begun(id_)] == [0, 1])
    site.ended(id_)
    site.until(lambda: not watcher.exists())


def test_jobs_longer_than_their_time_limit_are_requeued_before_it_until_they_are_done(site):
    site.controller = site.another(site.with_settings(moving={"ack_wait_s": 8.0}))
    plain = site.script("checkpoint=signal signal=B:USR1@8", "--time=1", steps=100_000)
    signalled = site.script(
        "checkpoint=signal signal=B:USR1@8 max_requeues=20", "--time=1",
        when_asked=REQUEUES_ITSELF, steps=900,
    )  # fmt: skip
    ours = site.submit(9_000, "max_requeues=20", words=("--time=1",))
    ids = [plain, signalled, ours]
    # No move of theirs is wanted: each stays where Slurm starts it.
    site.want.clear()
    try:
        ends = {id_: site.ends(id_, 350) for id_ in ids[1:]}
        assert set(ends.values()) == {"COMPLETED"}, site.account(ends)
        # In plain Slurm its limit ends a job; that of the others is still what it was.
        assert site.ends(plain) == "TIMEOUT"
        assert [site.job(id_).time_limit_s for id_ in ids] == [60.0] * 3
        for id_ in ids[1:]:
            chained = [one for one in site.history(id_) if "chain" in one.details]
            assert len(chained) == site.job(id_).restarts >= 1, chained
        assert len(site.begun(plain)) == 1 and not site.history(plain)
        assert site.steps(signalled) == list(range(1, 901))
        begun = [word for word, _, _ in site.attempts(ours)]
        assert begun.count("begin") == site.job(ours).restarts + 1
    finally:
        site.want.update(dict.fromkeys(ids))


def test_submitit_resumes_by_its_own_means(site, tmp_path):
    pytest.importorskip("submitit")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sbatch").symlink_to(HBATCH)
    write_heartbeat(site.config.site.exchange_dir, "act", 5.0)
    words = [str(SUBMITIT), str(tmp_path), first_on("k80")[1], "600"]
    path = f"{bin_}:{site.box.programs.bin_dir}:{os.environ['PATH']}"
    log = (tmp_path / "err").open("w+")
    with subprocess.Popen(
        [sys.executable, *words],
        env={**site.env, "PATH": path}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True,
    ) as client:  # fmt: skip
        try:
            id_ = client.stdout.readline().strip()
            assert id_.isdigit(), Path(log.name).read_text()
            site.want[id_] = {"k80": 1}
            counted, begun = tmp_path / "steps", tmp_path / "begun"
            site.until(lambda: counted.exists() and counted.read_text().count("\n") > 10)
            # It is submitit that asks for this signal.
            assert "signal=USR2@90" in site.job(id_).comment
            site.moved(id_)
            assert site.ends(id_) == "COMPLETED"
            assert client.communicate(timeout=60)[0].split()[-1] == "600"
        finally:
            client.kill()
            log.close()
    (first, zero), (then, resumed) = (line.split() for line in begun.read_text().splitlines())
    assert (first, zero, then) == ("k1", "0", "v1") and int(resumed) > 10
    assert [int(line) for line in counted.read_text().split()] == list(range(1, 601))


def test_lightning_requeues_itself_on_the_signal_to_its_step(site, tmp_path):
    pytest.importorskip("lightning")
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:1 --ntasks=1 --job-name=line\n"
        "#HADAR types=any checkpoint=signal signal=USR1 restart_cost=5\n"
        f"srun {sys.executable} {LIGHTNING} {tmp_path} 900\n"
    )
    id_ = site.hbatch(script, "-o", str(site.folder / "%j.out"), OMP_NUM_THREADS="1")
    counted = tmp_path / "steps"
    site.until(lambda: counted.exists() and counted.read_text().count("\n") > 20, 150)
    site.moved(id_)
    assert site.ends(id_, 200) == "COMPLETED"
    assert (tmp_path / "begun").read_text().split() == ["k1", "v1"]
    steps = [int(line) for line in counted.read_text().split()]
    # It trains on between its save and its end: these passes are done again, and none is left out.
    assert sorted(set(steps)) == list(range(900)) and len(steps) <= 940


def test_a_loop_of_its_own_is_moved_and_is_the_run_that_never_stopped(site, tmp_path):
    torch = pytest.importorskip("torch")
    plain = tmp_path / "plain"
    plain.mkdir()
    expected = subprocess.run(
        [*SMALL_TORCH.split(), OWN_LOOPS / "own_loop_plain.py"],
        cwd=plain, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:1\n#HADAR types=any checkpoint=yes restart_cost=1\n"
        # Its pace is its own, not that of a pretend GPU.
        "unset HADAR_EMULATION\n"
        f"exec {SMALL_TORCH} {OWN_LOOPS / 'own_loop_session.py'} --pace 0.3\n"
    )
    id_ = site.hbatch(script, "-o", str(tmp_path / "out"), "-e", str(site.folder / "own.out"))
    site.until(lambda: site.patient_tick() and site.trains(id_), 150)
    site.moves(id_, "v100")
    assert site.ends(id_) == "COMPLETED"
    assert site.job(id_).restarts == 1
    # Each batch once, in its order, and every loss of a validation the same: also across the move.
    assert (tmp_path / "out").read_text().splitlines() == expected
    said = (site.folder / "own.out").read_text()
    resumed = int(re.search(r"resumed at ([0-9]+) samples \(attempt 2", said)[1])
    assert 0 < resumed < len(expected) * 16
    for name in ("end.pt", "best.pt"):
        one, other = (torch.load(folder / name) for folder in (plain, tmp_path))
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_training_that_shows_how_far_it_is_is_moved_and_its_speed_is_known(site, tmp_path):
    pytest.importorskip("torch.utils.tensorboard")
    files = f"tensorboard:{tmp_path}/tensorboard/runs/%j"
    shown = {"print": "step={step*64}/", "tensorboard": files + "{step*64}"}
    ids = {}
    for how, pattern in shown.items():
        folder = tmp_path / how
        folder.mkdir()
        script = folder / "train.sh"
        script.write_text(
            "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
            f"#HADAR types=any checkpoint=watch:{folder}/*.ckpt lose=10 restart_cost=1\n"
            f"#HADAR model={how} samples={600 * 64} progress={pattern}\n"
            f"{sys.executable} -m slurm_hadar.runtime.watch &\n"
            f"{sys.executable} {SHOWS} {folder} 600 {'--' + how if how != 'print' else ''}\n"
        )
        ids[how] = site.hbatch(script, "-o", str(site.folder / f"{how}.out"))

    found = {}

    def each_is_moved_once_its_speed_is_known():
        site.patient_tick()
        for how, id_ in ids.items():
            report = site.report_of(id_)
            if report is not None and report.rate:
                site.want[id_] = {"v100": 1}
                if report.restarts:
                    found[how] = report
        return found.keys() == ids.keys()

    site.until(each_is_moved_once_its_speed_is_known, 240)
    for how, id_ in ids.items():
        report = found[how]
        assert site.ends(id_) == "COMPLETED"
        (first, zero), (then, resumed) = (
            line.split() for line in (tmp_path / how / "begun").read_text().splitlines()
        )
        assert (first, zero, then) == ("k1", "0", "v1") and int(resumed) >= 60
        steps = [int(line) for line in (tmp_path / how / "steps").read_text().split()]
        # The work that a move may cost is done again and counted again; its place is known.
        assert sorted(set(steps)) == list(range(1, 601)) and len(steps) - 600 <= 10 * 10 + 50
        # It counts on from the checkpoint, and a step takes a tenth of a second.
        assert report.samples % 64 == 0 and int(resumed) < report.samples / 64 <= 600
        assert 64 < report.rate <= 640 * 3
        measured_of = MeasuredStore(site.stores[-1].connection).of(how)
        rates = {one.gpu_type: one.samples_per_s for one in measured_of}
        assert set(rates) == {"k80", "v100"} and max(rates.values()) <= 640 * 3


def test_gpus_held_idle_go_to_others_once_the_owner_knows(site, tmp_path):
    mails = tmp_path / "mails"
    sink = tmp_path / "sink"
    sink.write_text(f"#!/bin/sh\ncat >> {mails}; echo >> {mails}\n")
    sink.chmod(0o755)
    alerts = {
        "enabled": True, "held_idle_s": 1.0, "preempt_held_idle_s": 1.0, "command": (str(sink),),
    }  # fmt: skip
    config = site.with_settings(alerts=alerts)
    site.controller = site.another(config)
    folder = config.site.exchange_dir
    source = AlertSource(
        lambda: site.controller.store, lambda: site.controller.observe(), lambda: ""
    )
    id_ = site.running("k80")
    path = new_path(folder, id_)

    def idle():
        """As its sampler writes: nothing was computed for ten minutes. The owner gets a message."""
        gpu = GpuUse("G", "P", 600.0, 0.0, None, None, 50.0, 0.0, 600.0, 0.0)
        write_use(path, NodeUse(id_, "k1", 1, time.time(), False, (gpu,)))
        looked = look(config, source, dry_run=False)
        assert not looked.problems, looked.problems
        return looked.sent

    def said():
        """Ticks, and what is decided on the job then."""
        idle()
        site.patient_tick()
        return job_explanation.explanation_of(site.controller, id_).reason

    def asked():
        return [one for one in site.history(id_) if "held_idle" in one.details]

    site.until(idle)
    assert f"hadar pin {id_}" in mails.read_text() and mails.read_text().count("held_idle") == 1
    others = site.full()
    # Nobody waits for what it has: it stays.
    site.until(lambda: "makes way as soon as a job waits" in said())
    assert site.state(id_) is JobState.RUNNING and not asked()
    waits = site.plain("-p", "k80")
    site.until(lambda: said() and site.state(waits) is JobState.RUNNING)
    (stop,) = asked()
    site.until(lambda: said() and asked()[0].outcome == "stopped")
    assert site.state(id_) is JobState.PENDING and site.job(waits).nodes == ("k1",)
    assert "as its GPUs were idle" in said()
    assert ": stop, as its GPUs were idle" in str(job_explanation.move_row(stop))
    # Undone by Slurm's own commands: it goes on from its checkpoint.
    saved = site.report_of(id_).samples
    site.box.run("scontrol", "update", f"JobId={id_}", "StartTime=now")
    site.slurm.cancel([waits])
    site.until(lambda: site.patient_tick() and site.trains(id_, 1))
    site.until(lambda: site.report_of(id_).samples > saved)
    # Idle again: it is not stopped again for a day, whoever waits.
    again = site.plain("-p", "k80")
    site.until(lambda: "from" in said().partition("GPUs are idle")[2])
    assert mails.read_text().count("held_idle") == 2 and len(asked()) == 1
    site.ended(again, *others)
