"""A job as copies on three node types of speeds 4:2:1 against the fastest of the three alone.

``python -m benchmarks.copies_speed --seconds 120``

Both jobs run live on a sandbox, one after the other, with a model of 1.1 million parameters and the
same number of samples: as many as the fastest node trains in ``--seconds``. ``job_s`` is from
RUNNING to COMPLETED, the start of Python and MPI included; ``training_s`` is the training loop.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from slurm_hadar.exchange.progress import read_progress
from slurm_hadar.runtime import check_lineage
from slurm_hadar.runtime.samples import from_plain
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.templates import render

ROOT = Path(__file__).parents[1]
SPEEDS = {"v100": 4, "p100": 2, "k80": 1}
_NODES = {"v1": "v100", "p1": "p100", "k1": "k80"}
_SAMPLES = 1500


def sandbox(folder: Path, slowest: float) -> Sandbox:
    """Three nodes of one GPU each, at exactly ``slowest`` x 4, 2, 1 samples/s."""
    layout = Layout(tuple(NodeGroup(name[0], 1, kind, 1) for name, kind in _NODES.items()))
    rates = {"wide": {kind: {1: slowest * speed} for kind, speed in SPEEDS.items()}}
    box = Sandbox.up(folder, layout, options=SandboxOptions(base_rates=rates))
    # The sandbox blurs what it is given; here the speeds are exact.
    content = json.loads(box.true_rates.read_text())
    content["rates"] = {
        "wide": {kind: {"1": slowest * speed} for kind, speed in SPEEDS.items()},
    }
    box.true_rates.write_text(json.dumps(content))
    return box


def job(box: Sandbox, folder: Path, nodes: list[str], samples: int, longest_s: float) -> dict:  # type: ignore[type-arg]
    """Times in s of one job on ``nodes``, and what its lineage and its output say."""
    folder.mkdir()
    (folder / "tmp").mkdir()
    script = render(
        "forked_copies",
        {
            "job_name": "copies",
            "output": str(folder / "out"),
            "nodes": len(nodes),
            "gres": "gpu:1",
            "sbatch": [f"--nodelist={','.join(nodes)}"],
            "python": sys.executable,
            "command": [
                sys.executable,
                str(ROOT / "examples" / "train_copies.py"),
                *("--model", "wide", "--hidden", "1000", "--samples", str(samples)),
                *("--data", str(folder.parent / "digits.npy"), "--lr", "0.02"),
                *("--checkpoint", str(folder / "c.pt"), "--lineage", str(folder / "l.json")),
            ],
        },
    )
    export = f"ALL,HADAR_EXCHANGE={box.exchange},HADAR_CONTROLLER_UID={os.getuid()}"
    export += ",HADAR_PROGRESS_S=0.5,OMP_NUM_THREADS=1"
    name = box.run("sbatch", "--parsable", f"--export={export}", text=script).strip()
    box.wait_state(name, ("RUNNING",), 60)
    began = time.monotonic()
    state = box.wait_state(name, ("COMPLETED", "FAILED", "CANCELLED"), longest_s)
    took = time.monotonic() - began
    output = (folder / "out").read_text()
    if state != "COMPLETED":
        raise SystemExit(f"the job ended as {state}:\n{output}")
    said = read_progress(box.exchange, name, os.getuid())
    assert said is not None and said.finished
    content = json.loads((folder / "l.json").read_text())
    segments = from_plain(content["segments"])
    return {
        "nodes": nodes,
        "job_s": took,
        "training_s": said.time - said.started,
        "lineage": check_lineage(segments, _SAMPLES, samples=samples, seed=0) or "exact",
        "rounds": content["rounds"],
        "parameters": content["parameters"],
        "output": output.strip(),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the fastest node alone")
    parser.add_argument("--slowest", type=float, default=64.0, help="samples/s of the slowest node")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    samples = int(args.seconds * 4 * args.slowest)
    with tempfile.TemporaryDirectory(prefix="hadar-copies-") as name:
        folder = Path(name)
        with sandbox(folder / "box", args.slowest) as box:
            limit = 3 * args.seconds + 60
            found = {
                "copies": job(box, folder / "copies", list(_NODES), samples, limit),
                "alone": job(box, folder / "alone", ["v1"], samples, limit),
            }
    gains = {k: found["alone"][k] / found["copies"][k] for k in ("job_s", "training_s")}
    if args.json:
        result = {**found, "gain_job": gains["job_s"], "gain_training": gains["training_s"]}
        print(json.dumps({"version": 1, "command": "benchmarks.copies_speed", "result": result}))
        return
    print(f"{samples} samples, {found['copies']['parameters']} parameters; ideal gain 1.75")
    for key, row in found.items():
        print(
            f"{key}: job {row['job_s']:.1f} s, training {row['training_s']:.1f} s, "
            f"{row['rounds']} rounds; lineage {row['lineage']}; {row['output']}"
        )
    print(f"gain: job {gains['job_s']:.2f}, training {gains['training_s']:.2f}")


if __name__ == "__main__":
    main()
