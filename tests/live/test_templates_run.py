"""Each shipped template, rendered by the command and run by a real Slurm."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slurm_hadar import templates
from slurm_hadar.cli.main import app

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SAY = "import os, sys; print('ran', *sys.argv[1:], os.environ.get('SLURM_ARRAY_TASK_ID', ''))"
"""One print, so that the lines of several processes do not mix."""
DDP = """
import os, sys
from slurm_hadar.runtime import join
rank, ranks, local = join()
import torch
total = torch.tensor([rank + 1])
torch.distributed.all_reduce(total)
os.write(1, f"ran {sys.argv[1]} {rank} of {ranks}, sum {int(total)}\\n".encode())
"""
COPIES = f"{sys.executable} {ROOT}/examples/train_copies.py --samples 64 --batch 8 --round 1"


def cases(folder):
    """By template: its values, and the lines that its jobs must print."""
    say = f"command='{sys.executable}' -c \"{SAY}\" 'a b'"
    ddp = folder / "ddp.py"
    ddp.write_text(DDP)
    two = ["ran x 0 of 2, sum 3", "ran x 1 of 2, sum 3"]
    bin_ = Path(sys.executable).parent
    copies = [f"command={COPIES} --model ResNet-18", f"python={sys.executable}"]
    return {
        "plain": ([say, "gres=gpu:1"], ["ran a b "]),
        "pytorch_single": ([say, "gres=gpu:1", "time=10"], ["ran a b "]),
        "pytorch_ddp": (
            [f"command={sys.executable} {ddp} x", "nodes=1", "gpus_per_node=2"],
            two,
        ),
        # Two nodes: the launchers must find each other.
        "pytorch_torchrun": (
            [f"command={ddp} x", "nodes=2", "gpus_per_node=1", f"torchrun={bin_}/torchrun"],
            two,
        ),
        "forked_copies": (
            [*copies, "nodes=1", "gres=gpu:1"],
            ["ResNet-18: 64 samples"],
        ),
        "backfill_trainer": (
            [*copies, "partition=idle", "most_nodes=2", "gres=gpu:1", "hadar=model=ResNet-18"],
            ["ResNet-18: 64 samples"],
        ),
        "hyperparameter_array": (
            [say, "gres=gpu:1", "points=--lr=0.1; --lr=0.2 --run={task}", "at_once=2"],
            ["ran a b --lr=0.1 0", "ran a b --lr=0.2 --run=1 1"],
        ),
    }


@pytest.fixture(scope="module")
def submitted(sandbox, tmp_path_factory):
    """All at once: their jobs by template. Where processes would meet first, a daemon listens."""
    folder = tmp_path_factory.mktemp("templates")
    env = {**os.environ, **sandbox.env, "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    # torchrun leaves its folder of logs behind.
    env |= {"HADAR_EXCHANGE": "", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    jobs = {}
    for name, (values, lines) in cases(folder).items():
        made = folder / name
        made.mkdir()
        output = f"output={made}/out.%a" if name == "hyperparameter_array" else f"output={made}/out"
        words = [f"job_name={name}", output, *values]
        script = made / "job.sh"
        words = ["template", "render", "--output", str(script), name, "--", *words]
        rendered = CliRunner().invoke(app, words)
        assert rendered.exit_code == 0, rendered.output
        done = subprocess.run(
            ["sbatch", "--parsable", "--hold", script],
            env=env,
            cwd=made,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        jobs[name] = done.stdout.strip(), made, lines
    with contextlib.ExitStack() as daemons:
        for job, _, _ in jobs.values():
            daemon = daemons.enter_context(socket.socket())
            # Where somebody else listens there, that is as good.
            with contextlib.suppress(OSError):
                daemon.bind(("127.0.0.1", 10_000 + int(job) % 10_000))
                daemon.listen()
            sandbox.run("scontrol", "release", job)
        yield jobs


def test_every_template_has_a_case(submitted):
    assert sorted(submitted) == templates.names()


@pytest.mark.parametrize("name", templates.names())
def test_it_runs(submitted, sandbox, name):
    job, folder, lines = submitted[name]
    tasks = [f"{job}_{n}" for n in range(len(lines))] if "array" in name else [job]
    for task in tasks:
        sandbox.wait_state(task, ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), 240)
    outputs = [path.read_text() for path in sorted(folder.glob("out*"))]
    assert all(sandbox.job_state(task) == "COMPLETED" for task in tasks), outputs
    printed = "".join(outputs)
    assert all(line in printed for line in lines), printed
