"""Faults put into the recovery on purpose: a harness that lets them pass proves nothing."""

from collections.abc import Callable
from typing import Any

from slurm_hadar.controller import acting, moves


def _requeue_once_more() -> None:
    """A move that is over is requeued again: the job starts more often than it should."""
    advance, started = moves.advance, moves._started
    hands: list[acting.Hands] = []
    again: set[str] = set()

    def noted(mine: acting.Hands, *rest: Any) -> Any:
        hands[:] = [mine]
        return advance(mine, *rest)

    def requeued(entry: Any, job: Any) -> str:
        if job.id not in again:
            again.add(job.id)
            hands[0].cluster.requeue([job.id])
        return started(entry, job)

    _put(moves, advance=noted, _started=requeued)


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
