"""The whole path on a real Slurm: waiting, moving, resuming, and what happens without us."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pauses import pauses
from shared_steps import state_of_site, submit_by_hbatch
from trainings import SMALL_TORCH, digits_file, moves_of

from slurm_hadar import config as configuration
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.presentation import job_explanation
from slurm_hadar.controller.retire import retire
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.runtime.samples import check_lineage, from_plain
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import Update, open_cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"


class Site:
    """A sandbox with a controller whose placements the test dictates."""

    def __init__(self, box, folder):
        self.box = box
        self.folder = folder
        self.config = configuration.load(box.config_path)
        write_wrapper_site(self.config, box.config_path)
        self.cluster = open_cluster(self.config.slurm)
        self.store = Store.open(self.config.site.state_dir)
        self.want, self.nodes = {}, {}
        self.controller = self.another(self._dictated)
        self.env = {**os.environ, **box.env, "HADAR_PROGRESS_S": "0.2"}

    def another(self, decide=None):
        rates = open_rates(self.config, self.store.connection)
        return Controller(self.config, self.cluster, self.store, rates, os.getuid(), decide=decide)

    def _dictated(self, view, state):
        placements = {
            id_: Placement(
                self.want[id_], nodes=self.nodes.get(id_, {}), reason="dictated by the test"
            )
            for id_ in view.jobs.ids
            if id_ in self.want
        }
        waiting = {id_: "by the test" for id_ in view.jobs.ids if id_ not in self.want}
        return Plan(placements, waiting), state

    def hbatch(self, script, *words, alive=True):
        exchange = self.config.site.exchange_dir if alive else None
        return submit_by_hbatch(script, words, self.folder, self.env, exchange)

    def plain(self, script, options):
        """An ordinary job of somebody else's."""
        return self.cluster.submit(script, ["-o", "/dev/null", *options])

    def job(self, id_):
        return self.cluster.read_jobs([id_])[0]

    def until(self, holds, timeout_s=90.0):
        end, pause = time.monotonic() + timeout_s, pauses()
        while not holds():
            assert time.monotonic() < end, self.seen()
            time.sleep(next(pause))

    def seen(self):
        """What there was when something did not come about."""
        return state_of_site(self.box, self.folder)

    def where(self, id_):
        return {kind for gpus in self.job(id_).gpus.values() for kind in gpus}

    def running(self, id_, *kinds):
        return lambda: (
            self.job(id_).state is JobState.RUNNING and (not kinds or self.where(id_) == set(kinds))
        )

    def all_idle(self):
        """No node has a job, or one that is still leaving: Slurm passes such a node over."""
        nodes = self.cluster.read_nodes()
        return all(not n.cpus_used and "COMPLETING" not in n.state.upper() for n in nodes)

    def log(self, id_):
        return (self.folder / f"{id_}.out").read_text()


def a_site(make_sandbox, folder, guards=None, **times):
    """A job that waits, or moves, does so longer than a slow machine takes for any test."""
    settings = {
        "guards": {"min_between_moves_s": 0.0, **(guards or {})},
        "moving": {"ack_wait_s": 60.0},
    }
    box = make_sandbox(
        options=SandboxOptions(mode="act", settings=settings), **{"cred_expire_s": 90, **times}
    )
    return Site(box, folder)


@pytest.fixture
def site(make_sandbox, tmp_path):
    found = a_site(make_sandbox, tmp_path)
    yield found
    found.store.close()


@pytest.fixture
def soon_alone(make_sandbox, tmp_path):
    """Where Slurm starts a requeued job by itself after 20 s."""
    found = a_site(make_sandbox, tmp_path, cred_expire_s=20)
    yield found
    found.store.close()


def first(kind):
    """A job's partitions with this type before the others."""
    kinds = ["v100", "p100", "k80"]
    return ["-p", ",".join(sorted(kinds, key=lambda one: one != kind))]


def training(folder, samples=12_000, name="a", before=""):
    return (
        "#!/bin/bash\n"
        f"#HADAR model=resnet18 types=any gpus=1 batch=64 samples={samples} checkpoint=yes\n"
        f"{before}\n"
        f"exec {SMALL_TORCH} {TRAIN} --model resnet18 --batch 64 --samples {samples} "
        f"--checkpoint {folder}/{name}.pt --data {digits_file(folder)} "
        f"--lineage {folder}/{name}.json --every 600\n"
    )


SLEEP = "#!/bin/bash\n#HADAR types=any gpus=1-2\nexec sleep {}\n"
FILL = "#!/bin/bash\nexec sleep 600\n"


def full(site, nodes=6):
    """No GPU is free."""
    fill = [site.plain(FILL, ["--gres=gpu:2"]) for _ in range(nodes)]
    site.until(lambda: all(site.job(id_).state is JobState.RUNNING for id_ in fill))
    return fill


def test_a_waiting_job_gets_its_partitions_in_the_order_of_the_plan(site):
    fill = full(site)
    one, two = (site.hbatch(SLEEP.format(600), "-p", "gpu") for _ in range(2))
    site.want = {one: {"k80": 1}, two: {"p100": 1}}
    report = site.controller.tick()
    assert report.queries["jobs"] == 1 and report.queries["nodes"] == 1
    assert [site.job(id_).partitions[0] for id_ in (one, two)] == ["k80", "p100"]
    # All at once, so that several types are free and the order decides.
    closed = ["reservation", "ReservationName=all", "StartTime=now", "Duration=60", "Users=root"]
    site.box.run("scontrol", "create", *closed, "Nodes=ALL", "Flags=ignore_jobs")
    # Its scheduler has met the reservation.
    site.until(lambda: "Reserv" in site.job(one).reason or "ReqNode" in site.job(one).reason)
    site.cluster.cancel(fill)
    site.until(site.all_idle)
    assert site.job(one).state is site.job(two).state is JobState.PENDING
    site.box.run("scontrol", "delete", "ReservationName=all")
    site.until(site.running(one, "k80"))
    site.until(site.running(two, "p100"))


def test_a_waiting_job_is_an_ordinary_one(site):
    """Eligible from its submission, and started by Slurm when a GPU is freed, by no tick."""
    fill = full(site)
    managed = site.hbatch(SLEEP.format(600), "-p", "gpu")
    plain = site.plain(FILL, ["--gres=gpu:1"])
    site.controller.tick()
    mine, theirs = site.job(managed), site.job(plain)
    assert mine.reason in ("Resources", "Priority", "None", "") and not mine.held
    assert mine.eligible_s <= mine.submit_s + 1
    assert mine.priority >= theirs.priority > 0
    site.cluster.cancel(fill[:1])
    freed = time.monotonic()
    site.until(site.running(managed))
    assert time.monotonic() - freed < 30
    # It asked for one GPU of two, and the other job came later.
    site.until(site.running(plain))
    assert site.job(managed).start_s <= site.job(plain).start_s


def test_a_job_that_begins_while_it_is_retired_is_an_ordinary_one_too(site, monkeypatch):
    fill = full(site)
    job = site.hbatch(SLEEP.format(600), *first("k80"))
    site.want = {job: {"v100": 1}}
    site.controller.tick()
    assert site.job(job).partitions[0] == "v100", "the test can fail"
    looked = site.controller.observe()
    site.cluster.cancel(fill)
    site.until(site.running(job))
    monkeypatch.setattr(site.controller, "observe", lambda: looked)
    retired = retire(site.controller, time.time())
    assert (retired.jobs, retired.refused) == ((job,), {})
    assert not site.job(job).managed and site.job(job).comment == ""


def test_a_second_tick_sends_nothing(site):
    full(site)
    ids = [site.hbatch(SLEEP.format(600), "-p", "gpu") for _ in range(3)]
    site.want = {ids[0]: {"v100": 1}, ids[1]: {"k80": 2}}
    first, second = site.controller.tick(), site.controller.tick()
    assert first.done
    assert len(second.done) == 0 and "update" not in second.queries


def test_a_begin_time_of_an_earlier_release_is_taken_away_and_the_owners_stands(site):
    full(site)
    his = site.hbatch(SLEEP.format(5), "--begin=now+600")
    old = site.plain(
        FILL,
        [
            "--gres=gpu:1",
            "--begin=now+300",
            "--comment=[hadar1 types=any checkpoint=yes lease=yes]",
        ],
    )
    site.controller.tick()
    site.until(lambda: site.job(old).eligible_s <= time.time())
    assert site.job(his).eligible_s > time.time() + 400
    assert not site.controller.tick().done


def test_without_a_controller_every_job_runs(make_sandbox, tmp_path):
    site = Site(make_sandbox(options=SandboxOptions(mode="act")), tmp_path)
    fill = full(site)
    ids = [site.hbatch(SLEEP.format(1), "-p", "gpu") for _ in range(4)]
    # The controller steers some, and never comes back.
    site.want = {ids[0]: {"k80": 1}}
    site.controller.tick()
    site.cluster.cancel(fill)
    site.until(lambda: all(site.job(i).state is JobState.FINISHED for i in ids))
    assert all(site.job(id_).slurm_state.startswith("COMPLETED") for id_ in ids)
    site.store.close()


def test_in_observe_mode_nothing_waits_and_nothing_is_touched(make_sandbox, tmp_path):
    box = make_sandbox(options=SandboxOptions(mode="observe"))
    site = Site(box, tmp_path)
    write_heartbeat(site.config.site.exchange_dir, "observe", 5.0)
    id_ = site.hbatch(SLEEP.format(600), alive=False)
    job = site.job(id_)
    assert job.eligible_s <= job.submit_s + 1 and not job.declaration.lease
    site.until(site.running(id_))
    site.want = {id_: {"k80": 2}}
    report = site.controller.tick()
    assert not report.acted and not report.done and "update" not in report.queries
    assert site.job(id_).admin_comment == ""
    site.store.close()


def moved(site, id_):
    """It trains on k80: move it to v100, and wait for the end."""
    site.until(lambda: _samples(site, id_) > 0)
    site.want = {id_: {"v100": 1}}
    site.until(lambda: site.controller.tick() and "v100" in site.where(id_))
    site.until(lambda: site.job(id_).state is JobState.FINISHED, 120)
    assert site.job(id_).slurm_state.startswith("COMPLETED"), site.log(id_)
    return json.loads((site.folder / "a.json").read_text())


def _samples(site, id_):
    progress = site.controller.observe().progress.get(id_)
    return progress.samples if progress else 0


def _fault(lineage):
    rows = from_plain(lineage["segments"])
    return check_lineage(rows, lineage["dataset_size"])


def test_a_running_job_moves_and_every_sample_goes_in_exactly_once(site):
    id_ = site.hbatch(training(site.folder), *first("k80"))
    lineage = moved(site, id_)
    assert len({row[3] for row in lineage["segments"]}) == 2, "it ran in two attempts"
    assert lineage["samples"] == 12_000
    assert _fault(lineage) is None
    story = job_explanation.explanation_of(site.controller, id_)
    assert story.moves[-1].outcome == "moved"


def test_a_running_job_makes_way_and_goes_on_later(make_sandbox, tmp_path):
    site = a_site(make_sandbox, tmp_path, {"preempt": True})
    id_ = site.hbatch(training(site.folder), *first("k80"))
    site.until(lambda: _samples(site, id_) > 0)
    fill = [site.plain(FILL, ["-N2", "--gres=gpu:2", "-C", kind]) for kind in ("v100", "p100")]
    fill += [site.plain(FILL, ["--gres=gpu:1", "-C", "k80"]) for _ in range(3)]
    site.until(lambda: all(site.job(one).state is JobState.RUNNING for one in fill))
    ahead = site.plain(FILL, ["--gres=gpu:1", "-C", "k80"])
    newcomer = site.hbatch(SLEEP.format(5), *first("k80"))
    site.want = {newcomer: {"k80": 1}}
    # What it leaves would be the ordinary job's, so it runs on.
    for _ in range(3):
        report = site.controller.tick()
        assert report.diff.deferred[id_] == f"job {ahead}, which waits, gets these GPUs first"
    assert not moves_of(site.store, id_) and site.job(id_).state is JobState.RUNNING
    site.cluster.cancel([ahead])
    site.until(
        lambda: (
            site.controller.tick()
            and [move.outcome for move in moves_of(site.store, id_)] == ["stopped"]
        )
    )
    site.until(site.running(newcomer, "k80"))
    job = site.job(id_)
    assert job.state is JobState.PENDING and job.eligible_s > time.time() and not job.held
    assert not site.store.open_entries()
    # Slurm starts it again when the begin time that it gave it has come.
    site.cluster.apply([Update(id_, {"StartTime": "now"})])
    site.until(lambda: site.job(id_).state is JobState.FINISHED, 120)
    assert site.job(id_).slurm_state.startswith("COMPLETED"), site.log(id_)
    assert _fault(json.loads((site.folder / "a.json").read_text())) is None
    site.store.close()


def test_a_sabotaged_resume_does_not_pass_for_exact(site):
    tamper = site.folder / "tamper.py"
    tamper.write_text(TAMPER.format(path=site.folder / "a.pt"))
    again = f'[ -z "$SLURM_RESTART_COUNT" ] || {sys.executable} {tamper}'
    id_ = site.hbatch(training(site.folder, before=again), *first("k80"))
    assert "went in twice" in _fault(moved(site, id_))


TAMPER = """
import json, torch
from slurm_hadar.runtime import checkpoint
content = checkpoint.read("{path}")
state = json.loads(content["state"])
state["samples"] -= 64
torch.save({{**content, "state": json.dumps(state)}}, "{path}")
"""


def begun(site, name="a"):
    id_ = site.hbatch(training(site.folder, samples=14_000, name=name), *first("k80"))
    site.until(lambda: _samples(site, id_) > 0)
    site.want = {id_: {"v100": 1}}
    return id_


RUN = """
import os, sys
from slurm_hadar import config as configuration
from slurm_hadar.controller import tick
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.retire import retire
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.cluster import Update, open_cluster

site = configuration.load(configuration.find())
cluster, store = open_cluster(site.slurm), Store.open(site.site.state_dir)
real = getattr(cluster, "{point}")

def deadly(*arguments):
    if "{when}" == "after":
        real(*arguments)
    os.kill(os.getpid(), 9)

def decide(view, state):
    there = Placement({{"v100": 1}}, reason="test")
    return Plan(dict.fromkeys(view.jobs.ids, there), {{}}), state

tick.Controller(site, cluster, store, open_rates(site, store.connection), os.getuid(),
                decide=decide).tick()  # asked
cluster.{point} = deadly
controller = tick.Controller(site, cluster, store, open_rates(site, store.connection),
                             os.getuid(), decide=decide)
while True:
    controller.tick()
"""


def killed_at(site, point, when):
    """A controller of its own process, killed with SIGKILL around one call to Slurm."""
    program = site.folder / "run.py"
    program.write_text(RUN.format(point=point, when=when))
    settle = site.box.config_path.read_text().replace("settle_s = 5.0", "settle_s = 0.0")
    site.box.config_path.write_text(settle)
    done = subprocess.run(
        [sys.executable, str(program)], env=site.env, cwd=site.folder, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL


POINTS = [("requeue", "before"), ("requeue", "after"), ("apply", "before"), ("apply", "after")]


@pytest.mark.parametrize(("point", "when"), POINTS)
def test_killed_in_a_move_and_never_started_again_the_job_runs_on(soon_alone, point, when):
    site = soon_alone
    id_ = begun(site)
    killed_at(site, point, when)
    site.until(lambda: site.job(id_).state is JobState.FINISHED, 180)
    assert site.job(id_).slurm_state.startswith("COMPLETED"), site.log(id_)
    assert _fault(json.loads((site.folder / "a.json").read_text())) is None


@pytest.mark.parametrize(("point", "when"), POINTS)
def test_killed_in_a_move_and_started_again_the_move_is_ended(site, point, when):
    id_ = begun(site)
    killed_at(site, point, when)
    site.until(lambda: site.controller.tick() and not site.store.open_entries())
    (outcome,) = (move.outcome for move in moves_of(site.store, id_))
    assert outcome in ("moved", "it started by itself before it was placed") or (
        outcome.endswith("stays where it is")
    )
    site.until(site.running(id_))
    if outcome == "moved":
        assert site.where(id_) == {"v100"}
    assert site.job(id_).restarts <= 1


def test_a_job_that_does_not_answer_stays_where_it_is(make_sandbox, tmp_path):
    settings = {
        "guards": {"min_between_moves_s": 0.0},
        "moving": {"ack_wait_s": 2.0, "settle_s": 0.0},
    }
    site = Site(make_sandbox(options=SandboxOptions(mode="act", settings=settings)), tmp_path)
    id_ = begun(site)
    # The training's process hears nothing any more.
    pid = site.controller.observe().progress[id_].pid
    os.kill(pid, signal.SIGSTOP)
    site.controller.tick()
    time.sleep(2.5)
    site.want = {}
    site.controller.tick()
    job = site.job(id_)
    assert job.state is JobState.RUNNING and job.restarts == 0
    (move,) = moves_of(site.store, id_)
    assert "stays where it is" in move.outcome
    os.kill(pid, signal.SIGCONT)
    site.store.close()


def test_a_job_that_never_reported_gets_no_signal(make_sandbox, tmp_path):
    """The steps that srun starts do not inherit a handler: the signal would end them."""
    site = Site(
        make_sandbox(
            options=SandboxOptions(mode="act", settings={"guards": {"min_between_moves_s": 0.0}})
        ),
        tmp_path,
    )
    script = "#!/bin/bash\n#HADAR types=any gpus=1 checkpoint=yes\nexec srun sleep 600\n"
    id_ = site.hbatch(script, *first("k80"))
    site.until(site.running(id_, "k80"))
    site.want = {id_: {"v100": 1}}
    for _ in range(3):
        site.controller.tick()
        time.sleep(1)
    assert moves_of(site.store, id_) == []
    assert site.job(id_).state is JobState.RUNNING
    site.store.close()


def test_jobs_that_did_not_opt_in_are_never_touched(site):
    plain = site.plain(FILL, ["--gres=gpu:1", "--begin=now+600"])
    off = site.hbatch(SLEEP.format(600), "--hadar-off")
    before = {id_: site.job(id_) for id_ in (plain, off)}
    site.want = {plain: {"k80": 1}, off: {"k80": 1}}
    assert not site.controller.tick().done
    for id_, job in before.items():
        assert site.job(id_).admin_comment == job.admin_comment == ""


def test_a_job_does_not_move_to_what_a_waiting_job_can_use(site):
    """An ordinary job submitted before is about to take the last GPUs of the type."""
    id_ = site.hbatch(training(site.folder), *first("k80"))
    site.until(lambda: _samples(site, id_) > 0)
    ordinary = site.plain(FILL, ["--gres=gpu:2", "-N2", "-Cp100", "--begin=now+5"])
    site.want = {id_: {"p100": 1}}
    site.until(lambda: time.time() >= site.job(ordinary).eligible_s)
    site.controller.tick()
    site.until(site.running(ordinary))
    assert site.where(ordinary) == {"p100"} and site.where(id_) == {"k80"}


def test_a_typed_request_stays_what_it_says(site):
    id_ = site.hbatch("#!/bin/bash\n#HADAR model=lm\nexec sleep 600\n", "--gres=gpu:k80:1")
    seen = site.controller.snapshot(site.controller.observe())
    row = seen.view.jobs.ids.index(id_)
    possible = {seen.view.types[r] for r in seen.view.jobs.rate[row].any(axis=1).nonzero()[0]}
    assert possible == {"k80"}
    site.until(site.running(id_, "k80"))


def test_optout_gives_the_job_back_as_it_was(site):
    full(site)
    id_ = site.hbatch(SLEEP.format(600), "-p", "k80,v100")
    site.want = {id_: {"v100": 1}}
    site.controller.tick()
    assert site.job(id_).partitions == ("v100", "k80")
    out = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", "optout", id_],
        env=site.env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    job = site.job(id_)
    assert job.partitions == ("k80", "v100") and dict(job.request.per_node) == {"": 1}
    site.want = {id_: {"k80": 1}}
    assert not site.controller.tick().done


def test_a_job_moves_onto_several_types_that_can_live_with_it(site):
    """--gpus over several nodes: Slurm is given the nodes, and chooses the split."""
    words = ["--gpus=3", "-N1-2", "-p", "gpu", "-Cp100|v100|k80"]
    fill = [site.plain(FILL, ["--gres=gpu:2", "-N2", f"-p{kind}"]) for kind in ("v100", "k80")]
    site.until(lambda: all(site.job(one).state is JobState.RUNNING for one in fill))
    # More than it can train before it moves.
    script = training(site.folder, 200_000).replace("gpus=1", "gpus=3 nodes=1-2")
    id_ = site.hbatch(script, *words)
    site.until(lambda: _samples(site, id_) > 0)
    assert site.where(id_) == {"p100"}
    site.cluster.cancel(fill)
    site.until(lambda: all(site.job(one).state is JobState.FINISHED for one in fill))
    before = site.job(id_)
    site.want = {id_: {"v100": 1, "k80": 2}}
    site.nodes = {id_: {"v1": {"v100": 1}, "k1": {"k80": 2}}}
    site.until(lambda: site.controller.tick() and site.where(id_) == {"v100", "k80"})
    assert set(site.job(id_).gpus) == {"v1", "k1"} and site.job(id_).gpu_count == 3
    assert len(site.controller.tick().done) == 0
    # Requeued by its owner it is what he submitted again.
    site.want, site.nodes = {}, {}
    full(site, 3)
    site.cluster.requeue([id_])
    site.until(lambda: site.job(id_).state is JobState.PENDING)
    site.until(lambda: site.controller.tick() and not site.job(id_).required_nodes)
    after = site.job(id_)
    for name in ("features", "request"):
        assert getattr(after, name) == getattr(before, name), name


def test_pin_and_set_change_the_declaration(site):
    id_ = site.hbatch(SLEEP.format(600))
    declare(site, "pin", id_)
    declare(site, "set", id_, "gpus=2", "model=lm")
    declared = site.job(id_).declaration
    assert declared.pin and declared.gpus == (2, 2) and declared.model == "lm"


def declare(site, *words):
    """What a job's owner types."""
    done = subprocess.run(
        [sys.executable, "-m", "slurm_hadar.cli.main", *words],
        env=site.env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def ended_by_its_owner(site, id_):
    """The outcome of its only move."""
    site.want = {}
    site.until(lambda: site.controller.tick() and not site.store.open_entries())
    (move,) = moves_of(site.store, id_)
    assert move.outcome.startswith("its owner declared"), move.outcome
    return move.outcome


def test_what_an_owner_excludes_after_the_save_stops_the_move(site):
    moving = site.config.moving.model_copy(update={"settle_s": 0.0})
    site.config = site.config.model_copy(update={"moving": moving})
    site.controller = site.another(site._dictated)
    script = training(site.folder, samples=60_000, before="export HADAR_PAUSE_S=60")
    id_ = site.hbatch(script, *first("k80"))
    site.until(lambda: _samples(site, id_) > 0)
    site.want = {id_: {"v100": 1}}
    site.controller.tick()
    site.until(lambda: "samples as asked" in site.log(id_))
    declare(site, "set", id_, "types=k80,p100")
    assert "without v100; it stays" in ended_by_its_owner(site, id_)
    assert site.job(id_).restarts == 0 and site.where(id_) == {"k80"}
    site.until(lambda: "was not moved; going on" in site.log(id_), 30)


def test_a_requeued_job_starts_on_no_type_that_its_owner_excludes_since(site):
    id_ = begun(site)
    killed_at(site, "apply", "before")
    site.until(lambda: site.job(id_).state is JobState.PENDING)
    declare(site, "set", id_, "types=p100,k80")
    assert ended_by_its_owner(site, id_).endswith("without v100")
    site.until(site.running(id_))
    assert site.where(id_) <= {"p100", "k80"} and site.job(id_).restarts == 1


@pytest.mark.parametrize("command", [("optout",), ("retire",)])
def test_a_job_given_back_between_its_requeue_and_its_start_waits_for_no_begin_time(site, command):
    id_ = begun(site)
    killed_at(site, "apply", "before")
    site.until(lambda: site.job(id_).state is JobState.PENDING)
    assert site.job(id_).eligible_s > time.time() + 40, "the test can fail"
    given = time.monotonic()
    declare(site, *command, *([id_] if command == ("optout",) else []))
    if command == ("optout",):
        site.controller.tick()
    site.until(site.running(id_))
    assert time.monotonic() - given < 40
    assert site.job(id_).restarts == 1


def test_a_second_tick_at_the_same_time_leaves(site):
    from slurm_hadar.controller.lock import only_one

    with only_one(site.config.site.state_dir, 0.0):
        done = subprocess.run(
            [sys.executable, "-m", "slurm_hadar.cli.main", "tick", "--wait", "0"],
            env=site.env,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
    assert done.returncode == 1
    assert "another hadar is running" in done.stderr and "Traceback" not in done.stderr


def test_the_stop_file_stops_everything(site):
    id_ = site.hbatch(SLEEP.format(600))
    site.config.guards.stop_file.touch()
    site.want = {id_: {"k80": 1}}
    report = site.controller.tick()
    assert not report.acted and not report.done
    assert any("exists: nothing is changed" in line for line in report.messages)
