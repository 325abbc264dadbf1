"""The controller is killed before every statement of a tick that touches Slurm or the journal.

``python -m benchmarks.faults [--sample N] [--only TEXT] [--side-by-side N] [--rights R]``

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
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks.faults import scene
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.trial import THEN, Found, Touch
from benchmarks.faults.trials import (
    Case,
    Room,
    distinct,
    has_moved,
    never_reached,
    not_reached,
    planted,
    room,
)
from slurm_hadar.domain.errors import UsageError

LEAST_POINTS = 25
_AGAIN = 2
"""So often the points that were not reached are tried once more."""


def main() -> None:
    """Run the trials and print what came of them; exit 1 where a promise was broken or, all points
    asked for, one was never reached."""
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    words.add_argument("--sample", type=_count, default=0, help="so many points, drawn; 0: all")
    words.add_argument("--only", default="", help="points whose names have this in them")
    words.add_argument("--side-by-side", type=_count, default=2, help="sandboxes at a time")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument(
        "--rights", choices=("user", "sandbox"), default="user",
        help="where the controller keeps what it did: as on a site, or in the jobs",
    )  # fmt: skip
    words.add_argument(
        "--plants", action=argparse.BooleanOptionalAction, default=True,
        help="plant faults in the recovery at the end",
    )  # fmt: skip
    args = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name:
        # The lock of a job's script, the data and the logs are everybody's.
        folder = Path(name)
        folder.chmod(0o755)
        try:
            with room(folder, max(1, args.side_by_side), args.rights) as boxes:
                failed = _all(boxes, args.sample, args.seed, args.only, args.plants)
        except UsageError as error:
            words.exit(2, f"{error}\n")
    sys.exit(1 if failed else 0)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def chosen(points: Sequence[Touch], only: str, sample: int, seed: int) -> list[Touch]:
    """The points to try. Raises UsageError where no name has ``only`` in it."""
    found = [touch for touch in points if only in touch.name]
    if not found:
        raise UsageError(
            f"none of the {len(points)} points has {only!r} in its name; one is "
            f"{points[len(points) // 2].name!r}"
            if points
            else "the tick came to no point at all"
        )
    if sample and sample < len(found):
        found = random.Random(seed).sample(found, sample)
    return found


def _all(boxes: Room, sample: int, seed: int, only: str, plants: bool) -> bool:
    began = time.monotonic()
    whole = boxes.undisturbed()
    points = distinct(whole.touches)
    places = {touch.place for touch in points}
    _say(f"{len(points)} points between statements of one tick, {len(places)} functions")
    broken = 0
    undone = [f"its tick did no {kind!r}" for kind in sorted(scene.KINDS - whole.kinds)]
    undone += [] if has_moved(whole) else ["its tick brought no move to its end"]
    for sentence in [*whole.wrong, *undone]:
        _say(f"BROKEN not killed: {sentence}")
        broken += 1
    some = chosen(points, only, sample, seed)
    found = boxes.run([Case(touch.name, then) for touch in some for then in THEN], _told)
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
    left = not_reached(found, only)
    for case in left:
        _say(f"NOT REACHED: {case.at}, then {case.then}")
    missed = _planted(boxes, whole.touches) if plants else []
    alive = {case.at for case in left} - {case.at for case, one in found if one.killed}
    never = never_reached(found, left, {touch.name for touch in points})
    _say(
        f"{len(found)} trials at {len(names)} points, {killed} killed, "
        f"{(time.monotonic() - began) / 60:.0f} min; {broken} broke a promise; "
        f"{len(left)} not reached, nobody ever died at {len(alive)} points, of which {len(never)} "
        "count; " + (_of_plants(missed) if plants else "no fault planted")
    )
    return is_failure(broken, missed, len(points), never if not (sample or only) else ())


def is_failure(broken: int, missed: Collection[str], points: int, never: Collection[str]) -> bool:
    """Whether a run did not prove what it should. ``never``: points where no controller died."""
    return bool(broken or missed or points < LEAST_POINTS or never)


def _planted(boxes: Room, points: list[Touch]) -> list[str]:
    """The planted faults that no trial caught."""
    caught: dict[str, list[str]] = {plant: [] for plant in FAULTS}
    for case, found in boxes.run([case for plant in FAULTS for case in planted(plant, points)]):
        caught[case.plant or ""] += found.wrong
    missed = []
    for plant, wrong in caught.items():
        sentence = FAULTS[plant].told_by(wrong)
        if sentence is None:
            missed.append(plant)
        _say(
            f"planted fault {plant!r}: "
            + (f"caught ({sentence})" if sentence else f"NOT CAUGHT; said was {wrong}")
        )
    return missed


def _of_plants(missed: Sequence[str]) -> str:
    return f"{len(FAULTS) - len(missed)} of {len(FAULTS)} planted faults caught"


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
