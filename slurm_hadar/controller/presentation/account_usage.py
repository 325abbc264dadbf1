"""What each account asked for, waited for, received, wasted and gained: ``hadar report``."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.move_steps import MOVED
from slurm_hadar.controller.journal.entry import NOT_CARRIED_OUT, Entry
from slurm_hadar.controller.journal.job_owners import StoredOwners
from slurm_hadar.controller.journal.sampled_use import DAY_S, SampledUse, SampledUses
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation import rollout
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.controller.presentation.overview import gained_gpus, lost_gpu_s, outcome_of
from slurm_hadar.reports.usage import AccountUse, GroupUse, UsageReport
from slurm_hadar.slurm.accounting import JobRun

_FAILED = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "BOOT_FAIL", "DEADLINE"})
_SAME_TIME_S = 30.0
"""The journal has when Slurm's answer to a requeue came: a busy slurmctld takes 9 s."""
_J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class RecordedMove:
    """A move of the journal. Times in s since the epoch; ``gained_gpus``: the GPUs that it saves
    while the job is where it went; ``lost_gpu_s``: what it cost; ``carried_out``: whether Slurm
    started the job there."""

    job: str
    opened_s: float
    requeued_s: float
    gained_gpus: float
    lost_gpu_s: float
    carried_out: bool


@dataclass(frozen=True)
class RecordedUse:
    """What the state file adds to Slurm's accounting, of all jobs (``everything``) or of the
    reader's own and those of the ``accounts`` that the reader coordinates.

    ``moves``: all that it has; ``managed`` and ``outside``: the jobs that opted in, by whether the
    rollout takes them, where it is of all jobs.
    """

    samples: Sequence[SampledUse] = ()
    moves: Sequence[RecordedMove] = ()
    managed: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    everything: bool = True
    accounts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class UsageWindow:
    """Of which time, s since the epoch, and of which account; "": of all."""

    from_s: float
    to_s: float
    account: str = ""


def recorded(store: Store, from_s: float) -> RecordedUse:
    """What the state file has for a report from ``from_s`` on."""
    samples = SampledUses(store.connection)
    outside = frozenset(samples.outside())
    return RecordedUse(
        list(samples.since(from_s)),
        [recorded_move(entry) for entry in store.moves_that_ended(MOVED)],
        frozenset(id_ for id_ in store.decisions.last() if id_ not in outside),
        outside,
    )


def recorded_of(
    store: Store, from_s: float, uid: int, accounts: Collection[str] = ()
) -> RecordedUse:
    """The same, of a user's own jobs and those of some accounts alone."""
    jobs = StoredOwners(store.connection).jobs_of(uid, accounts)
    found = recorded(store, from_s)
    return RecordedUse(
        [one for one in found.samples if one.job in jobs],
        [one for one in found.moves if one.job in jobs],
        everything=False,
        accounts=frozenset(accounts),
    )


def recorded_move(entry: Entry) -> RecordedMove:
    """What a report needs of a move."""
    requeued_s = entry.reached_s(REQUEUED) or entry.opened_s
    return RecordedMove(
        entry.job, entry.opened_s, requeued_s, gained_gpus(entry), lost_gpu_s(entry),
        outcome_of(entry) != NOT_CARRIED_OUT,
    )  # fmt: skip


def usage(
    runs: Iterable[JobRun],
    known: RecordedUse | None,
    window: UsageWindow,
    config: Config,
    notes: Sequence[str] = (),
) -> UsageReport:
    """The report. ``known``: None where the caller may not read the state file: then nothing is
    said of what only that has."""
    ours = [run for run in runs if window.account in ("", run.account)]
    by_job: dict[str, list[JobRun]] = defaultdict(list)
    for run in sorted(ours, key=lambda run: (run.start_s, run.queued_s)):
        by_job[run.job].append(run)
    samples = _sampled(known, by_job, window)
    moves = _moves(known, by_job, window)
    named: dict[str, list[str]] = defaultdict(list)
    for job, its in by_job.items():
        named[its[0].account].append(job)
    totals = _Totals(by_job, samples, moves, window, config, known is not None)
    accounts = [totals.of(account, jobs) for account, jobs in named.items()]
    return UsageReport(
        from_s=window.from_s,
        to_s=window.to_s,
        accounts=sorted(accounts, key=lambda one: (-one.received_gpu_h, one.account)),
        total=totals.of("all", list(by_job)),
        co2_g_per_kwh=config.energy.co2_g_per_kwh,
        groups=_groups(totals, known, by_job, config),
        notes=list(notes),
    )


@dataclass(frozen=True)
class _Moved:
    """One job's moves: how many, and the GPU-seconds that they saved and cost."""

    count: int = 0
    gained_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0


@dataclass(frozen=True)
class _Totals:
    by_job: Mapping[str, list[JobRun]]
    samples: Mapping[str, SampledUse]
    moves: Mapping[str, _Moved]
    window: UsageWindow
    config: Config
    known: bool

    def of(self, name: str, jobs: Sequence[str]) -> AccountUse:
        """The sum of some jobs."""
        from_s, to_s = self.window.from_s, self.window.to_s
        runs = [run for job in jobs for run in self.by_job[job]]
        new = [self.by_job[job][0] for job in jobs]
        waits = _waits(runs, self.window)
        backfill = set(self.config.backfill.partitions)
        samples = [self.samples[job] for job in jobs if job in self.samples]
        moves = [self.moves[job] for job in jobs if job in self.moves]
        energy = sum(one.energy_j for one in samples) / _J_PER_KWH
        energy_gpu_h = sum(one.energy_gpu_s for one in samples) / 3600
        factor = self.config.energy.co2_g_per_kwh
        return AccountUse(
            account=name,
            users=len({run.user for run in runs}),
            jobs=len(jobs),
            asked_gpu_h=sum(run.asked_gpu_s for run in new if run.submit_s >= from_s) / 3600,
            starts=sum(from_s <= run.start_s <= to_s for run in runs),
            waiting=sum(run.waiting for run in runs),
            wait_mean_s=float(np.mean(waits)) if waits else None,
            wait_p95_s=float(np.percentile(waits, 95)) if waits else None,
            received_gpu_h=_gpu_h(runs, self.window),
            idle_nodes_gpu_h=_gpu_h([r for r in runs if r.partition in backfill], self.window),
            sampled_gpu_h=sum(one.gpu_s for one in samples) / 3600 if self.known else None,
            held_idle_gpu_h=sum(one.idle_gpu_s for one in samples) / 3600 if self.known else None,
            moves=sum(one.count for one in moves) if self.known else None,
            gained_gpu_h=sum(one.gained_gpu_s for one in moves) / 3600 if self.known else None,
            lost_gpu_h=sum(one.lost_gpu_s for one in moves) / 3600 if self.known else None,
            energy_kwh=energy if energy_gpu_h else None,
            energy_gpu_h=energy_gpu_h,
            co2_kg=energy * factor / 1000 if energy_gpu_h and factor else None,
        )

    def failed(self, jobs: Sequence[str]) -> float | None:
        """Share of the jobs that ended in this time which ended in a failure, 0 to 1."""
        last = [self.by_job[job][-1] for job in jobs]
        ended = [run for run in last if run.started and run.end_s <= self.window.to_s]
        return sum(run.state in _FAILED for run in ended) / len(ended) if ended else None


def _gpu_h(runs: Iterable[JobRun], window: UsageWindow) -> float:
    return sum(run.gpus * run.held_s(window.from_s, window.to_s) for run in runs) / 3600


def _waits(runs: Iterable[JobRun], window: UsageWindow) -> list[float]:
    """s that each run which began in the window waited, and those so far that wait at its end."""
    found = []
    for run in runs:
        if window.from_s <= run.start_s <= window.to_s:
            found.append(max(0.0, run.start_s - run.queued_s))
        elif run.waiting and run.queued_s <= window.to_s:
            found.append(window.to_s - run.queued_s)
    return found


def _sampled(
    known: RecordedUse | None, by_job: Mapping[str, list[JobRun]], window: UsageWindow
) -> dict[str, SampledUse]:
    """Job -> its samples in the window. Of a day that lies partly in it, as much of the samples as
    of the GPU time of the job on that day."""
    found: dict[str, SampledUse] = {}
    for one in known.samples if known is not None else ():
        runs = by_job.get(one.job)
        if runs is None:
            continue
        begin = one.day * DAY_S
        day = UsageWindow(begin, begin + DAY_S)
        inside = UsageWindow(max(begin, window.from_s), min(begin + DAY_S, window.to_s))
        of_day = _gpu_h(runs, day)
        share = _gpu_h(runs, inside) / of_day if of_day else 0.0
        old = found.get(one.job) or SampledUse(one.job, one.day, 0.0, 0.0, 0.0, 0.0)
        found[one.job] = SampledUse(
            one.job,
            old.day,
            old.gpu_s + share * one.gpu_s,
            old.idle_gpu_s + share * one.idle_gpu_s,
            old.energy_j + share * one.energy_j,
            old.energy_gpu_s + share * one.energy_gpu_s,
        )
    return found


def _moves(
    known: RecordedUse | None, by_job: Mapping[str, list[JobRun]], window: UsageWindow
) -> dict[str, _Moved]:
    """Job -> its moves of the window. A move gains while the run lasts that it led to, as far as
    that lies in the window, also where the move itself was before."""
    found: dict[str, _Moved] = {}
    for move in known.moves if known is not None else ():
        runs = by_job.get(move.job)
        if runs is None or move.opened_s > window.to_s:
            continue
        # A requeue counts as a submission to Slurm.
        after = [run for run in runs if abs(run.submit_s - move.requeued_s) <= _SAME_TIME_S]
        stood = sum(run.held_s(window.from_s, window.to_s) for run in after[:1])
        new = move.opened_s >= window.from_s
        old = found.get(move.job, _Moved())
        found[move.job] = _Moved(
            old.count + (new and move.carried_out),
            old.gained_gpu_s + move.gained_gpus * stood,
            old.lost_gpu_s + (move.lost_gpu_s if new else 0.0),
        )
    return found


def _groups(
    totals: _Totals, known: RecordedUse | None, by_job: Mapping[str, list[JobRun]], config: Config
) -> list[GroupUse]:
    """The jobs that opted in, managed and left out by the rollout; none without a rollout, or
    where only some jobs are known."""
    if known is None or not known.everything or not rollout.limited(config.rollout):
        return []
    return [
        GroupUse(use=totals.of(name, jobs), failed=totals.failed(jobs))
        for name, ids in (("managed", known.managed), ("outside the rollout", known.outside))
        if (jobs := [job for job in by_job if job in ids]) or name == "managed"
    ]
