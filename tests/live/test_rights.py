"""Rights, on a Slurm with an accounting database: the controller is an operator and no more, its
users stay where they may be, and nobody reads or changes what is another's."""

import json
import os
import pwd
import re
import shlex
import sqlite3
import sys
import time
from pathlib import Path

import people
import pytest
from people import ADA, ADMIN, BOB, CLOSED, EVE, HADAR, documented

from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

PYTHON = sys.executable
QUICK = Path(__file__).with_name("quick_training.py")
PRIVATE = "accounts,events,jobs,reservations,usage,users"


@pytest.fixture(scope="module")
def whole_site():
    with people.staffed() as site:
        site.admin("sacctmgr", "-i", "add", "qos", "gold")
        site.admin("hadar", "check", "--write", code=1)
        close(site)
        site.tick()
        yield site


@pytest.fixture
def site(whole_site):
    yield whole_site
    whole_site.cancel()


def close(site):
    """Each partition ``k_NAME`` is closed to ada and bob in another way."""
    for name, words in zip(
        CLOSED,
        (
            ["AllowAccounts=chem"],
            ["DenyAccounts=phys"],
            [f"AllowGroups={EVE}"],
            ["AllowQos=gold"],
            ["RootOnly=YES"],
            ["ReqResv=YES"],
            ["MaxTime=10"],
            ["MaxNodes=0"],
            ["MaxMemPerNode=100"],
            ["AllocNodes=v1"],
        ),
        strict=True,
    ):
        site.box.run("scontrol", "update", f"PartitionName=k_{name}", *words)


def actions(site):
    """What would be done to each job: job -> kinds of action."""
    result = json.loads(site(HADAR, "hadar", "plan", "--json"))["result"]
    found: dict[str, list[str]] = {}
    for action in result["actions"]:
        found.setdefault(action["job"], []).append(action["kind"])
    return found


def test_an_operator_is_what_the_controller_must_be(site):
    def problems(user):
        found = json.loads(site.run(user, "hadar", "check", "--json").stdout)["result"]
        wrong = [f"{f['what']}: {f['cure']}" for f in found if f["level"] == "problem"]
        groups = [words for words in wrong if words.startswith("partitions.groups.both_")]
        assert len(groups) == len(CLOSED), "a member that is closed to some is named"
        return [words for words in wrong if words not in groups]

    level = ["sacctmgr", "-i", "modify", "user", HADAR, "set"]
    assert problems(HADAR) == []
    for more in ("Administrator", "None"):
        site.admin(*level, f"AdminLevel={more}")
        (said,) = problems(HADAR)
        assert f"AdminLevel {more}, not Operator" in said
    # The cure as it is printed.
    cure = shlex.split(said.partition(": ")[2])
    site.admin(cure[0], "-i", *cure[1:])
    assert problems(HADAR) == []
    assert problems(None) == [], "root asks on behalf of the controller's user"
    assert "root has more rights in Slurm" in site(None, "hadar", "tick", code=1)
    assert any("does not know" in said for said in problems_of_an_unknown_user(site))
    said = site.run(EVE, "hadar", "check").stdout.decode()
    assert f"sudo -u {HADAR} hadar check" in said and "AdminLevel" not in said


@pytest.fixture
def his_own(site):
    """A Slurm whose SlurmUser is the controller's user: a sandbox that he started."""
    folder = site.homes[HADAR] / "box"
    try:
        site(HADAR, "hadar", "sandbox", "up", folder)
        yield Sandbox.attach(folder)
    finally:
        site(HADAR, "hadar", "sandbox", "down", folder)


def test_slurms_own_user_is_refused(site, his_own):
    text = his_own.config_path.read_text()
    assert 'rights = "sandbox"' in text
    site(HADAR, "hadar", "tick", env=his_own.env)
    his_own.config_path.write_text(text.replace('rights = "sandbox"', 'rights = "operator"'))
    for command in ("tick", "run"):
        said = site(HADAR, "hadar", command, code=1, env=his_own.env)
        assert said.count("\n") == 1 and "SlurmUser has more rights in Slurm" in said
    said = site(HADAR, "hadar", "check", code=1, env=his_own.env)
    assert f"PROBLEM {HADAR} has more rights in Slurm than the controller needs" in said


def problems_of_an_unknown_user(site):
    """What ``hadar check`` says to the controller's user where the database does not know it."""
    site.admin("sacctmgr", "-i", "delete", "user", HADAR)
    try:
        found = json.loads(site.run(HADAR, "hadar", "check", "--json").stdout)["result"]
    finally:
        again = [f"account={HADAR}", "AdminLevel=Operator", "MaxSubmitJobs=0"]
        site.admin("sacctmgr", "-i", "add", "user", HADAR, *again)
    return [f["what"] for f in found if f["level"] == "problem"]


def test_nobody_lands_where_he_may_not_be(site):
    fill = site.fill()
    site.box.run("scontrol", "update", "PartitionName=k_group", "AllowGroups=ALL")
    first = site.submit(ADA, "-p", "both_group", script=job("any"))
    assert actions(site)[first] == ["hint"], "the test can fail"
    site.box.run("scontrol", "update", "PartitionName=k_group", f"AllowGroups={EVE}")
    asked = {first: "both_group"}
    for name in CLOSED:
        asked[site.submit(ADA, "-p", f"both_{name}", script=job("any"))] = f"both_{name}"
    lied = by_hand(site, BOB, "[hadar1 types=any partitions=gpu,k_account,k_host lease=yes]")
    wish = by_hand(
        site, BOB, "[hadar1 types=k80 constraint=k80] [hadarplan;t=1;was.Partition=k_qos]"
    )
    asked |= {lied: "open", wish: "open"}
    site.tick()
    assert not actions(site), "all is done"
    assert {one: site.show(one, "%T|%P") for one in asked} == {
        one: f"PENDING|{partition}" for one, partition in asked.items()
    }
    hers = site.submit(ADA, "-p", "both_denied", "--begin=now+500", script=job("any"))
    eves = site.submit(EVE, "-p", "k_account", script=job("any"))
    site.box.run("scancel", *fill, *asked)
    site.until(lambda: site.show(eves).startswith("RUNNING|k_account|k1"))
    # An operator's update would put her there, to wait for ever.
    site(HADAR, "scontrol", "update", f"JobId={hers}", "Partition=k_denied", "StartTime=now")
    assert site.show(hers).startswith("PENDING|k_denied||")


def job(kind, words="", gpus="1", seconds=600):
    return f"#!/bin/sh\n#HADAR types={kind} gpus={gpus} {words}\nsleep {seconds}\n"


def trains(site, user, words, partition="v100"):
    """A training of that user's which saves when it is asked to; it runs."""
    one = site.submit(user, "-p", partition, script=quick(site, user, words))
    site.until(lambda: list((site.folder / "exchange").glob(f"progress.{one}.*.json")))
    return one


def quick(site, user, words):
    """The script of a training that saves when it is asked to."""
    command = f"exec {PYTHON} {QUICK} {site.homes[user]} 100000 0"
    return f"#!/bin/sh\n#SBATCH --gres=gpu:1 -n1\n#HADAR types=any {words}\n{command}\n"


def by_hand(site, user, comment, *words):
    """A job whose Comment hbatch did not write."""
    words = (f"--comment={comment}", "--gres=gpu:1", "--begin=now+500", *words)
    out = site(user, "sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap=sleep 600")
    return out.strip()


def test_nobody_lands_on_what_is_reserved_for_another(site):
    site.box.run(
        "scontrol",
        "create",
        "reservation",
        "ReservationName=eves",
        "StartTime=now",
        "Duration=60",
        f"Users={EVE}",
        "Nodes=v[1-2]",
    )
    try:
        hers = site.submit(ADA, script=job("v100"))
        eves = site.submit(EVE, "--reservation=eves", script=job("v100"))
        site.starts(eves)
        assert site.show(hers).startswith("PENDING|open||")
    finally:
        site.cancel()
        site.box.run("scontrol", "delete", "ReservationName=eves")
    hers = site.submit(ADA, script=job("v100"))
    site.starts(hers)


@pytest.fixture
def limited(site):
    """Bob may have one GPU and one CPU at a time; ada may have what she likes."""
    modify = ["sacctmgr", "-i", "modify", "user", BOB, "set"]
    site.admin(*modify, "GrpTRES=cpu=1,gres/gpu=1")
    yield site
    site.cancel()
    site.admin(*modify, "GrpTRES=cpu=-1,gres/gpu=-1")


def test_limits_of_the_accounting_database_hold(limited):
    """Each trains on one node first. A second one, or a second GPU, would be the controller's."""
    site = limited
    config = site.folder / "hadare.toml"
    text = site.box.config_path.read_text()
    config.write_text(text.replace("[controller]", '[controller]\npolicy = "hadare"'))
    forked = "fork=1-2 model=resnet18 batch=64 samples=900000 checkpoint=yes restart_cost=1"
    his, hers = (trains(site, user, forked) for user in (BOB, ADA))
    hadare = {"HADAR_CONFIG": str(config)}
    site.until(lambda: site.tick(env=hadare) and site.show(hers, "%T|%C|%D") == "RUNNING|2|2")
    assert site.show(his, "%T|%C|%D") == "RUNNING|1|1"
    assert " Restarts=0 " in site.box.run("scontrol", "show", "job", his)
    site.cancel()
    # He declared more than he may have: requeued for that it would wait for Slurm's limit.
    his = trains(site, BOB, forked.replace("fork=1-2", "gpus=1-2"))

    def is_said():
        assert f"move job {his}" not in site.tick(env=hadare)
        return "it is over GrpTRES=" in site(HADAR, "hadar", "explain", his, env=hadare)

    site.until(is_said)
    assert site.show(his, "%T|%C|%D|%b").startswith("RUNNING|1|1|")
    assert " Restarts=0 " in site.box.run("scontrol", "show", "job", his)


def test_an_operator_may_do_what_a_move_takes_and_cannot_mark_the_job(site):
    hers = site.submit(ADA, "--requeue", "-p", "k80,v100", script=job("any", "model=lm"))
    site.until(lambda: site.show(hers, "%T") == "RUNNING")
    site(HADAR, "scancel", "--signal=CONT", hers)
    site(HADAR, "scontrol", "requeue", hers)
    site.until(lambda: site.show(hers, "%T") == "PENDING")
    assert f"update job {hers}: Partition=v100" in site.tick()
    refused = site(HADAR, "scontrol", "update", f"JobId={hers}", "AdminComment=x", code=1)
    assert "denied" in refused, "the steering could travel in the job"
    kept = json.loads((site.folder / "exchange" / f"steer.{hers}.json").read_text())
    assert kept["job"] == hers and "hadarplan" in kept["steering"]
    # Its owner reads there what it was, and gets it back.
    assert site.show(hers, "%P").startswith("v100")
    site(ADA, "hadar", "optout", hers)
    assert "off=yes" in site.field(hers, "Comment")
    assert site.show(hers, "%P") == "k80,v100"


@pytest.fixture
def aging(site):
    """Jobs gain priority as they wait."""
    before = site.box.conf.read_text()

    def say(text):
        site.box.stop_slurmctld()
        site.box.conf.write_text(text)
        site.box.start_slurmctld()
        site.until(lambda: set(site.nodes()) <= {"idle", "reserved"})

    more = "PriorityWeightAge=1000000\nPriorityMaxAge=0-01:00\nPriorityCalcPeriod=00:01\n"
    say(before.replace("priority/basic", "priority/multifactor") + more)
    yield site
    site.cancel()
    say(before)


def test_a_moved_job_keeps_its_place_in_the_queue(aging):
    """A requeue takes away the priority that it gained with age."""
    site = aging
    fast, slow = site.fill()
    said = "model=resnet50 batch=64 samples=900000 checkpoint=yes restart_cost=1"
    hers = site.submit(ADA, "-p", "k80,v100", script=quick(site, ADA, said))

    def priority():
        return int(site.show(hers, "%Q"))

    young, begun = priority(), time.monotonic()
    site.until(lambda: time.monotonic() > begun + 10)
    site.recalculates()
    site.until(lambda: priority() > young + 2000, 150)
    site.box.run("scancel", slow)
    site.until(lambda: site.show(hers).startswith("RUNNING|k80|k1"))
    old = priority()
    site.box.run("scancel", fast)
    site.until(lambda: f"move job {hers} to 1 x v100" in site.tick())
    assert int(site.field(hers, "Priority").split()[1].partition("=")[2]) < 0
    site.until(lambda: site.show(hers).startswith("RUNNING|v100|v"))
    assert priority() == pytest.approx(old, abs=10) and old > young + 2000
    # It has its place now, and Nice is its owner's again.
    assert f"update job {hers}: Nice=0" in site.tick()


SQUAT = """
import os, sys
folder, first, canary, token = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
steer = '{"version": 1, "job": "%s", "steering": "[hadarplan;t=9e9;was.Partition=k_host]"}'
for number in range(first, first + 12):
    for name, text in (("steer", steer % number), ("progress", "{"), ("plan", "{}")):
        path = f"{folder}/{name}.{number}.json"
        if name == "plan" and number % 3 == 0:
            os.mkdir(path)
        elif name == "plan" and number % 3 == 1:
            os.symlink(canary, path)
        else:
            open(path, "w").write(text)
try:
    os.mkdir(f"{folder}/heartbeat.json")
except FileExistsError:
    pass
for mischief in (
    lambda: os.rename(f"{folder}/heartbeat.json", f"{folder}/gone"),
    lambda: os.unlink(f"{folder}/heartbeat.json"),
    lambda: os.link(f"{folder}/heartbeat.json", f"{folder}/copy"),
):
    try:
        mischief()
    except OSError:
        pass
"""
TELL = """
import json, os, sys, time
folder, job = sys.argv[1:]
now = time.time()
said = dict(version=1, job=job, time=now, restarts=0, host="h", pid=1, in_step=False, started=now,
    model="m", samples=10**9, rate=1e6, window_s=9.0, batch=64, gpus=1, noise_scale=None,
    checkpoint=None, ack=None, restart_s=0.0, lost=0, finished=True)
open(f"{folder}/progress.{job}.evil.json", "w").write(json.dumps(said))
for name in os.listdir(folder):
    if f".{job}." in name or name == "heartbeat.json":
        for mischief in (os.unlink, lambda path: os.rename(path, path + "x")):
            try:
                mischief(f"{folder}/{name}")
                print("could touch", name)
            except OSError:
                pass
"""


def test_nobody_changes_anothers_job(site):
    exchange = site.folder / "exchange"
    canary = site.folder / "canary"
    canary.write_text("untouched")
    os.chown(canary, *who(HADAR))
    # The controller is new here, and eve was first: all names that it will want are taken.
    (exchange / "heartbeat.json").unlink()
    probe = by_hand(site, EVE, "")
    site(EVE, PYTHON, "-c", SQUAT, exchange, probe, canary, "x")
    site.tick()
    # Of another model than above: what was measured there would keep it where it is.
    said = "model=lm batch=20 samples=900000 checkpoint=yes restart_cost=1"
    hers = trains(site, ADA, said, "k80,v100")
    three = [site.submit(ADA, script=job("v100")) for _ in range(3)]
    assert int(probe) < int(hers) < int(probe) + 12
    assert site.show(hers).startswith("RUNNING|k80|k1")
    before = site.field(hers, "Comment")
    for words in (
        ("scontrol", "update", f"JobId={hers}", "Comment=[hadar1 off=yes]"),
        ("scontrol", "requeue", hers),
        ("hadar", "optout", hers),
        ("hadar", "set", hers, "types=k80"),
        ("hadar", "pin", hers),
    ):
        assert re.search("denied|[Ii]nvalid user", site(EVE, *words, code=1)), words
    site.run(EVE, "scancel", hers)
    site.until(lambda: f"move job {hers} to 1 x v100" in site.tick())
    site.until(lambda: site.show(hers).startswith("RUNNING|v100|v"))
    assert read_plan(exchange, hers, {who(HADAR)[0]}).gpus == {"v100": 1}
    for one in three:
        assert site.show(one).startswith("RUNNING|open|v")
    stay = [f"plan.{hers}.json", f"steer.{hers}.json", "heartbeat.json"]
    touched = site(EVE, PYTHON, "-c", TELL, exchange, hers).splitlines()
    assert f"could touch progress.{hers}.evil.json" in touched
    # A folder of hers that was in a plan's place is hers still, under the name it was moved to.
    aside = re.compile(rf"could touch (progress\.|\.plan\.{hers}\.json\.[0-9a-f]{{16}}$)")
    assert all(aside.match(line) for line in touched), touched
    site(EVE, PYTHON, "-c", TELL.partition("for name")[0], exchange, hers)
    site.tick()
    (row,) = [row for row in site.journal() if row["id"] == hers]
    assert row["samples_per_s"] < 1e4 and row["done"] < 0.9, "not what eve says"
    assert site.field(hers, "Comment") == before
    for name in stay:
        assert (exchange / name).lstat().st_uid == who(HADAR)[0]
    assert canary.read_text() == "untouched"


def who(user):
    return pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid


@pytest.fixture
def private(site):
    """PrivateData of slurm.conf and slurmdbd.conf."""
    files = [site.box.conf, site.box.places.slurmdbd_conf]
    before = [path.read_text() for path in files]

    def say(texts):
        for path, text in zip(files, texts, strict=True):
            path.write_text(text)
        site.admin("scontrol", "reconfigure")
        site.admin("sacctmgr", "-i", "reconfigure")

    say([f"{text}PrivateData={PRIVATE}\n" for text in before])
    yield site
    site.cancel()
    say(before)


LOOK = """
import os, sys
for root, folders, files in os.walk(sys.argv[1]):
    for name in files:
        path = os.path.join(root, name)
        try:
            print(path, open(path, errors="replace").read(100000))
        except OSError:
            pass
"""


TRAIN = """
import os, time
from slurm_hadar.exchange.job_side import Exchange, host, in_step
from slurm_hadar.exchange.progress import Progress
exchange = Exchange.from_env(print)
while True:
    now = time.time()
    exchange.tell(Progress(job=exchange.job, time=now, restarts=exchange.restarts, host=host(),
        pid=os.getpid(), in_step=in_step(os.environ), started=now, model="axolotl", samples=10,
        rate=5.0, window_s=1.0, batch=64, gpus=1))
    time.sleep(1)
"""


def training(kind, words):
    """A job that tells of itself through the runtime."""
    return f"#!/bin/sh\n#HADAR types={kind} {words}\n{PYTHON} - <<'END'{TRAIN}END\n"


QUIET = """
import json, sys
with open(sys.argv[1], "r+") as file:
    prices = json.load(file) | {"arriving": 0}
    file.seek(0)
    file.truncate()
    json.dump(prices, file)
"""


def test_prices_are_the_controllers_own_and_order_a_newcomers_list(site):
    file = site.folder / "exchange" / "prices.json"
    file.unlink(missing_ok=True)
    site(EVE, PYTHON, "-c", "import sys; open(sys.argv[1], 'w').write('{}')", file)
    words = ("-p", "gpu", "-H")
    script = "#!/bin/sh\n#HADAR gpus=1 types=v100,k80 model=resnet50 batch=64\nsleep 600\n"

    def listed():
        site.tick()
        assert file.stat().st_uid == who(HADAR)[0]
        # Jobs of other tests that have just arrived would count as about to take what is free.
        site(HADAR, PYTHON, "-c", QUIET, file)
        return site.show(site.submit(ADA, *words, script=script), "%P")

    assert listed() == "v100,k80"
    whole = ("--parsable", "-N2", "-p", "v100", "--gres=gpu:2", "-o", "/dev/null")
    taken = site.box.run("sbatch", *whole, "--wrap", "sleep 600").strip()
    site.until(lambda: site.show(taken, "%T") == "RUNNING")
    # All V100s are in use: what is left costs little.
    assert listed() == "k80,v100"
    shown = json.loads(file.read_text())["types"]
    assert (shown["v100"]["free"], shown["k80"]["free"]) == (0, 2)
    assert shown["v100"]["price"] > 10 * shown["k80"]["price"]
    file.unlink()
    assert site.show(site.submit(ADA, *words, script=script), "%P") == "v100,k80"


def test_private_data_stays_private(private):
    site = private
    exchange = site.folder / "exchange"
    words = ("-J", "salamander", "--comment=newt in the pond")
    hers = site.submit(ADA, *words, script=training("v100", "model=axolotl"))
    next_ = site.submit(ADA, *words, "--gres=gpu:2", "-N2", script=job("v100", gpus="2"))
    his = site.submit(BOB, script=job("v100"))
    site.until(lambda: site.tick() and site.show(hers, "%T") == "RUNNING")
    site.until(lambda: not site(BOB, "squeue", "-h", "-u", ADA).strip())
    # Of so few users' jobs a price would tell.
    published = json.loads((exchange / "prices.json").read_text())
    assert (published["types"], published["arriving"]) == ({}, 0)
    output = site(HADAR, "hadar", "status")
    assert "salamander" in output and ADA in output, "the test can fail"
    site.until(lambda: list(exchange.glob(f"progress.{hers}.*.json")))
    site.tick()
    own = {"HADAR_CONFIG": str(per_user(site, BOB))}
    seen = []
    for env in ({}, own):
        lines = [
            ["status"],
            ["status", "--json"],
            ["plan"],
            ["explain", hers],
            ["doctor", hers],
            ["backfill", "--json"],
            ["tune", "--json", "--since", "2020-01-01"],
            ["tick"],
        ]
        seen += [said for _, said in site.many(BOB, lines, env=env)]
    done = site.run(BOB, "hbatch", "--hadar-plan", "--hadar-types=any", "-G1", "--wrap", "true")
    seen.append((done.stdout + done.stderr).decode())
    lying = site(BOB, PYTHON, "-c", LOOK, exchange).splitlines(keepends=True)
    # Her own, and what she writes aside before she renames it; others may have squatted there.
    own_name = re.compile(rf"\S+/\.?progress\.{hers}\.(?:[0-7]|[0-9a-f]{{16}})\.json")
    own_lines = [line for line in lying if own_name.match(line)]
    seen.append("".join(line for line in lying if line not in own_lines))
    seen.append(site(BOB, PYTHON, "-c", LOOK, site.folder / "state"))
    secrets = ("salamander", "newt", f"home-{ADA}", f" {ADA} ", f"({ADA})")
    for text in [*seen, *own_lines]:
        assert not [secret for secret in secrets if secret in text], text
    assert not [text for text in seen if "axolotl" in text]
    # What docs/rights.md owns up to: the controller is no root, and reads what all may read.
    (path,) = exchange.glob(f"progress.{hers}.*.json")
    assert path.stat().st_mode & 0o777 == 0o644 and path.stat().st_uid == who(ADA)[0]
    assert [line for line in own_lines if line.startswith(f"{path} ") and '"axolotl"' in line]
    for text in seen[:-2]:
        # As a number of its own, not within another one.
        assert not re.search(rf"(?<!\d)(?<!\d\.){next_}(?!\d)", text), text
    plan = read_plan(site.folder / "exchange", his, {who(HADAR)[0]})
    assert plan is None or hers not in plan.reason


def per_user(site, user):
    """The configuration of docs/rights.md for one researcher's own jobs, in that user's home."""
    home = site.homes[user]
    block = re.search(r"```toml\n(\[site\]\nmode = \"act\"\nrights = \"user\".*?)```", ADMIN, re.S)
    text = block[1].replace("/home/ada", str(home)).replace('"p100", ', "")
    path = home / "hadar.toml"
    path.write_text(text + f'[slurm]\nbin_dir = "{site.box.programs.bin_dir}"\n')
    (home / "slurm-hadar-exchange").mkdir(exist_ok=True)
    os.chown(home / "slurm-hadar-exchange", *who(user))
    return path


def test_a_researcher_runs_it_for_his_own_jobs_without_any_right(site):
    env = {"HADAR_CONFIG": str(per_user(site, ADA))}
    assert f"only jobs of {ADA}" in site(ADA, "hadar", "check", "--write", env=env)
    site(ADA, "hadar", "tick", env=env)
    fill = site.fill()
    hers = site.submit(ADA, "-p", "k80,v100", script=job("v100,k80", "model=transformer"), env=env)
    his = by_hand(site, BOB, "[hadar1 types=any gpus=1 lease=yes]", "-p", "gpu")
    before = site.box.run("scontrol", "show", "job", his)
    said = site(ADA, "hadar", "tick", env=env)
    assert f"update job {hers}: Partition=v100,k80" in said and his not in said
    assert site.box.run("scontrol", "show", "job", his) == before
    site.box.run("scancel", *fill)
    site.until(lambda: site.show(hers, "%T") == "RUNNING")
    assert not site.field(hers, "AdminComment")
    assert hers in site(ADA, "hadar", "status", env=env)
    assert his not in site(ADA, "hadar", "status", env=env)
    assert "another user's" in site(ADA, "hadar", "explain", his, code=2, env=env)
    assert "Invalid user" in site(ADA, "hadar", "optout", his, code=1, env=env)


def test_a_researchers_own_controller_moves_her_jobs_and_skips_what_it_may_not(aging):
    site = aging
    path = per_user(site, ADA)
    path.write_text(path.read_text() + "[guards]\nmin_between_moves_s = 0.0\n")
    env = {"HADAR_CONFIG": str(path)}
    site(ADA, "hadar", "check", "--write", env=env)
    said = [site(ADA, "hadar", "tick", env=env)]
    fast, slow = site.fill()
    words = "model=resnet50 batch=64 samples=900000 checkpoint=yes restart_cost=1"
    mails = ("--mail-type=ALL", "--mail-user=ada")
    hers = site.submit(ADA, "-p", "k80,v100", *mails, script=quick(site, ADA, words), env=env)
    his = site.submit(BOB, "-p", "k80,v100", script=job("v100,k80", "model=transformer"))
    asked = site.field(hers, "MailUser")
    assert asked.endswith("STAGE_OUT")

    def ticked():
        said.append(site(ADA, "hadar", "tick", env=env))
        return said[-1]

    site.box.run("scancel", slow)
    site.until(lambda: site.show(hers).startswith("RUNNING|k80|k1"))
    site.until(lambda: site.show(his).startswith("RUNNING|k80|k1"))
    before = site.box.run("scontrol", "show", "job", his)
    site.box.run("scancel", fast)
    site.until(lambda: f"move job {hers} to 1 x v100" in ticked())
    assert site.field(hers, "MailUser") == "ada MailType=INVALID_DEPEND,END,FAIL,STAGE_OUT"
    # An owner may not lower Nice: the move costs the age, and no word of it.
    assert "Nice=0 " in site.box.run("scontrol", "show", "job", hers)
    # On a busy machine a later tick sends it on.
    site.until(lambda: site.show(hers).startswith("RUNNING|v100|v") or not ticked())
    site.until(lambda: ticked() and site.field(hers, "MailUser") == asked)
    site.until(lambda: "0 changes sent" in ticked())
    text = "".join(said)
    assert not re.search("refused|denied|[Ii]nvalid|not answered|[Ee]rror", text), text
    now = site.box.run("scontrol", "show", "job", his)
    assert re.sub(r"RunTime=\S+", "", now) == re.sub(r"RunTime=\S+", "", before)
    site(ADA, "hadar", "optout", hers, env=env)


HOSTILE = (
    "'; touch {c}; '",
    '"; touch {c}; "',
    "$(touch {c})",
    "`touch {c}` && touch {c}",
    "a\nb\r\n#SBATCH --wrap=touch {c}\x1b[31m\x07",
    "[hadar1 types=any] [hadar1 off=yes] [hadarplan;t=1;was.Partition=k_host]",
    "{{{{ 7 * 7 }}}} {{% for %}} %s %n {{0}} \\",
    "=1+1|cmd' /C calc'!A0 <script>alert(1)</script>",
    "".join(chr(0x10000 * plane + 0x1E41) for plane in range(17)),
    "\u202egnol\u202c \u2066\u200b\ufeff",
    os.fsdecode(b"\xff\xfe\x80 not UTF-8"),
    "x" * 900,
)


PLACES = """
import json, os, sys
for name in json.load(sys.stdin):
    os.mkdir(name)
    open(os.path.join(name, "job.sh"), "w").write(sys.argv[1])
"""


def test_hostile_words_do_nothing_anywhere(site):
    canary = site.folder / "home-irc" / "pwned"
    words = [text.format(c=canary) for text in HOSTILE]
    ids = []
    # All of them wait, and are looked at in each tick.
    site.fill()
    places = [f"{number} {text[:60]}".replace("/", "_") for number, text in enumerate(words)]
    script = job("v100", "model=resnet18")
    site(EVE, PYTHON, "-c", PLACES, script, text=json.dumps(places))
    for text, name in zip(words, places, strict=True):
        place = f"{site.homes[EVE]}/{name}"
        done = site.run(
            EVE,
            *("hbatch", "--parsable", "-J", text, f"--comment={text}", "--begin=now+900"),
            *("-o", f"{place}/out", "-D", place, f"{place}/job.sh"),
        )
        if done.returncode == 0:
            ids.append(done.stdout.decode().strip())
            assert ids[-1].isdigit()
        if "\n" not in text and len(text) < 800:
            ids.append(by_hand(site, EVE, f"[hadar1 model={text} types=any lease=yes]", "-J", text))
    for text in words[2:5]:
        assert site.run(EVE, "hbatch", f"--hadar-model={text}", "--wrap=true").returncode == 2
    assert len(ids) > 15
    huge = "y" * 1_000_000
    for line in (f"#SBATCH --job-name={huge}", f"#SBATCH --comment={huge}", f"#HADAR model={huge}"):
        script = job("v100").replace("#HADAR", f"{line}\n#HADAR")
        done = site.run(EVE, "hbatch", "--parsable", "-o", "/dev/null", text=script)
        assert b"Traceback" not in done.stderr and len(done.stderr) < 5000
    values = ["job_name=a", f"command=echo {shlex.quote(words[2])}"]
    rendered = site(EVE, "hadar", "template", "render", "plain", *values)
    assert site(EVE, "bash", text=rendered).rstrip("\n") == words[2]
    hers = site.submit(ADA, "-p", "k80,v100", script=job("v100,k80", "model=transformer"))
    said = [site.tick()]
    assert f"update job {hers}: Partition=v100,k80" in said[0]
    lines = [["status"], ["plan"], ["backfill"]]
    lines += [["explain", id_] for id_ in ids[::7]] + [["doctor", id_] for id_ in ids[2::7]]
    for code, text in site.many(HADAR, lines):
        assert code in (0, 2)
        said.append(text)
    for text in said:
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    json.loads(site(HADAR, "hadar", "status", "--json"))
    with sqlite3.connect(site.folder / "state" / "hadar.sqlite") as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not canary.exists()
    assert site.show(hers).startswith("PENDING|v100,k80||")


def test_its_rights_are_taken_back_as_written(site):
    for line in documented("take it back", site):
        site.admin(*line)
    assert not site.admin("sacctmgr", "-nP", "show", "user", HADAR, "format=User").strip()
    # Without them it is refused, and says so; no job waits for it.
    fill = site.fill()
    hers = site.submit(ADA, "-p", "k80,v100", script=job("v100,k80", "model=transformer"))
    site.until(lambda: re.search("denied|Invalid user", site.tick()))
    assert site.show(hers).startswith("PENDING|k80,v100||")
    site.box.run("scancel", *fill)
    site.until(lambda: site.show(hers, "%T") == "RUNNING")
    for line in documented("operator", site):
        site.admin(*line)
