"""From the release before to this one and back, with the controller killed in between.

``python -m benchmarks.upgrade --before FOLDER [--only up|down] [--points POINT ...]``

FOLDER is a checkout of a release that gave waiting jobs leases, such as ``git worktree add FOLDER
e298fe9``. On one sandbox, with the configuration, Lua files, state file and exchange folder of that
release, its controller is killed at a point of a move, and this release's goes on; and the other
way round. All jobs must run and complete once. The exit status is 1 where something is wrong.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.optin.site import refuse
from benchmarks.upgrade.step import POINTS
from benchmarks.upgrade.trial import Release, Verdict, upgraded_site
from slurm_hadar.domain.errors import HadarError


def main() -> None:
    """Run the trials, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--before", type=Path, required=True, help="a checkout")
    parser.add_argument("--only", choices=("up", "down"))
    parser.add_argument("--points", nargs="+", choices=POINTS, default=list(POINTS))
    args = parser.parse_args()
    # The sandbox goes down first.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    before = Release("before", args.before.resolve(), leases=True)
    now = Release("now", Path(__file__).resolve().parents[2], leases=False)
    folder = Path(tempfile.mkdtemp(prefix="hadar-upgrade-", dir="/tmp"))
    wrong = 0
    try:
        refuse()
        with upgraded_site(folder, before, now) as trial:
            warnings = trial.warnings()
            wrong += sum(line.startswith("WRONG") for line in warnings)
            print("\n".join(warnings), flush=True)
            for first, then in ((before, now), (now, before)):
                if args.only == ("down" if first is before else "up"):
                    continue
                for point in args.points:
                    verdict = trial.carry_out(first, then, point)
                    print(line(verdict), flush=True)
                    wrong += bool(verdict.wrong)
    except (HadarError, OSError) as error:
        parser.exit(2, f"{error}\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{wrong} of them wrong" if wrong else "nothing wrong")
    sys.exit(1 if wrong else 0)


def line(verdict: Verdict) -> str:
    """One trial for people."""
    moves = ", ".join(dict.fromkeys(verdict.moves)) or "none"
    text = (
        f"{verdict.way}, killed at {verdict.point!r}: {verdict.jobs} jobs, {verdict.leased} leased,"
        f" released in {verdict.released_s:.1f} s; moves: {moves}; restarts of the moved job: "
        f"{verdict.restarts}; {verdict.seconds:.0f} s"
    )
    return "\n".join([text, *(f"  WRONG: {words}" for words in verdict.wrong)])


if __name__ == "__main__":
    main()
