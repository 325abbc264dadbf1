"""The batch of a running job changes on a real Slurm, by checkpoint and requeue, samples exact."""

import json
import os

import pytest
from trainings import ROOT, SMALL_TORCH, Trainings, digits_file

from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.plan_file import read_plan
from slurm_hadar.runtime.samples import check_lineage, from_plain
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions

pytestmark = pytest.mark.live

MODEL, SAMPLES = "batched", 20_000
PACE = 2_500.0
"""Samples/s that the training is held back to."""


@pytest.fixture
def site(make_sandbox, tmp_path):
    table = tmp_path / "speeds.json"
    # Nearly in proportion: whatever the noise scale turns out to be, goodput rises with the batch.
    rows = [[MODEL, "v100", 1, 32 * 2**k, PACE * 1.9**k, None] for k in range(4)]
    table.write_text(json.dumps({"version": 1, "source": "test", "rows": rows}))
    box = make_sandbox(
        layout=Layout((NodeGroup("v", 1, "v100", 1),)),
        options=SandboxOptions(
            mode="act",
            settings={
                "controller": {"policy": "ones"},
                "guards": {"min_between_moves_s": 0.0},
                "profiles": {"tables": (str(table),)},
            },
            base_rates={MODEL: {"v100": {1: PACE}}},
        ),
    )
    found = Trainings(box, tmp_path)
    yield found
    found.store.close()


def test_a_running_job_is_moved_to_a_larger_batch_and_trains_every_sample_once(site):
    id_ = site.hbatch(
        "#!/bin/bash\n"
        f"#HADAR model={MODEL} types=any gpus=1 batch=32:256 samples={SAMPLES} checkpoint=yes "
        "restart_cost=0.1\n"
        "#SBATCH --gres=gpu:1\n"
        f"exec {SMALL_TORCH} {ROOT}/examples/train_digits.py --model {MODEL} --batch 32:256 "
        f"--lr 0.01 --samples {SAMPLES} --checkpoint {site.folder}/a.pt --every 600 "
        f"--data {digits_file(site.folder)} --lineage {site.folder}/a.json\n"
    )

    def larger():
        said = site.progress(id_)
        return said is not None and said.batch > 32 and said.restarts > 0

    site.until(larger)
    said = site.progress(id_)
    assert said.noise_scale is not None
    plan = read_plan(site.config.site.exchange_dir, id_, (os.getuid(),))
    assert plan is not None
    assert plan.batch == said.batch
    assert f"batch {said.batch}, worth" in plan.reason
    site.until(lambda: site.job(id_).state is JobState.FINISHED, ticks=False)
    lineage = json.loads((site.folder / "a.json").read_text())
    rows = from_plain(lineage["segments"])
    assert lineage["samples"] == SAMPLES
    assert check_lineage(rows, lineage["dataset_size"]) is None
    assert {row.batch for row in rows} >= {32, said.batch}
    assert f"global batch 32 -> {said.batch}" in (site.folder / f"{id_}.out").read_text()
