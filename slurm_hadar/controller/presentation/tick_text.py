"""What a tick did, or would do, as lines of text and as plain data."""

from collections.abc import Iterable, Mapping

from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.actions import Action, Kind
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.reports import formats

IDLE_NODES = "idle nodes: "
"""How the line on the whole cluster's idle nodes begins."""


def format_tick(report: TickReport) -> list[str]:
    """What the daemon logs of a tick: what was done, and one closing line."""
    lines = [*report.notices, *(_line(action) for action in report.done), *report.outcomes]
    idle = report.backfill
    if idle.schedulable or idle.idle:
        lines.append(_on_idle_nodes(report))
    left = len(report.snapshot.excluded) + len(idle.excluded)
    targets = report.snapshot.schedulable.values()
    running = sum(target.job.state is JobState.RUNNING for target in targets)
    sent = formats.counted(len(report.done), "change")
    lines.append(
        f"tick: {running} running, {len(targets) - running} waiting, "
        f"{left} not steered; {sent} sent; "
        f"read {report.read_s:.2f} s, decide {report.decide_s:.2f} s, act {report.act_s:.2f} s"
    )
    return lines


def format_plan(report: TickReport) -> list[str]:
    """What a tick would do, and why, job by job."""
    idle = set(report.backfill.schedulable) | set(report.backfill.excluded)
    ours = [action for action in report.diff.actions if action.job.id not in idle]
    lines = [f"would {_line(action)}: {action.reason}" for action in ours]
    done = {action.job.id for action in report.diff.actions}
    for job, placement in report.plan.placements.items():
        if job not in done and job not in report.diff.deferred:
            lines.append(_unchanged(job, placement, report.snapshot.schedulable))
    deferred = report.diff.deferred.items()
    lines += [f"job {job} not now: {why}" for job, why in deferred if job not in idle]
    lines += [f"job {job} waits: {why}" for job, why in _waiting(report).items() if job not in done]
    lines += [f"job {job} is not steered: {why}" for job, why in report.snapshot.excluded.items()]
    lines += report.plan.notes
    lines += format_backfill(report) if idle or report.backfill.idle else []
    return lines or ["No managed jobs."]


def _waiting(report: TickReport) -> dict[str, str]:
    """The jobs that wait and why, without those that the guards keep running."""
    deferred = report.diff.deferred
    return {job: why for job, why in report.plan.waiting.items() if job not in deferred}


def _unchanged(job: str, placement: Placement, targets: Mapping[str, SchedulableJob]) -> str:
    where = job_updates.placement_text(placement.gpus, list(placement.nodes))
    if job in targets and not targets[job].held:
        return f"job {job} waits, planned on {where}: {placement.reason}"
    return f"job {job} stays as it is ({where}): {placement.reason}"


def format_backfill(report: TickReport) -> list[str]:
    """What a tick would do with idle nodes, and why, training by training."""
    idle = report.backfill
    sent = {action.job.id: action for action in idle.actions}
    lines = [_on_idle_nodes(report)]
    for job in [*idle.schedulable, *idle.excluded]:
        placement, action = idle.placements.get(job), sent.get(job)
        why = idle.waiting.get(job, idle.excluded.get(job, ""))
        if action is not None:
            lines.append(f"would {_line(action)}: {action.reason}")
        elif job in idle.deferred:
            lines.append(f"job {job} not now: {idle.deferred[job]}")
        elif placement is not None:
            lines.append(_unchanged(job, placement, idle.schedulable))
        elif job in idle.excluded:
            lines.append(f"job {job} is not steered: {why}")
        else:
            lines.append(f"job {job} waits: {why}")
    lines += [f"{node} is idle, but {why}" for node, why in idle.taken.items()]
    return [*lines, *idle.notes]


def backfill_summary(report: TickReport) -> dict[str, object]:
    """The same as plain data. ``nodes`` by job: where it is or goes."""
    idle = report.backfill
    return {
        "acted": report.acted,
        "idle_nodes": list(idle.idle),
        "left_to_others": dict(idle.taken),
        "trainings": [
            {
                "job": job,
                "held_nodes": list(target.held),
                "nodes": list(idle.placements[job].nodes) if job in idle.placements else [],
                "reason": idle.placements[job].reason
                if job in idle.placements
                else idle.waiting.get(job, ""),
                "deferred": idle.deferred.get(job, ""),
            }
            for job, target in idle.schedulable.items()
        ],
        "not_steered": dict(idle.excluded),
        "actions": _plain_actions(idle.actions),
        "notes": list(idle.notes),
    }


def _on_idle_nodes(report: TickReport) -> str:
    idle = report.backfill
    held = {node for target in idle.schedulable.values() for node in target.held}
    holders = sum(bool(target.held) for target in idle.schedulable.values())
    return (
        f"{IDLE_NODES}{len(held)} train, {len(idle.idle)} free, {len(idle.taken)} left to others; "
        f"trainings: {holders} running, {len(idle.schedulable) - holders} waiting"
    )


def _plain_actions(actions: Iterable[Action]) -> list[dict[str, object]]:
    return [
        {
            "job": action.job.id,
            "kind": action.kind.value,
            "fields": dict(action.fields),
            "reason": action.reason,
        }
        for action in actions
    ]


def summary(report: TickReport) -> dict[str, object]:
    """A tick as plain data."""
    return {
        "acted": report.acted,
        "actions": _plain_actions(report.diff.actions),
        "deferred": dict(report.diff.deferred),
        "waiting": _waiting(report),
        "not_steered": {**report.snapshot.excluded, **report.backfill.excluded},
        "messages": list(report.messages),
        "changes_sent": len(report.done),
        "refused": sorted(report.refused),
        "queries": dict(report.queries),
        "read_s": report.read_s,
        "decide_s": report.decide_s,
        "act_s": report.act_s,
    }


def _line(action: Action) -> str:
    where = job_updates.placement_text(action.steering.gpus, list(action.steering.nodes))
    match action.kind:
        case Kind.HINT:
            return f"update job {action.job.id}: {job_updates.assignments(action.fields)}"
        case Kind.MOVE:
            return f"move job {action.job.id} to {where}"
        case Kind.STOP:
            return f"stop job {action.job.id} for jobs that gain more"
        case Kind.CHAIN:
            return f"requeue job {action.job.id} before its time limit ends"
        case Kind.STOP_IDLE:
            return f"stop job {action.job.id}, whose GPUs are idle, for jobs that wait"
