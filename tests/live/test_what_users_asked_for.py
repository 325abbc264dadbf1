"""What users asked Slurm for holds for a training that the controller moves: jobs that depend on it
wait for its end, and its mails are those of one job."""

import re
import sys
from datetime import datetime
from pathlib import Path

import people
import pytest
from people import ADA, HADAR

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

QUICK = Path(__file__).with_name("quick_training.py")
ALL = "INVALID_DEPEND,BEGIN,END,FAIL,REQUEUE,STAGE_OUT"
"""What Slurm makes of ``--mail-type=ALL``."""


@pytest.fixture(scope="module")
def whole_site():
    with people.staffed() as site:
        program = site.folder / "mail.sh"
        program.write_text(f'#!/bin/sh\necho "$@" >>{site.folder}/mails\n')
        program.chmod(0o755)
        text = site.box.conf.read_text()
        site.box.conf.write_text(text.replace("MailProg=/bin/true", f"MailProg={program}"))
        site.admin("scontrol", "reconfigure")
        site.admin("hadar", "check", "--write", code=1)
        site.tick()
        yield site


@pytest.fixture
def site(whole_site):
    yield whole_site
    whole_site.cancel()


def trains(site, model, *words):
    """A training of ada's that saves when it is asked to, until :func:`ends`; it waits. It is as
    fast everywhere, so no other one of its ``model`` may have been measured where it is to be
    moved."""
    (site.homes[ADA] / "finish").unlink(missing_ok=True)
    said = f"model={model} batch=64 samples=900000 checkpoint=yes restart_cost=1 types=any"
    command = f"exec {sys.executable} {QUICK} {site.homes[ADA]} 900000 0"
    script = f"#!/bin/sh\n#SBATCH --gres=gpu:1 -n1\n#HADAR {said}\n{command}\n"
    return site.submit(ADA, *words, script=script)


def reports(site, job):
    """It has begun to train in its last attempt."""
    log = site.homes[ADA] / f"{job}.log"
    return log.exists() and f"begin {restarts(site, job)} " in log.read_text()


def restarts(site, job):
    return int(re.search(r"\bRestarts=(\d+)", site.box.run("scontrol", "show", "job", job))[1])


def moved(site, to, *jobs):
    """Tick until these jobs have been moved to a type, and train there."""

    def there():
        site.tick()
        return all(site.show(job, "%T|%P") == f"RUNNING|{to}" for job in jobs)

    site.until(there)
    site.until(lambda: all(reports(site, job) for job in jobs))


def seconds(text):
    return datetime.fromisoformat(text).timestamp()


def ends(site, *jobs):
    """Let the training finish, and wait until these jobs have completed: job -> start and end of
    its last attempt."""
    (site.homes[ADA] / "finish").touch()
    found = {}
    for job in jobs:
        site.until(lambda job=job: site.show(job, "%T") == "COMPLETED")
        shown = dict(
            re.findall(r"\b(StartTime|EndTime)=(\S+)", site.box.run("scontrol", "show", "job", job))
        )
        found[job] = (seconds(shown["StartTime"]), seconds(shown["EndTime"]))
    return found


def behind(site, *more, command="sbatch"):
    """A job of ada's that depends on another one."""
    words = ("--parsable", "-o", "/dev/null", "--gres=gpu:1", "-p", "k80,v100", "--wrap=true")
    return site(ADA, command, *words, *more).strip()


def moved_once(site, fill, jobs, waiting):
    """Jobs are moved from the k80 to the v100, while others wait for their ends."""
    fast, slow = fill
    site.box.run("scancel", slow)
    site.until(lambda: all(site.show(job, "%T|%P") == "RUNNING|k80" for job in jobs))
    site.until(lambda: all(reports(site, job) for job in jobs))

    def all_wait():
        rows = [row for job in waiting for row in site.show(job, "%T|%r").splitlines()]
        return set(rows) == {"PENDING|Dependency"}

    assert all_wait()
    site.box.run("scancel", fast)
    moved(site, "v100", *jobs)
    assert [restarts(site, job) for job in jobs] == [1] * len(jobs) and all_wait()


def test_jobs_that_depend_on_a_moved_training_wait_for_its_end(site):
    fill = site.fill()
    hers = trains(site, "resnet50", "-J", "train", "-p", "k80,v100")
    waiting = [
        behind(site, f"--dependency=afterok:{hers}"),
        behind(site, f"--dependency=afterany:{hers}"),
        behind(site, "-J", "train", "--dependency=singleton"),
        behind(site, f"--dependency=afterok:{hers}", "--hadar-types=any", command="hbatch"),
    ]
    moved_once(site, fill, [hers], waiting)
    ended = ends(site, hers, *waiting)
    assert all(ended[job][0] >= ended[hers][1] for job in waiting), ended


def test_jobs_that_depend_on_a_moved_array_wait_for_its_tasks(site):
    fill = site.fill()
    hers = trains(site, "resnet18", "--array=0-1", "-p", "k80,v100")
    all_, each = (
        behind(site, f"--dependency=afterok:{hers}"),
        behind(site, "--array=0-1", f"--dependency=aftercorr:{hers}"),
    )
    tasks = [f"{hers}_0", f"{hers}_1"]
    moved_once(site, fill, tasks, [all_, each])
    ended = ends(site, *tasks, all_, f"{each}_0", f"{each}_1")
    assert all(ended[all_][0] >= ended[task][1] for task in tasks), ended
    assert all(ended[f"{each}_{n}"][0] >= ended[f"{hers}_{n}"][1] for n in (0, 1)), ended


def test_a_move_is_no_mail(site):
    """Slurm itself mails two for each move: that it was requeued and that it began."""
    fast, slow = site.fill()
    lent = site.box.run(
        *("sbatch", "--parsable", "--gres=gpu:2", "-p", "lent", "-o", "/dev/null"),
        "--wrap=sleep 600",
    ).strip()
    site.until(lambda: site.show(lent, "%T") == "RUNNING")
    mails = site.folder / "mails"
    hers = trains(site, "cyclegan", "--mail-type=ALL", "--mail-user=ada", "-p", "k80,lent,v100")

    def subjects():
        lines = mails.read_text().splitlines() if mails.exists() else []
        return [line.split()[4].rstrip(",") for line in lines if f"Job_id={hers} " in line]

    def asked():
        return site.field(hers, "MailUser").partition("MailType=")[2]

    site.box.run("scancel", slow)
    site.until(lambda: subjects() == ["Began"] and reports(site, hers))
    assert asked() == ALL
    for busy, kind in ((lent, "lent"), (fast, "v100")):
        site.box.run("scancel", busy)
        moved(site, kind, hers)
        site.until(lambda: site.tick() and asked() == ALL)
    assert restarts(site, hers) == 2
    # What is no move of ours is mailed as ever.
    site(HADAR, "scontrol", "requeue", hers)
    site.until(lambda: site.show(hers, "%T") == "PENDING")
    site.box.run("scontrol", "update", f"JobId={hers}", "StartTime=now+2")
    ends(site, hers)
    site.until(lambda: subjects() == ["Began", "Requeued", "Began", "Ended"])


def test_a_move_bills_no_more_than_the_request_could(site):
    """Two GPUs train less than twice as much as one: with a price per GPU a training gets the
    second one only where its owner says so."""

    def price(weights):
        for name in ("gpu", "v100", "k80"):
            site.admin(
                "scontrol", "update", f"PartitionName={name}", f"TRESBillingWeights={weights}"
            )

    def gpus(job):
        # Of a job that was requeued Slurm 22.05.8 shows the billing= of its first start.
        return re.search(r"gres/gpu=(\d+)", site.field(job, "TRES"))[1]

    price("GRES/gpu=100")
    try:
        words = ("-p", "v100", "--hadar-gpus=1-2", "--hadar-samples=90000000")
        careful = trains(site, "resnet50", *words)
        free = trains(site, "resnet50", *words, "--hadar-cost=any")
        site.starts(careful, free)
        site.until(lambda: all(reports(site, job) for job in (careful, free)))
        assert "billing=100" in site.field(careful, "TRES")

        def grown():
            site.tick()
            return site.show(free, "%T") == "RUNNING" and gpus(free) == "2"

        site.until(grown)
        # It had the same chance, beside a free GPU of its type.
        site.tick()
        assert (restarts(site, careful), gpus(careful)) == (0, "1")
        said = site(HADAR, "hadar", "explain", careful)
        assert f"hadar set {careful} cost=any" in " ".join(said.split())
        ends(site, careful, free)
    finally:
        price("")
