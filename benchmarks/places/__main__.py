"""Does a move cost the moved job its place, or its priority?

``python -m benchmarks.places [--moves N] [--parts apart beside wanted] [--keep FOLDER]``

Four trainings go back and forth between two GPU types on a sandbox with slurmdbd and
priority/multifactor, under a controller that is an operator, beside a backlog of ordinary jobs of
the same base priority. In ``apart`` none of those can use the two types. In ``beside`` some of them
wait for the type that the trainings are on and get the GPUs that these leave, so that no moved job
could go back; and others for one GPU or three come one by one, at any moment of a move. Where one
of those takes the place of a move that was decided before it came, that is counted apart. In
``wanted`` all of them can use the GPUs that are free, so that no move may be sent. The exit status
is 1 where a place or priority was lost. See docs/optin.md.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.optin.site import refuse, site
from benchmarks.places.count import Cost
from benchmarks.places.trial import LAYOUT, PRIORITIES, SETTINGS, Outcome, Part, Trial
from slurm_hadar.domain.errors import HadarError

_K80 = ("-p", "k80", "--gres=gpu:1")
_ANY = ("-p", "gpu", "--gres=gpu:1")
_TICKS = 30


def parts(moves: int) -> dict[str, Part]:
    """The parts by name; ``moves`` over the two in which there are any."""
    third = moves // 3
    return {
        "apart": Part("apart", (_K80,), seconds=20.0, waiting=20, moves=moves - third),
        "beside": Part(
            "beside", (_K80,), seconds=3.0, waiting=10, moves=third, following=6, newcomers_s=10.0
        ),
        "wanted": Part("wanted", (_ANY,), seconds=3.0, waiting=12, moves=0, ticks=_TICKS),
    }


def lines(outcome: Outcome) -> list[str]:
    """One part for people."""
    costs = outcome.costs
    lost = [one for one in costs if one.place_lost]
    lower = [one for one in costs if one.seen and one.priority_lost]
    worst = max((one.before - one.after for one in lower), default=0)
    waits = sorted(one.started_s - one.move.requeued_s for one in costs if one.node)
    found = [
        f"{outcome.part.name}: {outcome.ticks} ticks in {outcome.seconds:.0f} s, {outcome.free} of "
        f"them with a free GPU of the two types; {outcome.backlog_starts} starts of the backlog"
        f", {outcome.newcomers} jobs came one by one",
        f"  moves asked for {outcome.sent}, done {len(costs)}, given up {len(outcome.given_up)}",
        f"  places lost: {len(lost)}; started on the other type although their GPUs were free: "
        f"{sum(one.elsewhere and not one.place_lost for one in costs)}",
        f"  effective priority lost: {len(lower)} (by {worst} at most), seen before and after: "
        f"{sum(one.seen for one in costs)}",
    ]
    found += _contested(costs)
    if waits:
        longest = max(one.lower_s for one in costs)
        found.append(
            f"  requeue to start: median {waits[len(waits) // 2]:.1f} s, longest {waits[-1]:.1f} s;"
            f" seen waiting with less priority for {longest:.1f} s at most"
        )
        firsts = ", ".join(
            f"{outcome.first[job]} -> {outcome.lowest[job]}" for job in outcome.first
        )
        found.append(f"  priority at the first start -> lowest after a move: {firsts}")
    found += [f"  not sent {number} times: {why}" for why, number in outcome.kept_back.items()]
    found += [f"  given up: {words}" for words in outcome.given_up[:5]]
    for one in lost[:10]:
        found.append(
            f"  LOST: job {one.move.job}, to {'/'.join(one.move.to)}, started on "
            f"{one.node or 'nothing'} after {one.started_s - one.move.requeued_s:.1f} s; before it "
            f"began there: {_takers(one) or 'no job'}"
        )
    for one in lower[:10]:
        found.append(f"  LOWER: job {one.move.job}: {one.before} -> {one.after}")
    return found


def _contested(costs: Sequence[Cost]) -> list[str]:
    """The moves of whose places jobs took GPUs that came after the decision."""
    some = [one for one in costs if one.contested]
    if not some:
        return ["  jobs that came after the decision took no place"]
    found = [
        f"  jobs that came after the decision took GPUs of the places of {len(some)} moves, of "
        f"which {sum(one.elsewhere for one in some)} started on the type that they had left:"
    ]
    for one in some:
        found.append(
            f"  job {one.move.job}, to {'/'.join(one.move.to)}, started on {one.node} after "
            f"{one.started_s - one.move.requeued_s:.1f} s: {_takers(one)}"
        )
    return found


def _takers(cost: Cost) -> str:
    """The jobs that started on the place of a move, with their submission before its requeue."""
    decided_s = cost.move.requeued_s - cost.move.decided_s
    return ", ".join(
        f"job {job}, submitted {after_s:.1f} s after the decision and {after_s - decided_s:+.1f} s "
        "from the requeue"
        for job, after_s in cost.taken_by.items()
    )


def broken(outcome: Outcome) -> bool:
    """Whether a promise was: also where too little was seen to say that it was kept."""
    costs = outcome.costs
    if not outcome.part.moves:
        return bool(outcome.sent) or not outcome.kept_back
    return len(costs) < outcome.part.moves or any(
        one.place_lost or one.priority_lost or not one.seen for one in costs
    )


def main() -> None:
    """Run the parts, and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--moves", type=int, default=200, help="over the parts that have any")
    parser.add_argument("--parts", nargs="+", choices=tuple(parts(0)), default=list(parts(0)))
    parser.add_argument("--keep", type=Path, help="keep logs in this folder")
    args = parser.parse_args()
    # The sandbox goes down first.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        refuse()
        outcomes = _carried_out([parts(args.moves)[name] for name in args.parts], args.keep)
    except (HadarError, OSError) as error:
        parser.exit(2, f"{error}\n")
    costs = [one for outcome in outcomes for one in outcome.costs]
    print(
        f"{len(costs)} moves: {sum(one.place_lost for one in costs)} places lost, "
        f"{sum(one.contested for one in costs)} contested by later jobs, "
        f"{sum(one.priority_lost for one in costs if one.seen)} with less priority, load "
        f"{os.getloadavg()[2]:.1f}"
    )
    sys.exit(1 if any(map(broken, outcomes)) else 0)


def _carried_out(wanted: Sequence[Part], keep: Path | None) -> list[Outcome]:
    folder = Path(tempfile.mkdtemp(prefix="hadar-places-", dir="/tmp"))
    found = []
    try:
        with site(folder, PRIORITIES, layout=LAYOUT, settings=SETTINGS) as here:
            try:
                for part in wanted:
                    outcome = Trial(here, part).run(limit_s=120 + 15.0 * (part.moves + part.ticks))
                    print("\n".join(lines(outcome)), flush=True)
                    found.append(outcome)
            finally:
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    for path in (
                        here.controller_log,
                        here.box.places.log / "slurmctld.log",
                        *here.home("backup").glob("*"),
                    ):
                        if path.exists():
                            shutil.copy(path, keep)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


if __name__ == "__main__":
    main()
