"""What the last tick planned for the jobs of one user."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from slurm_hadar.controller.actuation.plan_diff import PlanDiff
from slurm_hadar.controller.presentation import tick_text
from slurm_hadar.controller.report import TickReport
from slurm_hadar.domain.placement import Plan

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """``observed_s``: when the tick saw Slurm, s since the epoch; ``text``: for a person, line by
    line; ``summary``: the same as plain data, as of ``hadar plan --json``."""

    observed_s: float
    text: list[str]
    summary: dict[str, Any] = field(default_factory=dict)


def own_plan(report: TickReport, ids: Collection[str]) -> OwnPlan:
    """What a tick planned for the jobs ``ids``, and nothing of others."""
    own = _of(report, ids)
    lines = [
        line.replace("would ", "sent: ", 1) if report.acted and line.startswith("would ") else line
        for line in tick_text.format_plan(own)
        # Of the whole cluster, which this is not.
        if not line.startswith(tick_text.IDLE_NODES)
    ]
    return OwnPlan(report.observation.now, lines, tick_text.summary(own))


def _of(report: TickReport, ids: Collection[str]) -> TickReport:
    def mine(values: Mapping[str, _T]) -> dict[str, _T]:
        return {id_: value for id_, value in values.items() if id_ in ids}

    diff, plan, idle = report.diff, report.plan, report.backfill
    return replace(
        report,
        plan=Plan(mine(plan.placements), mine(plan.waiting)),
        diff=PlanDiff(tuple(a for a in diff.actions if a.job.id in ids), mine(diff.deferred)),
        snapshot=replace(report.snapshot, excluded=mine(report.snapshot.excluded), faults=()),
        backfill=replace(
            idle,
            schedulable=mine(idle.schedulable),
            excluded=mine(idle.excluded),
            placements=mine(idle.placements),
            waiting=mine(idle.waiting),
            deferred=mine(idle.deferred),
            actions=tuple(a for a in idle.actions if a.job.id in ids),
            idle=(),
            taken={},
            notes=(),
            state={},
        ),
        notices=(),
        queries={},
        refused=frozenset(report.refused & set(ids)),
        understated={},
    )
