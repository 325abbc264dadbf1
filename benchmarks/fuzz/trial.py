"""One input at one parser: how it ended, how long it took, how much memory it took."""

import random
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from benchmarks.fuzz.mutations import LONGEST_BYTES
from benchmarks.fuzz.parsers import Parser
from slurm_hadar.cli.wrapper_site import SiteError
from slurm_hadar.domain.errors import HadarError

LONGEST_S = 20.0
"""An input that takes longer is taken for an endless loop. Far more than any needs, for machines
that are slow and shared."""
MOST_MB = 250
"""What the peak of memory may grow by for one input. The most that was seen of any is 44."""
LONGEST_WORDS = 1000
"""Characters of an error; more is no sentence."""

Ending = Literal["answer", "error", "traceback"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """``words``: the error, or the traceback. ``memory_kb``: what the peak of memory grew by."""

    parser: str
    ending: Ending
    words: str
    seconds: float
    memory_kb: int
    size: int


class _TooLong(BaseException):
    """Not an Exception, so that no parser takes it for one of its own."""


def make(parser: Parser, draw: random.Random) -> bytes:
    """Bad input for a parser."""
    return parser.damage(draw, draw.choice(parser.seeds))[:LONGEST_BYTES]


def trial(
    parser: Parser,
    data: bytes,
    folder: Path,
    longest_s: float = LONGEST_S,
    most_mb: float = MOST_MB,
) -> Outcome:
    """Hand ``data`` to a parser. Only in the main thread, since the clock is a signal. One that
    takes too long or too much memory ends as one with a traceback does."""
    before = signal.signal(signal.SIGALRM, _stop)
    high = _peak_kb(reset=True)
    begin = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, longest_s)
    ending: Ending = "answer"
    words = ""
    try:
        parser.read(data, folder)
    except (HadarError, SiteError) as error:
        words = str(error)
        ending = "error" if _is_clear(words) else "traceback"
    except _TooLong:
        ending, words = "traceback", f"no end within {longest_s:g} s"
    except Exception:
        ending, words = "traceback", traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    seconds = time.perf_counter() - begin
    grown_kb = _peak_kb() - high
    if grown_kb > 1024 * most_mb and ending != "traceback":
        ending, words = "traceback", f"{grown_kb / 1024:.0f} MB more, the limit is {most_mb:g}"
    return Outcome(parser.name, ending, words, seconds, grown_kb, len(data))


def _is_clear(words: str) -> bool:
    """One sentence that a terminal can show."""
    return bool(words.strip()) and words.isprintable() and len(words) <= LONGEST_WORDS


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TooLong


def _peak_kb(reset: bool = False) -> int:
    """Most memory that this process had since the last reset, by Linux's own count."""
    if reset:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0
