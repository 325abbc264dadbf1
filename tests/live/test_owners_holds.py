"""What the owner of a job types into scontrol while it saves for a move, with the rights of a user
beside a controller that is an operator: a hold and a Nice stay the owner's."""

import json
import re

import people
import pytest
from people import ADA

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

SCRIPT = """\
#!/bin/sh
#SBATCH --gres=gpu:1 -n1
#HADAR model=cyclegan batch=64 samples=9000 types=any restart_cost=1
#HADAR checkpoint=signal signal=B:USR1@300 checkpoint_exit_code=85
saves() {
    touch asked
    while [ ! -e leave ]; do sleep 0.2; done
    exit 85
}
trap saves USR1
sleep 600 & wait
"""


@pytest.fixture(scope="module")
def whole_site():
    with people.with_ages() as site:
        yield site


@pytest.fixture
def saving(whole_site):
    """A job of ada's on the k80 that saves for a move to a v100, and the site."""
    site = whole_site
    for name in ("asked", "leave"):
        (site.homes[ADA] / name).unlink(missing_ok=True)
    fast, slow = site.fill()
    job = site.submit(ADA, "-p", "k80,v100", script=SCRIPT)
    site.box.run("scancel", slow)
    site.until(lambda: site.show(job, "%T|%P") == "RUNNING|k80")
    site.box.run("scancel", fast)
    site.until(lambda: site.tick() and (site.homes[ADA] / "asked").exists())
    yield job, site
    site.cancel()


def leaves(site, job):
    (site.homes[ADA] / "leave").touch()
    site.until(lambda: site.show(job, "%T") == "FAILED")


def requeued(site, job, reason):
    """Tick until the job waits, held for this reason: a requeue shows it a moment later."""
    site.until(lambda: site.tick() and shown(site, job, "Restarts") == "1")
    site.until(lambda: site.show(job, "%T") == "PENDING" and held(site, job) == reason)
    site.tick()
    assert held(site, job) == reason


def shown(site, job, name):
    return re.search(rf"\b{name}=(\S+)", site.box.run("scontrol", "show", "job", job))[1]


def held(site, job):
    """Who Slurm says holds the job."""
    for one in json.loads(site.box.run("squeue", "--json"))["jobs"]:
        if str(one["job_id"]) == job:
            return one["state_reason"]
    return ""


def test_the_owners_hold_is_his_to_release(saving):
    job, site = saving
    site(ADA, "scontrol", "hold", job)
    leaves(site, job)
    requeued(site, job, "JobHeldUser")
    site(ADA, "scontrol", "release", job)
    site(ADA, "scontrol", "update", f"JobId={job}", "StartTime=now")
    site.until(lambda: site.show(job, "%T") == "RUNNING")


def test_an_admins_hold_that_a_tick_saw_stays_an_admins(saving):
    job, site = saving
    site.admin("scontrol", "hold", job)
    site.tick()
    leaves(site, job)
    requeued(site, job, "JobHeldAdmin")
    assert "denied" in site(ADA, "scontrol", "release", job, code=1)


def test_a_nice_that_the_owner_sets_while_it_saves_is_his_when_it_runs_again(saving):
    job, site = saving
    site(ADA, "scontrol", "update", f"JobId={job}", "Nice=77")
    leaves(site, job)
    site.until(lambda: site.tick() and site.show(job, "%T|%P") == "RUNNING|v100")
    site.until(lambda: site.tick() and shown(site, job, "Nice") == "77")
    # One that is set once it runs stays as well, and its next move restores no older one.
    site(ADA, "scontrol", "update", f"JobId={job}", "Nice=88")
    site.tick()
    assert shown(site, job, "Nice") == "88"
