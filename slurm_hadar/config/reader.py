"""From the site's TOML to a :class:`Config`, or one sentence on each mistake: the file, the key,
what it takes, and what stands there.
"""

import errno
import json
import math
import os
import tomllib
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from slurm_hadar import paths, reading
from slurm_hadar.config.schema import Config
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.paths import ENV

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

TO_ASK = frozenset(("version", "site", "slurm", "gpu_types", "partitions", "status"))
"""Tables that commands need which only look, or give a job back to its owner."""
_TAKES = {
    "bool_type": "takes true or false",
    "bool_parsing": "takes true or false",
    "dict_type": "is a table, written in [brackets] with its keys below",
    "finite_number": "takes a finite number",
    "float_parsing": "takes a number",
    "float_type": "takes a number",
    "int_from_float": "takes a whole number",
    "int_parsing": "takes a whole number",
    "int_type": "takes a whole number",
    "model_type": "is a table, written in [brackets] with its keys below",
    "path_type": "takes a path in quotes",
    "string_type": "takes a text in quotes",
    "tuple_type": "takes a list, written in [brackets]",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "takes a number of {} or more"),
    "greater_than": ("gt", "takes a number above {}"),
    "less_than_equal": ("le", "takes a number of {} or less"),
    "less_than": ("lt", "takes a number below {}"),
}
_OPTIONS = ("controller", "options")


def find() -> Path:
    """The configuration file: ``$HADAR_CONFIG``, the user's own, the system's, in this order."""
    return Path(paths.config_file(os.environ))


def wrapper_path(config_path: Path) -> Path:
    """The small JSON beside the TOML that hbatch and the runtime read."""
    return Path(paths.wrapper_file(str(config_path)))


def load_believed(path: Path, needed: Collection[str] | None = None) -> Config:
    """As :func:`load`, for what a command acts on: only a file of root, of the controller's user or
    of the caller, see :func:`slurm_hadar.paths.opened`."""
    return load(path, paths.opened, needed)


def load_to_check(path: Path) -> Config:
    """As :func:`load_believed`, without the keys at fault: :attr:`Config.ignored` names them all.

    Raises UsageError where the file cannot be read, or is no TOML.
    """
    config = _parse(_text(path, paths.opened), str(path), _without_mistakes)
    try:
        _ = config.controller_uid
    except UsageError as error:
        site = config.site.model_copy(update={"controller_user": ""})
        known = config.model_copy(update={"site": site})
        known._notes, known._ignored = config.notes, (*config.ignored, str(error))
        return known
    return config


def load(
    path: Path,
    opener: Callable[[str], int] | None = None,
    needed: Collection[str] | None = None,
) -> Config:
    """Read a configuration. Raises :class:`UsageError` naming the file and the key at fault.

    ``opener``: opens the file by its name; see :func:`load_believed`. ``needed``: see
    :func:`parse`.
    """
    return parse(_text(path, opener), str(path), needed)


def _text(path: Path, opener: Callable[[str], int] | None) -> str:
    try:
        return reading.content(path, reading.SITE_BYTES, opener).decode()
    except FileNotFoundError:
        raise UsageError(
            f"no configuration at {path}; copy one of the site examples there, or set {ENV}"
        ) from None
    except OSError as error:
        cure = ""
        if error.errno == errno.EACCES:
            cure = "; its owner has to let all users read it, and enter the folders above it"
        raise UsageError(f"{path} cannot be read: {error.strerror}{cure}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not TOML: byte {error.start} is not UTF-8") from None


def parse(text: str, name: str, needed: Collection[str] | None = None) -> Config:
    """Read a configuration's text; ``name`` stands in errors.

    ``needed``: tables, of which :data:`TO_ASK` is one set. A mistake in another one is no error:
    that table takes its defaults, see :attr:`Config.ignored`. None: all are needed.
    """
    return _parse(text, name, partial(_validated, needed=needed))


_Validate = Callable[[dict[str, object]], tuple[Config, tuple[str, ...]]]
"""From what the file has to the configuration, and sentences on what was left out of it. Raises
ValidationError."""


def _parse(text: str, name: str, validate: _Validate) -> Config:
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > reading.SITE_LINE:
            raise UsageError(
                f"{name}: line {number} is longer than {reading.SITE_LINE} characters, the limit; "
                "a list may go on in the next line"
            )
    try:
        found = tomllib.loads(text)
        notes = _obsolete(found)
        config, ignored = validate(found)
        config._notes, config._ignored = notes, ignored
        return config
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {reading.shown(str(error), 200)}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValidationError as error:
        first, *others = _sentences(error.errors())
        more = f"; hadar check names all {len(others) + 1} mistakes of the file" if others else ""
        raise UsageError(f"{name}: {first}{more}") from None


def _sentences(errors: Iterable["ErrorDetails"]) -> list[str]:
    """One on each mistake; of a value that may be of several types pydantic has one for each."""
    return list(dict.fromkeys(map(mistake, errors)))


def _without_mistakes(found: dict[str, object]) -> tuple[Config, tuple[str, ...]]:
    """The configuration without the keys at fault, and a sentence on each."""
    said: list[str] = []
    removed: set[tuple[str, ...]] = set()
    while True:
        try:
            return Config.model_validate(found), tuple(said)
        except ValidationError as error:
            at_fault: dict[tuple[str, ...], list[ErrorDetails]] = {}
            for one in error.errors():
                at_fault.setdefault(_deepest(found, one["loc"]), []).append(one)
            if () in at_fault:
                raise
            for place, errors in at_fault.items():
                # A table may lack now just what was removed from it.
                if not any(other[: len(place)] == place for other in removed):
                    said += _sentences(errors)
            for place in at_fault:
                _remove(found, place)
            removed |= at_fault.keys()


def _deepest(found: dict[str, object], place: tuple[int | str, ...]) -> tuple[str, ...]:
    """The part of a place that names a key of the file: behind it pydantic names entries of a list,
    or the types that it tried."""
    table: object = found
    for at, part in enumerate(place):
        if not isinstance(table, dict) or part not in table:
            return tuple(map(str, place[:at]))
        table = table[part]
    return tuple(map(str, place))


def _remove(found: dict[str, object], place: tuple[str, ...]) -> None:
    *above, last = place
    table: object = found
    for part in above:
        table = table.get(part) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(last, None)


def _validated(
    found: dict[str, object], needed: Collection[str] | None
) -> tuple[Config, tuple[str, ...]]:
    """The configuration, and a sentence on each table that was left out of it."""
    try:
        return Config.model_validate(found), ()
    except ValidationError as error:
        tables = {str(one["loc"][0]): mistake(one) for one in reversed(error.errors())}
        if needed is None or not tables.keys().isdisjoint(needed):
            raise
    rest = {name: table for name, table in found.items() if name not in tables}
    return Config.model_validate(rest), tuple(reversed(tables.values()))


def _obsolete(found: dict[str, object]) -> tuple[str, ...]:
    """Take out of a file what earlier releases knew; a sentence on each."""
    notes = []
    if found.pop("lease", None) is not None:
        notes.append("[lease] has no effect any more: remove it from the configuration")
    partitions = found.get("partitions")
    if isinstance(partitions, dict) and partitions.pop("steer", None) is not None:
        notes.append(
            "partitions.steer has no effect any more: a job keeps the partitions that it asks for; "
            "say in [partitions.groups] which partition stands for others"
        )
    return tuple(notes)


def mistake(one: "ErrorDetails") -> str:
    """The sentence, after the file's name, on one of pydantic's errors."""
    place = tuple(one["loc"])
    if one["type"] == "extra_forbidden":
        return f"{_key(place)}: unknown key; man hadar.toml has all of them"
    if place[:2] == _OPTIONS and len(place) > 2:
        # Behind the option pydantic names the type that it tried.
        return _sentence(place[:3], "takes a text, a number, true or false", one["input"])
    return _sentence(place, _allowed(one), one["input"])


def _allowed(one: "ErrorDetails") -> str:
    kind, context = one["type"], one.get("ctx", {})
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        return text.format(f"{float(context[name]):g}")
    if kind == "literal_error":
        return f"takes {str(context['expected']).replace(chr(39), chr(34))}"
    return _TAKES.get(kind, one["msg"].removeprefix("Value error, "))


def _sentence(place: tuple[int | str, ...], allowed: str, value: object) -> str:
    there = _shown(value)
    return f"{_key(place)}: {reading.shown(allowed, 300)}{f', not {there}' if there else ''}"


def _key(place: tuple[int | str, ...]) -> str:
    return reading.shown(".".join(str(part) for part in place))


def _shown(value: object) -> str:
    """A value as TOML has it; empty for a table, whose mistake concerns several keys."""
    if isinstance(value, dict):
        return ""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = value if isinstance(value, str) else str(value)
    return json.dumps(reading.shown(text, 60), ensure_ascii=False) if text is value else text[:60]
