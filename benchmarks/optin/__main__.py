"""Does opting in cost anybody anything? The same jobs, with more and more of them managed.

``python -m benchmarks.optin [--seeds N ...] [--shares PERCENT ...] [--what mix|crowd|nice|all]
[--plain N] [--jobs N] [--minutes M] [--scale F] [--fastest-first] [--crowd N]
[--side-by-side N] [--keep FOLDER] [--read FOLDER]``

A mixed workload of several users runs on a sandbox with slurmdbd and priority/multifactor, twice or
more all through sbatch, then with parts of it through hbatch under a controller that is an operator
and ticks every 60 s. Printed are the delays of the ends against the plain runs beside those of a
plain run against the others, who was overtaken, and how long freed GPUs wait. The exit status is 1
where a promise was broken. See docs/optin.md.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.optin import records
from benchmarks.optin.experiments import crowd, nice
from benchmarks.optin.records import RunRecord
from benchmarks.optin.runs import Run, Stopped, carry_out, mixed
from benchmarks.optin.site import FASTEST_FIRST, LAYOUT, refuse
from benchmarks.optin.table import summary
from benchmarks.optin.workload import draw
from slurm_hadar.domain.errors import HadarError


def planned(args: argparse.Namespace) -> list[Run]:
    """The runs that the command line asks for."""
    found = []
    for seed in args.seeds if args.what in ("mix", "all") else ():
        specs = draw(seed, args.jobs, args.minutes, args.scale)
        labels = [(f"plain {run}", 0.0) for run in range(1, args.plain + 1)]
        for at, share in enumerate(args.shares):
            # A run's order and its place in Slurm's cycles come from its label.
            number = args.shares[: at + 1].count(share)
            label = f"{share}%" if number == 1 else f"{share}% run {number}"
            labels.append((label, share / 100))
        layout = FASTEST_FIRST if args.fastest_first else LAYOUT
        found += [mixed(label, seed, share, specs, layout) for label, share in labels]
    if args.what in ("crowd", "all"):
        found.append(crowd(args.crowd))
    if args.what in ("nice", "all"):
        found.append(nice())
    return found


def main() -> None:
    """Run what was asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--what", choices=("mix", "crowd", "nice", "all"), default="all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--shares", type=int, nargs="+", default=[10, 50, 100], help="percent")
    parser.add_argument("--plain", type=int, default=2, help="runs of a seed all through sbatch")
    parser.add_argument("--jobs", type=int, default=48, help="submissions of the mixed workload")
    parser.add_argument("--minutes", type=float, default=3.0, help="in which they arrive")
    parser.add_argument("--scale", type=float, default=1.0, help="of all run times of the workload")
    parser.add_argument(
        "--fastest-first", action="store_true", help="mix: nodes have a Weight, the fastest first"
    )
    parser.add_argument("--crowd", type=int, default=150, help="ordinary jobs of the crowd")
    parser.add_argument("--side-by-side", type=int, default=1, help="sandboxes at a time")
    parser.add_argument("--keep", type=Path, help="keep records, logs and journals in this folder")
    parser.add_argument("--read", type=Path, help="no run: the records that are in this folder")
    args = parser.parse_args()
    try:
        if args.read:
            runs = [records.read(path) for path in sorted(args.read.glob("*.json"))]
        else:
            refuse()
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
            runs = _carried_out(planned(args), args.keep, max(1, args.side_by_side))
    except (HadarError, ValueError, OSError) as error:
        parser.exit(2, f"{error}\n")
    result = summary(runs)
    print("\n".join(result.lines))
    sys.exit(1 if result.broken else 0)


def _carried_out(runs: Sequence[Run], keep: Path | None, side_by_side: int) -> list[RunRecord]:
    """All of them, so many at a time. The first that fails ends the others."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ending(stop))

    def one(run: Run) -> RunRecord:
        try:
            if stop.is_set():
                raise Stopped
            record = carry_out(run, keep, stop)
        except BaseException:
            stop.set()
            raise
        end = max((job.end_s for job in record.jobs if job.attempts), default=0.0)
        print(
            f"{run.label}, seed {run.seed}: {len(record.jobs)} jobs in {end:.0f} s, load "
            f"{record.load:.1f}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        return record

    with ThreadPoolExecutor(side_by_side) as pool:
        futures = [pool.submit(one, run) for run in runs]
        errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, Stopped)):
        if isinstance(error, Stopped):
            sys.exit(130)
        raise error
    return [future.result() for future in futures]


def _ending(stop: threading.Event) -> Callable[[int, object], None]:
    def end(number: int, frame: object) -> None:
        """The sandboxes go down first."""
        stop.set()

    return end


if __name__ == "__main__":
    main()
