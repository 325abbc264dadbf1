"""What is printed of the runs, and which promises they broke."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from statistics import median

from benchmarks.optin.delays import (
    KEYS,
    Delay,
    Delays,
    between,
    distribution,
    mean_time,
    worst_of,
)
from benchmarks.optin.experiments import CROWD, NICE, order
from benchmarks.optin.overtaking import Overtaking, overtakings, types_beside
from benchmarks.optin.records import JobRecord, RunRecord
from benchmarks.optin.refill import Refill, refills
from benchmarks.optin.workload import TRAINING

REFILL_S = 0.5
"""A managed queue refills a GPU as fast as a plain one when the medians of the times beyond Slurm's
next pass differ by less."""
_NAMED = 10
"""Overtakings that are printed one by one."""


@dataclass
class Summary:
    """Lines to print; ``broken``: a sentence for each promise that does not hold."""

    lines: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def add(self, *lines: str) -> None:
        """Print these."""
        self.lines += lines


def summary(runs: Sequence[RunRecord]) -> Summary:
    """The tables of the mixed workload and of the experiments, as far as there are runs of them."""
    found = Summary()
    mixed = [run for run in runs if run.label not in (CROWD, NICE)]
    plain = [run for run in mixed if run.share == 0]
    for run in runs:
        bad = [f"{job.name} {job.state or 'unknown'}" for job in run.jobs if not job.completed]
        if bad:
            found.broken.append(f"{_which(run)}: not COMPLETED: {', '.join(bad)}")
    if mixed:
        _delays(found, mixed, plain)
        _times(found, mixed)
        _overtaken(found, mixed)
        _refilled(found, mixed)
        _types(found, mixed)
    for run in runs:
        if run.label == CROWD:
            _crowd(found, run)
        elif run.label == NICE:
            _nice(found, run)
    if not found.broken:
        found.add("no promise broken")
    found.add(*(f"BROKEN {sentence}" for sentence in found.broken))
    return found


def _shares(mixed: Sequence[RunRecord]) -> list[float]:
    return sorted({run.share for run in mixed if run.share > 0})


def _delays(found: Summary, mixed: Sequence[RunRecord], plain: Sequence[RunRecord]) -> None:
    compared = above = 0
    found.add(
        "delay of the ends against plain runs, s (right: the same jobs, a plain run against the "
        "others)",
        _row("share", "jobs", "n", *(2 * ("p50", "p95", "worst", "late"))),
    )
    for share in _shares(mixed):
        for which in (True, False):
            here, floor = _pair(mixed, plain, share, which)
            if here is None:
                continue
            name = "managed" if which else "unmanaged"
            found.add(_row(_part(share), name, str(here.number), *_figures(here), *_figures(floor)))
            if floor is None:
                continue
            compared += len(KEYS)
            for key in here.worse_than(floor):
                above += 1
                found.broken.append(
                    f"{_part(share)} managed: {key} of the delays of {name} jobs is "
                    f"{getattr(here, key):.3g}, plain against plain {getattr(floor, key):.3g}"
                )
    runs = len({run.label for run in plain})
    if compared:
        found.add(
            f"figures above the floor: {above} of {compared}; one more plain run would have "
            f"{compared / (runs + 1):.1f} of them in the mean"
        )


def _pair(
    mixed: Sequence[RunRecord], plain: Sequence[RunRecord], share: float, managed: bool
) -> tuple[Delays | None, Delays | None]:
    """The delays of the managed, or of the other, jobs of that share, and those of the same jobs
    in plain runs of the same seeds, each in turn against the others: the largest of each figure."""
    here: list[Delay] = []
    floors: dict[str, list[Delay]] = {}
    for run in mixed:
        if run.share != share:
            continue
        names = {job.name for job in run.jobs if job.managed == managed}
        others = [one for one in plain if one.seed == run.seed]
        here += [delay for other in others for delay in between(run, other, names)]
        for one, other in permutations(others, 2):
            floors.setdefault(one.label, []).extend(between(one, other, names))
    return distribution(here), worst_of([distribution(delays) for delays in floors.values()])


def _figures(one: Delays | None) -> list[str]:
    if one is None:
        return ["-"] * 4
    return [f"{one.p50:.1f}", f"{one.p95:.1f}", f"{one.worst:.1f}", f"{one.late:.0%}"]


def _row(*cells: str) -> str:
    widths = (6, 10, 5, 8, 8, 8, 6, 8, 8, 8, 6)
    parts = [cell.rjust(width) for cell, width in zip(cells, widths, strict=False)]
    return " ".join([*parts[:7], "|", *parts[7:]])


def _times(found: Summary, mixed: Sequence[RunRecord]) -> None:
    found.add("mean time of the trainings from arrival to end, s")
    plain = [run for run in mixed if run.share == 0]
    if plain:
        each = [
            mean_time([run for run in plain if run.label == label], TRAINING)
            for label in sorted({run.label for run in plain})
        ]
        low, high = min(each), max(each)
        found.add(f"  plain: {mean_time(plain, TRAINING):.1f}, single runs {low:.1f} to {high:.1f}")
    for share in _shares(mixed):
        runs = [run for run in mixed if run.share == share]
        same = [run for run in plain if run.seed in {one.seed for one in runs}]
        time_s, plain_s = mean_time(runs, TRAINING), mean_time(same, TRAINING)
        moved = sum(max(0, len(job.attempts) - 1) for run in runs for job in run.jobs)
        line = f"  {_part(share)}: {time_s:.1f} ({time_s - plain_s:+.1f}), {moved} restarts"
        for which in (True, False):
            names = {
                (run.seed, job.name) for run in runs for job in run.jobs if job.managed == which
            }
            more = mean_time(runs, TRAINING, names) - mean_time(same, TRAINING, names)
            if not math.isnan(more):
                line += f"; {'managed' if which else 'unmanaged'} ones {more:+.1f}"
        found.add(line)
        if time_s >= plain_s:
            found.broken.append(
                f"{_part(share)} managed: trainings end no sooner: {time_s:.1f} s in the mean, "
                f"plain {plain_s:.1f} s"
            )


def _overtaken(found: Summary, mixed: Sequence[RunRecord]) -> None:
    found.add("jobs that a later one overtook (starts of later ones); by backfill; machine's load")
    worst: dict[float, int] = {}
    for run in mixed:
        all_of_it = overtakings(run)
        # A type on which a job is known to be far slower is no part of a request for any type.
        listed = {one.earlier for one in all_of_it if one.listed}
        worst[run.share] = max(worst.get(run.share, 0), len(listed))
        by_backfill = sum(one.by == "backfill" for one in all_of_it)
        found.add(f"  {_which(run)}: {_who(run, all_of_it)}; {by_backfill}; {run.load:.1f}")
        found.add(*(f"    {line}" for line in _named(run, all_of_it)))
    floor = worst.get(0.0, 0)
    for share, most in sorted(worst.items()):
        if share and most > floor:
            found.broken.append(
                f"{_part(share)} managed: most jobs of a run that were overtaken on a type that "
                f"their list of partitions has: {most}; plain: {floor}"
            )


def _who(run: RunRecord, all_of_it: Sequence[Overtaking]) -> str:
    managed = {job.name for job in run.jobs if job.managed}
    earlier = {one.earlier for one in all_of_it}
    return (
        f"{len(earlier & managed)} managed, {len(earlier - managed)} unmanaged ({len(all_of_it)})"
    )


def _named(run: RunRecord, all_of_it: Sequence[Overtaking]) -> list[str]:
    jobs = run.by_name()
    lines = []
    for one in all_of_it[:_NAMED]:
        whose = "managed" if jobs[one.earlier].managed else "unmanaged"
        left_out = "" if one.listed else ", a type that its list of partitions leaves out"
        lines.append(
            f"{one.at_s:.1f} s: {one.earlier} ({whose}) waits {one.more_s:.1f} s longer, "
            f"{one.later} takes {one.node}{left_out}"
        )
    more = len(all_of_it) - len(lines)
    return [*lines, *([f"and {more} more"] if more else [])]


def _refilled(found: Summary, mixed: Sequence[RunRecord]) -> None:
    found.add(
        "a freed GPU until the next job, s, median; of it beyond Slurm's next pass through its "
        "queue; left free by that pass (n)"
    )
    here: dict[float, list[list[Refill]]] = {}
    closed: dict[float, Counter[str]] = {}
    for run in sorted(mixed, key=lambda run: run.share):
        some = refills(run)
        here.setdefault(run.share, []).append(some)
        closed.setdefault(run.share, Counter()).update(_closers(run, some))
    for share, by_run in here.items():
        if some := [one for each in by_run for one in each]:
            parts = [f"{_part(share)}: {_refill(some)}"]
            for which, name in ((True, "managed"), (False, "unmanaged")):
                if those := [one for one in some if one.managed == which]:
                    parts.append(f"by {name} {_refill(those)}")
            found.add(f"  {', '.join(parts)}")
            ahead = [f"{number} {name}" for name, number in sorted(closed[share].items())]
            if ahead:
                found.add(f"    the job ahead for which Slurm left it free: {', '.join(ahead)}")
    plain = [some for some in here.pop(0.0, []) if some]
    for share, by_run in here.items():
        managed = [some for some in by_run if some]
        if managed and plain:
            _compare_refills(found, _part(share), managed, plain)


def _closers(run: RunRecord, some: Sequence[Refill]) -> Counter[str]:
    """Whose jobs those were for which Slurm left GPUs free."""
    jobs, found = run.by_name(), Counter[str]()
    for one in some:
        if one.left_free and not one.closed_by:
            found["unknown"] += 1
        elif one.left_free:
            found["managed" if jobs[one.closed_by].managed else "unmanaged"] += 1
    return found


def _refill(some: Sequence[Refill]) -> str:
    return (
        f"{median(one.seconds for one in some):.2f}; {median(one.beyond_s for one in some):.2f}; "
        f"{_left_free(some):.0%} ({len(some)})"
    )


def _left_free(some: Sequence[Refill]) -> float:
    return sum(one.left_free for one in some) / len(some)


def _compare_refills(
    found: Summary, name: str, of_runs: Sequence[list[Refill]], plain_runs: Sequence[list[Refill]]
) -> None:
    some = [one for each in of_runs for one in each]
    plain = [one for each in plain_runs for one in each]
    beyond_s = median(one.beyond_s for one in some)
    usual_s = median(one.beyond_s for one in plain)
    if beyond_s > usual_s + REFILL_S:
        found.broken.append(
            f"{name} managed: a freed GPU waits {beyond_s:.2f} s beyond Slurm's next pass, plain "
            f"{usual_s:.2f} s"
        )
    error = math.hypot(_standard_error(of_runs), _standard_error(plain_runs))
    if _left_free(some) > _left_free(plain) + 2 * error:
        found.broken.append(
            f"{name} managed: Slurm's next pass leaves {_left_free(some):.0%} of the freed GPUs "
            f"free, plain {_left_free(plain):.0%}; their difference has a standard error of "
            f"{error:.0%}"
        )


def _standard_error(of_runs: Sequence[list[Refill]]) -> float:
    """Of the share left free, from how much the runs differ: one job that waits ahead closes a
    partition for seconds, so the GPUs of a run are not independent (Cochran, Sampling Techniques,
    ratio of cluster totals; recalled). At least that of independent GPUs."""
    some = [one for each in of_runs for one in each]
    share, total, runs = _left_free(some), len(some), len(of_runs)
    alone = math.sqrt(share * (1 - share) / total)
    if runs < 2:
        return alone
    off = (sum(one.left_free for one in each) - share * len(each) for each in of_runs)
    return max(alone, math.sqrt(sum(each**2 for each in off) * runs / (runs - 1)) / total)


def _types(found: Summary, mixed: Sequence[RunRecord]) -> None:
    """Where jobs without a type of their own begin: that of the one is taken from the others."""
    kinds = list(dict.fromkeys(kind for run in mixed for kind, _ in run.nodes.values()))
    found.add(
        f"first starts of jobs without a type, on {', '.join(kinds)} (of these last, with another "
        "type free)"
    )
    for share in sorted({run.share for run in mixed}):
        counts: dict[str, Counter[str]] = {}
        chosen = Counter[str]()
        for run in mixed:
            for job in run.jobs if run.share == share else ():
                if job.attempts and not job.gpu_type and len(_kinds(run, job)) > 1:
                    name = "managed" if job.managed else "unmanaged"
                    name += " trainings" if job.kind == TRAINING else " sleeps"
                    where = run.nodes[job.attempts[0].node][0]
                    counts.setdefault(name, Counter())[where] += 1
                    chosen[name] += where == kinds[-1] and bool(types_beside(run, job))
        rows = [
            f"{name} {'/'.join(str(count[kind]) for kind in kinds)} ({chosen[name]})"
            for name, count in sorted(counts.items())
        ]
        found.add(f"  {_part(share)}: {', '.join(rows)}")


def _kinds(run: RunRecord, job: JobRecord) -> set[str]:
    return {run.nodes[node][0] for name in job.partitions for node in run.partitions[name]}


def _crowd(found: Summary, run: RunRecord) -> None:
    first = order(run)
    all_of_it = overtakings(run)
    found.add(f"full cluster, three managed jobs, then {len(first) - 3} ordinary ones of 20 s")
    for job in first:
        if not job.managed:
            continue
        ahead = sum(not one.managed for one in first[: first.index(job)])
        listed = sum(one.earlier == job.name and one.listed for one in all_of_it)
        others = sum(one.earlier == job.name and not one.listed for one in all_of_it)
        types = ", ".join(job.types) or "any type"
        found.add(
            f"  {job.name} ({types}): {ahead} later jobs start before it, {listed + others} on "
            f"GPUs that it could have used, {others} of these on a type that its list of "
            "partitions leaves out"
        )
        if listed:
            found.broken.append(f"crowd: later jobs that overtake {job.name}: {listed}")


def _nice(found: Summary, run: RunRecord) -> None:
    first = order(run)
    found.add("six managed jobs against six ordinary ones at nice 500000, in the order of start")
    found.add("  " + " ".join("managed" if job.managed else "nice" for job in first))
    last = max((number for number, job in enumerate(first) if job.managed), default=0)
    ahead = sum(not job.managed for job in first[:last])
    if ahead:
        found.broken.append(f"nice: {ahead} of the ordinary jobs start before a managed one")


def _part(share: float) -> str:
    return f"{share:.0%}" if share else "plain"


def _which(run: RunRecord) -> str:
    return f"{run.label}, seed {run.seed}"
