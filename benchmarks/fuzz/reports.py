"""Reports of jobs and their samplers, read and taken in as a tick does it."""

import math
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

from slurm_hadar import config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.learning import SpeedLearner
from slurm_hadar.controller.observation import steering_store
from slurm_hadar.controller.observation.exchange_folder import ExchangeFolder
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.profiling import gpu_use
from slurm_hadar.domain import declaration, steering
from slurm_hadar.domain.job import UNTYPED, GpuRequest, Job, JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.profiles.measured import MeasuredStore
from slurm_hadar.profiles.network_tiers import TierRates
from slurm_hadar.profiles.rates import Rates

NOW = 1.7e9 + 5
JOB = Job(
    id="84_2", raw_id=84, uid=os.getuid(), user="ann", name="train", state=JobState.RUNNING,
    slurm_state="RUNNING", start_s=1.7e9 - 600, nodes=("v1",), gpus={"v1": {"v100": 1}},
    request=GpuRequest(per_node={UNTYPED: 1}), restarts=1, features="v100",
    declaration=declaration.Declaration(model="resnet18", types=("any",)),
)  # fmt: skip
SEEN = Observation(
    now=NOW,
    jobs={JOB.id: JOB},
    nodes={"v1": Node("v1", {"v100": 1}, {"v100": 1})},
    partitions={},
    racks={"v1": "r1"},
)


def taken_in(folder: Path) -> object:
    """Read the exchange folder, learn from it twice, and tell people of it."""
    said = ExchangeFolder(folder).read([JOB])
    seen = replace(SEEN, progress=said.progress, gpus=said.gpus)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        rates = Rates(store=MeasuredStore(connection), tiers=TierRates(connection))
        lessons, speeds = gpu_use.GpuUseLearner(connection), SpeedLearner(rates)
        for later in (0.0, 60.0):
            lessons.learn(replace(seen, now=NOW + later))
            speeds.learn(replace(seen, now=NOW + later))
        known = lessons.uses_of(JOB)
        for one in known:
            assert 0 < one.weight_s < math.inf and 0 <= one.held_idle <= 1
        assert all(0 < one.samples_per_s < 1e12 for one in rates.store.of("resnet18"))
        rates.rates((JOB.uid, "resnet18", None), ("v100",), (1, 2))
        for _, words in gpu_use.rows(seen, JOB, known):
            assert words.isprintable()
        return gpu_use.in_vain(seen, JOB.id), gpu_use.too_small(JOB, known, {"k80": 12.0})
    finally:
        connection.close()


def steered(folder: Path) -> object:
    """What was kept of a job, and what gives it back to its owner as it was."""
    site = config.parse(f'[site]\nexchange_dir = "{folder}"\nrights = "user"\n', "here")
    found = steering_store.shared(site, JOB.id)
    if found is None:
        return None
    assert steering.decode(steering.merge("", found)) is not None
    waits = replace(JOB, state=JobState.PENDING, gpus={}, nodes=())
    fields = job_updates.undo_fields(waits, found)
    assert all(isinstance(value, str) for value in fields.values())
    return fields
