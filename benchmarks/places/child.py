"""A controller that moves every job that it may to the other of two GPU types, tick after tick.

``python -m benchmarks.places.child TICKS_FILE MOVES_FILE``, as the site's controller; it ends with
SIGTERM.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from slurm_hadar import config as configuration
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.lock import only_one
from slurm_hadar.controller.observation.returned_nodes import REQUEUED
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.cluster import open_cluster

BETWEEN = ("v100", "p100")
_PAUSE_S = 0.5


def there_and_back(view: View, state: State) -> tuple[Plan, State]:
    """Each job that runs belongs on the type on which it is not, where it may be moved."""
    placements = {}
    for row, _, kind, count in view.jobs.held.tolist():
        here = view.types[kind]
        wanted = BETWEEN[1 - BETWEEN.index(here)] if view.jobs.movable[row] else here
        placements[view.jobs.ids[row]] = Placement({wanted: count}, reason="there and back")
    waiting = {job: "there and back" for job in view.jobs.ids if job not in placements}
    return Plan(placements, waiting), state


def main() -> None:
    """Tick until SIGTERM, with a line of JSON for each tick: when it looked at the queue, the jobs
    that were moved, those that were not with the reason, and the free GPUs of each node. Then a
    line for each move."""
    path, moves = map(Path, sys.argv[1:])
    over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: over.append(number))
    config = configuration.load(configuration.find())
    with only_one(config.site.state_dir, 0.0):
        store = Store.open(config.site.state_dir)
        rates = open_rates(config, store.connection)
        controller = Controller(
            config, open_cluster(config.slurm), store, rates, os.getuid(), decide=there_and_back
        )
        while not over:
            report = controller.tick()
            summary = {
                "looked_s": report.observation.now,
                "moves": [action.job.id for action in report.diff.of(Kind.MOVE)],
                "deferred": dict(report.diff.deferred),
                "free": {
                    node.name: sum(node.gpus.values()) - sum(node.gpus_used.values())
                    for node in report.observation.nodes.values()
                },
                "said": report.messages,
            }
            with path.open("a") as lines:
                lines.write(json.dumps(summary) + "\n")
            time.sleep(_PAUSE_S)
        with moves.open("w") as lines:
            for entry in store.moves_after(0, ()):
                ended = {
                    "job": entry.job,
                    "opened_s": entry.opened_s,
                    "requeued_s": entry.reached_s(REQUEUED),
                    "gpus": entry.details.get("gpus"),
                    "outcome": entry.outcome,
                }
                lines.write(json.dumps(ended) + "\n")
        store.close()


if __name__ == "__main__":
    main()
