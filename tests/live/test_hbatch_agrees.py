"""hbatch and sbatch agree on a thousand submits: acceptance, exit code, what stderr says."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from submit_lines import Submit, submits
from submit_shell import Shell, verdict, waits

from slurm_hadar import config
from slurm_hadar.cli.sbatch_parser import read_argv
from slurm_hadar.controller.checks.wrapper_site import write_wrapper_site
from slurm_hadar.controller.submit_plan.hypothetical_job import Asked, job_of
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import open_cluster

pytestmark = pytest.mark.live

SEED = 6
COUNT = 1000
COUNT_ELSEWHERE = 200
"""On a second Slurm."""
AS_PROCESSES = 25
PASSED_ON = "heterogeneous|may be short|unknown to hbatch|cluster"
"""What hbatch says of a declared job that it does not manage."""


UNEQUAL = Layout(
    (
        NodeGroup("v", 2, "v100", 2, cpus=16, memory_mb=64_000),
        NodeGroup("p", 2, "p100", 2, cpus=16, memory_mb=64_000),
        NodeGroup("k", 2, "k80", 4),
    )
)
"""The slowest GPUs are in the largest nodes."""


@pytest.fixture(scope="module")
def shell(slurm_prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    with Sandbox.up(folder / "box", UNEQUAL, slurm_prefix, SandboxOptions(mode="act")) as box:
        write_wrapper_site(config.load(box.config_path), box.config_path)
        made = Shell(box, folder)
        yield made
        made.close()


@pytest.mark.each_slurm
def test_a_thousand_submits_are_judged_alike(shell, slurm_prefix):
    cases = submits(COUNT_ELSEWHERE if slurm_prefix else COUNT, SEED)
    accepted = rejected = managed = 0
    for number, case in enumerate(cases):
        plain = shell.ask("sbatch", case, "--test-only")
        ours = shell.ask("hbatch", case, "--test-only")
        is_ours, why = shell.is_managed(), shell.why
        managed += is_ours
        assert verdict(ours, is_ours) == verdict(plain, is_ours), f"{number}: {case}"
        if number % (len(cases) // AS_PROCESSES) == 0:
            again = shell.process(case, "--test-only")
            assert verdict(again, is_ours) == verdict(plain, is_ours), f"{number}: {case}"
        if plain[0] == 0 and not plain[1] and case.declares:
            assert is_ours or re.search(PASSED_ON, why), f"{number}: {case}: {ours}: {why}"
        accepted += plain[0] == 0
        rejected += plain[0] != 0
    assert min(accepted, rejected) >= 0.3 * len(cases), (accepted, rejected)
    assert managed >= 0.05 * len(cases)


PLANS = 16
SPECIAL = {
    ("-Q", "job.sh"): "would start it now",
    ("--gres=gpu:99", "job.sh"): "would refuse it",
    ("--gres=gpu:1", "-a1-3", "job.sh"): "one task of the array",
    ("-G1", "--begin=now+100", "job.sh"): "its owner set a begin time",
    ("-wv1", "--gres=gpu:1", "job.sh"): "it names its nodes itself",
    ("-N1", ":", "-N1", "job.sh"): "heterogeneous",
    ("--gpus=v100:1", "job.sh"): "1 x v100 on v",
    ("-Ck80", "-G1", "-t600", "--hadar-types=v100,k80", "job.sh"): "policy   1 x k80 on k",
    ("--hadar-off", "job.sh"): "off=yes is declared",
}
DECLARED = b"#!/bin/sh\n#HADAR model=resnet18 types=any samples=5e6 checkpoint=yes\ntrue\n"


def test_a_plan_returns_what_sbatch_would_and_submits_nothing(shell):
    planned = 0
    for number, case in enumerate(submits(PLANS, SEED + 2)):
        if "--json" in case.argv:
            # Behind --hadar-plan this word is ours.
            continue
        plain = shell.ask("sbatch", case, "--test-only")
        ours = shell.ask("hbatch", case, "--hadar-plan", "--json")
        assert ours[0] == plain[0], f"{number}: {case}: {ours}"
        assert "Traceback" not in ours[2]
        if ours[1].startswith("{"):
            planned += 1
            result = json.loads(ours[1])["result"]
            assert bool(result["slurm"]["refused"]) is (plain[0] != 0), f"{number}: {case}"
    assert planned >= PLANS / 3
    for argv, says in SPECIAL.items():
        code, out, err = shell.ask("hbatch", Submit(list(argv), script=DECLARED), "--hadar-plan")
        assert says in out and "Traceback" not in err, (argv, out, err)
        assert (code != 0) is ("refuse" in says)
        assert "never" not in out, (argv, out)
    unclear = shell.ask("hbatch", Submit(["--spank", "x", "job.sh"]), "--hadar-plan")
    assert unclear[2].startswith("hbatch: there is no plan: --spank is unknown")
    assert shell.box.run("squeue", "-h") == ""


SHOWN = [
    "name", "partitions", "time_limit_s", "request", "node_count", "tasks", "cpus",
    "cpus_per_task", "mem_per_cpu_mb", "mem_per_node_mb", "features", "required_nodes",
    "excluded_nodes", "requeue", "exclusive", "whole_nodes", "held", "reservation", "dependency",
    "account", "qos",
]  # fmt: skip
LIKE_SLURM = [
    ["-t10"], ["-N2", "--gres=gpu:1"], ["-c2"], ["-G4"], ["--mem=4G", "-c3"],
    ["--mem-per-cpu=500"], ["-wv[1-2]"], ["-xk1", "--no-requeue"], ["--exclusive"],
    ["--exclusive=user"],
    ["-pv100,k80", "-Jx"], ["-n8", "--ntasks-per-node=4"], ["--gpus-per-node=k80:1", "-N2"],
    ["--gpus-per-task=1", "-n2"], ["-Cv100|k80", "-c4"], ["-N2", "-n4", "--gpus=v100:2"],
    ["-N2", "--ntasks-per-node=2", "-c3"], ["--mem=0"], ["-A", "science"],
]  # fmt: skip


def test_a_plans_job_is_the_one_that_slurm_would_show(shell):
    cluster = open_cluster(config.load(shell.box.config_path).slurm)
    partitions = {partition.name: partition for partition in cluster.read_partitions()}
    submitted = {}
    for argv in LIKE_SLURM:
        submit = Submit(["-H", *argv, "job.sh"], script=b"#!/bin/sh\ntrue\n")
        code, out, err = shell.ask("sbatch", submit, "--parsable")
        assert code == 0, err
        submitted[out.strip()] = argv
    shown = {job.id: job for job in cluster.read_jobs(list(submitted))}
    shell.box.run("scancel", *submitted)
    settings = cluster.read_config()
    for number, argv in submitted.items():
        held = dict(read_argv(["-H", *argv]).options)
        asked = Asked(held, None, "job.sh", os.getuid(), "", settings=settings)
        planned = job_of(asked, partitions, time.time(), 1)
        wrong = {
            name: (getattr(planned, name), getattr(shown[number], name))
            for name in SHOWN
            if getattr(planned, name) != getattr(shown[number], name)
        }
        assert wrong == {}, argv


GROUPED = 120
WIDE = [["-N3", "--gres=gpu:1"], ["-G5"], ["-n70"], [], [], []]
"""More than one partition per GPU type has, and nothing."""


def test_a_list_is_accepted_where_the_partition_is(shell):
    heartbeat = shell.box.exchange / "heartbeat.json"
    listed = refused = 0
    for number, case in enumerate(submits(GROUPED, SEED + 3)):
        # Slurm 24.11.5: slurmctld ends on --spread-job with --gpus.
        if waits(case) or re.search("--spr|SPREAD_JOB", str(case)):
            continue
        case.env["SBATCH_PARTITION"] = "gpu"
        case.ours = ["--hadar-gpus=1", "--hadar-types=any", *WIDE[number % len(WIDE)]]
        heartbeat.unlink(missing_ok=True)
        # Of a held job Slurm does not look whether it fits.
        typed = shell.ask("hbatch", case)
        write_heartbeat(shell.box.exchange, "act", 600.0)
        before = shell.added()
        ours = shell.ask("hbatch", case)
        if "--partition" not in shell.added():
            continue
        assert "--partition" not in before
        listed += 1
        refused += typed[0] != 0
        assert ours[0] == typed[0], f"{number}: {case}: {typed} {ours}"
    shell.box.run("scancel", "--user", str(os.getuid()))
    assert listed >= GROUPED / 4 and refused >= 3, (listed, refused)


LARGE = ("--gres=gpu:4", "--gpus-per-node=4 -N1", "--gres=gpu:1 -c24", "--gres=gpu:1 --mem=128G",
         "--gres=gpu:1 -x v[1-2],p[1-2]", "--gres=gpu:1 --mincpus=24")  # fmt: skip
"""What only a node of the slowest GPUs can have."""


@pytest.mark.parametrize("nodes_are_known", [True, False])
def test_what_fits_the_nodes_of_a_slow_type_only_is_not_refused(shell, nodes_are_known):
    tick = [str(Path(sys.executable).with_name("hadar")), "tick"]
    subprocess.run(tick, env=shell.box.env, check=True, capture_output=True, timeout=60)
    prices = json.loads((shell.box.exchange / "prices.json").read_text())
    assert prices["nodes"]["k80"] == [[4, 32, 256_000]]
    if not nodes_are_known:
        (shell.box.exchange / "prices.json").unlink()
    for words in ("--gres=gpu:1", *LARGE):
        script = b"#!/bin/sh\n#HADAR types=any model=transformer\nsleep 60\n"
        case = Submit(["-pgpu", "-o/dev/null", *words.split(), "job.sh"], script=script)
        plain, ours = (shell.ask(program, case) for program in ("sbatch", "hbatch"))
        assert (plain[0], ours[0]) == (0, 0), (words, plain, ours)
        job = ours[1].split()[-1]
        names = shell.box.run("squeue", "-h", "-o", "%P", "-j", job).strip()
        # In an order drawn by the prices.
        listed = sorted(names.split(",")) == ["p100", "v100"]
        assert listed is (nodes_are_known and words == "--gres=gpu:1"), (words, names)
    shell.box.run("scancel", "--user", str(os.getuid()))
