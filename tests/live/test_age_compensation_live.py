"""A job that has waited for minutes gets its list of partitions, and keeps its place, where Slurm
enforces limits: an update of its partitions alone would take its age, and the place with it."""

import re
import time
from subprocess import Popen

import people
import pytest
from people import ADA, BOB, HADAR

from slurm_hadar.controller.actuation.pending import list_updates

pytestmark = [pytest.mark.live, pytest.mark.timeout(500)]
AGES = "PriorityWeightAge=1000000\nPriorityMaxAge=1-00:00\nPriorityCalcPeriod=00:05:00\n"
"""12 points a second, which Slurm counts each five minutes and at updates."""


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


def test_a_list_that_comes_late_costs_no_place(site):
    assert re.search(r"Enforce += .*limits", site.box.run("scontrol", "show", "config"))
    site.fill()
    words = ("--parsable", "-p", "gpu", "--gres=gpu:1", "-o", "/dev/null", "--wrap", "sleep 600")
    # As hbatch submits a job far from the head of the queue: it keeps its partition.
    comment = "--comment=[hadar1 types=v100,k80 partitions=gpu]"
    mine = site(ADA, "sbatch", comment, *words).strip()
    time.sleep(5)
    behind = site(BOB, "sbatch", *words).strip()
    time.sleep(list_updates._YOUNG_S + 15)
    # Slurm has counted neither since they were submitted.
    for job in (mine, behind):
        site.admin("scontrol", "update", f"JobId={job}", "MailUser=x")
    before = shown(site, mine, behind)
    assert before[mine][0] > before[behind][0] > 1000
    ticks = Popen(
        [str(people.BIN / "hadar"), "tick"],
        env={**site.box.env, "HOME": str(site.homes[HADAR]), "LC_ALL": people.LOCALE},
        user=HADAR,
        group=HADAR,
        extra_groups=[],
        cwd=site.homes[HADAR],
    )
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
