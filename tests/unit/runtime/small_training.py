"""What several tests train on, and an environment without Slurm."""

import pytest
import torch

N, BATCH = 40, 8
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1))
Y = X.sum(1, keepdim=True)


@pytest.fixture
def outside_slurm(monkeypatch):
    for key in (
        "HADAR_EXCHANGE",
        "HADAR_TRUE_RATES",
        "HADAR_EMULATION",
        "SLURM_JOB_ID",
        "CUDA_VISIBLE_DEVICES",
    ):
        monkeypatch.delenv(key, raising=False)
