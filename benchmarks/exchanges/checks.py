"""The checks of a run of exchanges, from the queue, the users' commands and the journal.

All jobs ask for the same: one GPU of one type, for the same time, so that Slurm starts them in the
order of their priority.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchmarks.exchanges.records import USERS_NICE, Act, Record, Row
from slurm_hadar.domain.job import JobState

SLACK_S = 3.0
"""Between two looks, and until an act shows."""
_TICKS = 3.0
"""After so many intervals a tick has seen an act and what it sent is seen."""


def all_wrong(record: Record) -> list[str]:
    """Every broken promise, a sentence each."""
    return [*lost_nices(record), *held_jobs(record), *overtaken(record)]


def lost_nices(record: Record) -> list[str]:
    """A job that runs, or waits after ``hadar retire``, has the Nice that its owner, or an admin,
    gave it last."""
    owners = _Owners(record.acts)
    patience = _TICKS * record.interval_s + SLACK_S
    found: dict[str, str] = {}
    runs_since: dict[str, float] = {}
    for look in record.looks:
        for row in look.rows:
            if row.state is not JobState.RUNNING or row.restarts:
                continue
            since = runs_since.setdefault(row.job, look.at_s)
            own = owners.nice(row.job, look.at_s)
            acted = owners.last(row.job, look.at_s)
            late = look.at_s - max(since, acted) > patience
            if late and own is not None and row.nice != own:
                found[row.job] = f"job {row.job} runs with Nice {row.nice}, its owner's is {own}"
    for row in record.retired.rows if record.retired else ():
        own = owners.nice(row.job, float("inf"))
        alive = row.state in (JobState.PENDING, JobState.RUNNING) and not row.restarts
        if alive and own is not None and row.nice != own:
            found[row.job] = f"job {row.job} has Nice {row.nice} at the end, its owner's is {own}"
    return list(found.values())


def held_jobs(record: Record) -> list[str]:
    """A job is held from when a person held it until a person released it."""
    spans: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for act in record.acts:
        if act.what in ("hold", "release"):
            spans[act.job].append((act.at_s, act.what == "hold"))
    found: dict[str, str] = {}
    for look in record.looks:
        for row in look.rows:
            if row.state is not JobState.PENDING:
                continue
            acts = spans.get(row.job, [])
            if any(abs(at - look.at_s) < SLACK_S for at, _ in acts):
                continue
            done = [held for at, held in acts if at < look.at_s]
            if row.held != (bool(done) and done[-1]):
                what = "held" if row.held else "released"
                found[row.job] = f"job {row.job} was {what} by no person"
    return list(found.values())


def overtaken(record: Record) -> list[str]:
    """No unmanaged job has more jobs ahead of it, or started before it, than ever had a place ahead
    of it by what their owners asked for. What lasts for less than some ticks after an act of a
    person does not count, as the places are exchanged anew after it."""
    owners = _Owners(record.acts)
    times = sorted(act.at_s for act in record.acts)
    patience = _TICKS * record.interval_s + SLACK_S
    found: dict[str, str] = {}
    since: dict[str, float] = {}
    entitled: dict[str, set[str]] = defaultdict(set)
    passed: dict[str, set[str]] = defaultdict(set)
    for before, look in pairwise(record.looks):
        last = times[bisect_right(times, look.at_s) - 1] if times and times[0] <= look.at_s else 0.0
        begun = {row.job for row in look.rows if row.state is JobState.RUNNING}
        waiting = [row for row in before.rows if row.waits]
        ours = [(row, _plain(row, owners, before.at_s)) for row in waiting if row.managed]
        for row in waiting:
            if row.managed:
                continue
            mine, own = entitled[row.job], _order(row)
            mine |= {one.job for one, plain in ours if plain < own}
            passed[row.job] |= {one.job for one, _ in ours if one.job in begun - mine}
            mine -= begun
            ahead = {one.job for one, _ in ours if _order(one) < own} - begun
            more = len(ahead) + len(passed[row.job]) - len(mine)
            if more <= 0 or row.job in begun:
                since.pop(row.job, None)
            elif look.at_s - max(since.setdefault(row.job, look.at_s), last) > patience:
                found[row.job] = f"unmanaged job {row.job} had {more} more jobs ahead of it"
    return list(found.values())


def _order(row: Row) -> tuple[int, int]:
    """Slurm's order, lesser first."""
    return -row.priority, row.number


def _plain(row: Row, owners: "_Owners", at_s: float) -> tuple[int, int]:
    """As it would be with its owner's Nice."""
    own = owners.nice(row.job, at_s)
    return -(row.priority + row.nice - (row.nice if own is None else own)), row.number


class _Owners:
    """The Nice that people gave each job."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self._acts: Mapping[str, list[Act]] = defaultdict(list)
        for act in acts:
            if act.what in USERS_NICE:
                self._acts[act.job].append(act)

    def nice(self, job: str, at_s: float) -> int | None:
        """At that time; None where it is not known."""
        return next((act.nice for act in reversed(self._acts[job]) if act.at_s <= at_s), None)

    def last(self, job: str, at_s: float) -> float:
        """When they last changed it."""
        return next((act.at_s for act in reversed(self._acts[job]) if act.at_s <= at_s), 0.0)
