"""Bad input for every parser: ``python -m benchmarks.fuzz [--inputs N] [--seed N] [--json]``.

Real input is damaged (cut, repeated, swapped, of another type, huge, nested, of every plane of
Unicode, bytes flipped) and handed to each parser in turn. Printed are how many gave an answer, how
many one clear error, and everything else, which there must be none of: exit 1. ``--only`` takes
words of the parsers' names. Whole ticks over extreme values come after them, ``--ticks`` in all.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.fuzz.parsers import Parser, all_parsers, whole_ticks
from benchmarks.fuzz.trial import Outcome, make, trial


def run(parsers: Sequence[Parser], inputs: int, seed: int) -> dict[str, object]:
    """Hand the parsers ``inputs`` inputs in all, in turn; the same seed gives the same ones."""
    by_parser: dict[str, Counter[str]] = {parser.name: Counter() for parser in parsers}
    slowest: dict[str, Outcome] = {}
    biggest: dict[str, Outcome] = {}
    wrong: list[tuple[int, Outcome]] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hadar-fuzz-") as name:
        for number in range(inputs):
            parser = parsers[number % len(parsers)]
            data = make(parser, random.Random(f"{seed}/{number}"))
            found = trial(parser, data, Path(name))
            by_parser[parser.name][found.ending] += 1
            if found.ending == "traceback":
                wrong.append((number, found))
            slowest[parser.name] = max(
                found, slowest.get(parser.name, found), key=lambda one: one.seconds
            )
            biggest[parser.name] = max(
                found, biggest.get(parser.name, found), key=lambda one: one.memory_kb
            )
    slow = max(slowest.values(), key=lambda one: one.seconds)
    big = max(biggest.values(), key=lambda one: one.memory_kb)
    totals = sum(by_parser.values(), Counter[str]())
    return {
        "inputs": inputs,
        "seed": seed,
        "parsers": len(parsers),
        "answers": totals["answer"],
        "errors": totals["error"],
        "tracebacks": totals["traceback"],
        "seconds": round(time.monotonic() - begin, 1),
        "slowest": {"parser": slow.parser, "s": round(slow.seconds, 3), "bytes": slow.size},
        "biggest": {"parser": big.parser, "mb": round(big.memory_kb / 1024, 1), "bytes": big.size},
        "by_parser": {
            name: {
                "answers": counts["answer"],
                "errors": counts["error"],
                "tracebacks": counts["traceback"],
                "slowest_s": round(slowest[name].seconds, 3),
                "most_mb": round(biggest[name].memory_kb / 1024, 1),
            }
            for name, counts in by_parser.items()
            if counts
        },
        "wrong": [
            {"number": number, "parser": found.parser, "bytes": found.size, "words": found.words}
            for number, found in wrong[:20]
        ],
    }


def main() -> None:
    """Run, print, and tell by the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="parsers whose name has these words in it")
    parser.add_argument("--ticks", type=int, default=3_000, help="whole ticks beside them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    every = ((all_parsers(bool(find_spec("torch"))), args.inputs), (whole_ticks(), args.ticks))
    chosen = [([one for one in parsers if args.only in one.name], most) for parsers, most in every]
    if not any(parsers for parsers, _ in chosen):
        parser.error(f"no parser has {args.only!r} in its name")
    found = [run(parsers, most, args.seed) for parsers, most in chosen if parsers]
    print(json.dumps(found, indent=1) if args.json else "\n".join(map(_shown, found)))
    sys.exit(1 if any(part["tracebacks"] for part in found) else 0)


def _shown(found: dict[str, object]) -> str:
    lines = [
        f"{found['inputs']} inputs for {found['parsers']} parsers in {found['seconds']} s, seed "
        f"{found['seed']}: {found['answers']} answers, {found['errors']} clear errors, "
        f"{found['tracebacks']} tracebacks",
        f"slowest: {found['slowest']}",
        f"biggest: {found['biggest']}",
    ]
    parts = found["by_parser"]
    assert isinstance(parts, dict)
    lines += [f"  {name:28} {counts}" for name, counts in parts.items()]
    wrong = found["wrong"]
    assert isinstance(wrong, list)
    return "\n".join(
        [*lines, *(f"{one['number']} {one['parser']}:\n{one['words']}" for one in wrong)]
    )


if __name__ == "__main__":
    main()
