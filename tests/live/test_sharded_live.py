"""Shapes on a real Slurm, by the controller's own moves: a model in shards that is resharded, and
a job that has its nodes alone."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from dictated import TRAINING, Dictated
from shared_steps import HBATCH

from slurm_hadar.domain.job import JobState
from slurm_hadar.exchange.heartbeat import write_heartbeat
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.attempts import attempts_folder
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.templates import render

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

SIZE, EPOCHS = 96, 3
SHAPES = (("k80", 2), ("p100", 3))
LAYOUT = Layout(
    (NodeGroup("v", 2, "v100", 4), NodeGroup("p", 1, "p100", 3), NodeGroup("k", 2, "k80", 2))
)

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from slurm_hadar.runtime import Session, join

folder, plain = Path(sys.argv[1]), sys.argv[2:] == ["plain"]
restart = os.environ.get("SLURM_RESTART_COUNT", "0")
torch.set_num_threads(1)
rank, size, local = (0, 1, 0) if plain else join("gloo")
torch.manual_seed(0)
x = torch.randn(96, 6, dtype=torch.float64)
model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1)).double()
if not plain:
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = DistributedSampler(range(96), size, rank)
loader = DataLoader(range(96), 12 // size, sampler=sampler)
session = Session(folder / "run.pt", model=model, optimizer=optimizer, background=True, every_s=1,
                  name="ResNet-18") if not plain else None
for epoch in session.epochs(3) if session else range(3):
    sampler.set_epoch(epoch)
    for which in session.batches(loader) if session else loader:
        with (folder / f"read.{restart}.{size}.{rank}").open("a") as seen:
            print(epoch, *which.tolist(), file=seen, flush=True)
        model(x[which]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        # Until it is moved, in the middle of an epoch; then it is quick.
        time.sleep(0.0 if plain or restart == "1" else 1.0)
whole = StateDictOptions(full_state_dict=not plain, cpu_offload=not plain)
state = get_model_state_dict(model, options=whole)
if rank == 0:
    torch.save(state, folder / "final.pt")
    print("done", SIZE_OF_ALL, size, flush=True)
""".replace("SIZE_OF_ALL", "session.samples if session else 288")

ALONE = """#!/bin/bash
#HADAR types=any gpus=4,8 samples=1000000 checkpoint=yes
exec {python} {training} {folder} 1000000 0
"""


@pytest.fixture(scope="module")
def site(slurm_prefix, tmp_path_factory):
    settings = {
        "guards": {"min_between_moves_s": 0.0},
        "moving": {"ack_wait_s": 120.0, "settle_s": 2.0},
        "controller": {"interval_s": 1.0},
    }
    # Time to leave on a slow machine: what a kill undoes is trained twice.
    found = Dictated(
        tmp_path_factory.mktemp("shapes"), settings, LAYOUT,
        slurm_prefix=slurm_prefix, kill_wait_s=60,
    )  # fmt: skip
    yield found
    found.close()


def submit(site, script, *words, **environment):
    write_heartbeat(site.config.site.exchange_dir, "act", 5.0)
    path = site.folder / f"job{len(site.want)}.sh"
    path.write_text(script)
    done = subprocess.run(
        [HBATCH, "--parsable", *words, str(path)], env={**site.env, **environment},
        cwd=site.folder, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def steps(folder: Path, attempt: int) -> int:
    """Batches that the first process of an attempt has read."""
    found = list(folder.glob(f"read.{attempt}.*.0"))
    return len(found[0].read_text().splitlines()) if found else 0


def test_a_model_in_shards_is_moved_to_another_number_of_processes(site):
    import torch

    folder = site.folder / "run"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    script = render(
        "pytorch_torchrun",
        {
            "job_name": "sharded",
            "output": str(folder / "out"),
            "nodes": 1,
            "gpus_per_node": SHAPES[0][1],
            "torchrun": str(Path(sys.executable).parent / "torchrun"),
            "command": [str(folder / "train.py"), str(folder)],
            "hadar": ["types=any", "gpus=2,3", f"samples={SIZE * EPOCHS}", "checkpoint=yes"],
        },
    )
    # torchrun leaves its folder of logs behind.
    there = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)}
    id_, _ = submit(site, script, "-p", "k80,p100", **there)
    for attempt, (kind, gpus) in enumerate(SHAPES):
        site.want[id_] = {kind: gpus}
        site.until(lambda kind=kind: site.patient_tick() and site.where(id_) == {kind}, 400)
        assert site.job(id_).gpu_count == gpus
        if attempt < len(SHAPES) - 1:
            # With checkpoints behind it, and in the middle of an epoch of eight steps.
            site.until(lambda n=attempt: site.patient_tick() and steps(folder, n) >= 3, 400)
    site.until(lambda: site.patient_tick() and site.job(id_).state is JobState.FINISHED, 400)
    said = (folder / "out").read_text()
    assert site.job(id_).slurm_state == "COMPLETED" and f"done {EPOCHS * SIZE} 3" in said, said
    assert "(attempt 2, 3 GPUs)" in said, said
    moves = [entry for entry in site.history(id_) if entry.kind == "move"]
    assert len(moves) == 1 and moves[0].shown, moves
    read: Counter[tuple[int, int]] = Counter()
    for path in folder.glob("read.*"):
        for line in path.read_text().splitlines():
            epoch, *which = map(int, line.split())
            read.update((epoch, one) for one in which)
    # Each sample of each epoch once: none is left out or trained twice.
    assert read == Counter((epoch, one) for epoch in range(EPOCHS) for one in range(SIZE))
    # Each attempt is that of a start by Slurm, not of torchrun.
    (own_folder,) = attempts_folder(folder / "run.pt").iterdir()
    assert own_folder.name.startswith(f"2.{id_}.1.")
    assert len(checkpoint.read(folder / "run.pt")["shards"]["files"]) == SHAPES[-1][1] + 1
    plain = site.folder / "plain"
    plain.mkdir()
    subprocess.run([sys.executable, folder / "train.py", plain, "plain"], check=True, timeout=240)
    moved, never = (torch.load(one / "final.pt") for one in (folder, plain))
    assert moved.keys() == never.keys()
    for name in never:
        torch.testing.assert_close(moved[name], never[name], rtol=0, atol=1e-9)


def test_a_job_that_has_its_nodes_alone_is_moved_to_whole_nodes(site):
    script = ALONE.format(python=sys.executable, training=TRAINING, folder=site.folder)
    request = ("-N2", "--exclusive", "--gpus-per-node=2", "-p", "k80,v100")
    id_, _ = submit(site, script, *request, "-o", str(site.folder / "%j.out"))
    site.want[id_] = {"k80": 4}
    site.until(lambda: site.patient_tick() and site.trains(id_))
    before = site.job(id_)
    assert set(before.gpus) == {"k1", "k2"} and before.whole_nodes
    site.want[id_] = {"v100": 8}
    site.until(lambda: site.patient_tick() and site.where(id_) == {"v100"}, 180)
    there = site.job(id_)
    assert there.gpus == {"v1": {"v100": 4}, "v2": {"v100": 4}}
    # What it asks for is as its owner wrote it.
    assert (there.request, there.node_count, there.tasks) == (before.request, 2, before.tasks)
    site.until(lambda: site.trains(id_, 1))
    # Some CPUs of one of its nodes are another's: these are no whole nodes.
    other = site.slurm.submit("#!/bin/sh\nexec sleep 600\n", ["-o", "/dev/null", "-w", "k1"])
    site.until(lambda: site.job(other).state is JobState.RUNNING)
    site.want[id_] = {"k80": 4}
    site.said.clear()
    for _ in range(3):
        site.patient_tick()
    assert site.where(id_) == {"v100"} and site.job(id_).restarts == 1
    site.ended(other)
    site.until(lambda: site.patient_tick() and site.where(id_) == {"k80"}, 180)
    assert set(site.job(id_).gpus) == {"k1", "k2"} and site.job(id_).restarts == 2
    attempts = [(word, restarts) for word, restarts, _ in site.attempts(id_)]
    site.until(lambda: site.trains(id_, 2))
    assert [a for a in attempts if a[0] == "begin"][:2] == [("begin", 0), ("begin", 1)]
    site.ended(id_)
