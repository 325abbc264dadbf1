"""A controller of its own process that dies where it is told to.

``python -m benchmarks.faults.child FOLDER --log FILE [--at N] [--ticks N] [--plant FAULT]``
"""

import argparse
import json
import os
import time
from pathlib import Path

from benchmarks.faults.planted import FAULTS
from benchmarks.faults.touches import Touches
from slurm_hadar import config as configuration
from slurm_hadar.controller.store import Store
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.cluster import open_cluster

WANT = "want.json"
"""In the folder: job -> GPU type -> count, what the policy answers whatever it sees."""
BETWEEN_S = 1.5


def main() -> None:
    """Tick, with the plan that the folder holds."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("folder", type=Path)
    words.add_argument("--log", type=Path, required=True)
    words.add_argument("--at", type=int, default=0)
    words.add_argument("--ticks", type=int, default=1)
    words.add_argument("--plant", choices=tuple(FAULTS))
    args = words.parse_args()
    wanted = json.loads((args.folder / WANT).read_text())

    def decide(view: View, state: State) -> tuple[Plan, State]:
        there = {
            job: Placement(wanted[job], reason="dictated") for job in view.jobs.ids if job in wanted
        }
        return Plan(there, {job: "dictated" for job in view.jobs.ids if job not in there}), state

    if args.plant:
        FAULTS[args.plant]()
    config = configuration.load(configuration.find())
    store = Store.open(config.site.state_dir)
    touches = Touches(args.log, args.at)
    touches.watch(store.connection)
    rates = open_rates(config, store.connection)
    cluster = open_cluster(config.slurm)
    controller = Controller(config, cluster, store, rates, os.getuid(), decide=decide)
    for number in range(args.ticks):
        if number:
            time.sleep(BETWEEN_S)
        controller.tick()
    store.close()


if __name__ == "__main__":
    main()
