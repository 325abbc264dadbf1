"""The controller is killed before every statement of a tick that touches Slurm or the journal.

``python -m benchmarks.faults [--sample N] [--only TEXT] [--side-by-side N]``

One undisturbed tick finds the points. For each of them a controller is killed there, and another
one ticks at once, or when Slurm has acted by itself, or never. A tick takes another way when a job
answers later: points that only a trial met are tried too, and those that were not reached again.
Printed are how many points there are, how many trials, and every promise that was broken. At the
end faults are planted in the recovery, which must be caught.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults.planted import FAULTS
from benchmarks.faults.trial import THEN, Found, Touch
from benchmarks.faults.trials import Case, Room, distinct, not_reached, planted, room

LEAST_POINTS = 25
_AGAIN = 2
"""So often the points that were not reached are tried once more."""


def main() -> None:
    """Run the trials and print what came of them; exit 1 where a promise was broken."""
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    words.add_argument("--sample", type=int, default=0, help="so many points, drawn; 0: all")
    words.add_argument("--only", default="", help="points whose names have this in them")
    words.add_argument("--side-by-side", type=int, default=2, help="sandboxes at a time")
    words.add_argument("--seed", type=int, default=0)
    args = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name:
        # The lock of a job's script, the data and the logs are everybody's.
        folder = Path(name)
        folder.chmod(0o755)
        with room(folder, args.side_by_side) as boxes:
            failed = _all(boxes, args.sample, args.seed, args.only)
    sys.exit(1 if failed else 0)


def _all(boxes: Room, sample: int, seed: int, only: str) -> bool:
    began = time.monotonic()
    whole = boxes.run([Case()])[0][1]
    points = distinct(whole.touches)
    places = {touch.place for touch in points}
    _say(f"{len(points)} points between statements of one tick, {len(places)} functions")
    broken = 0
    for sentence in whole.wrong:
        _say(f"BROKEN not killed: {sentence}")
        broken += 1
    chosen = [touch for touch in points if only in touch.name]
    if sample and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    found = boxes.run([Case(touch.name, then) for touch in chosen for then in THEN], _told)
    for _ in range(0 if sample else _AGAIN):
        again = not_reached(found, only)
        found += boxes.run(again, _told) if again else []
    killed = sum(one.killed for _, one in found)
    for then in THEN:
        wrong = sum(bool(one.wrong) for case, one in found if case.then == then)
        tried = sum(case.then == then for case, _ in found)
        _say(f"another tick {then}: {tried} trials, {wrong} broke a promise")
        broken += wrong
    names = {case.at for case, _ in found}
    _say(f"{len(found)} trials at {len(names)} points, {killed} killed; {broken} broke a promise")
    for case in not_reached(found, only):
        _say(f"NOT REACHED: {case.at}, then {case.then}")
    missed = _planted(boxes, whole.touches)
    _say(f"{(time.monotonic() - began) / 60:.0f} min")
    return bool(broken or missed or len(points) < LEAST_POINTS)


def _planted(boxes: Room, points: list[Touch]) -> int:
    caught: dict[str, list[str]] = {plant: [] for plant in FAULTS}
    for case, found in boxes.run([case for plant in FAULTS for case in planted(plant, points)]):
        caught[case.plant or ""] += found.wrong
    for plant, wrong in caught.items():
        _say(f"planted fault {plant!r}: " + (f"caught ({wrong[0]})" if wrong else "NOT CAUGHT"))
    return sum(not wrong for wrong in caught.values())


def _told(case: Case, found: Found) -> None:
    what = f"{case.at}, then {case.then}" + ("" if found.killed else " (not reached)")
    for sentence in found.wrong:
        _say(f"BROKEN {what}: {sentence}")
    if not found.wrong:
        _say(f"held after {found.seconds:.0f} s: {what}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
