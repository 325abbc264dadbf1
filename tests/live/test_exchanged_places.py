"""Places in the queue that managed jobs exchange, under priority/multifactor: nobody is overtaken,
and no Nice is lost."""

from types import SimpleNamespace

import people
import pytest
from people import ADA, BOB, HADAR

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

PRIORITY = "PriorityWeightPartition=100000\nPriorityWeightAge=1000\nPriorityCalcPeriod=00:01\n"
"""By age alone Slurm gives a priority to new jobs after a minute only."""
OWN = (0, 100, 200)
TRAINING = "#!/bin/sh\n#HADAR gpus=1 types=any model=resnet50 batch=64 samples={}\nsleep 600\n"


@pytest.fixture(scope="module")
def whole_site():
    with people.with_priorities(PRIORITY, "association") as site:
        yield site


@pytest.fixture
def queue(whole_site):
    """All v100 are in use, each by a job of its own; ada's long training waits before a job of
    bob's, and her short one behind it."""
    site = whole_site
    words = ("--parsable", "-p", "v100", "-o", "/dev/null", "--gres=gpu:1", "-t60")
    used = [site.box.run("sbatch", *words, "--wrap", "sleep 600").strip() for _ in range(4)]
    site.until(lambda: all(site.show(job, "%T") == "RUNNING" for job in used))
    long = site.submit(ADA, "-p", "v100", "-t60", script=TRAINING.format(500_000))
    between = site(BOB, "sbatch", *words, "--nice=100", "--wrap", "sleep 600").strip()
    short = site.submit(ADA, "-p", "v100", "-t60", "--nice=200", script=TRAINING.format(50_000))
    found = SimpleNamespace(site=site, used=used, long=long, between=between, short=short)
    site.until(lambda: order(found) == [long, between, short])
    yield found
    site.cancel()
    # A user who has changed a Nice exchanges places again after this.
    site(HADAR, "hadar", "retire")


def order(queue):
    """The three that wait, in Slurm's order; those of one priority by their numbers."""
    shown = {job: queue.site.show(job, "%T %Q").split() for job in waiting(queue)}
    return sorted(shown, key=lambda job: (-int(shown[job][1]), int(job)))


def waiting(queue):
    three = (queue.long, queue.between, queue.short)
    return [job for job in three if queue.site.show(job, "%T") == "PENDING"]


def nices(queue):
    three = (queue.long, queue.between, queue.short)
    shown = [queue.site.field(job, "Priority") for job in three]
    return tuple(int(words.split()[1].partition("=")[2]) for words in shown)


def free_one(queue):
    queue.site.box.run("scancel", queue.used.pop())


def test_the_one_that_ends_sooner_starts_from_the_others_place(queue):
    site, long, between, short = queue.site, queue.long, queue.between, queue.short
    site.tick()
    assert order(queue) == [short, between, long]
    assert nices(queue) == (200, 100, 0)
    # Of ticks of a timer no process is left that its owner could ask.
    for user, job, place in ((HADAR, long, "a later"), (ADA, long, "a later"), (ADA, short, "an")):
        said = site(user, "hadar", "explain", job)
        assert f": it has {place}" in said and "exchanged with managed jobs" in said
    # Nothing changes, so nothing is sent.
    assert "Nice" not in site.tick() and nices(queue) == (200, 100, 0)
    free_one(queue)
    site.until(lambda: waiting(queue) == [long, between])
    # It has used up the place: the long one stays behind him who was between.
    assert f"update job {short}: Nice=200" in site.tick()
    site.tick()
    assert order(queue) == [between, long]
    free_one(queue)
    site.until(lambda: waiting(queue) == [long])
    free_one(queue)
    site.until(lambda: not waiting(queue))
    site.until(lambda: site.tick() and nices(queue) == OWN)


def test_a_nice_that_somebody_else_set_is_theirs(queue):
    site, long, between, short = queue.site, queue.long, queue.between, queue.short
    site.tick()
    assert order(queue) == [short, between, long]
    site.box.run("scontrol", "update", f"JobId={long}", "Nice=7")
    site.tick()
    assert nices(queue) == (7, 100, 200)
    assert order(queue) == [long, between, short]
    site.tick()
    assert nices(queue) == (7, 100, 200)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_owner_who_sets_back_a_nice_exchanges_no_more_places(queue, when):
    site, long, between, short = queue.site, queue.long, queue.between, queue.short
    site.tick()
    assert order(queue) == [short, between, long]
    if when == "after":
        free_one(queue)
        site.until(lambda: waiting(queue) == [long, between])
        site.tick()
    site(ADA, "scontrol", "update", f"JobId={long}", "Nice=0")
    said = site.tick()
    assert f"job {long}: Nice 0 is not what the exchange of places gave it, and stays" in said
    for _ in range(2):
        site.until(lambda: nices(queue) == OWN)
        assert f"update job {long}" not in site.tick()
    shown = site(HADAR, "hadar", "explain", long)
    assert "it exchanges no place in the queue until" in shown
    more = ("-p", "v100", "-t60")
    last = site.submit(ADA, *more, script=TRAINING.format(600_000))
    first = site.submit(ADA, *more, "--nice=50", script=TRAINING.format(40_000))
    site.until(lambda: int(site.show(last, "%Q")) > int(site.show(first, "%Q")))
    site.tick()
    assert int(site.show(last, "%Q")) > int(site.show(first, "%Q"))
    assert nices(queue) == OWN


def test_a_priority_that_was_set_directly_moves_nobody(queue):
    site, long, between, short = queue.site, queue.long, queue.between, queue.short
    high = int(site.show(long, "%Q")) + 1000
    site.box.run("scontrol", "update", f"JobId={long}", f"Priority={high}")
    said = site.tick()
    assert f"job {long}: its Nice does not change; it is left alone" in said
    assert order(queue) == [long, between, short] and nices(queue)[1:] == OWN[1:]
    assert int(site.show(long, "%Q")) == high
    assert "Nice" not in site.tick()
    assert order(queue) == [long, between, short] and nices(queue)[1:] == OWN[1:]


@pytest.mark.parametrize("how", ["optout", "comment"])
def test_opting_out_gives_both_their_own_nice_back(queue, how):
    site, long, between, short = queue.site, queue.long, queue.between, queue.short
    site.tick()
    assert nices(queue) == (200, 100, 0)
    if how == "optout":
        site(ADA, "hadar", "optout", long)
    else:
        site(ADA, "scontrol", "update", f"JobId={short}", "Comment=mine")
    site.until(lambda: site.tick() and nices(queue) == OWN)
    assert order(queue) == [long, between, short]


def test_a_job_that_is_held_in_anothers_place_gives_it_back(queue):
    """At once, and also while it is held: else both would stand ahead of the one between, once it
    is released."""
    site, long, between, short = queue.site, queue.long, queue.between, queue.short
    site.tick()
    assert order(queue) == [short, between, long]
    site(ADA, "scontrol", "hold", short)
    assert f"update job {short}: Nice=200" in site.tick()
    assert nices(queue) == OWN and site.show(short, "%Q %r") == "0 JobHeldUser"
    assert "Nice" not in site.tick()
    site(ADA, "scontrol", "release", short)
    assert order(queue) == [long, between, short]
    site.tick()
    assert order(queue) == [short, between, long]


def test_retiring_gives_all_their_own_nice_back(queue):
    site, long, between, short = queue.site, queue.long, queue.between, queue.short
    site.tick()
    assert nices(queue) == (200, 100, 0)
    site(HADAR, "hadar", "retire")
    assert nices(queue) == OWN
    assert order(queue) == [long, between, short]
