"""Hare live: a round's tasks dealt over unlike GPUs end with the parameters of one process."""

import os
import subprocess
import sys

import pytest
import torch
from trainings import MODEL, ROOT, SMALL_TORCH, digits_file, moves_of, start_sandbox

from slurm_hadar.domain import steering
from slurm_hadar.runtime import checkpoint

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SAMPLES, BATCH, TASKS = 3360, 56, 7


def command(folder, name):
    words = f"--model {MODEL} --batch {BATCH} --tasks {TASKS} --samples {SAMPLES} --lr 0.02"
    return (
        f"{SMALL_TORCH} {ROOT}/examples/train_copies.py {words} --checkpoint {folder}/{name}.pt "
        f"--lineage {folder}/{name}.json --data {digits_file(folder)}"
    )


def parameters(path):
    content = checkpoint.read(path)
    return content["parts"]["model"]


def test_tasks_are_dealt_over_three_types_and_training_is_that_of_one_process(
    make_sandbox, tmp_path
):
    site = start_sandbox(make_sandbox, tmp_path, {"controller": {"policy": "hare"}})
    script = (
        "#!/bin/bash\n"
        f"#HADAR model={MODEL} types=any batch={BATCH} samples={SAMPLES} checkpoint=yes\n"
        f"#HADAR fork=1-3 tasks={TASKS} restart_cost=1\n"
        "#SBATCH --ntasks-per-node=1 --gres=gpu:1\n"
        "trap '' USR2\n"
        f"exec {sys.executable} -m slurm_hadar.runtime.copies_launch -- {command(tmp_path, 'a')}\n"
    )
    # What it trains on one node must not be the end of it.
    site.pace(0.25)
    id_ = site.hbatch(script)
    site.until(site.runs(id_), ticks=False)
    assert len(site.job(id_).nodes) == 1
    site.until(site.trained(id_), ticks=False)
    site.pace(1.0)
    site.until(site.runs(id_, "v1", "p1", "k1"))
    assert [move.outcome for move in moves_of(site.store, id_)] == ["moved"]
    plan = site.plan(id_)
    assert plan.copies == 3 and plan.gpus == {"v100": 1, "p100": 1, "k80": 1}
    assert sorted(plan.shares) == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=1e-6)
    assert "tasks of a round dealt" in plan.reason
    assert steering.decode(site.job(id_).admin_comment).was["NumNodes"] == "1-1"
    site.until(site.trained(id_, restarts=1), ticks=False)
    assert len(site.tick().done) == 0
    segments = site.ends_exact(id_, SAMPLES)
    assert {(segment.batch, segment.gpus) for segment in segments} >= {(BATCH, 1), (BATCH, 3)}

    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "HADAR"))
    }
    alone = subprocess.run(command(tmp_path, "b").split(), env=kept, capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    found, wanted = parameters(tmp_path / "a.pt"), parameters(tmp_path / "b.pt")
    assert all(torch.allclose(found[name], wanted[name], atol=1e-4) for name in wanted)
