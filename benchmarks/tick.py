"""One tick on a large cluster, by its parts.

``python -m benchmarks.tick --nodes 2000 --jobs 5000``

A real slurmctld with that many defined nodes (a few have a slurmd), a managed job on each of them,
and that many managed jobs that wait. The first tick decides and sends lists of partitions to the
jobs that are next; the second should send nothing.
"""

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm_hadar import config as configuration
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.report import Report
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.slurm.cluster import Cluster, open_cluster

_MODELS = ("resnet18", "resnet50", "lm", "transformer", "recommendation", "cyclegan", "a3c")
_TYPES = ("v100", "p100", "k80")
_LONGEST_S = 600.0


def measure(nodes: int, jobs: int, gpus_per_node: int) -> dict[str, object]:
    """Times in s and numbers of queries of two ticks, one after the other."""
    with tempfile.TemporaryDirectory(prefix="hadar-tick-") as folder:
        each = max(1, (nodes - len(_TYPES)) // len(_TYPES))
        groups = [NodeGroup(f"{kind[0]}live", 1, kind, gpus_per_node) for kind in _TYPES]
        groups += [
            NodeGroup(f"{kind[0]}def", each, kind, gpus_per_node, started=False) for kind in _TYPES
        ]
        with Sandbox.up(Path(folder) / "box", Layout(groups=tuple(groups)), mode="act") as box:
            site = configuration.load(box.config_path)
            cluster = open_cluster(site.slurm)
            began = time.perf_counter()
            # They wait for their nodes to power up, which is as good as running to the controller.
            _submit(cluster, 3 * (each + 1), f"--gres=gpu:{gpus_per_node}", gpus_per_node)
            _until_full(cluster)
            _submit(cluster, jobs, "--gres=gpu:1", 1)
            submitted = time.perf_counter() - began
            store = Store.open(site.site.state_dir)
            rates = open_rates(site, store.connection)
            controller = Controller(site, cluster, store, rates, os.getuid())
            first, second = _timed(controller), _timed(controller)
            store.close()
            return {
                "nodes": 3 * (each + 1),
                "gpus": 3 * (each + 1) * gpus_per_node,
                "jobs": jobs,
                "submit_s": submitted,
                "backend": cluster.backend,
                "first_tick": first,
                "second_tick": second,
            }


def _submit(cluster: Cluster, jobs: int, request: str, least: int) -> None:
    environment = dict(os.environ)

    def one(number: int) -> str:
        model = _MODELS[number % len(_MODELS)]
        comment = (
            f"[hadar1 model={model} types=any gpus={least}-{least + number % 4} batch=64 "
            f"samples={20_000 + 4 * number} checkpoint=yes]"
        )
        options = [request, "-t", "1-0", "-o", "/dev/null", "--comment", comment]
        return cluster.submit("#!/bin/bash\nsleep 7200\n", options, environment)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(jobs)))


def _until_full(cluster: Cluster) -> None:
    end = time.monotonic() + _LONGEST_S
    while any(job.state is JobState.PENDING for job in cluster.read_jobs()):
        if time.monotonic() > end:
            raise HadarError(f"Slurm did not start a job on each node within {_LONGEST_S:g} s")
        time.sleep(1.0)


def _timed(controller: Controller) -> dict[str, object]:
    began = time.perf_counter()
    report: Report = controller.tick()
    return {
        "total_s": time.perf_counter() - began,
        "read_s": report.read_s,
        "decide_s": report.decide_s,
        "act_s": report.act_s,
        "placed": len(report.plan.placements),
        "changes_sent": len(report.done),
        "queries": dict(report.queries),
    }


def main() -> None:
    """Print the figures."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--nodes", type=int, default=2000)
    words.add_argument("--jobs", type=int, default=5000)
    words.add_argument("--gpus-per-node", type=int, default=4)
    words.add_argument("--json", action="store_true")
    args = words.parse_args()
    found = measure(args.nodes, args.jobs, args.gpus_per_node)
    if args.json:
        print(json.dumps({"version": 1, "command": "benchmarks.tick", "result": found}))
        return
    print(f"{found['nodes']} nodes, {found['gpus']} GPUs, {found['jobs']} jobs wait, "
          f"{found['backend']}")  # fmt: skip
    for name in ("first_tick", "second_tick"):
        tick = found[name]
        assert isinstance(tick, dict)
        print(
            f"{name}: {tick['total_s']:.2f} s = read {tick['read_s']:.2f} + decide "
            f"{tick['decide_s']:.2f} + act {tick['act_s']:.2f}; {tick['placed']} placed, "
            f"{tick['changes_sent']} changes sent, queries {tick['queries']}"
        )


if __name__ == "__main__":
    main()
