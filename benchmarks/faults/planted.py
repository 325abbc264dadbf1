"""Faults put into the recovery on purpose: a harness that lets them pass proves nothing."""

from collections.abc import Callable, Mapping
from typing import Any

from slurm_hadar.controller.acts import acting, moves
from slurm_hadar.domain.job import Job, JobState


def _requeue_once_more() -> None:
    """A move that is over is requeued again: the job starts more often than it should."""
    advance = moves.advance
    again: set[str] = set()

    def over(hands: acting.Hands, jobs: Mapping[str, Job], *rest: Any) -> Any:
        step = advance(hands, jobs, *rest)
        under_way = {entry.job for entry in hands.store.open_entries()}
        for job in jobs.values():
            moved = job.managed and job.state is JobState.RUNNING and job.restarts > 0
            if moved and job.id not in again | under_way:
                again.add(job.id)
                hands.cluster.requeue([job.id])
        return step

    _put(moves, advance=over)


def _hold() -> None:
    """What is found in the middle of a move is held, to be released by a later tick."""
    send_on = moves._send_on

    def held(hands: acting.Hands, moved: Any, now: float) -> Any:
        for _, job in moved:
            hands.cluster.hold(job.id)
        return send_on(hands, moved, now)

    _put(moves, _send_on=held)


def _another_plan() -> None:
    """A job is told what another one should run with."""
    write_plan = acting.Hands.write_plan

    def wrong(self: acting.Hands, job: Any, _: Any, *rest: Any, **more: Any) -> Any:
        return write_plan(self, job, {"k80": 2}, *rest, **more)

    _put(acting.Hands, write_plan=wrong)


def _put(where: object, **names: object) -> None:
    for name, value in names.items():
        setattr(where, name, value)


FAULTS: dict[str, Callable[[], None]] = {
    "requeue once more": _requeue_once_more,
    "hold": _hold,
    "another plan": _another_plan,
}
