"""The values of a declaration's keys, as a user writes them: a function for each kind.

Each raises ValueError that says what it takes. Read by ``hbatch`` at every submit, so it imports
nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MOST_TASKS = 1_000_000
"""Parts of a global batch; each is dealt by itself."""
MOST_COUNTS = 16
"""GPU counts considered for one job; a wider range is thinned to powers of two."""
MOST_REQUEUES = 1000
"""At the time limit of one job."""
SIGNALS = {
    "USR1": 10,
    "USR2": 12,
    "HUP": 1,
    "INT": 2,
    "TERM": 15,
    "CONT": 18,
    "URG": 23,
    "WINCH": 28,
}
"""Each with its number on Linux, which ``sbatch --signal`` takes too."""
_LONGEST_OF_SBATCH_S = 65535
LONGEST_GRACE_S = 900.0
"""A move keeps its destination planned while the job saves."""
_COUNT = r"\{(?:samples|(?:step|epoch)\*(?P<unit>[1-9][0-9]{0,11}))\}"
PROGRESS = r"(?P<before>[A-Za-z0-9_.:/@+,=*-]*)" + _COUNT + r"(?P<after>[A-Za-z0-9_.:/@+,=*-]*)"
"""Pattern of ``progress``: text, ``*`` for anything, and the number that counts, once. In a step
or an epoch are so many samples."""
PROGRESS_FILES = (
    r"(?P<writer>tensorboard|wandb):(?P<path>(?:[A-Za-z0-9_.:/@+,=-]|%[jAa])+)" + _COUNT
)
"""The other form of ``progress``: where a program writes its scalars, and what their step counts.
Text that begins so is never a :data:`PROGRESS`."""
_WRITERS = ("tensorboard:", "wandb:")
_LONGEST_PROGRESS = 200
_HABITS = ("signal", "restart")


class CountList(tuple[int, ...]):
    """GPU counts that were written as a list, rising: these and none between them."""

    __slots__ = ()


def yes_or_no(text: str) -> bool:
    """True for yes, true, 1 and on; False for no, false, 0 and off."""
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise ValueError("yes or no")


def identifier(text: str) -> str:
    """One name, such as that of a model or a GPU type."""
    if not re.fullmatch(r"[A-Za-z0-9_.:/@+-]{1,100}", text):
        raise ValueError("one word of letters, digits and _.:/@+- (at most 100)")
    return text


def identifiers(text: str) -> tuple[str, ...]:
    """Names with commas between them; empty text: none."""
    return tuple(identifier(part) for part in text.split(",")) if text else ()


def whole_number(text: str) -> int:
    """A number of samples, epochs or GPUs; ``5e6`` too."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a whole number such as 50000 or 5e6") from None
    if not 0 < value <= 1e18 or value != int(value):
        raise ValueError("a whole number above 0, such as 50000 or 5e6")
    return int(value)


def tasks(text: str) -> int:
    """Into how many parts the global batch is dealt."""
    value = whole_number(text)
    if value > MOST_TASKS:
        raise ValueError(f"a whole number up to {MOST_TASKS}")
    return value


def duration_s(text: str) -> float:
    """A time, s."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError("seconds, such as 30") from None
    if not 0 <= value <= 1e6:
        raise ValueError("seconds between 0 and 1000000")
    return value


def megabytes(text: str) -> int:
    """Memory in MB, such as ``24G``."""
    match = re.fullmatch(r"(\d{1,9})([MGT]?)B?", text.upper())
    if match is None or int(match[1]) == 0:
        raise ValueError("memory such as 24G or 500M")
    return int(match[1]) * {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}[match[2]]


def range_of(parse: Callable[[str], int], example: str) -> Callable[[str], tuple[int, int]]:
    """Reads a range, (least, most), of what ``parse`` reads; one value is both."""

    def read(text: str) -> tuple[int, int]:
        low, _, high = text.replace(":", "-").partition("-")
        try:
            least = parse(low)
            most = parse(high) if high else least
        except ValueError:
            raise ValueError(f"a number or a range such as {example}") from None
        if least > most:
            raise ValueError(f"a range with the smaller number first, such as {example}")
        return least, most

    return read


def gpus(text: str) -> tuple[int, ...]:
    """GPU counts: a range, or a list, which becomes a :class:`CountList`."""
    if "," not in text:
        return range_of(whole_number, "1-4")(text)
    try:
        counts = CountList(sorted({whole_number(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError("a number, a range such as 1-4 or a list such as 4,8") from None
    if len(counts) > MOST_COUNTS:
        raise ValueError(f"a list of at most {MOST_COUNTS} counts")
    return counts if len(counts) > 1 else (counts[0], counts[0])


def exit_code(text: str) -> int:
    """A shell's status; not 0, which says that the work is done."""
    if not re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) or not 1 <= int(text) <= 125:
        raise ValueError("a number from 1 to 125, such as 85: 0 says that the work is done")
    return int(text)


def requeues(text: str) -> int:
    """How many times a job may be requeued."""
    if not re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) or int(text) > MOST_REQUEUES:
        raise ValueError(f"a number from 0 to {MOST_REQUEUES}, such as 10")
    return int(text)


def signal(text: str) -> str:
    """``NAME``, ``B:NAME`` or ``F:NAME``, maybe with ``@SECONDS``, in its shortest form."""
    match = re.fullmatch(r"((?:[BF]:)?)(?:SIG)?([A-Z0-9]{1,5})(@[0-9]{1,5})?", text.upper())
    numbers = {str(number): name for name, number in SIGNALS.items()}
    name = numbers.get(match[2], match[2]) if match else ""
    seconds = int(match[3][1:]) if match and match[3] else 1
    if match is None or name not in SIGNALS or not 1 <= seconds <= LONGEST_GRACE_S:
        raise ValueError(
            "NAME, B:NAME for the batch shell or F:NAME for shell and steps, maybe with @SECONDS "
            f"that it takes to save, at most {LONGEST_GRACE_S:.0f}, such as B:USR1@60; names: "
            + ", ".join(SIGNALS)
        )
    return f"{match[1]}{name}" + (f"@{seconds}" if match[3] else "")


def signal_of_sbatch(text: str) -> str:
    """``signal`` from a value of ``sbatch --signal`` such as ``B:USR1@60``; empty where it is none
    that a job may save on. Longer times than :data:`LONGEST_GRACE_S` count as that."""
    flags, colon, rest = text.upper().rpartition(":")
    name, at, seconds = rest.partition("@")
    if re.fullmatch("[0-9]{3,5}", seconds, re.ASCII) and int(seconds) <= _LONGEST_OF_SBATCH_S:
        rest = f"{name}{at}{min(int(seconds), int(LONGEST_GRACE_S))}"
    try:
        return signal(("B:" if "B" in flags else "") + rest) if colon else signal(rest)
    except ValueError:
        return ""


def checkpoint(text: str) -> str:
    """How a job saves: ``yes``, empty, ``signal``, ``restart`` or ``watch:PATH``."""
    habit, colon, path = text.partition(":")
    habit = habit.lower()
    if habit == "watch":
        # No shell ever sees it, and it fits into a Comment beside the other keys.
        if not re.fullmatch(r"(?:[A-Za-z0-9_.:/@+,=*?-]|%[jAa]){1,300}", path, re.ASCII):
            raise ValueError(
                "watch:PATH with letters, digits and _.:/@+,=*?- (at most 300); %j is the job's id"
            )
        if re.search("[*?]", path.rpartition("/")[0]):
            raise ValueError("watch:PATH with * and ? in its last part only")
        return f"watch:{path}"
    if not colon and habit in _HABITS:
        return habit
    try:
        return "yes" if yes_or_no(text) else ""
    except ValueError:
        raise ValueError("yes, no, signal, restart or watch:PATH") from None


def progress(text: str) -> str:
    """A pattern of the job's output, or where its scalars are: :data:`PROGRESS`,
    :data:`PROGRESS_FILES`."""
    if text.startswith(_WRITERS):
        if len(text) > _LONGEST_PROGRESS or re.fullmatch(PROGRESS_FILES, text, re.ASCII) is None:
            raise ValueError(
                f"{text.partition(':')[0]}:PATH with {{step*64}}, {{samples}} or {{epoch*50000}} "
                "behind it for what the step of its scalars counts; PATH has letters, digits and "
                f"_.:/@+,=- (at most {_LONGEST_PROGRESS} in all), %j is the job's id"
            )
        return text
    if len(text) > _LONGEST_PROGRESS or re.fullmatch(PROGRESS, text, re.ASCII) is None:
        raise ValueError(
            "text of the job's output, of letters, digits and _.:/@+,=- (at most "
            f"{_LONGEST_PROGRESS}), * for anything else, with {{samples}}, {{step*64}} or "
            "{epoch*50000} once, where the number stands; 64 and 50000 are the samples in one"
        )
    return text


_MOST_BATCHES = 12


def doublings(low: int, high: int) -> tuple[int, ...]:
    """The global batches that a range such as ``64:512`` stands for: ``low``, twice, four times ...
    as much, and ``high``; rising, at most 12, the smallest."""
    sizes = [low * 2**step for step in range(_MOST_BATCHES) if low * 2**step <= high]
    return (*sizes, high)[:_MOST_BATCHES] if sizes and sizes[-1] < high else tuple(sizes)
