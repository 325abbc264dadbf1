"""The gradient noise scale, measured where the true one is known."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from forks import Forks

from slurm_hadar.runtime import Training
from slurm_hadar.runtime.noise import Moments, NoiseScale

WIDTH, SPREAD, MEAN = 16, 2.0, 0.5
"""The loss of a sample x is -w x, so its gradient is -x: mean and covariance are the data's."""
TRUE = SPREAD**2 / MEAN**2
"""tr(S) / |G|^2 with WIDTH independent coordinates of standard deviation SPREAD and mean MEAN."""


def data(samples, seed=0):
    drawn = np.random.default_rng(seed).normal(MEAN, SPREAD, (samples, WIDTH))
    return torch.from_numpy(drawn.astype(np.float32))


def test_moments_are_unbiased_where_the_covariance_is_known():
    rng = np.random.default_rng(1)
    moments = Moments()
    signals, noises = [], []
    for _ in range(3000):
        rows = rng.normal(MEAN, SPREAD, (32, WIDTH))
        one = Moments()
        for target in (one, moments):
            target.add(
                float((rows[:16].mean(0) ** 2).sum()), 16, float((rows.mean(0) ** 2).sum()), 32
            )
        signals.append(one.squared_gradient)
        noises.append(one.variance)
    assert np.mean(signals) == pytest.approx(WIDTH * MEAN**2, rel=0.05)
    assert np.mean(noises) == pytest.approx(WIDTH * SPREAD**2, rel=0.05)
    assert moments.scale() == pytest.approx(TRUE, rel=0.5)


def test_figures_that_cannot_be_are_left_out():
    moments = Moments()
    for small, few, large, many in [(1.0, 0, 1.0, 8), (1.0, 8, 1.0, 8), (float("nan"), 1, 1.0, 8)]:
        moments.add(small, few, large, many)
    assert moments.count == 0
    assert moments.scale() is None


def test_what_an_earlier_attempt_measured_holds_until_enough_is_known():
    weights = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weights], lr=1.0)
    noise = NoiseScale(optimizer, 1, first=True, active=True, before=5.0)
    assert noise.scale() == 5.0
    for _ in range(30):
        noise.moments.add(3.0, 1, 2.0, 2)
    assert noise.scale() == pytest.approx(2.0)
    assert NoiseScale(optimizer, 1, first=True, active=False, before=5.0).scale() is None


def train(batch, samples=60_000, scaler=None, **options):
    x = data(6_000)
    weights = torch.nn.Parameter(torch.zeros(WIDTH))
    optimizer = torch.optim.SGD([weights], lr=1e-6)
    run = Training(
        type("Model", (torch.nn.Module,), {})(), optimizer, dataset_size=len(x), samples=samples,
        batch=batch, scaler=scaler, **options,
    )  # fmt: skip
    steps = 0
    for part in run:
        run.backward(-(x[part.indices] @ weights).mean())
        steps += part.last
        run.step()
    return run, weights.detach().numpy(), steps


@pytest.mark.parametrize("per_gpu", [None, 8])
def test_one_process_measures_it(per_gpu):
    # Without per_gpu a step is one pass, and is cut in two when it is measured.
    run, _, _ = train((32, 64), per_gpu=per_gpu, log=lambda line: None)
    assert run.noise_scale == pytest.approx(TRUE, rel=0.4)


def test_the_scale_of_mixed_precision_does_not_matter():
    class Scaler:
        """As torch's, without a GPU."""

        def scale(self, loss):
            return loss * 1024.0

        def get_scale(self):
            return 1024.0

        def step(self, optimizer):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad /= 1024.0
            optimizer.step()

        def update(self):
            pass

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    run, _, _ = train((32, 64), scaler=Scaler(), log=lambda line: None)
    assert run.noise_scale == pytest.approx(TRUE, rel=0.4)


def test_a_fixed_batch_is_not_measured():
    run, _, _ = train(32, samples=20_000, log=lambda line: None)
    assert run.noise_scale is None


def test_measuring_changes_neither_steps_nor_parameters():
    fixed, plain, steps = train(32, samples=20_000, log=lambda line: None)
    ranged, measured, same = train((32, 64), samples=20_000, log=lambda line: None)
    assert steps == same
    assert fixed.segments == ranged.segments
    np.testing.assert_allclose(plain, measured, rtol=1e-4)


def test_the_noise_of_a_linear_regression_grows_as_it_learns():
    """With |G| going to 0 and the noise of the labels staying, the scale must rise."""
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(size=(4_000, 4)).astype(np.float32))
    y = x.sum(1) + torch.from_numpy(rng.normal(0, 1.0, 4_000).astype(np.float32))
    weights = torch.nn.Parameter(torch.full((4,), 5.0))
    optimizer = torch.optim.SGD([weights], lr=6e-4)
    run = Training(
        type("Model", (torch.nn.Module,), {})(), optimizer, dataset_size=4_000, samples=140_000,
        batch=(16, 32), learning_rate="none", log=lambda line: None,
    )  # fmt: skip
    seen = []
    for part in run:
        run.backward(torch.nn.functional.mse_loss(x[part.indices] @ weights, y[part.indices]))
        run.step()
        if run.samples % 14_000 < 16 and run.noise_scale is not None:
            seen.append(run.noise_scale)
    assert seen[-1] > 3 * seen[0]


PROGRAM = """
import json, os, sys
import torch
from slurm_hadar.runtime import Training, join

rank, size, local = join("gloo", init_method="file://" + os.environ["STORE"])
torch.set_num_threads(1)
x = torch.load(sys.argv[1])
model = torch.nn.Linear(x.shape[1], 1, bias=False)
torch.nn.init.zeros_(model.weight)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
run = Training(model, optimizer, dataset_size=len(x), samples=40_000, batch=(40, 80))
for part in run:
    run.backward(-model(x[part.indices]).mean())
    run.step()
print("result", json.dumps(run.noise_scale), flush=True)
"""


def test_two_processes_measure_it_from_local_and_averaged_gradients(tmp_path: Path):
    torch.save(data(6_000), tmp_path / "x.pt")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    env = {
        **clean, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
        "GLOO_SOCKET_IFNAME": "lo", "STORE": str(tmp_path / "store"),
    }  # fmt: skip
    with Forks("torch", "torch._dynamo", "slurm_hadar.runtime.training") as forks:
        started = [
            forks.start(
                program, [tmp_path / "x.pt"], {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            )
            for rank in range(2)
        ]
        said = [process.communicate(timeout=90)[0] for process in started]
    scale = json.loads(said[0].split("result ")[1])
    assert scale == pytest.approx(TRUE, rel=0.4)
