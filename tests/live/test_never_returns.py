"""The controller is killed and never returns: all its jobs run, and a node failure afterwards
strands none, not even one that was moved to the type that fails."""

import os
import pwd
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import people
import pytest
from people import ADA, HADAR

from slurm_hadar.domain.errors import SlurmError

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

QUICK = Path(__file__).with_name("quick_training.py")
PATIENT = """\
#!/bin/sh
#HADAR types=v100,k80 gpus=1 model=resnet50 batch=64 samples=100000 wait=60
sleep 3
"""
QUIET = ("--parsable", "-o", "/dev/null")


@pytest.fixture
def site():
    with people.staffed() as site:
        # Half a minute after its last tick the controller counts as dead.
        text = site.box.config_path.read_text()
        assert "interval_s = 300.0" in text
        site.box.config_path.write_text(text.replace("interval_s = 300.0", "interval_s = 1.0"))
        site.admin("hadar", "check", "--write", code=1)
        yield site


@contextmanager
def controller(site):
    """``hadar run``, killed at the end."""
    who = pwd.getpwnam(HADAR)
    log = site.folder / "controller.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [people.BIN / "hadar", "run", "--interval", "1"],
            env={**site.box.env, "HOME": str(site.homes[HADAR]), "PYTHONUNBUFFERED": "1"},
            cwd=site.homes[HADAR],
            stdout=stream,
            stderr=stream,
            user=who.pw_uid,
            group=who.pw_gid,
            extra_groups=[who.pw_gid],
        )
    try:
        yield log
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def failed(site, *nodes):
    """Nodes that lost their slurmd and are set DOWN."""
    try:
        for node in nodes:
            site.box.kill_slurmd(node)
            site.box.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        yield
    finally:
        for node in nodes:
            site.box.start_slurmd(node)
            with suppress(SlurmError):
                site.box.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def state(site, job):
    return site.show(job, "%T|%P")


def test_all_jobs_run_without_a_controller_and_after_a_node_failure(site):
    fast, slow = site.fill()
    said = "model=resnet50 batch=64 samples=900000 checkpoint=yes restart_cost=1 types=any"
    command = f"exec {sys.executable} {QUICK} {site.homes[ADA]} 4500 0"
    script = f"#!/bin/sh\n#SBATCH --gres=gpu:1 -n1\n#HADAR {said}\n{command}\n"
    short = "#!/bin/sh\n#HADAR types=v100,k80 gpus=1 model=transformer\nsleep 3\n"
    with controller(site) as log:
        site.until(lambda: " sent; read " in log.read_text())
        moved = site.submit(ADA, "-p", "k80,v100", script=script)
        site.box.run("scancel", slow)
        site.until(lambda: state(site, moved) == "RUNNING|k80")
        site.box.run("scancel", fast)
        site.until(lambda: state(site, moved) == "RUNNING|v100")
        # Nothing is free any more: these wait with the hints that they get.
        words = ("--gres=gpu:1", "-J", "fill", "-t2", "--no-requeue", "--wrap=sleep 600")
        for kind, number in (("v100", 3), ("k80", 2)):
            for _ in range(number):
                site.box.run("sbatch", *QUIET, "-p", kind, *words)
        site.until(lambda: len(site.box.run("squeue", "-h", "-tR", "-nfill").splitlines()) == 5)
        # It is expected to wait 53 s at most, and to end sooner so.
        patient = site.submit(ADA, "-p", "k80,v100", script=PATIENT)
        site.until(lambda: state(site, patient) == "PENDING|v100")
        assert "waits for v100 until" in site(HADAR, "hadar", "explain", patient)
        waiting = [site.submit(ADA, "-p", "k80,v100", script=short) for _ in range(4)]
        waiting += [site.submit(ADA, "-p", "gpu", script=short)]
        array = site.submit(ADA, "-p", "k80,v100", "--array=0-2", script=short)
        every = [*waiting, array]
        site.until(lambda: {state(site, job) for job in every} == {"PENDING|v100,k80"})
        assert state(site, moved) == "RUNNING|v100"
    with failed(site, "v1", "v2"):
        # The type that all hints put first is gone, and so is the one that it was moved to.
        site.until(lambda: state(site, moved).startswith("PENDING"))
        site.box.run("scancel", "-n", "fill")
        tasks = [f"{array}_{number}" for number in range(3)]
        for job in (*waiting, *tasks, moved):
            site.until(lambda job=job: state(site, job) == "COMPLETED|k80")
        # The one that waits for the type that is gone has a deadline. Its owner may widen it then.
        site.until(lambda: "past their deadline: 1" in site(ADA, "hadar", "widen"))
        site.until(lambda: state(site, patient) == "COMPLETED|k80")
    assert not site.box.run("squeue", "-h").strip()
