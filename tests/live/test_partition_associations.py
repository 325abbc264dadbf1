"""Associations of the accounting database for one partition: what sbatch accepts, hbatch does."""

import people
import pytest
from people import ADA, BOB, HADAR

from slurm_hadar import config as configuration
from slurm_hadar.domain.declaration import decode
from slurm_hadar.plugins import changes
from slurm_hadar.plugins.install import InstallRequest, planned, removal

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

SCRIPT = "#!/bin/sh\n#HADAR types=v100,k80 model=transformer\n#SBATCH --gres=gpu:1\nsleep 600\n"


@pytest.fixture(scope="module")
def site():
    with people.staffed() as site:
        site.admin("hadar", "check", "--write", code=1)
        site.tick()
        yield site


def bind(site, user, *partitions):
    """The user's associations: these alone, empty for one without a partition."""
    site.admin("sacctmgr", "-i", "delete", "user", user)
    for one in partitions:
        site.admin("sacctmgr", "-i", "add", "user", user, "account=phys", f"partition={one}")


def test_a_list_that_slurm_refuses_is_submitted_as_typed(site):
    # The controller's last tick does not know of it yet.
    bind(site, ADA, "gpu")
    words: tuple[str, ...] = ("-p", "gpu", "-o", "/dev/null", "--parsable")
    done = site.run(ADA, "hbatch", *words, text=SCRIPT)
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0 and out.strip().isdigit(), err
    said, *more = err.splitlines()
    assert said.startswith("hbatch: Slurm refuses a list of the partitions")
    assert "Invalid account or account/partition combination specified" in said
    assert more == ["hbatch: the job is managed"]
    assert site.show(out.strip(), "%P") == "gpu"
    assert site.admin("squeue", "-h", "-u", ADA, "-o", "%i").split() == [out.strip()]
    # What sbatch refuses as typed is its own refusal, once.
    words, script = ("-p", "k80", "-o", "/dev/null"), SCRIPT.replace("v100,k80", "k80")
    plain, ours = (site.run(ADA, one, *words, text=script) for one in ("sbatch", "hbatch"))
    assert (ours.returncode, ours.stdout, ours.stderr) == (1, plain.stdout, plain.stderr)
    site.cancel()


def test_the_controller_and_hbatch_leave_such_jobs_where_they_are(site):
    bind(site, ADA, "gpu", "")
    site.admin(
        "sacctmgr", "-i", "modify", "user", ADA, "where", "partition=gpu", "set", "MaxJobs=1"
    )
    assert "news of account phys has one for gpu" in site.admin("hadar", "check", code=1)
    site.fill()
    plain = site(ADA, "sbatch", "--parsable", "-p", "gpu", "-o", "/dev/null", text=SCRIPT).strip()
    site(ADA, "scontrol", "update", f"JobId={plain}", "Comment=[hadar1 types=v100,k80]")
    assert f"job {plain}: Partition" not in site.tick()
    assert site.show(plain, "%P") == "gpu"
    # By what that tick published.
    job = site.submit(ADA, "-p", "gpu", script=SCRIPT)
    other = site.submit(BOB, "-p", "gpu", script=SCRIPT)
    assert (site.show(job, "%P"), site.show(other, "%P")) == ("gpu", "v100,k80")
    assert f"job {job}: Partition" not in site(HADAR, "hadar", "tick")
    assert site.show(job, "%P") == "gpu"
    site.cancel()


@pytest.mark.parametrize("plugin", ["job-submit", "cli-filter"])
def test_a_plugin_costs_nobody_a_submission(site, plugin):
    """It cannot submit a second time, and associations may be new since it was installed."""
    box = site.box
    modules = box.programs.prefix / "lib" / "slurm" if box.programs.prefix else None
    bind(site, ADA, "gpu")
    # cli_filter reads a file only.
    script = site.folder / "train.sh"
    script.write_text(SCRIPT)
    words = ("sbatch", "--parsable", "-p", "gpu", "-o", "/dev/null", str(script))
    wish = InstallRequest((plugin,), plugin_dir=modules)
    plan = planned(box.conf, configuration.load(box.config_path), wish)
    changes.apply(plan.changes)
    try:
        site.admin("scontrol", "reconfigure")
        site.fill()
        jobs = [site(who, *words).strip() for who in (ADA, BOB)]
        for job in jobs:
            assert site.show(job, "%P %f") == "gpu v100|k80"
            assert decode(site.field(job, "Comment")).partitions == ("gpu",)
        site.tick()
        assert [site.show(job, "%P") for job in jobs] == ["gpu", "v100,k80"]
    finally:
        changes.apply(removal(box.conf).changes)
        site.admin("scontrol", "reconfigure")
        site.cancel()
