"""Several processes over gloo: one order, one agreement, one checkpoint."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from forks import Forks

from slurm_hadar.runtime import check_lineage, lineage

N = 50

PROGRAM = """
import json, os, sys, time
import torch
from slurm_hadar.runtime import Training, join

path, samples, pause, wrap = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
rank, size, local = join("gloo", init_method="file://" + os.environ["STORE"])
torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(50, 4)
y = x.sum(1, keepdim=True)
model = torch.nn.Linear(4, 1)
if size > 1 and wrap == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
run = Training(model, optimizer, dataset_size=50, samples=samples, batch=8, per_gpu=3, path=path)
mine = []
for batch in run:
    if batch.weight:
        mine += batch.indices.tolist()
    run.backward(torch.nn.functional.mse_loss(model(x[batch.indices]), y[batch.indices]))
    run.step()
    time.sleep(pause)
    print("step", run.samples, flush=True)
print("result", json.dumps([run.samples, run.gpus, mine]), flush=True)
"""


@pytest.fixture(scope="module")
def start():
    """Starts the processes of a training."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}

    def started(folder: Path, ranks: int, samples: int, pause: float = 0.0, wrap: str = "ddp"):
        program = folder / "train.py"
        program.write_text(PROGRAM)
        store = folder / f"store.{time.monotonic_ns()}"
        several = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "STORE": str(store),
        }
        return [
            forks.start(
                program,
                [folder / "c.pt", samples, pause, wrap],
                {**clean, **several, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]

    with Forks("torch", "torch._dynamo", "slurm_hadar.runtime.training") as forks:
        yield started


def results(processes, code: int = 0):
    found = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        found += [json.loads(r.split(" ", 1)[1]) for r in out.splitlines() if r[:6] == "result"]
    return found


def weights(path: Path) -> torch.Tensor:
    return torch.load(path, weights_only=True)["parts"]["model"]["weight"]


@pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this build of torch lacks gloo"
)
def test_two_processes_train_like_one_and_resume_as_one(start, tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    results(start(alone, 1, 120))
    # 58: the end of a global batch, so that both ways take the same steps.
    first = results(start(together, 2, 58))
    assert [r[:2] for r in first] == [[58, 2], [58, 2]]
    given_to_loops = first[0][2] + first[1][2]
    results(start(together, 1, 120))
    segments = lineage(together / "c.pt")
    assert check_lineage(segments, N, samples=120, seed=0) is None
    assert len(given_to_loops) == 58 and set(given_to_loops) == set(range(N))
    assert [s.gpus for s in segments][:2] == [2, 2]
    assert torch.allclose(weights(alone / "c.pt"), weights(together / "c.pt"), atol=1e-5)


def test_a_signal_to_one_process_saves_and_ends_all_at_the_same_step(start, tmp_path):
    processes = start(tmp_path, 2, 10**6, pause=0.01)
    assert processes[1].stdout is not None
    for line in processes[1].stdout:
        if line.startswith("step") and int(line.split()[1]) > 100:
            break
    processes[1].send_signal(signal.SIGTERM)
    results(processes, code=143)
    segments = lineage(tmp_path / "c.pt")
    assert check_lineage(segments, N, seed=0) is None
    assert segments[-1].epoch * N + segments[-1].stop > 100


def test_processes_that_would_drift_apart_are_refused(start, tmp_path):
    for process in start(tmp_path, 2, 60, wrap="bare"):
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "wrap the model in torch.nn.parallel.DistributedDataParallel" in err
