"""A waiting job gets its list of partitions, and keeps its place, where Slurm enforces limits: an
update of its partitions alone would take its age, and the place with it."""

import re
import time
from subprocess import Popen

import people
import pytest
from people import ADA, BOB, EVE, HADAR

pytestmark = [pytest.mark.live, pytest.mark.timeout(500)]
AGES = "PriorityWeightAge=1000000\nPriorityMaxAge=1-00:00\nPriorityCalcPeriod=00:05:00\n"
"""12 points a second, which Slurm counts each five minutes and at updates."""
_WAITED_S = 20
"""A job that is older is steered in the same way."""


@pytest.fixture
def site():
    with people.with_priorities(AGES) as found:
        yield found


def shown(site, *jobs):
    """Job -> its priority, Nice and partitions, of one answer."""
    columns = "JobID:12,PriorityLong:14,Nice:14,Partition:40"
    text = site.box.run("squeue", "-h", "-t", "PENDING", "-O", columns)
    rows = (line.split() for line in text.splitlines())
    found = {row[0]: (int(row[1]), int(row[2]), row[3]) for row in rows}
    return {job: found[job] for job in jobs}


def test_a_list_costs_no_place(site):
    assert re.search(r"Enforce += .*limits", site.box.run("scontrol", "show", "config"))
    site.fill()
    words = ("--parsable", "-p", "gpu", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 600")
    # As hbatch submits a job far from the head of the queue: it keeps its partition.
    comment = "--comment=[hadar1 types=v100,k80 partitions=gpu]"
    mine = site(ADA, "sbatch", comment, *words).strip()
    time.sleep(5)
    behind = site(BOB, "sbatch", *words).strip()
    time.sleep(_WAITED_S)
    # Slurm has counted neither since they were submitted.
    for job in (mine, behind):
        site.admin("scontrol", "update", f"JobId={job}", "MailUser=x")
    before = shown(site, mine, behind)
    assert before[mine][0] > before[behind][0] > 100
    ticks = started(site)
    seen = []
    while ticks.poll() is None:
        seen.append(shown(site, mine, behind))
        time.sleep(0.05)
    assert ticks.returncode == 0
    after = shown(site, mine, behind)
    assert after[mine][1:] == (0, "v100,k80")
    assert any(one[mine][1] < 0 for one in seen), "no look fell into the time of the other Nice"
    # At each look it stood where it had stood, by its own priority.
    between = [one[mine][0] for one in seen if one[mine] != before[mine]]
    assert all(one[mine][0] > one[behind][0] for one in (*seen, after))
    assert {one[behind] for one in seen} == {before[behind]}
    assert min(between, default=before[mine][0]) >= before[mine][0] - 1
    explained = site(ADA, "hadar", "explain", mine)
    assert "Partition: v100,k80 (asked for: gpu)" in explained and "Nice:" not in explained


WORK = "[hadar1 types=v100,k80 partitions=gpu model=resnet50 batch=64 samples={}]"


@pytest.fixture
def exchanging():
    with people.with_priorities(AGES, "account") as found:
        yield found


def test_a_list_and_an_exchange_in_one_tick_cost_no_place(exchanging):
    site = exchanging
    site.fill()
    words = ("--parsable", "-p", "gpu", "--gres=gpu:1", "-t60", "-o", "/dev/null")
    sleep = ("--wrap", "sleep 600")
    comments = [f"--comment={WORK.format(n)}" for n in (500_000, 50_000)]
    long = site(ADA, "sbatch", comments[0], *words, *sleep).strip()
    short = site(ADA, "sbatch", comments[1], *words, "--nice=20000", *sleep).strip()
    # As eve's jobs, which take no part; all priorities stay above Slurm's least.
    between = [site(EVE, "sbatch", *words, f"--nice={n}", *sleep).strip() for n in (5000, 12000)]
    for job in (long, short, *between):
        nice = int(shown(site, job)[job][1]) - 30000
        site.admin("scontrol", "update", f"JobId={job}", f"Nice={nice}")
    time.sleep(_WAITED_S)
    for job in (long, short, *between):
        site.admin("scontrol", "update", f"JobId={job}", "MailUser=x")
    before = shown(site, long, short, *between)
    assert before[long][0] > before[between[0]][0] > before[between[1]][0] > before[short][0]
    said = site.tick()
    after = shown(site, long, short, *between)
    # By ages of that moment.
    for job, other in ((short, long), (long, short)):
        assert before[other][0] <= after[job][0] < before[other][0] + 1000, said
    assert after[between[0]] == before[between[0]] and after[between[1]] == before[between[1]]
    assert after[short][1] < before[short][1] and after[long][1] > before[long][1]
    site.tick()
    then = shown(site, long, short, *between)
    assert then[short][0] > then[between[0]][0] > then[between[1]][0] > then[long][0]


@pytest.mark.parametrize("after", ["tick", "retire"])
def test_a_job_that_leaves_while_its_nice_is_ours_gets_its_owners(site, after):
    """Its owner holds it and removes its Comment while a tick waits for Slurm to find the age."""
    site.fill()
    words = ("--parsable", "-p", "gpu", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 600")
    comment = "--comment=[hadar1 types=v100,k80 partitions=gpu]"
    mine = site(ADA, "sbatch", comment, *words).strip()
    time.sleep(_WAITED_S)
    site.admin("scontrol", "update", f"JobId={mine}", "MailUser=x")
    ticks = started(site)
    site.until(lambda: shown(site, mine)[mine][1] < 0, 60)
    # A tick that is stopped here, as by a crash of its machine.
    ticks.kill()
    ticks.wait()
    site(ADA, "scontrol", "hold", mine)
    site(ADA, "scontrol", "update", f"JobId={mine}", "Comment=mine")
    assert shown(site, mine)[mine][1] < 0
    site(HADAR, "hadar", after)
    site.until(lambda: shown(site, mine)[mine][1] == 0, 20)
    assert "JobHeldUser" in site.show(mine, "%r")


def started(site):
    return Popen(
        [str(people.BIN / "hadar"), "tick"],
        env={**site.box.env, "HOME": str(site.homes[HADAR]), "LC_ALL": people.LOCALE},
        user=HADAR,
        group=HADAR,
        extra_groups=[],
        cwd=site.homes[HADAR],
    )
