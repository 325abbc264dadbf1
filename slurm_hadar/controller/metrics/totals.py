"""The figures, counted from tick to tick.

They are kept in the state file, since each tick of a timer is a process of its own. No label names
a user, an account or a job; the values of each are a short list, or GPU types, of which the first
:data:`MOST_TYPES` have a name.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.action_outcomes import number
from slurm_hadar.controller.decision_records import not_stopped
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation.overview import gpus, outcome_of
from slurm_hadar.controller.profiling import gpu_use
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.snapshot.eligibility import placed
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import by_type
from slurm_hadar.domain.view import State
from slurm_hadar.reports.status import GpuCounts

NAME = "metrics"
"""Under this name the store keeps them."""
MOST_TYPES = 32
BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the histogram of a tick's seconds."""
GPU_STATES = ("used", "backfilled", "held_idle", "idle", "down")
_MOST_GAP = 10.0
"""A time between two ticks of more than so many intervals is not counted: no tick looked."""
_MOST_OPEN = 1000


def key_of(*parts: str) -> str:
    """A metric's name and the values of its labels, as one word of JSON."""
    return "|".join(part.replace("|", "_") for part in parts)


@dataclass
class Totals:
    """``counts`` only grow. ``gauges``: as they were at the last tick. ``open``: moves of the
    journal that are not counted yet, ``unmeasured``: whose cost is not; ``newest``: the newest one
    that was seen; ``gains``: job -> (restarts, samples/s before its last move)."""

    counts: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)
    unmeasured: list[int] = field(default_factory=list)
    newest: int = 0
    gains: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, value: float, *key: str) -> None:
        """Count. What is below 0 is nothing: a counter never goes back."""
        name = key_of(*key)
        self.counts[name] = self.counts.get(name, 0.0) + max(0.0, value)

    def failed(self, now: float) -> None:
        """A tick did nothing."""
        self.add(1, "ticks", "failed")
        self.gauges["last_failed_s"] = now

    def learn(self, report: TickReport, store: Store, config: Config, interval_s: float) -> None:
        """A tick is over. ``interval_s``: between two as they are now."""
        observation = report.observation
        last = self.gauges.get("last_tick_s", 0.0)
        gap = observation.now - last
        passed = gap if last and 0 < gap < _MOST_GAP * interval_s else 0.0
        self.add(1, "ticks", "acted" if report.acted else "observed")
        self._times(report)
        self._decisions(report)
        for kind, queries in report.queries.items():
            self.add(queries, "queries", kind)
        self.add(len(report.refused), "refusals")
        self._moves(store)
        self._gains(observation, passed)
        self._gpus(observation, config, passed)
        self.gauges["last_tick_s"] = observation.now
        self.gauges["interval_s"] = interval_s
        self.gauges["acting"] = float(report.acted)

    def _times(self, report: TickReport) -> None:
        whole = report.read_s + report.decide_s + report.act_s
        for phase in ("read", "decide", "act"):
            self.add(float(getattr(report, f"{phase}_s")), "phase_s", phase)
        self.add(whole, "tick_s")
        self.add(1, "tick_bucket", next((f"{b:g}" for b in BUCKETS_S if whole <= b), "+Inf"))

    def _decisions(self, report: TickReport) -> None:
        idle, plan = report.backfill, report.plan
        kept = len(not_stopped(report.snapshot, plan, report.diff, idle))
        found = {
            "placed": len(plan.placements) + len(idle.placements) + kept,
            "waits": len(plan.waiting) + len(idle.waiting) - kept,
            "not_steered": len(report.snapshot.excluded) + len(idle.excluded),
            "deferred": len(report.diff.deferred),
        }
        for decision, jobs in found.items():
            self.add(jobs, "decisions", decision)
        for action in report.done:
            self.add(1, "actions", action.kind.value)
        states = Counter((job.managed, job.state) for job in report.observation.jobs.values())
        for managed in (True, False):
            for state in JobState:
                if state is not JobState.FINISHED:
                    key = key_of("jobs", "yes" if managed else "no", state.value)
                    self.gauges[key] = float(states[managed, state])

    def _moves(self, store: Store) -> None:
        entries = store.moves_after(self.newest, sorted({*self.open, *self.unmeasured}))
        before = self.newest
        still_open, unmeasured = [], []
        for entry in entries:
            self.newest = max(self.newest, entry.id)
            if entry.outcome is None:
                still_open.append(entry.id)
            elif entry.id > before or entry.id in self.open:
                self.add(1, "moves", outcome_of(entry).replace(" ", "_"))
            if entry.effect is None:
                unmeasured.append(entry.id)
            elif entry.id > before or entry.id in self.unmeasured:
                self._cost(entry)
        self.open, self.unmeasured = still_open[-_MOST_OPEN:], unmeasured[-_MOST_OPEN:]

    def _cost(self, entry: Entry) -> None:
        effect = entry.effect or {}
        for key in ("without_training_s", "lost_s", "waited_s"):
            self.add(number(effect, key) or 0.0, "lost_s", key.removesuffix("_s"))
        self.add(number(effect, "lost_samples") or 0.0, "lost_samples", "work_again")
        before, after = number(effect, "rate_before"), number(effect, "rate_after")
        restarts = entry.details.get("restarts")
        if before and after and isinstance(restarts, int):
            self.gains[entry.job] = (restarts + 1, before)

    def _gains(self, observation: Observation, passed: float) -> None:
        """What moved jobs trained since the last tick, set against their speed before the move."""
        for id_, (restarts, before) in list(self.gains.items()):
            job, progress = observation.jobs.get(id_), observation.progress.get(id_)
            if job is None or job.state is not JobState.RUNNING or job.restarts != restarts:
                del self.gains[id_]
            elif progress is not None and progress.restarts == restarts and before > 0:
                samples = (progress.rate - before) * passed
                seconds = (progress.rate / before - 1.0) * passed
                self.add(samples, "gained_samples")
                self.add(seconds, "gained_s")
                self.add(-samples, "lost_samples", "slower")
                self.add(-seconds, "lost_s", "slower")

    def _gpus(self, observation: Observation, config: Config, passed: float) -> None:
        held: Counter[str] = Counter()
        for id_ in observation.gpus:
            if id_ in observation.jobs and gpu_use.in_vain(observation, id_):
                held.update(by_type(placed(observation.jobs[id_], observation.nodes)))
        for key in [key for key in self.gauges if key.startswith("gpus|")]:
            self.gauges[key] = 0.0
        for kind, use in _bounded(gpus(observation, config, {})):
            vain = min(held[use.gpu_type], use.used)
            filled = min(use.backfilled, use.used - vain)
            now = (use.used - vain - filled, filled, vain, use.idle, use.down)
            for state, count in zip(GPU_STATES, now, strict=True):
                key = key_of("gpus", kind, state)
                self.gauges[key] = self.gauges.get(key, 0.0) + count
                self.add(count * passed, "gpu_s", kind, state)


def remembered(state: State) -> Totals:
    """What the store kept; nothing where that is damaged or another version's."""
    try:
        return TypeAdapter(Totals).validate_python(state)
    except ValidationError:
        return Totals()


def _bounded(found: list[GpuCounts]) -> Iterator[tuple[str, GpuCounts]]:
    for place, use in enumerate(found):
        yield (use.gpu_type if place < MOST_TYPES else "other"), use
