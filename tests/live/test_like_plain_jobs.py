"""Jobs that opted in are to Slurm what jobs of sbatch are: in its priorities, its forecasts and its
accounts, after hints too. Beside each there is one of sbatch with the same request."""

import re
import time
from datetime import datetime

import people
import pytest
from people import ADA

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

MULTIFACTOR = """\
PriorityWeightFairshare=1000
PriorityWeightJobSize=1000
PriorityWeightPartition=1000
PriorityWeightQOS=1000
"""
SCRIPT = "#!/bin/sh\n#HADAR types=v100,k80 model=transformer\n#SBATCH --gres=gpu:1\nsleep 600\n"
HINT = "v100,k80"
"""What the controller makes of ``-p k80,v100``, and hbatch or the controller of ``-p gpu``."""


@pytest.fixture(scope="module")
def whole_site():
    with people.with_ages(MULTIFACTOR) as site:
        yield site


@pytest.fixture
def site(whole_site):
    yield whole_site
    whole_site.cancel()


def plain(site, *words):
    """A job of sbatch with the request of a managed one."""
    return site(ADA, "sbatch", "--parsable", "-o", "/dev/null", *words, text=SCRIPT).strip()


def three(site, *lists):
    """For each list of partitions a managed job, with its hint, between two of sbatch: what goes by
    the time of a submission is between theirs, and all else is equal."""
    before = [plain(site, "-p", names) for names in lists]
    managed = []
    for names in lists:
        managed.append(site.submit(ADA, "-p", names, script=SCRIPT))
        # Before there are others behind it, that could start first while its age does not count.
        steered(site, *managed)
    return list(zip(before, managed, [plain(site, "-p", names) for names in lists], strict=True))


def steered(site, first, *others):
    """Tick until nothing more is sent; the first of these jobs has got a hint."""
    if not others:
        assert f"update job {first}: Partition={HINT}" in site.tick()
    assert "0 changes sent" in site.tick()
    assert {site.show(job, "%P") for job in (first, *others)} == {HINT}


def seconds(text):
    """A time of Slurm's, s since the epoch."""
    return datetime.fromisoformat(text).timestamp()


def priority(site, job):
    return int(site.show(job, "%Q"))


def times(site, job):
    """EligibleTime and AccrueTime of a waiting job, s since its submission."""
    shown = site.box.run("scontrol", "show", "job", job)
    found = dict(re.findall(r"\b(SubmitTime|EligibleTime|AccrueTime)=(\S+)", shown))
    submitted = seconds(found.pop("SubmitTime"))
    return {name: seconds(value) - submitted for name, value in found.items()}


def factors(site):
    """What ``sprio -l`` shows: job -> its lines as column -> value."""
    title, *lines = site.admin("sprio", "-l").splitlines()
    # Two columns are called PARTITION, and nothing is in the last one, TRES.
    columns = ["JOBID", "LIST", *title.split()[2:-1]]
    found: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        row = dict(zip(columns, line.split(), strict=True))
        found.setdefault(row.pop("JOBID"), []).append(row)
    return found


def forecasts(site):
    """What ``squeue --start`` shows: job -> its expected start, s since the epoch."""
    lines = site.admin("squeue", "--start", "-h", "-o", "%i %S").splitlines()
    return dict(map(str.split, lines))


def waits(site, *jobs):
    """What ``sacct`` shows of jobs that run: job -> s that it waited, and s from its submission to
    its start."""
    column = "planned" if "Planned" in site.admin("sacct", "--helpformat") else "reserved"
    words = ("-X", "-n", "-P", "-o", f"jobid,submit,start,{column}", "-j", ",".join(jobs))
    rows = [line.split("|") for line in site.admin("sacct", *words).splitlines()]
    if len(rows) < len(jobs) or any(row[2] == "Unknown" for row in rows):
        return {}
    found = {}
    for job, submit, start, wait in rows:
        hours, minutes, rest = map(int, wait.split(":"))
        found[job] = (hours * 3600 + minutes * 60 + rest, seconds(start) - seconds(submit))
    return found


def test_priorities_forecasts_and_times_are_those_of_sbatch(site):
    fill = site.fill()
    rows = three(site, "k80,v100", "gpu")
    jobs = [job for row in rows for job in row]
    site.recalculates()
    site.until(lambda: all(int(factors(site)[job][0]["AGE"]) > 0 for job in jobs))
    assert "0 changes sent" in site.tick()
    site.until(lambda: not {"N/A", "None"} & {forecasts(site)[job] for job in jobs})
    shown, starts = factors(site), forecasts(site)
    assert len({seconds(starts[job]) for job in jobs}) > 1, "the test can fail"
    for first, managed, last in rows:
        # With a list of partitions there is a line for each.
        assert {row["LIST"] for row in shown[managed]} == {"v100", "k80"}
        for older, newer in ((first, managed), (managed, last)):
            for one in shown[older]:
                for other in shown[newer]:
                    assert int(one["AGE"]) >= int(other["AGE"]) > 0
                    age, all_ = (int(one[x]) - int(other[x]) for x in ("AGE", "PRIORITY"))
                    assert all_ == pytest.approx(age, abs=1)
            assert seconds(starts[older]) <= seconds(starts[newer])
        assert times(site, managed) == pytest.approx(times(site, first), abs=1)
        assert times(site, managed) == pytest.approx({"EligibleTime": 0, "AccrueTime": 0}, abs=1)
    site.box.run("scancel", *fill)
    site.until(lambda: all(site.show(job, "%T") == "RUNNING" for job in jobs))
    site.until(lambda: waits(site, *jobs))
    for waited, since_submission in waits(site, *jobs).values():
        assert waited == pytest.approx(since_submission, abs=2) and waited > 5, "none is lost"


def test_an_array_waits_in_one_record(site):
    fill = site.fill()
    managed = site.submit(ADA, "-p", "k80,v100", "--array=0-149", script=SCRIPT)

    def waiting(job):
        return site.box.run("squeue", "-h", "-t", "PENDING", "-o", "%i", "-j", job).split()

    assert f"job {managed}_0: Partition={HINT}" in site.tick()
    assert "0 changes sent" in site.tick()
    other = plain(site, "-p", "k80,v100", "--array=0-149")
    assert "0 changes sent" in site.tick()
    assert site.show(managed, "%P") == HINT
    assert waiting(managed) == [f"{managed}_[0-149]"] and waiting(other) == [f"{other}_[0-149]"]
    assert len(factors(site)[managed]) == 2 == len(factors(site)[other])
    # What has begun has a record of its own, as with sbatch.
    site.box.run("scancel", *fill)
    site.until(lambda: waiting(managed) == [f"{managed}_[6-149]"])
    site.tick()
    assert "0 changes sent" in site.tick()
    assert waiting(managed) == [f"{managed}_[6-149]"]
    assert len(site.box.run("squeue", "-h", "-t", "RUNNING", "-j", managed).splitlines()) == 6


def test_no_command_takes_the_age_of_a_waiting_job(site):
    """Slurm computes the priority without an age where the partitions change."""
    site.fill()
    script = SCRIPT.replace("v100,k80", "k80")
    one = site.submit(ADA, "-p", "gpu", script=script)
    array = site.submit(ADA, "-p", "gpu", "--array=0-2", script=script)
    time.sleep(5.0)
    behind = plain(site, "-p", "gpu")
    assert {site.show(job, "%P") for job in (one, array)} == {"k80"}

    def waits_in(names):
        assert {site.show(job, "%P") for job in (one, array)} == {names}
        assert site.show(array, "%i") == f"{array}_[0-2]"
        # Nobody else had an update since.
        assert min(priority(site, job) for job in (one, array)) > priority(site, behind) + 200

    site.recalculates()
    site.until(lambda: priority(site, one) > priority(site, behind))
    for job in (one, array):
        said = site.run(ADA, "hadar", "set", job, "types=v100,k80").stderr.decode()
        assert f"waiting up to 30 s until Slurm counts the age of job {job} again" in said
        assert "PriorityCalcPeriod" not in said
    waits_in("v100,k80")
    for job in (one, array):
        site(ADA, "hadar", "optout", job)
    waits_in("gpu")
