"""A job that grew gives back what it has beyond its request and keeps its own part, however many
jobs wait: an ordinary job waits no longer for it than under plain Slurm, and the job keeps its
place. One that needs several nodes is not passed over meanwhile."""

import pytest
from trainings import ROOT, SMALL_TORCH, Trainings, digits_file

from slurm_hadar.domain.job import JobState
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
LAYOUT = Layout((NodeGroup("v", 1, "v100", 4),))
MODEL = "grows"
SPEEDS = {MODEL: {"v100": {1: 10.0, 2: 20.0, 4: 40.0}}}
"""Samples/s."""


def grows(site, samples, declared="", *words):
    """A training that was submitted for one GPU."""
    return site.hbatch(
        "#!/bin/bash\n"
        f"#HADAR model={MODEL} types=any gpus=1-4 batch=8 samples={samples} checkpoint=yes "
        f"restart_cost=1 {declared}\n"
        "trap '' USR2\n"
        f"exec {SMALL_TORCH} {ROOT}/examples/train_digits.py --model {MODEL} --batch 8 "
        f"--samples {samples} --checkpoint {site.folder}/a.pt --data {digits_file(site.folder)}\n",
        *words,
    )


@pytest.mark.each_slurm
def test_a_grown_job_keeps_its_part_before_many_that_wait(make_sandbox, tmp_path, slurm_prefix):
    box = make_sandbox(
        layout=LAYOUT,
        cred_expire_s=90,
        slurm_prefix=slurm_prefix,
        options=SandboxOptions(
            mode="act", settings={"guards": {"min_between_moves_s": 0.0}}, base_rates=SPEEDS
        ),
    )
    site = Trainings(box, tmp_path)
    id_ = grows(site, 6000)
    site.until(lambda: sum(site.job(id_).gpus.get("v1", {}).values()) == 4)
    before = site.job(id_).restarts
    site.until(site.trained(id_, restarts=before), ticks=False)
    waiting = [site.ordinary("--gres=gpu:1", "-t10") for _ in range(6)]
    # An admin's word puts two of them before all others.
    for other in waiting[:2]:
        site.box.run("scontrol", "update", f"JobId={other}", "Priority=4294950000")
    site.until(lambda: site.job(id_).restarts == before + 1)
    job = site.job(id_)
    assert job.state is JobState.RUNNING and job.gpus == {"v1": {"v100": 1}}
    site.until(lambda: sum(site.job(one).state is JobState.RUNNING for one in waiting) == 3)
    assert all(site.job(one).state is JobState.RUNNING for one in waiting[:2])
    assert "hadar_" not in site.box.run("scontrol", "show", "reservation")
    # What it needed to be the first is its no more once it runs.
    site.until(lambda: site.job(id_).nice == 0)


@pytest.mark.each_slurm
def test_a_job_on_several_nodes_keeps_its_turn(make_sandbox, tmp_path, slurm_prefix):
    box = make_sandbox(
        layout=Layout((NodeGroup("v", 2, "v100", 2),)),
        cred_expire_s=90,
        slurm_prefix=slurm_prefix,
        options=SandboxOptions(mode="act", base_rates=SPEEDS),
    )
    site = Trainings(box, tmp_path)
    id_ = grows(site, 9000, "nodes=1-2", "--gpus=1", "-N1-2")
    site.until(lambda: len(site.job(id_).nodes) == 2)
    before = site.job(id_).restarts
    site.until(site.trained(id_, restarts=before), ticks=False)
    wide = site.ordinary("--gres=gpu:1", "-N2", "-t10")
    behind = [site.ordinary("--gres=gpu:1", "-t10") for _ in range(3)]
    site.until(lambda: site.job(id_).restarts == before + 1)
    site.until(lambda: site.job(wide).state is JobState.RUNNING, 30.0, ticks=False)
    assert sum(site.job(id_).gpus.popitem()[1].values()) == 1
    site.until(lambda: site.job(behind[0]).state is JobState.RUNNING, 30.0, ticks=False)
    assert all(site.job(one).state is JobState.PENDING for one in behind[1:])
