"""What ``hadar simulate jobs`` prints and writes of its outcomes: table, CSV, page and notes."""

import csv
import io
import math
from collections.abc import Sequence

from rich.table import Table

from slurm_hadar.reports import formats
from slurm_hadar.reports.simulation import Simulated
from slurm_hadar.reports.text import figures_table
from slurm_hadar.simulator.outcome import Outcome

_MOST_NAMED = 10


def jct_csv(one: Outcome) -> str:
    """job_id,arrival_s,finish_s,jct_s,order; the times of its end are empty for a job that never
    finished."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("job_id", "arrival_s", "finish_s", "jct_s", "order"))
    for id_, arrival, finish in zip(
        one.workload.ids, one.workload.arrival_s.tolist(), one.finish_s.tolist(), strict=True
    ):
        ended = math.isfinite(finish)
        row = (f"{finish:.3f}", f"{finish - arrival:.3f}") if ended else ("", "")
        writer.writerow((id_, f"{arrival:.3f}", *row, one.order))
    return out.getvalue()


def notes_of(done: Sequence[Outcome]) -> list[str]:
    """What the averages leave out: rows of the trace, and jobs that never finished."""
    notes = []
    work = done[0].workload
    left_out = work.left_out
    if work.skipped:
        lines = "line" if len(work.skipped) == 1 else "lines"
        are = "is" if len(work.skipped) == 1 else "are"
        notes.append(
            f"{len(work.skipped)} {lines} of {work.name} {are} not understood and skipped: "
            f"{_named(work.skipped)}"
        )
    if left_out:
        notes.append(f"{len(left_out)} rows of the trace are not simulated: {_named(left_out)}")
    for one in done:
        if one.unfinished:
            notes.append(
                f"{one.policy}: {len(one.unfinished)} of {len(one.finish_s)} jobs never finished "
                f"and are in no average: {_named(one.unfinished)}"
            )
    return notes


def _named(words: Sequence[str]) -> str:
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return "; ".join(words[:_MOST_NAMED]) + more


def for_page(one: Outcome) -> Simulated:
    """An outcome as the HTML page takes it."""
    line = one.timeline
    return Simulated(
        policy=one.policy,
        summary=one.summary(),
        jct_s=[jct for jct in one.jct_s.tolist() if math.isfinite(jct)],
        start_s=line.start_s,
        end_s=line.end_s,
        gpu_s=[float(used.sum()) for used in line.gpu_s],
        gpus=int(one.capacity.sum()),
    )


def table(done: Sequence[Outcome]) -> Table:
    """A row for each policy."""
    heads: tuple[str, ...] = (
        "POLICY", "ORDER", "FINISHED", "MEAN JCT h", "MEDIAN h", "P99 h", "MAKESPAN h", "USED",
        "MOVES", "WORST RHO", "JAIN", "DECIDE s", "WALL s",
    )  # fmt: skip
    network = any(one.apart is not None for one in done)
    heads += ("NETWORK",) if network else ()
    apart = any(one.unmanaged_jct_s.size for one in done)
    heads += ("MANAGED h", "UNMANAGED h") if apart else ()
    found = figures_table(heads, names=2)
    for one in done:
        figures = one.summary()
        found.add_row(
            one.policy,
            one.order,
            f"{one.finished}/{len(one.finish_s)}",
            *(_hours(figures[key]) for key in ("avg_jct_h", "median_jct_h", "p99_jct_h")),
            _hours(figures["makespan_h"]),
            formats.percent(one.utilization) if one.finished else formats.ABSENT,
            formats.number(int(one.moves.sum())),
            _hours(figures["user_worst_rho"]),
            _hours(figures["user_jain"]),
            f"{one.decide_s.mean():.4f}" if len(one.decide_s) else formats.ABSENT,
            f"{one.wall_s:.1f}",
            *([formats.percent(one.communication_share)] if network else []),
            *(
                [_hours(figures["managed_jct_h"]), _hours(figures["unmanaged_jct_h"])]
                if apart
                else []
            ),
        )
    return found


def _hours(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else formats.ABSENT
