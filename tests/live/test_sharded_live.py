"""A model in shards in a real Slurm job, by torchrun: on four GPUs, then two, then three."""

import sys
import time
from pathlib import Path

import pytest

from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.attempts import attempts_folder
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.templates import render

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

SIZE, EPOCHS, SHAPES = 96, 3, (4, 2, 3)

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from slurm_hadar.runtime import Session, join

folder, restart = Path(sys.argv[1]), os.environ.get("SLURM_RESTART_COUNT", "0")
torch.set_num_threads(1)
rank, size, local = join("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = DistributedSampler(range(96), size, rank)
loader = DataLoader(range(96), 12 // size, sampler=sampler)
session = Session(folder / "run.pt", model=model, optimizer=optimizer, background=True, every_s=1,
                  name="ResNet-18")
for epoch in session.epochs(3):
    sampler.set_epoch(epoch)
    for which in session.batches(loader):
        with (folder / f"read.{restart}.{size}.{rank}").open("a") as seen:
            print(epoch, *which.tolist(), file=seen, flush=True)
        x = torch.randn(len(which), 6)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(1.0)  # a step that lets the test move the job in the middle of an epoch
print("done", session.samples, size, flush=True)
"""


def steps(folder: Path, attempt: int) -> int:
    """Batches that the first process of an attempt has read."""
    found = list(folder.glob(f"read.{attempt}.*.0"))
    return len(found[0].read_text().splitlines()) if found else 0


def test_on_four_then_two_then_three_gpus_each_sample_goes_in_once(make_sandbox, tmp_path):
    # Time to leave on a slow machine: what a kill undoes is trained twice.
    box = make_sandbox(layout=Layout((NodeGroup("n", 1, "v100", 4),)), kill_wait_s=60)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    script = render(
        "pytorch_torchrun",
        {
            "job_name": "sharded",
            "output": str(folder / "out"),
            "nodes": 1,
            "gpus_per_node": SHAPES[0],
            "torchrun": str(Path(sys.executable).parent / "torchrun"),
            "command": [str(folder / "train.py"), str(folder)],
        },
    )
    # torchrun leaves its folder of logs behind.
    export = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)}
    words = ",".join(["ALL", *(f"{key}={value}" for key, value in export.items())])
    job = box.run("sbatch", "--parsable", f"--export={words}", text=script).strip()
    for attempt, gpus in enumerate(SHAPES[1:]):
        until = time.monotonic() + 300
        while steps(folder, attempt) < 3:
            output = (folder / "out").read_text() if (folder / "out").exists() else ""
            assert time.monotonic() < until and box.job_state(job) != "FAILED", output
            time.sleep(0.05)
        box.run("scontrol", "requeue", job)
        box.wait_state(job, ("PENDING",))
        # Not in the second of the requeue, in which it would fail.
        box.run("scontrol", "update", f"JobId={job}", f"Gres=gpu:{gpus}", "StartTime=now+2")
    box.wait_state(job, ("COMPLETED",), 300)
    said = (folder / "out").read_text()
    assert f"done {EPOCHS * SIZE} 3" in said, said
    assert "(attempt 2, 2 GPUs)" in said and "(attempt 3, 3 GPUs)" in said
    read: dict[str, list[int]] = {}
    for path in folder.glob("read.*"):
        for line in path.read_text().splitlines():
            epoch, *which = line.split()
            read.setdefault(epoch, []).extend(map(int, which))
    assert {epoch: sorted(which) for epoch, which in read.items()} == {
        str(epoch): list(range(SIZE)) for epoch in range(EPOCHS)
    }
    # Each attempt is that of a start by Slurm, not of torchrun.
    (attempt,) = attempts_folder(folder / "run.pt").iterdir()
    assert attempt.name.startswith(f"3.{job}.2.")
    content = checkpoint.read(folder / "run.pt")
    assert len(content["shards"]["files"]) == SHAPES[2] + 1
