"""One tick on a large cluster, by its parts.

``python -m benchmarks.tick --nodes 2000 --jobs 5000 [--wide 100] [--slurm /opt/slurm-24.11]
[--accounting] [--watched 10]``

A real slurmctld with that many defined nodes (a few have a slurmd), managed jobs on all of them,
and that many managed jobs that wait. ``--wide``: the nodes of most of those that fill the cluster;
Slurm needs minutes to start 10,000 jobs of one node. ``--accounting``: with slurmdbd and
priority/multifactor (age, fair share). The first tick decides and sends lists of
partitions to the jobs that are next; the second should send nothing. Before the third ten running
jobs have ended. ``--watched``: then so many ticks with everything that watches and so many without,
in turn: metrics, GPU samples of all running jobs, what reports need, the policy for GPUs held
idle, and the socket, which a ``hadar top`` asks.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.many_jobs import comment
from benchmarks.optin.site import MULTIFACTOR
from benchmarks.watched_ticks import watched
from slurm_hadar import config as configuration
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.metrics.export import MetricsExporter
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.sandbox.cluster import Sandbox
from slurm_hadar.sandbox.layout import Layout, NodeGroup
from slurm_hadar.sandbox.options import SandboxOptions
from slurm_hadar.slurm.cluster import Cluster, open_cluster

_TYPES = ("v100", "p100", "k80")
_WAITING = "gpu"
"""The partition of the jobs that wait."""
_LONGEST_S = 1200.0
_MOST_JOBS = 100_000
_AT_A_TIME = 4
_SETTLE_S = 5.0
_NARROW = 50
"""Nodes that jobs of one node take at least."""


def measure(
    nodes: int,
    jobs: int,
    gpus_per_node: int,
    wide: int = 1,
    prefix: Path | None = None,
    pairs: int = 0,
    accounting: bool = False,
) -> dict[str, object]:
    """Times in s and what three ticks send, one after the other, then ``pairs`` ticks of each kind.

    ``prefix``: of a Slurm that PySlurm fits; None: that of PATH, whose jobs sbatch submits.
    ``accounting``: with slurmdbd and priority/multifactor.
    """
    with tempfile.TemporaryDirectory(prefix="hadar-tick-") as folder:
        each = max(1, (nodes - len(_TYPES)) // len(_TYPES))
        groups = [NodeGroup(f"{kind[0]}live", 1, kind, gpus_per_node) for kind in _TYPES]
        groups += [
            NodeGroup(f"{kind[0]}def", each, kind, gpus_per_node, started=False) for kind in _TYPES
        ]
        layout = Layout(groups=tuple(groups))
        # A heartbeat lasts three intervals, and reading may take longer than three of a sandbox.
        settings: dict[str, dict[str, str | float]] = {
            "slurm": {"backend": "cli"},
            "controller": {"interval_s": 60.0},
        }
        options = SandboxOptions(
            mode="act", settings=settings, wait_s=_LONGEST_S, with_accounting=accounting
        )
        with Sandbox.up(Path(folder) / "box", layout, prefix, options) as box:
            site = configuration.load(box.config_path)
            cluster = _awake(open_cluster(site.slurm))
            began = time.perf_counter()
            with _few_nodes(box):
                _submit(box, jobs, (1, 1), _WAITING, prefix)
            # They wait for their nodes to power up, which is as good as running to the controller.
            for kind in _TYPES:
                _fill(box, each + 1, gpus_per_node, wide, kind, prefix)
            _until_full(box)
            box.run("scontrol", "update", f"PartitionName={_WAITING}", "State=UP")
            time.sleep(_SETTLE_S)
            submitted = time.perf_counter() - began
            store = Store.open(site.site.state_dir)
            rates = open_rates(site, store.connection)
            controller = Controller(site, cluster, store, rates, os.getuid())
            metrics = MetricsExporter(site)
            first, second = (_timed(controller, box, metrics) for _ in range(2))
            _end_ten(box, cluster)
            third = _timed(controller, box, metrics)
            seen_by = watched(controller, site, pairs) if pairs else {}
            store.close()
            return {
                "nodes": 3 * (each + 1),
                "gpus": 3 * (each + 1) * gpus_per_node,
                "jobs": jobs,
                "submit_s": submitted,
                "backend": cluster.backend,
                "priority": "priority/multifactor" if accounting else "priority/basic",
                "first_tick": first,
                "second_tick": second,
                "third_tick": third,
                **seen_by,
                "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }


@contextmanager
def _few_nodes(box: Sandbox) -> Iterator[None]:
    """Inside: a slurm.conf with one node of each group; afterwards all. The partition of the jobs
    that wait is down at first."""
    files = (box.conf, box.conf.parent / "gres.conf")
    box.stop_slurmctld()
    whole = {file: file.read_text() for file in files}
    # Or slurmctld looks through all nodes at each submission.
    text = whole[box.conf].replace("sched_min_interval=0", "sched_min_interval=0,defer")
    text = text.replace("MaxJobCount=50000", f"MaxJobCount={_MOST_JOBS}")
    down = re.compile(rf"^(PartitionName={_WAITING} .*State=)UP", re.M)
    whole[box.conf] = down.sub(r"\1DOWN", text)
    if box.has_accounting:
        basic, wanted = "PriorityType=priority/basic", "\n".join(MULTIFACTOR)
        whole[box.conf] = whole[box.conf].replace(basic, wanted)
    for file in files:
        file.write_text(re.sub(r"def\[1-\d+\]", "def1", whole[file]))
    box.start_slurmctld()
    yield
    box.stop_slurmctld()
    for file in files:
        file.write_text(whole[file])
    box.start_slurmctld()


def _fill(
    box: Sandbox, nodes: int, gpus: int, wide: int, partition: str, prefix: Path | None
) -> None:
    """Jobs of ``wide`` nodes, and of one node for the rest."""
    many = max(0, nodes - _NARROW) // wide if wide > 1 else 0
    _submit(box, nodes - many * wide, (1, gpus), partition, prefix)
    _submit(box, many, (wide, gpus), partition, prefix)


def _submit(
    box: Sandbox, jobs: int, size: tuple[int, int], partition: str, prefix: Path | None
) -> None:
    """Through sbatch itself, several at a time; through PySlurm where there is one.

    ``size``: nodes, and GPUs on each.
    """
    script = box.conf.parent / "waits.sh"
    script.write_text("#!/bin/bash\nsleep 7200\n")
    nodes, gpus = size
    if prefix is not None:
        words = [sys.executable, "-m", "benchmarks.many_jobs", str(script)]
        words += [str(jobs), str(nodes), str(gpus), partition]
        subprocess.run(words, env=box.env, check=True)
        return

    def some(numbers: range) -> None:
        for number in numbers:
            words = [f"-N{nodes}", f"--gres=gpu:{gpus}", "-t", "1-0", "-o", "/dev/null"]
            words += ["-p", partition]
            box.run("sbatch", *words, f"--comment={comment(number, nodes * gpus)}", str(script))

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(some, (range(n, jobs, _AT_A_TIME) for n in range(_AT_A_TIME))))


def _awake(cluster: Cluster) -> Cluster:
    """The cluster as if its nodes without a slurmd had booted: no plan uses one that has not."""
    read = cluster.read_nodes
    nodes = lambda: [replace(node, asleep=False) for node in read()]  # noqa: E731
    cluster.read_nodes = nodes  # type: ignore[method-assign]
    return cluster


def _end_ten(box: Sandbox, cluster: Cluster) -> None:
    runs = [job.id for job in cluster.read_jobs() if job.state is JobState.RUNNING][:10]
    box.run("scancel", *runs)
    time.sleep(_SETTLE_S)


def _requests(box: Sandbox) -> int:
    """RPCs that slurmctld has answered so far, of all users."""
    shown = box.run("sdiag")
    by_user = shown.partition("statistics by user")[2].partition("Pending RPC")[0]
    return sum(int(count) for count in re.findall(r"count:(\d+)", by_user))


def _until_full(box: Sandbox) -> None:
    end = time.monotonic() + _LONGEST_S
    while box.run("squeue", "-h", "-t", "PD", "-p", ",".join(_TYPES)):
        if time.monotonic() > end:
            raise HadarError(f"Slurm did not start a job on each node within {_LONGEST_S:g} s")
        time.sleep(1.0)


def _timed(controller: Controller, box: Sandbox, metrics: MetricsExporter) -> dict[str, object]:
    requests, began = _requests(box), time.perf_counter()
    report: TickReport = controller.tick()
    total_s = time.perf_counter() - began
    metrics.learn(report, controller.store, controller.backoff.interval_s)
    return {
        "total_s": total_s,
        "metrics_s": time.perf_counter() - began - total_s,
        # Less the one that asks.
        "rpcs": _requests(box) - requests - 1,
        "read_s": report.read_s,
        "decide_s": report.decide_s,
        "act_s": report.act_s,
        "placed": len(report.plan.placements),
        "changes_sent": len(report.done),
        "queries": dict(report.queries),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--gpus-per-node", type=int, default=4)
    parser.add_argument("--wide", type=int, default=1)
    parser.add_argument("--slurm", type=Path, help="prefix of a Slurm that this PySlurm fits")
    parser.add_argument("--accounting", action="store_true", help="slurmdbd, priority/multifactor")
    parser.add_argument("--watched", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.nodes, args.jobs, args.gpus_per_node, args.wide, args.slurm,
                    args.watched, args.accounting)  # fmt: skip
    if args.json:
        print(json.dumps({"version": 1, "command": "benchmarks.tick", "result": found}))
        return
    print(f"{found['nodes']} nodes, {found['gpus']} GPUs, {found['jobs']} jobs wait, "
          f"{found['backend']}, {found['priority']}")  # fmt: skip
    for name in ("first_tick", "second_tick", "third_tick"):
        tick = found[name]
        assert isinstance(tick, dict)
        print(
            f"{name}: {tick['total_s']:.2f} s = read {tick['read_s']:.2f} + decide "
            f"{tick['decide_s']:.2f} + act {tick['act_s']:.2f}, then metrics "
            f"{tick['metrics_s']:.3f}; {tick['placed']} placed, "
            f"{tick['changes_sent']} changes sent, {tick['rpcs']} RPCs, queries {tick['queries']}"
        )
    if args.watched:
        print(
            f"{args.watched} ticks each: {found['alone_cpu_s']:.3f} CPU-seconds without and "
            f"{found['watched_cpu_s']:.3f} with all that watches (medians), "
            f"{100 * float(str(found['share_cpu'])):+.1f}% (median of the pairs; "
            f"{100 * float(str(found['share_clock'])):+.1f}% by the clock); "
            f"{found['sampled']} jobs with samples, {found['answers']} answers"
        )
    print(f"peak memory of the controller: {found['peak_memory_mb']:.0f} MB")


if __name__ == "__main__":
    main()
