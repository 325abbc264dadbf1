"""A controller of its own process that dies, or stops, at a given point.

``python -m benchmarks.faults.child FOLDER --log FILE [--at POINT] [--stop] [--ticks N]
[--decided FILE] [--host NAME] [--retire] [--plant FAULT]``
"""

import argparse
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from benchmarks.faults.planted import FAULTS
from benchmarks.faults.touches import Touches
from slurm_hadar import config as configuration
from slurm_hadar.controller import retire
from slurm_hadar.controller.actuation.actions import Kind
from slurm_hadar.controller.journal.store import Store
from slurm_hadar.controller.lock import only_one
from slurm_hadar.controller.report import TickReport
from slurm_hadar.controller.tick import Controller
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.domain.job import JobState
from slurm_hadar.domain.placement import Placement, Plan
from slurm_hadar.domain.view import State, View
from slurm_hadar.profiles.rates import open_rates
from slurm_hadar.slurm.cluster import open_cluster

WANT = "want.json"
"""In the folder: a list, tick by tick (the last one holds on), of job -> fields of its placement:
what the policy answers whatever it sees."""
ACTED = "acted"
"""In the folder: the planted fault came to act."""
BETWEEN_S = 1.5
BEGINS_AT = "StartTime"
"""As scontrol names the begin time."""
REFUSED, GAVE_UP = 75, 76
"""Exit codes: another controller holds the lock of the state folder; a tick that was stopped and
continued ended with an error, as where Slurm's answers came in time and were read too late."""


def main() -> None:
    """Tick, with the plan that the folder holds, or retire."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--at", default="")
    parser.add_argument("--stop", action="store_true", help="stop at the point, and go on later")
    parser.add_argument("--ticks", type=int, default=1)
    parser.add_argument("--decided", type=Path, help="for what becomes of jobs that wait, by ticks")
    parser.add_argument("--host", help="be a controller of this host")
    parser.add_argument("--retire", action="store_true", help="give the jobs back, tick never")
    parser.add_argument("--plant", choices=tuple(FAULTS))
    args = parser.parse_args()
    plans = json.loads((args.folder / WANT).read_text())
    ticks = 0

    def decide(view: View, state: State) -> tuple[Plan, State]:
        wanted = plans[min(ticks, len(plans) - 1)]
        there = {
            job: Placement(**wanted[job], reason="dictated")
            for job in view.jobs.ids
            if job in wanted
        }
        return Plan(there, {job: "dictated" for job in view.jobs.ids if job not in there}), state

    if args.plant:
        FAULTS[args.plant].put((args.folder / ACTED).touch)
    if args.host:
        vars(socket)["gethostname"] = lambda: args.host
    config = configuration.load(configuration.find())
    lock = only_one(config.site.state_dir, 0.0)
    try:
        lock.__enter__()
    except HadarError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)
    store = Store.open(config.site.state_dir)
    touches = Touches(args.log, args.at, signal.SIGSTOP if args.stop else signal.SIGKILL)
    touches.watch(store.connection)
    rates = open_rates(config, store.connection)
    cluster = open_cluster(config.slurm)
    controller = Controller(config, cluster, store, rates, os.getuid(), decide=decide)
    if args.retire:
        refused = retire.retire(controller, time.time()).refused
        store.close()
        sys.exit(f"retire was refused: {refused}" if refused else 0)
    for ticks in range(args.ticks):
        if ticks:
            time.sleep(BETWEEN_S)
        try:
            report = controller.tick()
        except HadarError as error:
            if not args.stop:
                raise
            print(error, file=sys.stderr)
            sys.exit(GAVE_UP)
        if args.decided:
            with args.decided.open("a") as lines:
                lines.write(json.dumps(_waiting(report)) + "\n")
    store.close()


def _waiting(report: TickReport) -> dict[str, dict[str, str]]:
    """Job that a tick saw waiting -> what it asks for when the tick has sent its hints; BEGINS_AT
    is there where it has a begin time ahead. Without those that began before their hint came."""
    found = {}
    for job in report.observation.jobs.values():
        waits = job.state is JobState.PENDING and not job.restarts and not job.held
        if waits and job.id not in report.refused:
            begins = {BEGINS_AT: ""} if job.eligible_s > report.observation.now + 1 else {}
            found[job.id] = {"Partition": ",".join(job.partitions), **begins}
    for action in report.done:
        if action.kind is Kind.HINT and action.job.id in found:
            found[action.job.id] |= action.fields
            if action.fields.get(BEGINS_AT) == "now":
                del found[action.job.id][BEGINS_AT]
    return found


if __name__ == "__main__":
    main()
