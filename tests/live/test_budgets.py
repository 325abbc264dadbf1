"""Limits on minutes of the accounting database: a move is a requeue, and a requeued job must fit
into them once more with its whole time limit."""

import json
import re
import time

import people
import pytest
from people import ADA, BOB, HADAR
from test_rights import documented, job, quick

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ACCOUNT = ("modify", "account", "phys", "set")
NO_LIMIT = "GrpTRESMins=cpu=-1,gres/gpu=-1", "GrpTRESRunMins=cpu=-1", "GrpWall=-1"


@pytest.fixture(scope="module")
def whole_site():
    """Usage is counted, and a job starts only where it can end within it."""
    people.need()
    site = people.up()
    try:
        for what in ("folders", "operator"):
            for line in documented(what, site):
                site.admin(*line)
        site.admin("sacctmgr", "-i", "add", "account", "phys")
        for user in (ADA, BOB):
            site.admin("sacctmgr", "-i", "add", "user", user, "account=phys")
        site.admin("hadar", "check", "--write", code=1)
        site.box.stop_slurmctld()
        text = site.box.conf.read_text().replace("limits,qos", "limits,qos,safe")
        text = text.replace("priority/basic", "priority/multifactor")
        site.box.conf.write_text(text + "PriorityCalcPeriod=00:01\n")
        site.box.start_slurmctld()
        site.until(lambda: set(site.nodes()) == {"idle"})
        site.tick()
        yield site
    finally:
        people.down(site)


@pytest.fixture
def site(whole_site):
    yield whole_site
    whole_site.cancel()
    limit(whole_site, *NO_LIMIT)


def limit(site, *words):
    site.admin("sacctmgr", "-i", *ACCOUNT, *words)


def used(site, name):
    """Minutes that slurmctld counts for the account."""
    text = site.box.run("scontrol", "-o", "show", "assoc_mgr", "flags=assoc", "account=phys")
    (line,) = [line for line in text.splitlines() if "Account=phys UserName= " in line]
    return int(re.search(rf" {name}\w+\((\d+)", line)[1])


def on_the_slow_one(site):
    """Ada trains on a k80 for at most 30 minutes with 8 CPUs, and v100 are free."""
    said = "model=resnet50 batch=64 samples=900000 checkpoint=yes restart_cost=1"
    fast, slow = site.fill()
    hers = site.submit(ADA, "-p", "k80,v100", "-t30", "-c8", script=quick(site, ADA, said))
    site.box.run("scancel", slow)
    site.until(lambda: site.show(hers).startswith("RUNNING|k80|k1"))
    site.until(lambda: list((site.folder / "exchange").glob(f"progress.{hers}.*.json")))
    site.box.run("scancel", fast)
    site.until(lambda: site.nodes().count("idle") >= 3)
    return hers


def explained(site, one):
    return site(HADAR, "hadar", "explain", one)


@pytest.mark.parametrize(("name", "need"), [("GrpTRESMins=cpu=", 240), ("GrpWall=", 31)])
def test_a_job_that_would_not_start_again_stays(site, name, need):
    """It runs in a budget that is just enough for it."""
    limit(site, f"{name}{used(site, name) + need}")
    hers = on_the_slow_one(site)
    # Eight CPUs use up a minute in 8 s.
    time.sleep(9)
    for _ in range(3):
        assert f"move job {hers}" not in site.tick()
    assert site.show(hers).startswith("RUNNING|k80|k1")
    said = explained(site, hers)
    assert f"would not fit into {name.rstrip('=')} of account phys" in said, said
    limit(site, f"{name}{used(site, name) + 1000}")
    moves(site, hers)


def test_a_job_stays_where_another_of_its_account_would_take_its_minutes(site):
    hers = on_the_slow_one(site)
    for name in ("GrpTRESMins=cpu=", "GrpTRESRunMins=cpu="):
        spent = 0 if "Run" in name else used(site, name)
        limit(site, f"{name}{spent + 300}")
        his = site.submit(BOB, "-p", "v100", "-c8", "-t20", script=job("v100"))
        site.until(lambda his=his: "AssocGrp" in site.show(his, "%r"))
        assert f"move job {hers}" not in site.tick()
        said = explained(site, hers)
        assert f"jobs that wait may take what {name.rstrip('=')} of account phys" in said, said
        site.box.run("scancel", his)
        limit(site, f"{name}100000")
    moves(site, hers)


@pytest.fixture
def gold(site):
    """A QOS of the partition v100; bob's jobs there count on it too."""
    site.admin("sacctmgr", "-i", "add", "qos", "gold")
    site.until(lambda: "QOS=gold" in site.box.run("scontrol", "show", "assoc_mgr", "flags=qos"))
    site.box.run("scontrol", "update", "PartitionName=v100", "QOS=gold")
    yield site
    site.cancel()
    site.box.run("scontrol", "update", "PartitionName=v100", "QOS=")
    site.admin("sacctmgr", "-i", "delete", "qos", "gold")


def test_a_qos_of_the_partition_that_it_would_move_to_binds_too(gold):
    site, modify = gold, ("sacctmgr", "-i", "modify", "qos", "gold", "set")
    hers = on_the_slow_one(site)
    for name in ("GrpTRESMins=cpu", "MaxTRESRunMinsPU=cpu"):
        site.admin(*modify, f"{name}=239")
        assert f"move job {hers}" not in site.tick()
        assert f"would not fit into {name} of QOS gold" in explained(site, hers)
        site.admin(*modify, f"{name}=1000")
    moves(site, hers)


def moves(site, one):
    site.until(lambda: f"move job {one} to 1 x v100" in site.tick())
    site.until(lambda: site.show(one).startswith("RUNNING|v100|v"))


def test_slurm_is_asked_only_where_a_job_is_about_to_move(site):
    limit(site, "GrpTRESMins=cpu=100000")
    hers = site.submit(ADA, "-p", "v100", script=job("v100"))
    site.until(lambda: site.show(hers, "%T") == "RUNNING")
    queries = json.loads(site(HADAR, "hadar", "tick", "--json"))["result"]["queries"]
    assert "minutes" not in queries, queries
