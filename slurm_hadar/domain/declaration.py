"""What a job's owner says that the job can live with, and how it travels in the job's Comment.

Read by ``hbatch`` at every submit, so it imports nothing heavy.
"""

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

_SEGMENT = "hadar1"
_SIGNALS = ("USR1", "USR2", "HUP", "INT", "TERM", "CONT", "URG", "WINCH")


@dataclass(frozen=True, slots=True)
class Declaration:
    """The ``#HADAR`` keys of one job. Memory in MB, times in s, batch = global batch in samples.

    ``types`` empty means "what the request says"; ranges are (least, most). ``constraint`` and
    ``partitions`` are not typed by a user: hbatch records there what the user asked of sbatch
    (``-C``, ``-p``), so that it can be taken back; ``added`` is the constraint that hbatch itself
    wrote, recorded where later types do not tell it any more. ``wait`` None: what the site says.
    ``cost`` is :data:`ANY` or empty. ``lease``: an earlier release gave the job a begin time.
    """

    model: str = ""
    types: tuple[str, ...] = ()
    gpus: tuple[int, int] | None = None
    gpu_mem: int = 0
    batch: tuple[int, int] | None = None
    samples: int = 0
    epochs: int = 0
    dataset_size: int = 0
    checkpoint: bool = False
    signal: str = "USR2"
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

    @property
    def total_samples(self) -> int:
        """All the work in samples, 0 where it was not declared."""
        return self.samples or self.epochs * self.dataset_size

    def left_alone(self) -> "Declaration":
        """What stays in the Comment of a job that opts out: that it does, and what was recorded of
        its request, which its owner cannot declare anew."""
        return Declaration(off=True, constraint=self.constraint, partitions=self.partitions)

    @property
    def may_move(self) -> bool:
        """Whether its owner lets it be moved while it runs."""
        return self.checkpoint and not self.pin

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
    name = text.upper().removeprefix("SIG")
    if name not in _SIGNALS:
        raise ValueError("one of " + ", ".join(_SIGNALS))
    return name


_READ: dict[str, Callable[[str], object]] = {
    "model": _word,
    "types": _words,
    "gpus": _span(_whole, "1-4"),
    "gpu_mem": _megabytes,
    "batch": _span(_whole, "64:512"),
    "samples": _whole,
    "epochs": _whole,
    "dataset_size": _whole,
    "checkpoint": _yes,
    "signal": _signal,
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
        if value and isinstance(value[0], int):
            return f"{value[0]}-{value[1]}" if value[0] != value[1] else str(value[0])
        return ",".join(str(part) for part in value)
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def _show(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return repr(printable[:80] + ("..." if len(printable) > 80 else ""))
