"""Controllers, and trainings in a save, are killed and stopped before every statement that counts.

``python -m benchmarks.faults [--what ticks|saves|exchanges|all] [--how kill|stall|both]
[--sample N] [--only TEXT] [--side-by-side N] [--rights R]``

Ticks: one undisturbed tick finds the points, statements that touch Slurm, the journal or files.
For each of them a controller is killed there, and another one ticks at once, or when Slurm has
acted by itself, or never. Or it is stopped there (SIGSTOP) for longer than all times that it waits,
another one is refused or takes over meanwhile, and it is continued (SIGCONT). A tick takes another
way when a job answers later: points that only a trial met are tried too, and those that were not
reached again. Saves: a training is killed or stopped at each statement that changes files, and the
next attempt completes it before a stopped one is continued. Exchanges: of priorities, on a site
with an operator's controller, a kill or a stop at each statement from where an exchange is kept;
as root only. Printed are how many points there are, how many trials, and every promise that was
broken. At the end faults are planted, which must be caught.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.faults import scene
from benchmarks.faults.exchanges import (
    EXCHANGE_PLANTS,
    EXCHANGE_THENS,
    ExchangeCase,
    ExchangeTrials,
    exchange_points,
    exchange_site,
    promised,
)
from benchmarks.faults.planted import FAULTS
from benchmarks.faults.planted_saves import SAVE_FAULTS
from benchmarks.faults.saves import (
    HOWS,
    SaveCase,
    SaveFound,
    Saves,
    caught,
    saves,
    summary,
)
from benchmarks.faults.trial import Found, Touch
from benchmarks.faults.trials import (
    THENS,
    Case,
    TrialSandboxes,
    distinct,
    has_moved,
    never_reached,
    not_reached,
    planted,
    trial_sandboxes,
)
from benchmarks.optin.site import refuse
from slurm_hadar.domain.errors import HadarError, UsageError

LEAST_POINTS = 25
_AGAIN = 2
"""So often the points that were not reached are tried once more."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Point = TypeVar("_Point", bound=_Named)


@dataclass(frozen=True)
class Options:
    """What to try. ``hows``: of "kill" and "stall"; the rest as on the command line."""

    hows: Sequence[str]
    sample: int
    seed: int
    only: str
    side_by_side: int
    rights: scene.Rights
    plants: bool


def main() -> None:
    """Run the trials and print what came of them; exit 1 where a promise was broken or, all points
    asked for, one was never reached."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--what", choices=("ticks", "saves", "exchanges", "all"), default="all")
    parser.add_argument("--how", choices=(*HOWS, "both"), default="both", help="SIGKILL, SIGSTOP")
    parser.add_argument("--sample", type=_count, default=0, help="so many points, drawn; 0: all")
    parser.add_argument("--only", default="", help="points whose names have this in them")
    parser.add_argument("--side-by-side", type=_count, default=2, help="sandboxes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rights", choices=("user", "sandbox"), default="user",
        help="where the controller keeps what it did: as on a site, or in the jobs",
    )  # fmt: skip
    parser.add_argument(
        "--plants", action=argparse.BooleanOptionalAction, default=True,
        help="plant faults in the recovery and in the saves at the end",
    )  # fmt: skip
    args = parser.parse_args()
    options = Options(
        hows=HOWS if args.how == "both" else (args.how,),
        sample=args.sample,
        seed=args.seed,
        only=args.only,
        side_by_side=max(1, args.side_by_side),
        rights=args.rights,
        plants=args.plants,
    )
    try:
        failed = _parts(options, args.what)
    except UsageError as error:
        parser.exit(2, f"{error}\n")
    except HadarError as error:
        parser.exit(1, f"{error}\n")
    sys.exit(1 if failed else 0)


def _parts(options: Options, what: str) -> bool:
    """Whether any part failed. Raises UsageError where none has a point of the name asked for."""
    failed, unknown, parts = False, [], 0
    if what in ("exchanges", "all"):
        parts += 1
        try:
            failed |= _exchanges(options)
        except UsageError as error:
            unknown.append(error)
    if what in ("saves", "all"):
        parts += 1
        with saves(options.side_by_side) as room_of_saves:
            try:
                failed |= _saves(room_of_saves, options)
            except UsageError as error:
                unknown.append(error)
    for how in options.hows if what in ("ticks", "all") else ():
        parts += 1
        with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name:
            # Jobs read the data, write their logs and lock their script in this folder.
            folder = Path(name)
            folder.chmod(0o755)
            with trial_sandboxes(
                folder, options.side_by_side, options.rights, how == "stall"
            ) as boxes:
                try:
                    failed |= _ticks(boxes, how, options)
                except UsageError as error:
                    unknown.append(error)
    if len(unknown) == parts:
        raise unknown[-1]
    return failed


def _saves(some: Saves, options: Options) -> bool:
    """All about saves; whether it failed."""
    points = some.points()
    _say(f"{len(points)} points of saves")
    tried = chosen(points, options.only, options.sample, options.seed)
    answers = some.run([SaveCase(point, how) for point in tried for how in options.hows], _of_save)
    for line in summary(answers):
        _say(line)
    missed = []
    if options.plants:
        bad = some.run([case for plant in SAVE_FAULTS for case in some.planted(plant)])
        for plant, sentence in caught(bad).items():
            missed += [] if sentence else [plant]
            _say(f"planted fault {plant!r}: " + (f"caught ({sentence})" if sentence else "MISSED"))
    return bool(missed) or any(found.wrong for _, found in answers)


def _exchanges(options: Options) -> bool:
    """All about exchanged priorities; whether it failed. Raises UsageError where this machine or
    user cannot run a site of several users."""
    refuse()
    with (
        tempfile.TemporaryDirectory(prefix="hadar-exchanges-") as name,
        exchange_site(Path(name)) as trials,
    ):
        cases = exchange_cases(trials, options)
        wrong, died = 0, 0
        for case in cases:
            found = trials.run(case)
            wrong, died = wrong + bool(found.wrong), died + found.died
            for sentence in found.wrong:
                _say(f"BROKEN {case.name}: {sentence}")
            if not found.wrong:
                _say(f"held: {case.name}" + ("" if found.died else " (not reached)"))
        missed = []
        for case in EXCHANGE_PLANTS if options.plants else ():
            found = trials.run(case)
            missed += [] if found.wrong else [case.plant]
            _say(f"planted fault {case.plant!r}: {found.wrong or 'NOT CAUGHT'}")
    _say(
        f"exchanges: {len(cases)} trials, {died} controllers killed or stopped; "
        f"{wrong} broke a promise"
    )
    return bool(wrong or missed) or not died


def exchange_cases(trials: ExchangeTrials, options: Options) -> list[ExchangeCase]:
    """The trials of the points asked for, a part of them where a sample is asked for. Raises
    HadarError where an undisturbed tick exchanged nothing or broke a promise."""
    whole = trials.run(ExchangeCase())
    if whole.wrong or not whole.exchanged:
        raise HadarError(
            f"a tick that was not disturbed: {whole.wrong or 'it exchanged no places'}"
        )
    points = exchange_points(whole.touches)
    cases = [
        ExchangeCase(touch.name, how, then)
        for touch in points
        if options.only in touch.name
        for how in options.hows
        for then in EXCHANGE_THENS[how]
        if how == "kill" or promised(touch, points, then)
    ]
    _say(f"{len(points)} points of an exchange, {len(cases)} trials")
    return chosen(cases, "", options.sample, options.seed)


def _of_save(case: SaveCase, found: SaveFound) -> None:
    for sentence in found.wrong:
        _say(f"BROKEN {case.name}: {sentence}")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 0 or more")
    return int(text)


def chosen(points: Sequence[_Point], only: str, sample: int, seed: int) -> list[_Point]:
    """The points to try. Raises UsageError where no name has ``only`` in it."""
    found = [point for point in points if only in point.name]
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


def _ticks(boxes: TrialSandboxes, how: str, options: Options) -> bool:
    """All about controllers that are disturbed in one way; whether it failed."""
    began, thens = time.monotonic(), THENS[how]
    done = {"kill": "killed", "stall": "stopped and continued"}[how]
    only, sample = options.only, options.sample
    whole = boxes.undisturbed()
    points = distinct(whole.touches)
    places = {touch.place for touch in points}
    _say(f"{len(points)} points between statements of one tick, {len(places)} functions; {how}")
    broken = 0
    undone = [f"it was not set up: {whole.unset}"] if whole.unset else []
    undone += [f"its tick did no {kind!r}" for kind in sorted(scene.KINDS - whole.kinds)]
    undone += [] if has_moved(whole) else ["its tick brought no move to its end"]
    for sentence in [*whole.wrong, *undone]:
        _say(f"BROKEN not {done}: {sentence}")
        broken += 1
    some = chosen(points, only, sample, options.seed)
    found = boxes.run([Case(touch.name, then) for touch in some for then in thens], _print_found)
    for _ in range(0 if sample else _AGAIN):
        again = not_reached(found, only, thens)
        found += boxes.run(again, _print_found) if again else []
    for then in thens:
        wrong = sum(bool(one.wrong) for case, one in found if case.then == then)
        tried = sum(case.then == then for case, _ in found)
        _say(f"ticks, {how}, another one {then}: {tried} trials, {wrong} broke a promise")
        broken += wrong
    names = {case.at for case, _ in found}
    # Of a sample nothing more is tried, so what its trials met beside it says nothing.
    left = [one for one in not_reached(found, only, thens) if not sample or one.at in names]
    for case in left:
        _say(f"NOT REACHED: {case.at}, then {case.then}")
    plants = options.plants and how == "kill"
    missed = _planted(boxes, whole.touches) if plants else []
    alive = {case.at for case in left} - {case.at for case, one in found if one.killed}
    never = never_reached(found, left, {touch.name for touch in points})
    _say(
        f"ticks, {how}: {len(found)} trials at {len(names)} points, "
        f"{sum(one.killed for _, one in found)} {done}, "
        f"{sum(bool(one.unset) for _, one in found)} not set up, "
        f"{(time.monotonic() - began) / 60:.0f} min; {broken} broke a promise; "
        f"{len(left)} not reached, no controller was {done} at {len(alive)} points, of which "
        f"{len(never)} count; " + (_of_plants(missed) if plants else "no fault planted")
    )
    return is_failure(broken, missed, len(points), never if not (sample or only) else ())


def is_failure(broken: int, missed: Collection[str], points: int, never: Collection[str]) -> bool:
    """Whether a run did not prove what it should. ``never``: points where no controller died."""
    return bool(broken or missed or points < LEAST_POINTS or never)


def _planted(boxes: TrialSandboxes, points: list[Touch]) -> list[str]:
    """The planted faults that no trial caught."""
    caught: dict[str, list[str]] = {plant: [] for plant in FAULTS}
    for case, found in boxes.run([case for plant in FAULTS for case in planted(plant, points)]):
        caught[case.plant or ""] += found.wrong
    missed = []
    for plant, wrong in caught.items():
        sentence = FAULTS[plant].reported_by(wrong)
        if sentence is None:
            missed.append(plant)
        _say(
            f"planted fault {plant!r}: "
            + (f"caught ({sentence})" if sentence else f"NOT CAUGHT; said was {wrong}")
        )
    return missed


def _of_plants(missed: Sequence[str]) -> str:
    return f"{len(FAULTS) - len(missed)} of {len(FAULTS)} planted faults caught"


def _print_found(case: Case, found: Found) -> None:
    if found.unset:
        _say(f"NOT SET UP {case.at}, then {case.then}: {found.unset}")
        return
    what = f"{case.at}, then {case.then}" + ("" if found.killed else " (not reached)")
    for sentence in found.wrong:
        _say(f"BROKEN {what}: {sentence}")
    if not found.wrong:
        _say(f"held after {found.seconds:.0f} s: {what}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
