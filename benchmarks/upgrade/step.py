"""Ticks of a controller of whichever release is on the path, which may be killed at a point.

``python step.py --ticks N [--want FILE] [--die POINT]`` with PYTHONPATH at a checkout, as the
site's controller. It uses only what this release and the one before have in common.
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from slurm_hadar import config as configuration
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.lock import only_one
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.cluster import open_cluster

try:
    from slurm_hadar.controller.actuation.running import moves
except ImportError:  # The release before has it under its former name.
    moves = import_module("slurm_hadar.controller.acts.moves")

POINTS = ("hinted", "asked", "saved", "requeued", "noted", "sent on", "sent on, noted")
"""Where it dies: a first update is sent; the job is asked to save; it has saved; the requeue is
sent; and written down; the update of the moved job is sent; and written down."""
_PAUSE_S = 1.0


def main() -> None:
    """Tick, and print what each tick said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ticks", type=int, default=1)
    parser.add_argument("--want", type=Path, help="JSON: job -> GPU type -> GPUs; else the policy")
    parser.add_argument("--die", choices=POINTS)
    parser.add_argument("--journal", action="store_true", help="no tick: print the journal's moves")
    args = parser.parse_args()
    config = configuration.load(configuration.find())
    with only_one(config.site.state_dir, 0.0):
        store = Store.open(config.site.state_dir)
        if args.journal:
            _print_journal(store)
            return
        cluster = open_cluster(config.slurm)
        decide = _dictated(json.loads(args.want.read_text())) if args.want else None
        rates = open_rates(config, store.connection)
        controller = Controller(config, cluster, store, rates, os.getuid(), decide=decide)
        if args.die:
            _die_at(args.die, store, cluster)
        for number in range(args.ticks):
            if number:
                time.sleep(_PAUSE_S)
            report: Any = controller.tick()
            for line in [*_messages(report), *_not_now(report)]:
                print(line, flush=True)
        store.close()


def _messages(report: Any) -> list[str]:
    """The messages of a tick; releases before have only one field for them."""
    return list(report.messages if hasattr(report, "messages") else report.said)


def _not_now(report: Any) -> list[str]:
    """Why the dictated moves are not made; the release before does not keep that."""
    deferred = getattr(getattr(report, "diff", None), "deferred", {})
    return [f"job {job} not now: {why}" for job, why in deferred.items()]


def _dictated(want: dict[str, dict[str, int]]) -> Callable[[View, State], tuple[Plan, State]]:
    def decide(view: View, state: State) -> tuple[Plan, State]:
        ids = view.jobs.ids
        there = {job: Placement(want[job], reason="dictated") for job in ids if job in want}
        return Plan(there, {job: "dictated" for job in ids if job not in there}), state

    return decide


def _die_at(point: str, store: Store, cluster: Any) -> None:
    def under_way(*phases: str) -> bool:
        return any(e.kind == "move" and e.phase in phases for e in store.open_entries())

    if point == "asked":
        # The release before has it under its former name.
        follow = "follow_open_moves" if hasattr(moves, "follow_open_moves") else "settle"
        _wrap(moves, follow, before=lambda *_: under_way("asked"))
    elif point == "saved":
        _wrap(cluster, "requeue", before=lambda *_: True)
    elif point == "requeued":
        _wrap(cluster, "requeue", after=lambda *_: True)
    elif point == "noted":
        _wrap(store, "advance", after=lambda _, phase, *__: phase == "requeued")
    elif point == "sent on":
        _wrap(cluster, "apply", after=lambda updates: bool(updates) and under_way("requeued"))
    elif point == "sent on, noted":
        _wrap(store, "end", after=lambda _, outcome, *__: outcome == "moved")
    else:
        _wrap(cluster, "apply", after=lambda updates: bool(updates))


def _wrap(
    owner: Any,
    name: str,
    before: Callable[..., bool] = lambda *_: False,
    after: Callable[..., bool] = lambda *_: False,
) -> None:
    real = getattr(owner, name)

    def around(*args: Any, **more: Any) -> Any:
        if before(*args):
            _die()
        found = real(*args, **more)
        if after(*args):
            _die()
        return found

    # A frozen class of the release has no attribute to set.
    vars(owner)[name] = around


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _print_journal(store: Store) -> None:
    # Its tables are the same in both releases, its methods are not.
    columns = ("job", "kind", "phase", "outcome")
    for row in store.connection.execute(f"SELECT {', '.join(columns)} FROM journal ORDER BY id"):
        print(json.dumps(dict(zip(columns, row, strict=True))))


if __name__ == "__main__":
    main()
