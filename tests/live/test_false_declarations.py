"""What a user declares or reports falsely gains him no place twice, and costs nobody else one."""

import sys

import people
import pytest
from people import ADA, BOB, EVE, HADAR

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

PRIORITY = "PriorityWeightPartition=100000\nPriorityWeightAge=1000\nPriorityCalcPeriod=00:01\n"
WORDS = ("-p", "v100", "-t60")
TRAINING = "#!/bin/sh\n#HADAR gpus=1 types=any model=resnet50 batch=64 samples={}\nsleep 600\n"
SLOW = """
import os, time
from slurm_hadar.exchange.job_side import Exchange, host, in_step
from slurm_hadar.exchange.progress import Progress
exchange = Exchange.from_env(print)
while True:
    now = time.time()
    exchange.tell(Progress(job=exchange.job, time=now, restarts=exchange.restarts, host=host(),
        pid=os.getpid(), in_step=in_step(os.environ), started=now - 900, model="newt", samples=1,
        rate=1e-6, window_s=600.0, batch=64, gpus=1))
    time.sleep(1)
"""
FIT = "does not fit in the time limit"


@pytest.fixture(scope="module")
def whole_site():
    with people.with_priorities(PRIORITY, "account") as site:
        yield site


@pytest.fixture
def site(whole_site):
    yield whole_site
    whole_site.cancel()


def queue_of(site):
    """ada's training waits before a later one of bob's that he declares to be short."""
    hers = site.submit(ADA, *WORDS, script=TRAINING.format(50_000))
    his = site.submit(BOB, *WORDS, "--nice=1000", script=TRAINING.format(1000))
    priority = {job: int(site.show(job, "%Q")) for job in (hers, his)}
    assert priority[hers] > priority[his]
    return hers, his


def forgiven(site):
    """bob's jobs exchange places again, though one left ada's place without having started."""
    site.tick()
    site(HADAR, "hadar", "retire")


def first(site, jobs):
    """Which of these jobs Slurm would start first."""
    return max(jobs, key=lambda job: int(site.show(job, "%Q")))


def test_who_declared_too_little_before_gains_no_place_by_it_again(site):
    site.fill()
    hers, his = queue_of(site)
    site.until(lambda: site.tick() and first(site, (hers, his)) == his)
    site.cancel()
    forgiven(site)
    lie = site.submit(BOB, *WORDS, script=TRAINING.format(1))
    site.until(lambda: site.show(lie, "%T") == "RUNNING")
    site.until(
        lambda: (
            site.tick() and "more than its declared work" in site(HADAR, "hadar", "explain", lie)
        ),
        60,
    )
    # The longer it runs, the less its owner's words count. After these seconds they count so little
    # that bob's next training, declared to be 50 times shorter than ada's, is not the shorter one.
    site.until(lambda: site.show(lie, "%M") >= "0:08")
    site.tick()
    site.box.run("scancel", lie)
    site.fill()
    hers, his = queue_of(site)
    for _ in range(3):
        site.tick()
        assert first(site, (hers, his)) == hers
    # The owner sees why.
    assert "its declared work counts" in site(HADAR, "hadar", "explain", his)
    assert "its declared work counts" not in site(HADAR, "hadar", "explain", hers)


@pytest.mark.parametrize("how", ["cancel", "optout", "more"])
def test_a_job_that_never_starts_leaves_no_other_users_job_at_the_end_of_the_queue(site, how):
    """bob's training gets the place of ada's, and is held there."""
    site.fill()
    hers = site.submit(ADA, *WORDS, script=TRAINING.format(500_000))
    plain = ("--parsable", *WORDS, "-o", "/dev/null", "--gres=gpu:1", "--wrap", "sleep 600")
    between = site(EVE, "sbatch", *plain, "--nice=100").strip()
    his = site.submit(BOB, *WORDS, "--nice=5000", script=TRAINING.format(100))
    jobs = (hers, between, his)
    site.until(lambda: site.tick() and first(site, jobs) == his)
    site(BOB, "scontrol", "hold", his)
    said = site.tick()
    assert f"job {his}: it left the place of another user's job; no job of {BOB} exchanges" in said
    assert first(site, jobs) == hers and " Nice=5000 " in site.field(his, "Priority") + " "
    if how == "cancel":
        site(BOB, "scancel", his)
    elif how == "optout":
        site(BOB, "scontrol", "update", f"JobId={his}", "Comment=")
    else:
        site(BOB, "scontrol", "update", f"JobId={his}", "TresPerNode=gres:gpu:2")
    site.tick()
    if how != "cancel":
        site(BOB, "scontrol", "release", his)
    for _ in range(2):
        site.tick()
        assert first(site, jobs) == hers
        shown = [site.field(job, "Priority").split()[1] for job in (hers, his)]
        assert shown[0] == "Nice=0" and (how == "cancel" or shown[1] == "Nice=5000")
    forgiven(site)


def test_speeds_that_strangers_report_keep_no_job_from_its_gpus(site):
    words = "gpus=1 model=newt samples=1000 checkpoint=yes"
    script = f"#!/bin/sh\n#HADAR types=v100 {words}\n{sys.executable} - <<'END'{SLOW}END\n"
    slow = [site.submit(user, *WORDS, script=script) for user in (ADA, EVE, EVE, None)]
    site.until(lambda: all(site.show(job, "%T") == "RUNNING" for job in slow))
    exchange = site.folder / "exchange"
    site.until(lambda: all(list(exchange.glob(f"progress.{job}.*")) for job in slow))
    site.tick()
    # One that saves is not left to Slurm for its time limit.
    words = "gpus=1 model=newt samples=1000"
    script = f"#!/bin/sh\n#HADAR types=v100 {words}\nsleep 600\n"
    hers, mine = (site.submit(user, *WORDS, script=script) for user in (ADA, BOB))
    site.tick()
    assert FIT in site(HADAR, "hadar", "explain", hers)
    assert FIT not in site(HADAR, "hadar", "explain", mine)
