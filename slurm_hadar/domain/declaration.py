"""What a job's owner says that the job can live with, and how it travels in the job's Comment.

Read by ``hbatch`` at every submit, so it imports nothing heavy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from slurm_hadar.domain import segments
from slurm_hadar.domain.errors import UsageError

ANY = "any"
SLOWEST = 4.0
"""How many times slower than on its best type a job may run with types=any; half of what a mixed
queue gains is lost where jobs take types on which they are 11 times slower. Where both are known:
a guess keeps no job from a free GPU."""
COMMENT_LIMIT = 1024
"""Bytes that Slurm takes in a Comment."""
MOST_TASKS = 1_000_000
"""Parts of a global batch; each is dealt by itself."""

MOST_COUNTS = 16
"""GPU counts considered for one job; a wider range is thinned to powers of two."""
MOST_REQUEUES = 1000
"""At the time limit of one job."""

_SEGMENT = "hadar1"
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
USUAL_SIGNAL = "USR2"
"""Where none is declared, nor said by the job's own ``--signal``."""
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
USUAL_LOSS_S = 120.0
"""Work that a move may cost a job with ``checkpoint=watch:PATH`` that declares no ``lose``."""
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    _Reached = Literal["steps", "batch", "full"]

_HABITS = ("signal", "restart")
_TO: dict[str, _Reached] = {"": "steps", "B:": "batch", "F:": "full"}
"""Prefix of a signal, as of ``sbatch --signal``, and whom it reaches, as of ``scancel``; ``F:`` is
ours."""


class CountList(tuple[int, ...]):
    """GPU counts that were written as a list, rising: these and none between them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SaveSignal:
    """How a job is asked to save. ``target``: ``steps``, ``batch`` or ``full``, as of scancel;
    ``grace_s``: how long it may take, s; None: as long as the site allows."""

    name: str
    target: _Reached
    grace_s: float | None


@dataclass(frozen=True, slots=True)
class Declaration:
    """The ``#HADAR`` keys of one job. Memory in MB, times in s, batch = global batch in samples.

    ``types`` empty means "what the request says"; ranges are (least, most); ``gpus`` may be
    :class:`CountList` instead. ``constraint`` and
    ``partitions`` are not typed by a user: hbatch records there what the user asked of sbatch
    (``-C``, ``-p``), so that it can be taken back; ``added`` is the constraint that hbatch itself
    wrote, recorded where later types do not tell it any more. ``wait`` None: what the site says.
    ``cost`` is :data:`ANY` or empty. ``lease``: an earlier release gave the job a begin time.

    ``checkpoint``: how the job saves and resumes: empty (it does not), ``yes`` (by the runtime),
    ``signal`` (by itself when it gets ``signal``), ``restart`` (it begins anew) or ``watch:PATH``
    (by itself, now and then). ``lose`` None: what is usual, see :attr:`most_lost_s`.
    ``checkpoint_exit_code`` 0: none. ``max_requeues``: how many times it may be requeued before its
    time limit ends, to go on from its checkpoint; 0: its limit ends it. ``progress``: how the job's
    output or files show how far it is, see :data:`PROGRESS` and :data:`PROGRESS_FILES`; empty: they
    do not, or its runtime reports that.
    """

    model: str = ""
    types: tuple[str, ...] = ()
    gpus: tuple[int, ...] | None = None
    gpu_mem: int = 0
    batch: tuple[int, int] | None = None
    samples: int = 0
    epochs: int = 0
    dataset_size: int = 0
    checkpoint: str = ""
    signal: str = ""
    lose: float | None = None
    checkpoint_exit_code: int = 0
    max_requeues: int = 0
    progress: str = ""
    restart_cost: float = 0.0
    wait: float | None = None
    cost: str = ""
    fork: tuple[int, int] = (1, 1)
    tasks: int = 1
    backfill: bool = False
    nodes: tuple[int, int] | None = None
    cpus: tuple[int, int] | None = None
    mem: tuple[int, int] | None = None
    off: bool = False
    pin: bool = False
    constraint: str = ""
    partitions: tuple[str, ...] = ()
    added: str = ""
    lease: bool = False

    def __post_init__(self) -> None:
        """``checkpoint`` was a bool once; True means ``yes``."""
        if isinstance(self.checkpoint, bool):
            object.__setattr__(self, "checkpoint", "yes" if self.checkpoint else "")

    @property
    def total_samples(self) -> int:
        """All the work in samples, 0 where it was not declared."""
        return self.samples or self.epochs * self.dataset_size

    def left_alone(self) -> Declaration:
        """What stays in the Comment of a job that opts out: that it does, and what was recorded of
        its request, which its owner cannot declare anew."""
        return Declaration(off=True, constraint=self.constraint, partitions=self.partitions)

    @property
    def may_move(self) -> bool:
        """Whether its owner lets it be moved while it runs."""
        return bool(self.checkpoint) and not self.pin

    @property
    def moves_later(self) -> bool:
        """Whether it may be moved at any later time, not in its first minutes only."""
        return self.may_move and self.habit != "restart"

    @property
    def habit(self) -> str:
        """``checkpoint`` without the path: ``""``, ``yes``, ``signal``, ``restart``, ``watch``."""
        return self.checkpoint.partition(":")[0]

    @property
    def asks(self) -> SaveSignal:
        """``signal``, taken apart."""
        rest, _, grace = (self.signal or USUAL_SIGNAL).partition("@")
        prefix, colon, name = rest.rpartition(":")
        grace_s = min(float(grace), LONGEST_GRACE_S) if grace else None
        return SaveSignal(name, _TO[prefix + colon], grace_s)

    @property
    def most_lost_s(self) -> float:
        """Work that a move may cost, s, of a job that is not asked to save."""
        if self.lose is not None:
            return self.lose
        return USUAL_LOSS_S if self.habit == "watch" else 0.0

    def assignments(self) -> dict[str, str]:
        """Key and value as they are written, without those that are the default."""
        return {
            field.name: _text(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }

    def accepts(self, gpu_type: str) -> bool:
        """Whether the owner named this type, or any; with ``types`` empty: no."""
        return ANY in self.types or gpu_type in self.types


def _whole(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("a whole number such as 50000 or 5e6") from None
    if not 0 < value <= 1e18 or value != int(value):
        raise ValueError("a whole number above 0, such as 50000 or 5e6")
    return int(value)


def _tasks(text: str) -> int:
    value = _whole(text)
    if value > MOST_TASKS:
        raise ValueError(f"a whole number up to {MOST_TASKS}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("seconds, such as 30") from None
    if not 0 <= value <= 1e6:
        raise ValueError("seconds between 0 and 1000000")
    return value


def _megabytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([MGT]?)B?", text.upper())
    if match is None or int(match[1]) == 0:
        raise ValueError("memory such as 24G or 500M")
    return int(match[1]) * {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}[match[2]]


def _span(parse: Callable[[str], int], example: str) -> Callable[[str], tuple[int, int]]:
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


def _gpus(text: str) -> tuple[int, ...]:
    if "," not in text:
        return _span(_whole, "1-4")(text)
    try:
        counts = CountList(sorted({_whole(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError("a number, a range such as 1-4 or a list such as 4,8") from None
    if len(counts) > MOST_COUNTS:
        raise ValueError(f"a list of at most {MOST_COUNTS} counts")
    return counts if len(counts) > 1 else (counts[0], counts[0])


def _yes(text: str) -> bool:
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise ValueError("yes or no")


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:/@+-]{1,100}", text):
        raise ValueError("one word of letters, digits and _.:/@+- (at most 100)")
    return text


def _words(text: str) -> tuple[str, ...]:
    return tuple(_word(part) for part in text.split(",")) if text else ()


def _cost(text: str) -> str:
    if text.lower() != ANY:
        raise ValueError(f"{ANY}: more GPUs, CPUs or memory may be billed more than the request")
    return ANY


def _signal(text: str) -> str:
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


def of_sbatch(text: str) -> str:
    """``signal`` from a value of ``sbatch --signal`` such as ``B:USR1@60``; empty where it is none
    that a job may save on. Longer times than :data:`LONGEST_GRACE_S` count as that."""
    flags, colon, rest = text.upper().rpartition(":")
    name, at, seconds = rest.partition("@")
    if re.fullmatch("[0-9]{3,5}", seconds, re.ASCII) and int(seconds) <= _LONGEST_OF_SBATCH_S:
        rest = f"{name}{at}{min(int(seconds), int(LONGEST_GRACE_S))}"
    try:
        return _signal(("B:" if "B" in flags else "") + rest) if colon else _signal(rest)
    except ValueError:
        return ""


def _checkpoint(text: str) -> str:
    word, colon, path = text.partition(":")
    word = word.lower()
    if word == "watch":
        # No shell ever sees it, and a Comment has room for it beside the other keys.
        if not re.fullmatch(r"(?:[A-Za-z0-9_.:/@+,=*?-]|%[jAa]){1,300}", path, re.ASCII):
            raise ValueError(
                "watch:PATH with letters, digits and _.:/@+,=*?- (at most 300); %j is the job's id"
            )
        if re.search("[*?]", path.rpartition("/")[0]):
            raise ValueError("watch:PATH with * and ? in its last part only")
        return f"watch:{path}"
    if not colon and word in _HABITS:
        return word
    try:
        return "yes" if _yes(text) else ""
    except ValueError:
        raise ValueError("yes, no, signal, restart or watch:PATH") from None


def _exit_code(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) or not 1 <= int(text) <= 125:
        raise ValueError("a number from 1 to 125, such as 85: 0 says that the work is done")
    return int(text)


def _requeues(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) or int(text) > MOST_REQUEUES:
        raise ValueError(f"a number from 0 to {MOST_REQUEUES}, such as 10")
    return int(text)


def _progress(text: str) -> str:
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


_READ: dict[str, Callable[[str], object]] = {
    "model": _word,
    "types": _words,
    "gpus": _gpus,
    "gpu_mem": _megabytes,
    "batch": _span(_whole, "64:512"),
    "samples": _whole,
    "epochs": _whole,
    "dataset_size": _whole,
    "checkpoint": _checkpoint,
    "signal": _signal,
    "lose": _seconds,
    "checkpoint_exit_code": _exit_code,
    "max_requeues": _requeues,
    "progress": _progress,
    "restart_cost": _seconds,
    "wait": _seconds,
    "cost": _cost,
    "fork": _span(_whole, "1-8"),
    "tasks": _tasks,
    "backfill": _yes,
    "nodes": _span(_whole, "1-8"),
    "cpus": _span(_whole, "1-8"),
    "mem": _span(_megabytes, "8G-32G"),
    "off": _yes,
    "pin": _yes,
}
_RECORDED: dict[str, Callable[[str], object]] = {
    "constraint": str,
    "partitions": _words,
    "added": str,
    "lease": _yes,
}
KEYS = tuple(_READ)
"""The keys that a user may write."""


def parse(words: Iterable[str], where: str, base: Declaration | None = None) -> Declaration:
    """Read ``key=value`` arguments.

    ``where`` names their origin for the error ("line 3 of train.sh", "--hadar-gpus"). Later
    arguments win over earlier ones and over ``base``. Raises :class:`UsageError` on an unknown key
    or a bad value.
    """
    values: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.replace("-", "_")
        if key not in _READ:
            near = [k for k in KEYS if k[:3] == key[:3]]
            hint = f"did you mean {near[0]}?" if near else "known keys: " + ", ".join(KEYS)
            raise UsageError(f"{where}: unknown key {_show(key)}; {hint}")
        if not equals or not text:
            raise UsageError(f"{where}: {key} has no value; write {key}=VALUE")
        values[key] = _value(_READ, key, text, where)
    result = replace(base or Declaration(), **values)  # type: ignore[arg-type]
    if ANY in result.types and len(result.types) > 1:
        raise UsageError(f"{where}: types is either any or a list of types, not both")
    return result


def script_arguments(script: str, name: str) -> list[tuple[str, str]]:
    """The arguments of all ``#HADAR`` lines as (word, where), in order.

    Like sbatch with its own lines, reading stops at the first line that is neither empty nor a
    comment.
    """
    found: list[tuple[str, str]] = []
    for number, line in enumerate(script.split("\n"), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if re.match(r"#HADAR(\s|$)", line):
            text = re.split(r"\s#", line[len("#HADAR") :], maxsplit=1)[0]
            found += [(word, f"line {number} of {name}") for word in text.split()]
    return found


def encode(declaration: Declaration) -> str:
    """The declaration as the segment of a Comment; values that are the default are left out."""
    return segments.encode(_SEGMENT, declaration.assignments())


def decode(comment: str) -> Declaration | None:
    """The declaration in a Comment; None where there is none.

    Raises :class:`UsageError` where there is one that cannot be read: such a job is left alone.
    """
    words = segments.decode(_SEGMENT, comment)
    if words is None:
        return None
    values: dict[str, object] = {}
    for key, text in words.items():
        readers = _READ if key in _READ else _RECORDED
        if key not in readers:
            raise UsageError(f"Comment: unknown key {_show(key)} in the declaration")
        values[key] = _value(readers, key, text, "Comment")
    return replace(Declaration(), **values)  # type: ignore[arg-type]


def merge(comment: str, declaration: Declaration) -> str:
    """The Comment with our segment replaced, or added after the user's own text."""
    return segments.merge(_SEGMENT, comment, declaration.assignments())


def _value(readers: dict[str, Callable[[str], object]], key: str, text: str, where: str) -> object:
    try:
        return readers[key](text)
    except ValueError as error:
        message = f"{where}: {key}={_show(text)} is not understood; it takes {error}"
        raise UsageError(message) from None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        if value and isinstance(value[0], int) and not isinstance(value, CountList):
            return f"{value[0]}-{value[1]}" if value[0] != value[1] else str(value[0])
        return ",".join(str(part) for part in value)
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def _show(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return repr(printable[:80] + ("..." if len(printable) > 80 else ""))
