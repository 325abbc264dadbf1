"""A sandbox under random jobs, cancels, moves and faults; at the end everything is accounted for.

``python -m benchmarks.soak --minutes 60 [--seed N] [--rights user|sandbox] [--json]``

For the given time jobs of all kinds are submitted and cancelled, ``hadar run`` ticks under policies
that move a lot and is killed (SIGKILL, half of the times in the middle of a move), nodes lose their
slurmd, their steps or their good name, slurmctld is restarted. Trainings are stopped in the middle
of a save and continued when Slurm may have started them elsewhere; no stale attempt may publish a
checkpoint, which is watched. Some users are hostile: they understate their work, report false
rates, ignore requests to save, requeue what was started, and lay files under the names of others'
jobs; the exchange folder hangs now and then. No managed job may wait beside an idle GPU for long.
In the last third the controller is left alive, so that its memory can be weighed. Then all faults
end, and every job must end well. The exit status is 1 where a promise was broken.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.digits import write_digits
from benchmarks.soak.jobs import DIGITS
from benchmarks.soak.storm import Rates, Result, Storm, start

DRAIN_S = 600.0


def soak(
    minutes: float,
    seed: int,
    folder: Path,
    rates: Rates,
    drain_s: float = DRAIN_S,
    rights: str = "user",
) -> Result:
    """One soak in ``folder``, with a controller of these ``rights``."""
    folder.chmod(0o755)
    write_digits(folder / DIGITS)
    with start(folder, rights) as box:
        return Storm(box, folder, seed, rates).run(minutes, drain_s)


def table(result: Result) -> list[str]:
    """What is printed."""
    rows = [
        ("minutes, then drained", f"{result.minutes:g}, {result.drained_s:.0f} s"),
        ("submitted", _counts(result.submitted) + f"; {result.refused} refused"),
        ("cancelled by us", str(result.cancelled)),
        ("faults", _counts(result.faults)),
        ("controllers", f"{result.lives}, {result.kills_in_moves} killed during a move"),
        ("ticks", f"{result.ticks}, {result.idle_ticks} more while Slurm was away"),
        ("actions", _counts(result.journal.actions)),
        ("moves and stops carried out", str(result.journal.moved)),
        ("restarts of jobs", str(result.account.restarts)),
        (
            "starts without a GPU, by Slurm",
            f"{result.account.bare}, of which {result.account.failed_bare} jobs FAILED",
        ),
        ("FAILED at a start beside their old step, by Slurm", str(result.account.failed_revoked)),
        (
            "trainings stopped and continued",
            f"{result.stalls}, {result.stalls_in_saves} in the middle of a save",
        ),
        (
            "superseded when continued",
            f"{sum(result.superseded_stalls.values())}: {_counts(result.superseded_stalls)}",
        ),
        ("attempts that ended as superseded", str(result.account.superseded)),
        ("checkpoints published", f"{result.published} seen"),
        (
            "starts beside a hidden attempt",
            f"{result.account.hidden_trainings} of trainings, {result.account.hidden} of other "
            "jobs, on nodes that were silent",
        ),
        ("names squatted by a stranger", str(result.squatted)),
        (
            "longest wait beside an idle GPU",
            f"{result.liveness.longest_s:.0f} s of {result.liveness.most_s:g} s, in "
            f"{result.liveness.looks} looks",
        ),
        ("launch failures released by hand", str(result.released)),
        ("nodes resumed by hand", str(result.nodes_resumed)),
    ]
    ended: dict[str, dict[str, int]] = {}
    for (kind, end), count in sorted(result.account.ended.items()):
        ended.setdefault(kind, {})[end] = count
    rows += [(f"ended: {kind}", _counts(ends)) for kind, ends in ended.items()]
    weighed = result.memory.first_and_last_mb()
    grew = f"{weighed[0]:.1f} to {weighed[1]:.1f} MB" if weighed else "too short to say"
    slopes = (result.memory.slope_mb_h(), result.memory.slope_with_steps_mb_h())
    steep = ", ".join(f"{one:+.1f}" for one in slopes if one is not None)
    journal = result.journal
    rows += [
        ("lineages exact", f"{result.account.exact} of {result.account.lineages}"),
        ("memory of the controller", f"{grew} in {result.memory.seconds():.0f} s of one life"),
        ("last half, MB/h; with steps", steep),
        ("state file", f"{journal.size_mb:.2f} MB; rows: {_counts(journal.rows)}"),
        ("journal", f"{journal.still_open} open, {journal.left_when_old} left when all is old"),
        ("files in the exchange folder", _counts(result.exchange.files)),
    ]
    wide = max(len(name) for name, _ in rows)
    lines = [f"{name:<{wide}}  {value}" for name, value in rows]
    return [*lines, *(f"WRONG {sentence}" for sentence in result.wrong)]


def _counts(found: object) -> str:
    pairs = dict(found) if isinstance(found, dict) else {}
    return ", ".join(f"{name} {count}" for name, count in sorted(pairs.items()))


def plain(result: Result) -> dict[str, object]:
    """The same for JSON."""
    whole = asdict(result)
    # asdict() would count the pairs of a Counter anew.
    whole["account"]["ended"] = {
        f"{kind} {end}": count for (kind, end), count in result.account.ended.items()
    }
    whole["liveness"] = {
        "longest_s": result.liveness.longest_s,
        "most_s": result.liveness.most_s,
        "looks": result.liveness.looks,
    }
    weighed = result.memory.first_and_last_mb()
    whole["memory"] = {
        "first_and_last_mb": weighed,
        "life_s": result.memory.seconds(),
        "slope_mb_per_h": result.memory.slope_mb_h(),
        "slope_with_steps_mb_per_h": result.memory.slope_with_steps_mb_h(),
        "weighed_s_mb": result.memory.longest(),
    }
    return whole


def _end(number: int, _: object) -> None:
    # A second one must not cut short what the first one has ended.
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Run one soak and print what it came to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rights",
        choices=("user", "sandbox"),
        default="user",
        help="where the controller keeps what it did: as on a site, or in the AdminComment",
    )
    parser.add_argument("--folder", type=Path, help="keep everything in this new folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="hadar-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    # Else the controller would outlive it, and Slurm too for a while.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    result = soak(args.minutes, args.seed, folder, Rates(), rights=args.rights)
    if result.wrong:
        print(f"The logs of all this are in {folder}", file=sys.stderr)
    elif args.folder is None:
        shutil.rmtree(folder)
    if args.json:
        print(json.dumps({"version": 1, "command": "benchmarks.soak", "result": plain(result)}))
    else:
        print("\n".join(table(result)))
    sys.exit(1 if result.wrong else 0)


if __name__ == "__main__":
    main()
