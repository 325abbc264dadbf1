"""hadar profile: a real data loader measured with one and with two CPUs, in an allocation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trainings import SMALL_TORCH, digits_file

from slurm_hadar.profiles import cpu_table

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
HADAR = str(Path(sys.executable).parent / "hadar")
TRAIN = '''
import os, sys, time
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    """Decoding and cropping, in numpy: what makes a loader CPU-hungry."""
    def __len__(self):
        return 100_000
    def __getitem__(self, at):
        random = np.random.default_rng(at)
        image = random.random((3, 64, 64), dtype=np.float32)
        return np.ascontiguousarray(np.sqrt(image[:, 4:60, 4:60]))

with open(sys.argv[2], "a") as log:
    print(len(os.sched_getaffinity(0)), os.environ["SLURM_CPUS_PER_TASK"], sys.argv[1], file=log)
torch.set_num_threads(1)
weight = torch.zeros(3 * 56 * 56, requires_grad=True)
began, done = time.monotonic(), 0
for batch in DataLoader(Images(), batch_size=16, num_workers=int(sys.argv[1])):
    (batch.flatten(1) @ weight).sum().backward()
    done += len(batch)
    print(f"{done / (time.monotonic() - began):.1f} samples/s", flush=True)
'''


@pytest.fixture(scope="module")
def two_cpus():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two CPUs are needed: speeds on one and on two are compared")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:2])
    yield
    os.sched_setaffinity(0, before)


def profiled(sandbox, *words):
    out = sandbox.run(
        # There lies what data loaders leave behind when their training is stopped.
        "srun", f"--export=ALL,TMPDIR={sandbox.folder}", "-n1", "-c2", "--mem=1G", "--gres=gpu:1",
        HADAR, "profile", "--gpus", "1",
        "--seconds", "0.6", "--warmup", "0.2", *words, timeout_s=240.0,
    )  # fmt: skip
    return out


def test_a_data_loader_is_measured_at_few_points(sandbox, tmp_path, two_cpus):
    script, log, out = tmp_path / "train.py", tmp_path / "log", tmp_path / "table.json"
    script.write_text(TRAIN)
    data = tmp_path / "data"
    data.mkdir()
    (data / "images").write_bytes(b"0" * 3_000_000)
    text = profiled(
        sandbox, "--model", "images", "--out", str(out), "--json", "--dataset", str(data),
        "--samples", "1000", "--disk-mb-per-s", "0.001", "--mem-gb", "0.01",
        "--", *SMALL_TORCH.split(), str(script), "{cpus}", str(log),
    )  # fmt: skip
    result = json.loads(text)["result"]
    assert [p["cpus_per_gpu"] for p in result["points"]] == [1, 2]
    assert all(p["samples_per_s"] > 0 for p in result["points"])
    # In full: two numbers of CPUs at five amounts of memory.
    assert result["saved_min"] == pytest.approx(4 * result["spent_min"])
    assert log.read_text().split() == ["2"] * 3 + ["1"] * 3
    grid = cpu_table.load(out).grid("images", 1)
    assert grid.cpus.tolist() == [1.0, 2.0]
    # 3 MB: an eighth and a quarter of 10 MB do not hold them, and the disk is slow.
    assert grid.rate[0, 0] < 1.0 < grid.rate[0, 2] == grid.rate[0, 4]


def test_a_training_with_the_runtime_needs_to_print_nothing(sandbox, tmp_path, two_cpus):
    text = profiled(
        sandbox, "--model", "digits", "--cpus", "1", "--",
        *SMALL_TORCH.split(), str(ROOT / "examples" / "train_digits.py"), "--model", "resnet18",
        "--samples", "1e9", "--checkpoint", str(tmp_path / "a.pt"), "--data",
        str(digits_file(tmp_path)),
    )  # fmt: skip
    assert "1 CPUs per GPU: " in text and "1 points in" in text
    assert not list(tmp_path.glob("progress*"))


def test_one_that_says_nothing_is_reported(tmp_path):
    done = subprocess.run(
        [HADAR, "profile", "--model", "x", "--cpus", "1", "--gpus", "1", "--", "echo", "hello"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "it last said: hello" in done.stderr
    assert "Traceback" not in done.stderr
