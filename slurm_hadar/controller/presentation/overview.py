"""What ``hadar status`` shows to one user: the cluster in figures, and the jobs they may see."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.action_outcomes import number, outcome_text
from slurm_hadar.controller.actuation.entry_details import steering_of
from slurm_hadar.controller.actuation.move_steps import MOVED, NOT_SAVED
from slurm_hadar.controller.idle_training import idle_nodes
from slurm_hadar.controller.journal.entry import (
    NOT_CARRIED_OUT,
    NOWHERE,
    Decision,
    Entry,
)
from slurm_hadar.controller.lock import is_fresh
from slurm_hadar.controller.observation import interactive, rollout
from slurm_hadar.controller.observation.group_problems import group_problems
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import (
    closed_partitions,
    excluded_types,
    job_explanation,
    move_text,
)
from slurm_hadar.controller.snapshot import chaining
from slurm_hadar.controller.snapshot.eligibility import placed
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import by_type
from slurm_hadar.domain.reasons import without_others
from slurm_hadar.exchange.heartbeat import STOPPED, Heartbeat
from slurm_hadar.reports import formats
from slurm_hadar.reports.cluster import NodeRow
from slurm_hadar.reports.status import (
    CHAINED,
    CONTROLLER,
    SLURM,
    ControllerState,
    GpuCounts,
    MovesToday,
    Overview,
)
from slurm_hadar.reports.text import StatusRow

_SHOWN = (JobState.RUNNING, JobState.PENDING, JobState.SUSPENDED, JobState.COMPLETING)
_PLACED = re.compile(r"(\d+) x ([^\s,+]+)")
"""In a decision's text: ``1 x k80 + 2 x v100 on k1``."""
OUTCOMES = ("moved", "stopped", CHAINED, "not saved", NOT_CARRIED_OUT, "under way")


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks. ``everything``: root, and the controller's user; ``hidden_jobs``: Slurm shows this
    user no jobs of others, ``hidden_nodes``: nor the nodes (PrivateData)."""

    uid: int
    everything: bool = False
    hidden_jobs: bool = False
    hidden_nodes: bool = False

    def sees(self, job: Job) -> bool:
        """Whether Slurm itself would show the job to this user."""
        return self.everything or job.uid == self.uid or not self.hidden_jobs

    def sees_decisions(self, job: Job) -> bool:
        """Whether this user may know what was decided on the job, and why."""
        return self.everything or job.uid == self.uid


@dataclass(frozen=True)
class Sight:
    """What is known at a request. ``entries``: the moves since midnight, None: not known;
    ``trust``: uid -> how many times a user's declared work counts, None: not known; ``rows``: those
    made so far, for other users who see the same, by job and by how much of it is shown;
    ``in_vain``: job -> its moves that were not carried out;
    ``owned``: uid -> that user's jobs, as far as the state file knows those that have ended;
    ``nodes``: those of users who see all jobs, once they are made; ``accounting``: what the latest
    tick found wrong with the accounting database, as the store keeps it."""

    observation: Observation
    config: Config
    controller: ControllerState
    source: str
    decisions: Mapping[str, Decision]
    entries: Sequence[Entry] | None = None
    trust: Mapping[int, float] | None = None
    rows: dict[tuple[str, bool, bool], StatusRow] = field(default_factory=dict)
    in_vain: Mapping[str, int] = field(default_factory=dict)
    owned: Callable[[int], Collection[str]] = lambda _: ()
    nodes: list[NodeRow] = field(default_factory=list)
    accounting: Mapping[str, object] = field(default_factory=dict)


def overview(sight: Sight, viewer: Viewer) -> Overview:
    """All that this user may see."""
    observation = sight.observation
    moving = {
        one.job: one
        for one in sight.entries or ()
        if move_text.is_under_way(one, observation.jobs.get(one.job))
        or move_text.moved_since(one, observation)
    }
    visible = [job for job in observation.jobs.values() if job.state in _SHOWN and viewer.sees(job)]
    others = [job for job in visible if not job.managed]
    states = Counter(job.state for job in visible)
    of_others = Counter(job.state for job in others)
    left_out = {job.id for job in others if not job.outside}
    rows = {
        job.id: _shared_row(job, sight, viewer, moving) for job in visible if job.id not in left_out
    }
    moves = None
    if sight.entries is not None:
        moves = _todays(sight.entries, sight, viewer)
    trust = None if sight.trust is None else sight.trust.get(viewer.uid, 1.0)
    return Overview(
        observed_s=observation.now,
        source=sight.source,
        controller=sight.controller,
        gpus=() if viewer.hidden_nodes else gpus(observation, sight.config, rows),
        managed=_by_state(states - of_others),
        others=_by_state(of_others),
        today=moves,
        trust=trust,
        nodes_hidden=viewer.hidden_nodes,
        rollout=rollout.description(sight.config.rollout, visible),
        interactive=sum(bool(interactive.why(job, sight.config.guards)) for job in others),
        # Slurm may hide partitions and nodes from others.
        group_problems=list(group_problems(observation, sight.config).values())
        if viewer.everything
        else [],
        accounting=_accounting(sight) if viewer.everything else "",
        rows=list(rows.values()),
    )


def _accounting(sight: Sight) -> str:
    """What a controller that ticks has no answer to; of another one it would be long past."""
    return "; ".join(map(str, sight.accounting.values())) if sight.controller.alive else ""


def _by_state(jobs: Counter[JobState]) -> dict[str, int]:
    return {state.value: jobs[state] for state in _SHOWN if jobs[state]}


def controller_state(beat: Heartbeat | None, now: float) -> ControllerState:
    """What the heartbeat says."""
    if beat is None:
        return ControllerState("never seen")
    if beat.mode == STOPPED:
        return ControllerState(STOPPED, beat.host, beat.time)
    alive = "acts" if beat.mode == "act" else "observes"
    return ControllerState(alive if is_fresh(beat, now) else "silent", beat.host, beat.time)


def gpus(
    observation: Observation, config: Config, rows: Mapping[str, StatusRow]
) -> list[GpuCounts]:
    """The cluster's GPUs by type. ``rows``: of the managed jobs, for what is planned."""
    total, used, down, filled, planned = (Counter[str]() for _ in range(5))
    for node in observation.nodes.values():
        for kind, count in node.gpus.items():
            total[kind] += count
            taken = min(count, node.gpus_used.get(kind, 0))
            used[kind] += taken
            if not node.usable:
                down[kind] += count - taken
    for job in idle_nodes.on_idle_nodes(observation, config):
        if job.state is JobState.RUNNING:
            filled.update(by_type(placed(job, observation.nodes)))
    for row in rows.values():
        if row.planned and dict(row.planned) != dict(row.here):
            planned.update(row.planned)
    return [
        GpuCounts(
            kind,
            total[kind],
            used[kind],
            total[kind] - used[kind] - down[kind],
            planned[kind],
            filled[kind],
            down[kind],
        )
        for kind in sorted(total)
    ]


def midnight(now: float) -> float:
    """The last midnight of this host's zone, s since the epoch."""
    day = datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    return day.timestamp()


def outcome_of(entry: Entry) -> str:
    """One of :data:`OUTCOMES`."""
    if entry.outcome is None:
        return "under way"
    if entry.outcome == MOVED and entry.details.get("gpus"):
        # Another job may have taken its place between the requeue and the start.
        return outcome_text(entry)
    if entry.outcome in (MOVED, "stopped"):
        return CHAINED if chaining.DETAIL in entry.details else "stopped"
    return "not saved" if entry.outcome.startswith(NOT_SAVED) else NOT_CARRIED_OUT


def today(entries: Iterable[Entry], observation: Observation) -> MovesToday:
    """What the moves among these entries, and the stops, came to.

    Lost: the seconds without training and those of work done again, times the GPUs that the job had
    before. Gained: the GPU-hours that the former place would have needed for what the job trained
    on the new one so far, less those that it had there; only of jobs that reported their speed at
    both.
    """
    found = Counter(outcome_of(entry) for entry in entries)
    gained = sum(gained_gpu_s(entry, observation) for entry in entries)
    lost = sum(lost_gpu_s(entry) for entry in entries)
    order = {name: found[name] for name in OUTCOMES if found[name]}
    return MovesToday(order, gained / 3600, lost / 3600)


def lost_gpu_s(entry: Entry) -> float:
    """GPU-seconds that a move or stop cost, as far as its job reported."""
    effect = entry.effect or {}
    seconds = sum(number(effect, key) or 0.0 for key in ("without_training_s", "lost_s"))
    return max(0.0, seconds) * _before(entry)


def gained_gpu_s(entry: Entry, observation: Observation) -> float:
    """GPU-seconds that a move has saved so far, see :func:`today`; below 0 where it made slower."""
    job, restarts = observation.jobs.get(entry.job), entry.details.get("restarts")
    if job is None or not isinstance(restarts, int):
        return 0.0
    if job.restarts != restarts + 1 or job.state is JobState.PENDING:
        # It has left that place, and how long it was there is not steering_store.
        return 0.0
    until = min(observation.now, job.end_s) if job.end_s > job.start_s else observation.now
    return gained_gpus(entry) * max(0.0, until - job.start_s)


def gained_gpus(entry: Entry) -> float:
    """GPUs that a move saves while its job is where it went, see :func:`today`; 0 where it was not
    carried out, or the job did not report its speed at both places."""
    if outcome_of(entry) == NOT_CARRIED_OUT:
        return 0.0
    effect = entry.effect or {}
    before, after = number(effect, "rate_before"), number(effect, "rate_after")
    if not before or not after:
        return 0.0
    return after / before * _before(entry) - _after(entry)


def _before(entry: Entry) -> float:
    held = entry.details.get("from")
    if not isinstance(held, dict):
        return 0.0
    return _sum(
        count for kinds in held.values() if isinstance(kinds, dict) for count in kinds.values()
    )


def _after(entry: Entry) -> float:
    held = entry.details.get("gpus")
    return _sum(held.values()) if isinstance(held, dict) else 0.0


def _sum(counts: Iterable[object]) -> float:
    return float(sum(count for count in counts if isinstance(count, int)))


def _todays(entries: Sequence[Entry], sight: Sight, viewer: Viewer) -> MovesToday:
    """Of the whole cluster, the same for all; under PrivateData of the user's own jobs, those that
    have ended too."""
    if viewer.everything or not viewer.hidden_jobs:
        return today(entries, sight.observation)
    shown = sight.observation.jobs
    ended = {entry.job for entry in entries} - shown.keys()
    own = ended & set(sight.owned(viewer.uid)) if ended else set()
    own |= {id_ for id_, job in shown.items() if job.uid == viewer.uid}
    found = today([entry for entry in entries if entry.job in own], sight.observation)
    return replace(found, own=True)


def _shared_row(job: Job, sight: Sight, viewer: Viewer, moving: Mapping[str, Entry]) -> StatusRow:
    if job.id in moving:
        # The journal may know more of it than at the last request.
        return _row(job, sight, viewer, moving)
    hides = viewer.hidden_jobs and not viewer.everything
    key = (job.id, viewer.sees_decisions(job), hides)
    row = sight.rows.get(key)
    if row is None:
        row = sight.rows[key] = _row(job, sight, viewer, moving)
    return row


def _age(decision: Decision, sight: Sight) -> str:
    """When it was decided, as :func:`job_explanation.row_of` takes it."""
    ago = f"{formats.duration(max(0.0, sight.observation.now - decision.time_s))} ago"
    if not sight.controller.alive:
        # What a controller answers is of its last tick, not of now.
        asked = sight.source != CONTROLLER
        return f"OLD, decided {ago if asked else f'at {formats.moment(decision.time_s)}'}"
    # What is read from a job's plan file may be older than the last tick.
    return f"decided {ago}" if sight.source == SLURM else ""


def _row(job: Job, sight: Sight, viewer: Viewer, moving: Mapping[str, Entry]) -> StatusRow:
    in_full = viewer.sees_decisions(job)
    decision = sight.decisions.get(job.id) if in_full else None
    decision = excluded_types.corrected(decision, job, sight.observation, sight.config)
    entry = moving.get(job.id) if in_full else None
    moved = move_text.moved_since(entry, sight.observation) if entry is not None else ""
    if moved and entry is not None:
        decided = decision or Decision(job.id, entry.changed_s, "", "")
        decision = replace(decided, reason=f"{moved}; {decided.reason}".removesuffix("; "))
    elif entry is not None:
        where = job_updates.placement_text(steering_of(entry.details, 0.0).gpus)
        text = move_text.under_way(entry, sight.observation, sight.config)
        decision = Decision(job.id, entry.changed_s, where, text)
    age = "" if decision is None else _age(decision, sight)
    row = job_explanation.row_of(
        job, sight.observation, decision, age, sight.in_vain.get(job.id, 0)
    )
    if moved:
        # Where it was is no answer.
        row = replace(row, here={}, nodes="")
    # A job may run elsewhere than it was sent.
    said = decision is not None and decision.placement not in NOWHERE
    if decision is not None and said and (entry or not row.planned or row.here):
        found = {kind: int(count) for count, kind in _PLACED.findall(decision.placement)}
        if found != row.planned:
            row = replace(row, planned=found)
    if viewer.hidden_jobs and not viewer.everything:
        row = replace(row, reason=without_others(row.reason, (job.id,)))
    if in_full:
        closed = closed_partitions.why_closed(job, sight.observation, sight.config)
        return replace(row, reason="; ".join(filter(None, (row.reason, closed))))
    # Of others' jobs it tells what squeue does.
    slurm = f"Slurm: {job.reason}" if job.state is JobState.PENDING and job.reason else ""
    return replace(row, planned={}, done=None, samples_per_s=None, moves=None, reason=slurm)
