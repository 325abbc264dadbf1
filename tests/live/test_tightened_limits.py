"""Lists of users and limits of the accounting database that become tighter hold for jobs that wait,
not for those that run: such a job of ``sbatch`` runs on, so one that opted in is not requeued."""

import people
import pytest
from people import ADA, EVE, HADAR
from test_rights import actions, job, trains

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

PARTITIONS = ("gpu", "v100", "k80")
SAID = "model=resnet50 batch=64 samples=900000 checkpoint=yes restart_cost=1"
OPEN = ("AllowGroups=ALL", "AllowAccounts=ALL", "DenyAccounts=")
QOS, HERS = ("qos", "normal"), ("user", ADA, "where", "account=phys")


@pytest.fixture(scope="module")
def whole_site():
    with people.staffed() as site:
        site.admin("sacctmgr", "-i", "add", "account", "science")
        site.admin("sacctmgr", "-i", "modify", "account", "phys", "set", "parent=science")
        site.admin("hadar", "check", "--write", code=1)
        site.tick()
        yield site


@pytest.fixture
def site(whole_site):
    yield whole_site
    whole_site.cancel()


def partition(site, *words, names=PARTITIONS):
    for name in names:
        site.box.run("scontrol", "update", f"PartitionName={name}", *words)


def limit(site, whose, settings):
    site.admin("sacctmgr", "-i", "modify", *whose, "set", *settings.split())


@pytest.fixture
def hers(site):
    """Ada trains on a k80 for an hour at most, and v100 are free."""
    fast, slow = site.fill()
    site.box.run("scancel", slow)
    one = trains(site, ADA, SAID, "k80,v100")
    site.box.run("scancel", fast)
    site.until(lambda: site.nodes().count("idle") >= 3)
    assert f"move job {one}" in site(HADAR, "hadar", "plan"), "the test can fail"
    yield one
    partition(site, *OPEN)
    limit(site, QOS, "MaxWall=-1")
    limit(site, HERS, "MaxWall=-1")


def stays(site, one, said):
    assert f"move job {one}" not in site.tick()
    assert site.show(one).startswith("RUNNING|k80|k1")
    found = site(HADAR, "hadar", "explain", one)
    assert said in found, found


def moves(site, one):
    site.until(lambda: f"move job {one} to 1 x v100" in site.tick())
    site.until(lambda: site.show(one).startswith("RUNNING|v100|v"))


def test_a_job_stays_that_its_partitions_do_not_take_any_more(site, hers):
    with_children = site.box.run("scontrol", "--version").split()[-1] >= "24.11"
    account = "excludes its account phys"
    for words, said in (
        ("AllowAccounts=chem", account),
        # There, and not in 22.05, these lists name the accounts below too.
        ("DenyAccounts=science", account if with_children else ""),
        ("DenyAccounts=phys", account),
        (f"AllowGroups={EVE}", f"takes only jobs of the groups {EVE} (AllowGroups)"),
    ):
        if said:
            partition(site, words)
            stays(site, hers, said)
            partition(site, *OPEN)
    partition(site, "AllowAccounts=science", f"AllowGroups={EVE},{ADA}")
    if not with_children:
        stays(site, hers, account)
        partition(site, "AllowAccounts=science,phys")
    moves(site, hers)


def test_a_job_stays_that_limits_would_keep_waiting(site, hers):
    phys = ("account", "phys")
    for whose, name, value, said in (
        (QOS, "MaxWall", "5", "MaxWallPJ of QOS normal"),
        (HERS, "MaxWall", "5", "MaxWallPJ of its user in account phys"),
        (QOS, "MaxTRESPerJob=gres/gpu", "0", "MaxTRESPJ=gres/gpu of QOS normal"),
        (QOS, "MaxTRESPerUser=gres/gpu", "0", "MaxTRESPU=gres/gpu of QOS normal"),
        (QOS, "MinTRESPerJob=gres/gpu", "2", "MinTRESPJ=gres/gpu of QOS normal"),
        (phys, "GrpTRES=gres/gpu", "0", "GrpTRES=gres/gpu of account phys"),
        (phys, "GrpJobs", "0", "GrpJobs of account phys"),
        (HERS, "MaxJobs", "0", "MaxJobs of its user in account phys"),
    ):
        limit(site, whose, f"{name}={value}")
        stays(site, hers, f"Slurm would not start it again: it is over {said}")
        limit(site, whose, f"{name}=-1")
    # Of these the QOS's counts.
    limit(site, HERS, "MaxWall=5")
    limit(site, QOS, "MaxWall=600")
    moves(site, hers)


def test_a_job_stays_whose_owner_lost_its_qos(site, hers):
    site.admin("sacctmgr", "-i", "add", "qos", "other")
    limit(site, HERS, "qos=other defaultqos=other")
    stays(site, hers, "its user may not use QOS normal any more")
    limit(site, HERS, "qos=normal defaultqos=normal")
    moves(site, hers)


def test_a_partition_that_closes_is_no_destination(site, hers):
    partition(site, f"AllowGroups={EVE}", names=("v100",))
    assert not actions(site).get(hers)
    site.tick()
    assert site.show(hers).startswith("RUNNING|k80|k1")
    partition(site, *OPEN)
    moves(site, hers)


@pytest.mark.parametrize("setting", [f"AllowGroups={EVE}", "AllowAccounts=chem"])
def test_a_list_with_a_partition_that_closes_stays_as_its_owner_typed_it(site, setting):
    """Slurm passes over that one, and starts the job there once it opens again."""
    _, slow = site.fill()
    hers = site.submit(ADA, "-p", "k80,v100", script=job("any"))
    partition(site, setting, names=("v100",))
    try:
        for one in site.box.run("squeue", "-h", "-p", "v100", "-o", "%i").split():
            if one != hers:
                site.box.run("scancel", one)
        site.until(lambda: site.nodes().count("idle") >= 3)
        site.tick()
        assert not actions(site).get(hers)
        assert sorted(site.show(hers, "%P").split(",")) == ["k80", "v100"]
        site.box.run("scancel", slow)
        site.until(lambda: site.show(hers).startswith("RUNNING|k80|k1"))
    finally:
        partition(site, *OPEN)
