"""The simulator's own output as a past: a trace, and the times that one policy gave its jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.simulator.cluster import VirtualCluster
from slurm_hadar.simulator.traces import open_trace
from slurm_hadar.simulator.traces.csv_rows import LATEST_S, rows, text_of
from slurm_hadar.simulator.workload import Workload, check
from slurm_hadar.tuning.advice import Recorded
from slurm_hadar.tuning.replay import ReplayWorkload

_COLUMNS = ("job_id", "arrival_s", "finish_s", "jct_s")


@dataclass(frozen=True, slots=True)
class SimulatedHistory:
    """A trace, and the file of the times (``jct``) that its jobs had on ``cluster``."""

    trace: str
    jct: Path
    cluster: VirtualCluster


def read(past: SimulatedHistory, rates: Rates, most: int) -> tuple[ReplayWorkload, Recorded]:
    """The last ``most`` jobs of a trace by arrival, and what ``hadar simulate jobs --jct-out``
    wrote of them.

    Which GPUs a job had does not stand there. Raises UsageError for files that do not belong
    together.
    """
    jct, cluster = past.jct, past.cluster
    work = open_trace(past.trace, cluster.types, rates)
    check(work, cluster)
    finish = _finishes(jct, work.ids)
    rows_ = np.sort(np.argsort(work.arrival_s, kind="stable")[-most:])
    cut = work.take(rows_)
    jct_s = finish[rows_] - cut.arrival_s
    if (jct_s < 0).any():
        raise UsageError(f"{jct.name} is not of {work.name}: a job ends before it arrives there")
    made = ReplayWorkload(
        own=cut,
        free=cut,
        cluster=cluster,
        rows=tuple(rows_.tolist()),
        accounts=("-",) * len(cut.ids),
        run_s=_alone_s(cut),
        left_out=0,
        models=len(cut.ids),
        sheets=0,
        stuck=0,
    )
    unknown = np.full(len(cut.ids), np.nan)
    return made, Recorded(jct.stem, jct_s, made.run_s, unknown)


def _finishes(path: Path, ids: Sequence[str]) -> FloatArray:
    at = {id_: place for place, id_ in enumerate(ids)}
    finish = np.full(len(ids), np.nan)
    seen: set[str] = set()
    for row in rows(text_of(path), path.name, _COLUMNS):
        id_ = row.name("job_id")
        if id_ not in at:
            raise row.error(f"job {id_} is not in the trace; name the trace that was simulated")
        seen.add(id_)
        if row.text("finish_s"):
            finish[at[id_]] = row.number("finish_s", most=LATEST_S)
    if missing := [id_ for id_ in ids if id_ not in seen]:
        raise UsageError(f"{path.name} lacks job {missing[0]} of the trace, and {len(missing) - 1} "
                         "more")  # fmt: skip
    return finish


def _alone_s(work: Workload) -> FloatArray:
    """(J,) s at the best type with the GPUs that were asked for."""
    column = np.searchsorted(np.array(work.counts), work.request)
    best = work.rate[np.arange(len(work.ids)), :, column].max(axis=1)
    return np.where(best > 0, work.total / np.where(best > 0, best, 1.0), np.nan)
