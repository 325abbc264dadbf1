"""The judge of the fuzzing sees what it must: tracebacks, loops, unclear words, memory."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.fuzz.__main__ import run
from benchmarks.fuzz.parsers import Parser
from benchmarks.fuzz.trial import make, trial
from slurm_hadar.domain.errors import UsageError


def planted(read: Callable[[bytes], object]) -> Parser:
    return Parser("planted", lambda data, _: read(data), [b"a=1,b=2\n"])


def raising(error: BaseException) -> Callable[[bytes], object]:
    def read(_: bytes) -> None:
        raise error

    return read


def loop(_: bytes) -> None:
    while True:
        try:
            pass
        except Exception:
            continue


@pytest.mark.parametrize(
    ("read", "ending", "says"),
    [
        (len, "answer", ""),
        (raising(UsageError("line 3: a is no number")), "error", "line 3"),
        (raising(UsageError("a\x1b[2Jb")), "traceback", "a"),
        (raising(UsageError("")), "traceback", ""),
        (raising(UsageError("x" * 1001)), "traceback", "x"),
        (raising(KeyError("a")), "traceback", "KeyError"),
        (raising(RecursionError()), "traceback", "RecursionError"),
        (raising(MemoryError()), "traceback", "MemoryError"),
        (loop, "traceback", "no end within 0.2 s"),
    ],
)
def test_each_ending(
    read: Callable[[bytes], object], ending: str, says: str, tmp_path: Path
) -> None:
    found = trial(planted(read), b"a", tmp_path, 0.2)
    assert found.ending == ending and says in found.words


def test_memory_is_seen(tmp_path: Path) -> None:
    found = trial(planted(lambda _: bytes(range(256)) * 400_000), b"a", tmp_path)
    assert found.memory_kb > 90_000
    assert trial(planted(len), b"a", tmp_path).memory_kb < 20_000


def test_a_hungry_parser_is_caught(tmp_path: Path) -> None:
    def hungry(_: bytes) -> int:
        return len(bytes(range(256)) * 400_000)

    found = trial(planted(hungry), b"a", tmp_path, most_mb=60)
    assert found.ending == "traceback" and "MB more, the limit is 60" in found.words
    assert trial(planted(hungry), b"a", tmp_path).ending == "answer"
    assert trial(planted(len), b"a", tmp_path, most_mb=60).ending == "answer"


def test_a_seed_gives_the_same_inputs_again() -> None:
    seen: list[list[bytes]] = [[], []]
    for again in seen:
        found = run([planted(again.append)], 200, 7)
        assert (found["answers"], found["errors"], found["tracebacks"]) == (200, 0, 0)
    assert seen[0] == seen[1] and len(set(seen[0])) > 100


def test_a_planted_bug_is_found() -> None:
    def careless(data: bytes) -> None:
        for word in data.decode(errors="replace").split(","):
            int(word.partition("=")[2] or 0)

    found = run([planted(careless)], 200, 0)
    assert found["tracebacks"] and "ValueError" in str(found["wrong"])
    assert make(planted(careless), random.Random(1)) == make(planted(careless), random.Random(1))
