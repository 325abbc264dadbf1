"""The controller is killed before every statement of a tick that touches Slurm or the journal.

``python -m benchmarks.faults [--sample N] [--side-by-side N]``

One undisturbed tick finds the points. For each of them a controller is killed there, and another
one ticks at once, or when Slurm has acted by itself, or never. Printed are how many points there
are, how many trials, and every promise that was broken. At the end faults are planted in the
recovery, which must be caught.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.faults.planted import FAULTS
from benchmarks.faults.trial import THEN, Touch
from benchmarks.faults.trials import Case, run_all

_TRIED_AT = 3
"""Points at which a planted fault is tried; one is enough to catch it."""


def main() -> None:
    """Run the trials and print what came of them; exit 1 where a promise was broken."""
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    words.add_argument("--sample", type=int, default=0, help="so many points, drawn; 0: all")
    words.add_argument("--side-by-side", type=int, default=4, help="sandboxes at a time")
    words.add_argument("--seed", type=int, default=0)
    args = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name:
        # The lock of a job's script, the data and the logs are everybody's.
        folder = Path(name)
        folder.chmod(0o755)
        whole = run_all(folder / "whole", [Case()], 1)[0][1]
        points = whole.touches
        places = {touch.place for touch in points}
        print(f"{len(points)} points between statements of one tick, {len(places)} lines of code")
        broken = _told("not killed", whole.wrong)
        chosen = points
        if args.sample and args.sample < len(points):
            chosen = random.Random(args.seed).sample(points, args.sample)
        cases = [Case(touch.number, then) for touch in chosen for then in THEN]
        killed = 0
        for case, found in run_all(folder / "killed", cases, args.side_by_side):
            touch = whole.touches[case.at - 1]
            what = f"point {case.at} ({touch.place}, {touch.what} {touch.words}), then {case.then}"
            killed += found.killed
            broken += _told(what, found.wrong)
        print(f"{len(cases)} trials, {killed} of them killed; {broken} broke a promise")
        missed = _planted(folder / "planted", whole.touches, args.side_by_side)
    sys.exit(1 if broken or missed else 0)


def _planted(folder: Path, points: list[Touch], side_by_side: int) -> int:
    # Between the requeue of a move and its end a recovery has most to do.
    asked = max(touch.number for touch in points if touch.place.startswith("controller/acting"))
    sent = [t.number for t in points if t.words.startswith("scontrol") and t.number > asked]
    some = range(sent[0] + 1, sent[0] + 1 + _TRIED_AT)
    cases = [Case(at, then, plant) for plant in FAULTS for at in some for then in THEN[:2]]
    caught: dict[str, list[str]] = {plant: [] for plant in FAULTS}
    for case, found in run_all(folder, cases, side_by_side):
        caught[case.plant or ""] += found.wrong
    for plant, wrong in caught.items():
        print(f"planted fault {plant!r}: " + (f"caught ({wrong[0]})" if wrong else "NOT CAUGHT"))
    return sum(not wrong for wrong in caught.values())


def _told(what: str, wrong: list[str]) -> int:
    for sentence in wrong:
        print(f"BROKEN {what}: {sentence}")
    return bool(wrong)


if __name__ == "__main__":
    main()
