"""What is known of one job and why it is where it is, for ``hadar explain`` and ``status``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import floor
from typing import Protocol

from slurm_hadar import policies
from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import action_outcomes, job_updates
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.actuation.pending.hint_updates import waits_for
from slurm_hadar.controller.actuation.restored_request import within_types
from slurm_hadar.controller.actuation.running import idle_allocations
from slurm_hadar.controller.journal.entry import (
    NOT_CARRIED_OUT,
    NOWHERE,
    Decision,
    Entry,
    is_in_vain,
)
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.presentation import closed_partitions, excluded_types, move_text
from slurm_hadar.controller.presentation.speeds import rate_rows
from slurm_hadar.controller.profiling import gpu_use
from slurm_hadar.controller.snapshot import billing, chaining
from slurm_hadar.controller.snapshot.eligibility import gpus_of, profile_key
from slurm_hadar.controller.snapshot.restart_costs import RestartCosts
from slurm_hadar.controller.snapshot.scheduling_input import done_again_s
from slurm_hadar.controller.snapshot.view_builder import Snapshot
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.errors import SlurmError, UnknownJobError, UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.progress import Progress
from slurm_hadar.profiles.gpu_use import MeasuredGpuUse
from slurm_hadar.profiles.rates import Rates
from slurm_hadar.reports import formats
from slurm_hadar.reports.text import Explanation, MoveRow, StatusRow
from slurm_hadar.slurm.interface import Update
from slurm_hadar.slurm.updates import command_line

_EXPLAINED = 50
"""Lines of a job's history."""
_NAMED_TASKS = 5
"""Of an array, where one is to be named."""
_NOTHING = "nothing"


class Source(Protocol):
    """The source of a job's report: an open controller, or what its last tick published."""

    @property
    def config(self) -> Config:
        """The site's."""

    @property
    def store(self) -> Store:
        """The controller's own file."""

    @property
    def rates(self) -> Rates:
        """What is known of speeds."""

    @property
    def gpus(self) -> gpu_use.GpuUseLearner:
        """What GPUs did."""

    @property
    def own_uid(self) -> int:
        """The controller's user."""

    def observe(self) -> Observation:
        """What Slurm shows."""

    def snapshot(self, observation: Observation) -> Snapshot:
        """What the policy sees of it."""


def explanation_of(controller: Source, id_: str) -> Explanation:
    """All that is known of one job. Raises UsageError for a job that is not there or not ours."""
    observation = controller.observe()
    id_ = named(observation, id_)
    job = observation.jobs.get(id_)
    history = controller.store.history(id_)
    older = len(history) - _EXPLAINED
    if job is None:
        no_array(observation, id_)
        ended = "; it has ended" if history else ""
        if history or controller.store.decisions.of(id_):
            ended += f". hadar doctor {id_} shows what is kept of it"
        raise UnknownJobError(f"Slurm shows no job {id_}{ended}")
    ensure_managed(job, was_managed=bool(history or controller.store.decisions.of(id_)))
    decision = excluded_types.corrected(
        controller.store.decisions.last().get(id_), job, observation, controller.config
    )
    known = controller.gpus.uses_of(job)
    hints = _hints(controller, job, observation, known)
    reason, moved = _reason(job, decision, history, observation, controller.config)
    row = row_of(job, observation, decision, in_vain=moves_in_vain(history))
    if older > 0:
        hints.append(f"{older} older lines of its history: hadar doctor {id_}")
    return Explanation(
        # Where it was is no answer.
        row=replace(row, here={}, nodes="") if moved else row,
        declaration=_declared(job.declaration or Declaration()),
        rates=rate_rows(
            id_, observation, controller.snapshot(observation), controller.rates, controller.config
        ),
        decided_s=decision.time_s if decision else 0.0,
        decision=decision.placement if decision else "",
        reason=reason,
        moves=[move_row(entry) for entry in reversed(history[:_EXPLAINED])],
        notes=[
            *why_it_waits(job, observation, controller.config),
            *hints,
            *changed(job, observation, controller.config),
            *undo(job, observation, controller.config),
        ],
        gpus=gpu_use.rows(observation, job, known),
        as_of_s=observation.now,
    )


def _hints(
    controller: Source, job: Job, observation: Observation, known: Sequence[MeasuredGpuUse]
) -> list[str]:
    """What its owner may want to know. ``known``: what the job's model did with its GPUs."""
    config = controller.config
    memory = {name: gpu.memory_gb for name, gpu in config.gpu_types.items()}
    found = [
        gpu_use.too_small(job, known, memory),
        billing.note(job, observation.partitions),
        _no_copies(job.declaration or Declaration(), config),
        _age_not_restored(job, observation, config),
        excluded_types.contradicting_features(job, config)
        or excluded_types.cannot_start(job, observation),
        excluded_types.on_an_excluded_type(job, observation, config),
    ]
    if job.declaration is not None and job.declaration.may_move:
        cost = RestartCosts(controller.store.restarts.means()).of(
            job, profile_key(job), observation.progress.get(job.id)
        )
        again_s = done_again_s(job, observation)
        again = f"; a move now repeats {again_s:.0f} s of work besides" if again_s >= 1 else ""
        found.append(f"A restart is counted at {cost.seconds:.0f} s: {cost.source}{again}")
    return [hint for hint in found if hint]


def _no_copies(declared: Declaration, config: Config) -> str:
    """That a policy makes no copies of a job which declares that it may have some; else empty."""
    name, most = config.controller.policy, declared.fork[1]
    if most == 1 or policies.makes_copies(name):
        return ""
    return (
        f"fork={declared.fork[0]}-{most}: it runs alone, since this site's policy {name} makes no "
        "copies of jobs; timetable, hadare and hare do"
    )


def _age_not_restored(job: Job, observation: Observation, config: Config) -> str:
    """That a move costs the job its age in the queue, where the controller may not lower its Nice
    for that (per-user mode); else empty."""
    movable = job.declaration is not None and job.declaration.may_move and job.managed
    if not (movable and config.site.rights == "user" and observation.age.weight):
        return ""
    rest = "its priority grows from there anew, since only an operator's controller restores it"
    if job.state is JobState.RUNNING:
        return f"A move takes away the age that counts for its place in the queue; {rest}"
    return f"Its requeue took away the age that it had in the queue; {rest}" if job.restarts else ""


def started_since(job: Job, decision: Decision) -> bool:
    """Whether the job runs, and waited when this was decided."""
    # Slurm's times are whole seconds.
    late = job.start_s >= floor(decision.time_s)
    return job.state is JobState.RUNNING and decision.placement in NOWHERE and late


def reason_now(job: Job, decision: Decision) -> str:
    """The reason of the last decision, with the start of the job since then."""
    if not started_since(job, decision):
        return decision.reason
    return f"it started since the last tick, which said: {decision.reason}"


def _reason(
    job: Job,
    decision: Decision | None,
    history: list[Entry],
    observation: Observation,
    config: Config,
) -> tuple[str, bool]:
    """Why the job is where it is, and whether it has been moved since it was seen."""
    decided = reason_now(job, decision) if decision else ""
    moves = (one for one in history if one.kind == Kind.MOVE.value)
    if (entry := next(moves, None)) is not None:
        if move_text.is_under_way(entry, job):
            return move_text.under_way(entry, observation, config), False
        if moved := move_text.moved_since(entry, observation):
            return f"{moved}; {decided}".removesuffix("; "), True
    return decided, False


def named(observation: Observation, id_: str) -> str:
    """The id of the job that a person means: a task of an array is also known by its own job ID
    (``SLURM_JOB_ID``). What names a whole array, or no job, stays as it is."""
    if id_ in observation.jobs or any(
        str(job.array_job_id) == id_ for job in observation.jobs.values()
    ):
        return id_
    return next((job.id for job in observation.jobs.values() if str(job.raw_id) == id_), id_)


def why_it_waits(job: Job, observation: Observation, config: Config) -> list[str]:
    """Why a job that opted in at first is left alone, and which of its partitions are not UP."""
    why = "its owner opted it out" if job.opted_out else job.outside
    closed = closed_partitions.why_closed(job, observation, config)
    return [f"Not steered: {why}"] * bool(why) + [f"Waits: {closed}"] * bool(closed)


def no_array(observation: Observation, id_: str) -> None:
    """Raises UsageError where ``id_`` is an array of several jobs."""
    tasks = [other.id for other in observation.jobs.values() if str(other.array_job_id) == id_]
    if tasks:
        tasks.sort(key=lambda task: (len(task), task))
        more = len(tasks) - _NAMED_TASKS
        also = f" and {more:,} more" if more > 0 else ""
        raise UsageError(
            f"job {id_} is an array; ask for one of its tasks: "
            f"{', '.join(tasks[:_NAMED_TASKS])}{also}. hadar status {id_} shows them all"
        )


def ensure_managed(job: Job, was_managed: bool = False) -> None:
    """Raises UsageError for a job that did not opt in. ``was_managed``: a tick decided on it."""
    if job.declaration is None:
        interactive = not (job.batch or job.het)
        what = "it is interactive (salloc or srun)" if interactive else "it has no declaration"
        if was_managed and job.batch and not job.declaration_error:
            what = (
                "its Comment has no declaration any more (a change of the whole "
                f"Comment removes it; hadar set {job.id} KEY=VALUE declares again)"
            )
        why = job.declaration_error or f"{what}, so it is never changed"
        raise UsageError(f"job {job.id} is not managed: {why}")


def plain(result: StatusRow | Explanation) -> dict[str, object]:
    """A row or a job report as plain data."""
    return asdict(result)


def row_of(
    job: Job, observation: Observation, decision: Decision | None, age: str = "", in_vain: int = 0
) -> StatusRow:
    """One managed job as ``hadar status`` shows it. ``age``: when its decision was made, such as
    ``decided 5 s ago``; empty where that is of now and no time is said. ``in_vain``: its moves
    after which Slurm did not start it where it should go, as far as they are known."""
    progress = observation.progress.get(job.id)
    declared = job.declaration or Declaration()
    steered = observation.steered(job.id)
    total = declared.total_samples if progress else 0
    waits = job.state is JobState.PENDING and bool(job.reason)
    decided = reason_now(job, decision) if decision else ""
    if age and decided:
        decided = f"{age}: {decided}"
    why = (
        gpu_use.in_vain(observation, job.id),
        f"not steered: {job.outside}" if job.outside else "",
        f"Slurm: {job.reason}" if waits and not decided.endswith(f": {job.reason}") else "",
        decided,
        excluded_types.without_node(job, observation),
    )
    return StatusRow(
        id=job.id,
        user=job.user,
        name=job.name,
        state=job.slurm_state,
        here=gpus_of(job, observation.nodes),
        nodes=",".join(job.nodes),
        planned=steered.gpus,
        done=_done(progress, total),
        samples_per_s=progress.rate or None if progress else None,
        # Those of a job that opted out stay true.
        moves=max(0, observation.record_of(job.id).moves - in_vain),
        reason="; ".join(filter(None, why)),
        account=job.account,
        raw_id=job.raw_id,
        array=job.array_job_id,
    )


def _done(progress: Progress | None, total: int) -> float | None:
    """The part of a job's work that it reported as done; None before its first step, when its file
    only says that it began."""
    if progress is None or not total or not (progress.samples or progress.rate):
        return None
    return min(1.0, progress.samples / total)


def moves_in_vain(entries: Iterable[Entry]) -> int:
    """How many of these are moves that ended and were not carried out, as their job restarted
    elsewhere."""
    return sum(one.kind == Kind.MOVE.value and is_in_vain(one.shown or "") for one in entries)


def _declared(declaration: Declaration) -> list[tuple[str, str]]:
    return list(declaration.assignments().items())


def move_row(entry: Entry) -> MoveRow:
    """One action of the journal, and what came of it."""
    gpus = entry.details.get("gpus")
    where = f" to {job_updates.placement_text(gpus)}" if isinstance(gpus, dict) and gpus else ""
    fields = entry.details.get("fields")
    if entry.kind == Kind.HINT.value and isinstance(fields, dict):
        where = f": {job_updates.assignments(fields)}"
    if chaining.DETAIL in entry.details:
        where = ": requeue before its time limit ends"
    elif idle_allocations.DETAIL in entry.details:
        where = ": stop, as its GPUs were idle"
    outcome = action_outcomes.outcome_text(entry)
    # Where it runs instead.
    shown = entry.shown if outcome == NOT_CARRIED_OUT else ""
    parts = (outcome, shown, action_outcomes.effect_text(entry), move_text.given_back(entry))
    return MoveRow(entry.opened_s, f"{entry.kind}{where}", "; ".join(filter(None, parts)))


def changed(job: Job, observation: Observation, config: Config) -> list[str]:
    """The fields of a job's request that hbatch or the controller changed: ``Partition: v100,k80
    (asked for: gpu)``."""
    steered = observation.record_of(job.id)
    was = _asked_for(job, observation, config)
    present = {key: job_updates.present(job, steered, key) for key in was}
    found = [
        f"{key}: {present[key] or _NOTHING} (asked for: {value or _NOTHING})"
        f"{_why_nice(job, steered, value) if key == 'Nice' else ''}"
        for key, value in was.items()
        # Of a job that runs Slurm shows the partition only in which it does.
        if value != present[key] and not (job.nodes and present[key] in value.split(","))
    ]
    if steered.until and job.state is JobState.PENDING and not job.opted_out:
        ends = formats.moment(steered.ends)
        found.append(f"Partition: it {waits_for(steered)}, and is expected to end at {ends}")
    return found


def _why_nice(job: Job, steered: Steering, own: str) -> str:
    """Why a job that waits has another Nice than its ``own``, which its owner asked for: known
    without the controller's file too. Empty for one that was set since by another user."""
    ours = steered.wrote.get("Nice") in (None, str(job.nice))
    if job.state is not JobState.PENDING or not ours:
        return ""
    if job.restarts:
        return ": for the age that it lost by a requeue, until it runs"
    later = "a later" if job.nice > int(own) else "an earlier"
    return f": it has {later} place in the queue, exchanged with managed jobs (queue.exchange)"


def _asked_for(job: Job, observation: Observation, config: Config) -> Mapping[str, str]:
    """The owner's value of each field that was changed; of a job that opted out only of those that
    the opt-out could not restore."""
    steered = observation.record_of(job.id)
    was = job_updates.asked_for(job, steered, config)
    if not job.opted_out:
        return was
    runs = job.state is JobState.RUNNING
    return {
        key: value
        for key, value in was.items()
        if key not in job_updates.UNTIL_IT_RUNS
        and (runs or value != job_updates.present(job, steered, key))
    }


def undo(job: Job, observation: Observation, config: Config) -> list[str]:
    """How to take back by hand what we did to a job, in Slurm's own commands."""
    was = _asked_for(job, observation, config)
    over = job.opted_out or job.state is JobState.FINISHED
    whole = f"; all tasks of its array: hadar optout {job.array_job_id}" if job.array_job_id else ""
    notes = [] if over else [f"To opt it out: hadar optout {job.id}{whole}"]
    runs = job.state is JobState.RUNNING
    if not was or not (runs or job.state is JobState.PENDING):
        return notes
    if runs and not job.requeue:
        return [*notes, "By hand: nothing while it runs, as Requeue=0 (--no-requeue)"]
    was = within_types(job, observation.record_of(job.id), was, config, keeps_list=False)
    if not was:
        return notes
    # A begin time would clear the age of a job that waits.
    fields = {**was, "StartTime": "now"} if runs else was
    try:
        back = command_line(Update(job.id, fields), observation.slurm_version)
    except SlurmError as error:
        return [*notes, f"No command restores its request: {error}"]
    again = f"scontrol requeue {job.id}, which ends this attempt; a second after squeue shows PD: "
    first = again if runs else ""
    return [*notes, f"By hand: {first}{back}"]
