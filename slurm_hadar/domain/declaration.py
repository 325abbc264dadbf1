"""What a job's owner says that the job can live with, and how it travels in the job's Comment.

Read by ``hbatch`` at every submit, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from slurm_hadar.domain import comment_segment, declaration_values
from slurm_hadar.domain.declaration_values import LONGEST_GRACE_S, CountList
from slurm_hadar.domain.errors import UsageError

ANY = "any"
SLOWEST = 4.0
"""How many times slower than on its best type a job may run with types=any; half of what a mixed
queue gains is lost where jobs take types on which they are 11 times slower. Where both are known:
a guess keeps no job from a free GPU."""
COMMENT_LIMIT = 1024
"""Bytes that Slurm takes in a Comment."""


_SEGMENT = "hadar1"
USUAL_SIGNAL = "USR2"
"""Where none is declared, nor said by the job's own ``--signal``."""
USUAL_LOSS_S = 120.0
"""Work that a move may cost a job with ``checkpoint=watch:PATH`` that declares no ``lose``."""
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    _Reached = Literal["steps", "batch", "full"]

_TO: dict[str, _Reached] = {"": "steps", "B:": "batch", "F:": "full"}
"""Prefix of a signal, as of ``sbatch --signal``, and whom it reaches, as of ``scancel``; ``F:`` is
ours."""


class SaveSignal:
    """How a job is asked to save. ``target``: ``steps``, ``batch`` or ``full``, as of scancel;
    ``grace_s``: how long it may take, s; None: as long as the site allows."""

    __slots__ = ("grace_s", "name", "target")

    def __init__(self, name: str, target: _Reached, grace_s: float | None) -> None:
        self.name: str = name
        self.target: _Reached = target
        self.grace_s = grace_s


@dataclass(frozen=True, slots=True)
class Declaration:
    """The ``#HADAR`` keys of one job. Memory in MB, times in s, batch = global batch in samples.

    ``types`` empty means "what the request says"; ranges are (least, most); ``gpus`` may be
    :class:`CountList` instead. ``constraint`` and
    ``partitions`` are not typed by a user: hbatch records there what the user asked of sbatch
    (``-C``, ``-p``), so that it can be taken back; ``added`` is the constraint that hbatch itself
    wrote, recorded where later types do not tell it any more, and ``listed`` the list of partitions
    that it wrote in place of ``partitions``: another one is the user's. ``wait`` None: what the
    site says.
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
    listed: tuple[str, ...] = ()
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
        return Declaration(
            off=True,
            constraint=self.constraint,
            partitions=self.partitions,
            listed=self.listed,
            added=self.added,
        )

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


def _cost(text: str) -> str:
    if text.lower() != ANY:
        raise ValueError(f"{ANY}: more GPUs, CPUs or memory may be billed more than the request")
    return ANY


_READ: dict[str, Callable[[str], object]] = {
    "model": declaration_values.identifier,
    "types": declaration_values.identifiers,
    "gpus": declaration_values.gpus,
    "gpu_mem": declaration_values.megabytes,
    "batch": declaration_values.range_of(declaration_values.whole_number, "64:512"),
    "samples": declaration_values.whole_number,
    "epochs": declaration_values.whole_number,
    "dataset_size": declaration_values.whole_number,
    "checkpoint": declaration_values.checkpoint,
    "signal": declaration_values.signal,
    "lose": declaration_values.duration_s,
    "checkpoint_exit_code": declaration_values.exit_code,
    "max_requeues": declaration_values.requeues,
    "progress": declaration_values.progress,
    "restart_cost": declaration_values.duration_s,
    "wait": declaration_values.duration_s,
    "cost": _cost,
    "fork": declaration_values.range_of(declaration_values.whole_number, "1-8"),
    "tasks": declaration_values.tasks,
    "backfill": declaration_values.yes_or_no,
    "nodes": declaration_values.range_of(declaration_values.whole_number, "1-8"),
    "cpus": declaration_values.range_of(declaration_values.whole_number, "1-8"),
    "mem": declaration_values.range_of(declaration_values.megabytes, "8G-32G"),
    "off": declaration_values.yes_or_no,
    "pin": declaration_values.yes_or_no,
}
_RECORDED: dict[str, Callable[[str], object]] = {
    "constraint": str,
    "partitions": declaration_values.identifiers,
    "listed": declaration_values.identifiers,
    "added": str,
    "lease": declaration_values.yes_or_no,
}
_RANGES = frozenset({"gpus", "batch", "fork", "nodes", "cpus", "mem"})
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
            near = [k for k in KEYS if k[:3] == key[:3]] or _like(key)
            hint = f"did you mean {near[0]}?" if near else "known keys: " + ", ".join(KEYS)
            raise UsageError(f"{where}: unknown key {_show(key)}; {hint}")
        if not equals or not text:
            raise UsageError(f"{where}: {key} has no value; write {key}=VALUE")
        if key in _RANGES and text[-1] in "-:":
            raise UsageError(
                f"{where}: {_show(word)} is a range without its end; write {_show(word[:-1])}, "
                "or the end behind it"
            )
        values[key] = _value(_READ, key, text, where)
    result = replace(base or Declaration(), **values)  # type: ignore[arg-type]
    if ANY in result.types and len(result.types) > 1:
        raise UsageError(f"{where}: types is either any or a list of types, not both")
    return result


def encode(declaration: Declaration) -> str:
    """The declaration as the segment of a Comment; values that are the default are left out."""
    return comment_segment.encode(_SEGMENT, declaration.assignments())


def decode(comment: str) -> Declaration | None:
    """The declaration in a Comment; None where there is none.

    Raises :class:`UsageError` where there is one that cannot be read: such a job is left alone.
    """
    words = comment_segment.decode(_SEGMENT, comment)
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
    return comment_segment.merge(_SEGMENT, comment, declaration.assignments())


def removed(comment: str) -> str:
    """The Comment without our segment: the user's own text."""
    return comment_segment.removed(_SEGMENT, comment)


def _like(key: str) -> list[str]:
    # Only a mistake pays for its import.
    from difflib import get_close_matches

    return get_close_matches(key[:30], KEYS, n=1, cutoff=0.7)


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
