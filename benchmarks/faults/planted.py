"""Faults put into the controller on purpose: a harness that lets them pass proves nothing."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from slurm_hadar.controller import retire
from slurm_hadar.controller.actuation import apply
from slurm_hadar.controller.actuation.running import moves
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.exchange.plan_file import JobPlan, write_plan

Acts = Callable[[], None]
"""Called whenever a fault comes to act."""


def _requeue_once_more(acts: Acts) -> None:
    """A move that is over is requeued again: the job starts more often than it should."""
    advance = moves.advance
    again: set[str] = set()

    def over(context: apply.ActionContext, jobs: Mapping[str, Job], *rest: Any) -> Any:
        step = advance(context, jobs, *rest)
        under_way = {entry.job for entry in context.store.open_entries()}
        for job in jobs.values():
            moved = job.managed and job.state is JobState.RUNNING and job.restarts > 0
            if moved and job.id not in again | under_way:
                again.add(job.id)
                acts()
                context.cluster.requeue([job.id])
        return step

    _put(moves, advance=over)


def _hold(acts: Acts) -> None:
    """What is found in the middle of a move is held, to be released by a later tick."""
    release = moves._release

    def held(context: apply.ActionContext, moved: Any, now: float) -> Any:
        for _, job in moved:
            acts()
            context.cluster.hold(job.id)
        return release(context, moved, now)

    _put(moves, _release=held)


def _swapped_plans(acts: Acts) -> None:
    """A job is sent what another one should run with."""
    tell = apply.ActionContext.write_plan
    swapped = {"k80": "v100", "v100": "k80"}

    def wrong(self: apply.ActionContext, job: Any, plan: JobPlan) -> Any:
        others = {swapped.get(kind, kind): count for kind, count in plan.gpus.items()}
        if others != plan.gpus:
            acts()
        return tell(self, job, replace(plan, gpus=others))

    _put(apply.ActionContext, write_plan=wrong)


def _another_batch(acts: Acts) -> None:
    """A job is sent another batch than was decided."""

    def wrong(folder: Path, plan: JobPlan, check: Any = None) -> None:
        acts()
        write_plan(folder, replace(plan, batch=12), check)

    _put(apply, write_plan=wrong)


def _hold_meanwhile(acts: Acts) -> None:
    """A job that waits is held while it gets a hint."""
    send = apply.send_hints

    def held(context: apply.ActionContext, actions: Any, now: float) -> Any:
        for action in actions:
            acts()
            context.cluster.hold(action.job.id)
        sent = send(context, actions, now)
        for action in actions:
            context.cluster.release(action.job.id)
        return sent

    _put(apply, send_hints=held)


def _begin_time(acts: Acts) -> None:
    """A job that waits gets a begin time with its hint, to be released by a later tick."""
    update = apply.ActionContext.update

    def later(self: apply.ActionContext, job: Job, fields: dict[str, str], ours: Steering) -> Any:
        if job.state is JobState.PENDING and not job.held:
            acts()
            fields = {**fields, "StartTime": "now+900"}
        return update(self, job, fields, ours)

    _put(apply.ActionContext, update=later)


def _retire_forgets(acts: Acts) -> None:
    """``hadar retire`` leaves the requests as the controller wrote them."""
    ordinary = retire.ordinary

    def forgetful(job: Job, steered: Steering, now: float, config: Any, says_off: bool) -> Any:
        owners = ordinary(job, steered, now, config, says_off).fields.get("Partition", "")
        if job.state is JobState.PENDING and {*owners.split(",")} - {"", *job.partitions}:
            acts()
        alone = config.partitions.model_copy(update={"groups": {}})
        without_groups = config.model_copy(update={"partitions": alone})
        return ordinary(job, Steering(), now, without_groups, says_off)

    _put(retire, ordinary=forgetful)


def _put(where: object, **names: object) -> None:
    for name, value in names.items():
        setattr(where, name, value)


@dataclass(frozen=True)
class Plant:
    """A fault: ``put`` makes it, and a sentence with ``shown`` in it is how it must show.

    ``where``: in the tick that dies, in the ticks after it, or in ``hadar retire`` after it.
    """

    put: Callable[[Acts], None]
    shown: str
    where: Literal["tick", "recovery", "retire"] = "recovery"

    def reported_by(self, wrong: Iterable[str]) -> str | None:
        """The sentence that belongs to this fault; any other one may have come by chance."""
        return next((sentence for sentence in wrong if self.shown in sentence), None)


FAULTS: dict[str, Plant] = {
    "requeue once more": Plant(_requeue_once_more, "moves in the journal"),
    "hold": Plant(_hold, "it is held"),
    "swapped plans": Plant(_swapped_plans, "its plan speaks of"),
    "another batch": Plant(_another_batch, "batch 12"),
    "hold meanwhile": Plant(_hold_meanwhile, "it is held", "tick"),
    "begin time": Plant(_begin_time, "it waits for a begin time", "tick"),
    "retire forgets": Plant(_retire_forgets, "is not its owner's after hadar retire", "retire"),
}
