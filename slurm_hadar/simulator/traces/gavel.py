"""Gavel's traces with their throughputs in the same file, as CSV.

Columns: job_id, arrival_s, model, batch_size (of one worker), scale_factor (GPUs), total_steps, and
thr_TYPE for each GPU type: the whole job's steps/s on scale_factor GPUs of that type. Optional:
priority_weight, and those of ``queue_columns.py``. Others are not looked at.
"""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.profiles.sizes import gradient_bytes
from slurm_hadar.simulator.counts import Elastic, columns, spread_over
from slurm_hadar.simulator.traces.csv_rows import LATEST_S, CsvRow, rows
from slurm_hadar.simulator.traces.queue_columns import queued
from slurm_hadar.simulator.workload import Workload

NEEDED = ("job_id", "arrival_s", "scale_factor", "total_steps")


def read(text: str, name: str, types: Sequence[str], elastic: bool = False) -> Workload:
    """A workload for these types; work is in steps.

    ``elastic``: also at 1, 2, 4 and 8 GPUs where the shipped table has the job, at most 4 times
    the request. Raises UsageError naming the file and the line.
    """
    needed = [*NEEDED, *(f"thr_{kind}" for kind in types)]
    if elastic:
        needed += ["model", "batch_size"]
    found = list(rows(text, name, needed))
    requests = np.array([row.whole("scale_factor") for row in found], dtype=np.int64)
    fixed = np.array([[row.number(f"thr_{kind}") for kind in types] for row in found])
    counts = columns(requests, elastic)
    jobs = [_elastic(row) if elastic else None for row in found]
    return Workload(
        name=name,
        types=tuple(types),
        counts=counts,
        ids=unique_ids(found),
        arrival_s=np.array([row.number("arrival_s", most=LATEST_S) for row in found]),
        request=requests,
        total=np.array([row.number("total_steps", above=True) for row in found]),
        rate=spread_over(fixed.reshape(len(found), len(types)), requests, counts, types, jobs),
        weight=np.array([_weight(row) for row in found]),
        models=tuple(row.word("model") for row in found),
        max_nodes=np.full(len(found), 1_000_000, dtype=np.int64),
        cpus_per_gpu=np.zeros(len(found)),
        mem_per_gpu_mb=np.zeros(len(found)),
        gradients=np.array([gradient_bytes(row.word("model")) for row in found]),
        lines=tuple(row.line for row in found),
        queue=queued(found, types),
    )


def unique_ids(found: Sequence[CsvRow]) -> tuple[str, ...]:
    """The column job_id. Raises UsageError for an empty or repeated one."""
    seen: dict[str, int] = {}
    for row in found:
        id_ = row.name("job_id")
        if id_ in seen:
            raise row.error(f"job_id {id_} stands on line {seen[id_]} already")
        seen[id_] = row.line
    return tuple(seen)


def _elastic(row: CsvRow) -> Elastic:
    # CycleGAN and A3C name no batch; the table has them at 1.
    batch = row.whole("batch_size") if row.text("batch_size") else 1
    return Elastic(row.word("model"), batch, float(batch))


def _weight(row: CsvRow) -> float:
    return row.number("priority_weight", above=True) if row.text("priority_weight") else 1.0
