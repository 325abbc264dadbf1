"""From the site's TOML to a :class:`Config`, or one sentence on the file and the key at fault."""

import os
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path

from pydantic import ValidationError

from slurm_hadar import paths, reading
from slurm_hadar.config.mistakes import mistake
from slurm_hadar.config.schema import Config
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.paths import ENV

TO_ASK = frozenset(("version", "site", "slurm", "gpu_types", "partitions", "status"))
"""Tables that commands need which only look, or give a job back to its owner."""


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


def load(
    path: Path,
    opener: Callable[[str], int] | None = None,
    needed: Collection[str] | None = None,
) -> Config:
    """Read a configuration. Raises :class:`UsageError` naming the file and the key at fault.

    ``opener``: opens the file by its name; see :func:`load_believed`. ``needed``: see
    :func:`parse`.
    """
    try:
        text = reading.content(path, reading.SITE_BYTES, opener).decode()
    except FileNotFoundError:
        raise UsageError(
            f"no configuration at {path}; copy one of the site examples there, or set {ENV}"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not TOML: byte {error.start} is not UTF-8") from None
    return parse(text, str(path), needed)


def parse(text: str, name: str, needed: Collection[str] | None = None) -> Config:
    """Read a configuration's text; ``name`` stands in errors.

    ``needed``: tables, of which :data:`TO_ASK` is one set. A mistake in another one is no error:
    that table takes its defaults, see :attr:`Config.ignored`. None: all are needed.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > reading.SITE_LINE:
            raise UsageError(
                f"{name}: line {number} is longer than {reading.SITE_LINE} characters, the limit; "
                "a list may go on in the next line"
            )
    try:
        found = tomllib.loads(text)
        notes = _obsolete(found)
        config, ignored = _validated(found, needed)
        config._notes, config._ignored = notes, ignored
        return config
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {reading.shown(str(error), 200)}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValidationError as error:
        raise UsageError(f"{name}: {mistake(error.errors()[0])}") from None


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
