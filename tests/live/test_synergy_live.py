"""Synergy live: CPUs and memory of running jobs within what they allow, and undone again."""

import subprocess
import sys

import pytest
from dictated import TRAINING
from trainings import MODEL, ROOT, SMALL_TORCH, digits_file, moves_of, start_sandbox

from slurm_hadar.domain import steering
from slurm_hadar.profiles import cpu_table
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.slurm.cluster import Update

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SERVER = Layout((NodeGroup("s", 1, "v100", 8, cpus=24, memory_mb=48_000),))
GB = 1024
CURVES = {
    "hungry": {3: 1.0, 6: 1.9, 12: 3.0},
    MODEL: {3: 1.0, 6: 1.9, 12: 3.0},
    "light": {1: 1.0, 3: 1.0, 6: 1.0, 12: 1.0},
}


def started(make_sandbox, tmp_path, **options):
    """A server of 8 GPUs, 24 CPUs and 48 GB; what two models need is measured."""
    rows = [
        (model, 1, cpus, gb, rate)
        for model, curve in CURVES.items()
        for cpus, rate in curve.items()
        for gb in (1, 4)
    ]
    table = tmp_path / "cpus.json"
    table.write_text(cpu_table.text(rows, {"source": "test"}))
    settings = {
        "controller": {"policy": "synergy_tune"},
        "profiles": {"cpu_tables": (str(table),)},
    }
    return start_sandbox(make_sandbox, tmp_path, settings, layout=SERVER, **options)


def submit(site, model, cpus="1-12", request="-c3 --mem=4G"):
    """A training that lasts longer than any test, and writes what its last attempt has."""
    samples = 100_000
    script = (
        f"#!/bin/bash\n#HADAR model={model} types=any cpus={cpus} mem=1G-4G samples={samples}\n"
        "#HADAR checkpoint=yes restart_cost=1\n"
        f"#SBATCH {request} --gres=gpu:1\n"
        f"echo $SLURM_CPUS_ON_NODE $SLURM_CPUS_PER_TASK $SLURM_MEM_PER_NODE "
        f"> {site.folder}/$SLURM_JOB_ID.has\n"
        f"exec {sys.executable} {TRAINING} {site.folder} {samples} 0\n"
    )
    return site.hbatch(script)


def has(site, id_):
    """CPUs on the node, CPUs per task and memory of the attempt that runs."""
    return (site.folder / f"{id_}.has").read_text().split()


def all_train(site, ids, ticks=False):
    site.until(lambda: all(site.runs(id_)() for id_ in ids), ticks=ticks)
    for id_ in ids:
        site.until(site.trained(id_, restarts=site.job(id_).restarts), ticks=ticks)


def test_cpus_and_memory_go_to_those_who_need_them(make_sandbox, tmp_path, slurm_prefix):
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    hungry = submit(site, "hungry")
    light = submit(site, "light")
    per_cpu = submit(site, "light", request="-c3 --mem-per-cpu=1G")
    fixed = submit(site, "hungry", cpus="3")
    tasks = submit(site, "hungry", cpus="1-4", request="-n2 --mem=4G")
    unknown = submit(site, "another")
    jobs = (hungry, light, per_cpu, fixed, tasks, unknown)
    # Slurm starts them with what they ask for.
    all_train(site, jobs)
    assert [site.job(id_).cpus for id_ in jobs] == [3, 3, 3, 3, 2, 3]
    changed = (hungry, light, per_cpu, tasks)
    site.until(lambda: all(site.runs(id_)() and site.job(id_).restarts for id_ in changed))
    all_train(site, jobs)
    assert has(site, hungry) == ["12", "12", str(GB)]
    assert has(site, light) == ["1", "1", str(GB)]
    assert has(site, per_cpu)[:2] == ["1", "1"]
    assert site.job(per_cpu).mem_per_cpu_mb == GB
    assert has(site, tasks)[0] == "4"
    # What may not be changed, or is not known, stays, and costs no restart.
    assert has(site, fixed) == has(site, unknown) == ["3", "3", str(4 * GB)]
    assert [site.job(id_).restarts for id_ in jobs] == [1, 1, 1, 0, 1, 0]
    was = steering.decode(site.job(hungry).admin_comment).was
    assert was["NumCPUs"] == "3-3" and was["MinMemoryNode"] == str(4 * GB)
    assert len(site.tick().done) == 0


def test_what_was_changed_is_undone(make_sandbox, tmp_path, slurm_prefix):
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    node = submit(site, "hungry")
    cpu = submit(site, "hungry", request="-c3 --mem-per-cpu=1G")
    per_gpu = submit(site, "hungry", request="--cpus-per-gpu=3 --mem-per-gpu=4G")
    all_train(site, (node, cpu, per_gpu))
    site.until(lambda: all(site.runs(id_)() and site.job(id_).restarts for id_ in (node, cpu)))
    changed = [site.job(id_).cpus for id_ in (node, cpu, per_gpu)]
    assert sorted(changed[:2]) == [6, 12] and changed[2] == 3
    for id_ in (node, cpu):
        site.box.run("scontrol", "requeue", id_)
        site.until(lambda id_=id_: site.job(id_).slurm_state == "PENDING", ticks=False)
        done = subprocess.run(
            [sys.executable, "-m", "slurm_hadar.cli.main", "optout", id_],
            env=site.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    for id_, per_node, per_cpu in ((node, 4 * GB, 0), (cpu, 0, GB)):
        job = site.job(id_)
        assert (job.cpus, job.cpus_per_task) == (3, 3)
        assert (job.mem_per_node_mb, job.mem_per_cpu_mb) == (per_node, per_cpu)
        # Slurm starts it again when the begin time that it gave it has come.
        site.cluster.apply([Update(id_, {"StartTime": "now"})])
        site.until(site.runs(id_), ticks=False)


def test_a_running_job_moves_for_more_cpus(make_sandbox, tmp_path, slurm_prefix):
    site = started(make_sandbox, tmp_path, slurm_prefix=slurm_prefix)
    filler = site.ordinary("-c18", "--mem=1G", "--gres=gpu:1")
    site.until(site.runs(filler), ticks=False)
    # More than it can do until it is moved.
    samples = 20_000
    script = (
        f"#!/bin/bash\n#HADAR model={MODEL} types=any cpus=1-12 mem=1G-4G batch=8 checkpoint=yes "
        f"samples={samples} restart_cost=1\n#SBATCH -c3 --mem=4G --gres=gpu:1\n"
        f"exec {SMALL_TORCH} {ROOT}/examples/train_digits.py --model {MODEL} --batch 8 "
        f"--samples {samples} --checkpoint {tmp_path}/a.pt --data {digits_file(tmp_path)} "
        f"--lineage {tmp_path}/a.json --every 600\n"
    )
    id_ = site.hbatch(script)
    site.until(site.runs(id_), ticks=False)
    assert site.job(id_).cpus == 3
    site.until(lambda: site.runs(id_)() and site.job(id_).cpus == 6)
    site.until(site.trained(id_, 100, restarts=1))
    site.cluster.cancel([filler])
    site.until(
        lambda: (
            site.runs(id_)()
            and site.job(id_).cpus == 12
            and [move.outcome for move in moves_of(site.store, id_)] == ["moved", "moved"]
        )
    )
    assert site.job(id_).restarts == 2
    site.until(site.trained(id_, 200, restarts=2), ticks=False)
    assert len(site.tick().done) == 0
