"""The commands as they are typed, on a real Slurm."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hadar import config as configuration
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.domain import steering
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import Update, open_cluster

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

HBATCH, HADAR = (str(Path(sys.executable).parent / name) for name in ("hbatch", "hadar"))
SLEEP = "#!/bin/sh\n#HADAR types=any gpus=1\nexec sleep 600\n"


class Shell:
    """A sandbox's shell: what a command prints and returns."""

    def __init__(self, box, folder, rights="sandbox"):
        self.env = {**os.environ, **box.env}
        self.folder = folder
        # In a per-user configuration the check finds fault with a test that runs as root.
        self("check", "--write", code=1 if rights == "user" and os.getuid() == 0 else 0)

    def __call__(self, *words, program=HADAR, code=0, stdin=""):
        done = subprocess.run(
            [program, *words],
            env=self.env,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def submit(self, *words, script=SLEEP):
        return self("--parsable", "-o", "/dev/null", *words, program=HBATCH, stdin=script).strip()

    def says(self, *words):
        """What hbatch writes beside the job's number."""
        argv = [HBATCH, *words]
        done = subprocess.run(
            argv, env=self.env, cwd=self.folder, input=SLEEP, capture_output=True, text=True,
            timeout=90, check=True,
        )  # fmt: skip
        return done.stderr

    def until(self, holds, timeout_s=90.0):
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, "it did not come about in time"
            time.sleep(0.5)

    @contextlib.contextmanager
    def daemon(self):
        log = self.folder / "hadar.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [HADAR, "run"], env=self.env, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self.until(lambda: "tick:" in log.read_text())
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0, log.read_text()


@pytest.fixture
def shell(make_sandbox, tmp_path):
    return Shell(make_sandbox(options=SandboxOptions(mode="act")), tmp_path)


def test_the_operator_can_look_while_the_daemon_runs(shell):
    with shell.daemon():
        job = shell.submit()
        shell.until(lambda: shell("status", "--json") and job in shell("status"))
        shell.until(lambda: "Last decision" in shell("explain", job))
        # The daemon holds the lock all the while.
        rows = json.loads(shell("status", "--json"))["result"]["rows"]
        assert [row["id"] for row in rows] == [job]
        assert job in shell("plan")
        assert json.loads(shell("explain", job, "--json"))["result"]["row"]["id"] == job
        assert "another hadar" in shell("tick", "--wait", "0", code=1)
        assert "another hadar" in shell("run", code=1)
    # Nobody is to wait until its heartbeat is too old.
    assert "STOPPED on" in shell("status")
    assert "no controller is acting" in shell.says("-o", "/dev/null")


def test_optout_without_admin_comment_gives_the_request_back(make_sandbox, tmp_path):
    shell = Shell(
        make_sandbox(options=SandboxOptions(mode="act", settings={"site": {"rights": "user"}})),
        tmp_path,
        "user",
    )
    fill = "#!/bin/sh\nexec sleep 600\n"
    for _ in range(6):
        shell.submit("--gres=gpu:2", script=fill)
    site = configuration.load(Path(shell.env["HADAR_CONFIG"]))
    cluster = open_cluster(site.slurm)
    shell.until(lambda: all(job.state is JobState.RUNNING for job in cluster.read_jobs()))
    job = shell.submit("-p", "gpu")
    # As a controller in per-user mode leaves a job that it moved.
    sent, was = {"Features": "k80", "Partition": "k80,v100"}, {"Features": "", "Partition": "gpu"}
    assert cluster.apply([Update(job, sent)]) == [None]
    store = Store.open(site.site.state_dir)
    store.keep_steering(job, steering.merge("", Steering({"k80": 1}, was=was, wrote=sent)))
    store.close()
    assert "ordinary job" in shell("optout", job)
    (found,) = cluster.read_jobs([job])
    assert found.state is JobState.PENDING
    assert (found.features, found.partitions) == ("", ("gpu",))


def test_a_change_of_a_whole_array_leaves_each_task_what_is_its_own(shell):
    array = shell.submit("--hold", "--array=1-3")
    shell("set", array, "model=all")
    shell("set", f"{array}_2", "model=own")
    shell("set", array, "gpus=2")
    cluster = open_cluster(configuration.load(Path(shell.env["HADAR_CONFIG"])).slurm)
    declared = {job.id: job.declaration for job in cluster.read_jobs([array])}
    assert {id_: one.model for id_, one in declared.items()} == {
        f"{array}_1": "all",
        f"{array}_2": "own",
        f"{array}_3": "all",
    }
    assert {one.gpus for one in declared.values()} == {(2, 2)}


def test_a_task_that_has_ended_is_no_failure_of_a_change_of_its_array(shell):
    script = "#!/bin/sh\n#HADAR types=any gpus=1\n[ $SLURM_ARRAY_TASK_ID = 1 ] || sleep 600\n"
    array = shell.submit("--begin=now", "--array=1-3%1", script=script)
    cluster = open_cluster(configuration.load(Path(shell.env["HADAR_CONFIG"])).slurm)

    def states():
        return {job.id: job.state for job in cluster.read_jobs([array])}

    def second_runs():
        seen = states()
        first, second = (seen.get(f"{array}_{number}") for number in (1, 2))
        return first is JobState.FINISHED and second is JobState.RUNNING

    shell.until(second_runs)
    shell("set", array, "model=later")
    for job in cluster.read_jobs([array]):
        ended = job.state is JobState.FINISHED
        assert job.declaration.model == ("" if ended else "later"), job.id


NO_SENSE = {
    ("explain", "12;id"): "is no job id",
    ("pin", "0"): "is no job id",
    ("set", "1_", "model=x"): "is no job id",
    ("run", "--interval", "0"): "takes seconds between",
    ("run", "--interval", "nan"): "takes seconds between",
    ("tick", "--wait", "-1"): "takes seconds between",
}


def test_what_makes_no_sense_is_refused_and_a_sandbox_tells_machines_what_runs(shell):
    for words, said in NO_SENSE.items():
        assert said in shell(*words, code=2), words
    folder = Path(shell.env["HADAR_CONFIG"]).parent
    answer = json.loads(shell("sandbox", "status", str(folder), "--json"))
    assert (answer["version"], answer["command"]) == (1, "sandbox status")
    assert answer["result"]["running"] and set(answer["result"]["daemons"].values()) == {True}
    assert set(answer["result"]["nodes"].values()) == {"idle"} and answer["result"]["jobs"] == {}
