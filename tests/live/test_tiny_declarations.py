"""Trainings that their owner declares to be tiny, submitted last and with a high Nice."""

import re

import people
import pytest
from people import ADA, BOB

from slurm_hadar.controller.journal.store import FILE

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

PRIORITY = "PriorityWeightPartition=1000000\nPriorityWeightAge=1000\nPriorityCalcPeriod=00:01\n"
"""High enough for a Nice of 100000."""
HOUR = "#!/bin/sh\n#HADAR gpus=1 types=any model=resnet18 batch=64 samples={}\nsleep 3600\n"
"""Fits in its time limit of five hours on v100 and k80 with 4,000,000 samples."""


@pytest.fixture(scope="module")
def whole_site():
    with people.with_priorities(PRIORITY, "none") as site:
        yield site


@pytest.fixture
def site(whole_site, level):
    """With that ``queue.exchange``. What is learned of the users is forgotten in the end: a lie
    that ran counts against later declarations."""
    config, text = whole_site.box.config_path, whole_site.box.config_path.read_text()
    config.write_text(re.sub('exchange = ".*"', f'exchange = "{level}"', text))
    yield whole_site
    whole_site.cancel()
    config.write_text(text)
    for file in (whole_site.folder / "state").glob(f"{FILE}*"):
        file.unlink()


@pytest.mark.parametrize(
    ("level", "partition", "lies_win"),
    [
        # By hints alone, and with the exchange of places that new sites get.
        ("none", "gpu", False),
        ("association", "gpu", False),
        ("association", "v100", False),
        # Where users of one account exchange places, so without that guard, it succeeds.
        ("account", "gpu", True),
        ("account", "v100", True),
    ],
)
def test_they_take_no_fast_gpu_from_other_users(site, partition, lies_win):
    words = ("-p", partition, "-t300")
    fast, _ = site.fill()
    hers = [site.submit(ADA, *words, script=HOUR.format(4_000_000)) for _ in range(4)]
    lies = [site.submit(BOB, *words, "--nice=100000", script=HOUR.format(10)) for _ in range(4)]
    said = "".join(site.tick() for _ in range(3))
    site.box.run("scancel", fast)

    def running():
        return {job for job in hers + lies if site.show(job, "%T") == "RUNNING"}

    site.until(lambda: len(running()) == 4)
    site.tick()
    assert running() == set(lies if lies_win else hers), said
    assert {site.show(job, "%P") for job in running()} == {"v100"}
