"""slurm.conf as Slurm reads it: continued lines, comments, Include, DEFAULT lines.

Only looked at, never written. Lines that advice is to replace are kept as they stand in the file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar import reading
from slurm_hadar.domain.errors import UsageError

_PAIR = re.compile(
    # Where a word begins only: a long one would else be looked through from each of its letters.
    r"(?<![A-Za-z0-9_./])([A-Za-z_][A-Za-z0-9_./]*)"
    r'\s*[-+*/]?=\s*(?:"([^"]*)"|(\S+))'
)
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_COMMENT = re.compile(r"(?<!\\)#.*$")
_MOST_FILES, _MOST_BYTES = 50, 20_000_000


@dataclass(frozen=True, slots=True)
class ConfEntry:
    """One logical line: its file, the number (from 1) of its first line, its text without comment
    and continuation, and its keys in small letters with their values, in the order of the text."""

    path: Path
    line: int
    text: str
    keys: Mapping[str, str]

    @property
    def where(self) -> str:
        """``line 12 of /etc/slurm/slurm.conf``."""
        return f"line {self.line} of {self.path}"


@dataclass(frozen=True)
class SlurmConf:
    """What a slurm.conf says, its included files put in their places."""

    path: Path
    settings: Mapping[str, str]
    """Name in small letters -> value; the last one of a name wins."""
    places: Mapping[str, ConfEntry]
    """Name in small letters -> the line that sets it."""
    nodes: tuple[ConfEntry, ...]
    """NodeName lines with the DEFAULT lines before them applied; DEFAULT lines left out."""
    partitions: tuple[ConfEntry, ...]
    """PartitionName lines in the same way."""
    notes: tuple[str, ...] = ()
    """Files that could not be read."""


@dataclass
class _Reading:
    files: list[Path]
    notes: list[str] = field(default_factory=list)


def read(path: Path) -> SlurmConf:
    """The file and what it includes. Raises UsageError when the file itself cannot be read."""
    return parse(_text(path), path)


def parse(text: str, path: Path) -> SlurmConf:
    """A slurm.conf's text; ``path``: where it stands, for what it includes and for advice."""
    reading = _Reading([path])
    settings: dict[str, str] = {}
    places: dict[str, ConfEntry] = {}
    found: dict[str, list[ConfEntry]] = {"nodename": [], "partitionname": []}
    defaults: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
    for entry in _entries(text, path, path.parent, reading):
        kind = next(iter(entry.keys))
        if kind not in found:
            settings.update(entry.keys)
            places.update(dict.fromkeys(entry.keys, entry))
        elif entry.keys[kind].upper() == "DEFAULT":
            defaults[kind].update(entry.keys)
        else:
            keys = {**defaults[kind], **entry.keys}
            found[kind].append(ConfEntry(entry.path, entry.line, entry.text, keys))
    return SlurmConf(
        path,
        settings,
        places,
        tuple(found["nodename"]),
        tuple(found["partitionname"]),
        tuple(reading.notes),
    )


def with_keys(entry: ConfEntry, changed: Mapping[str, str]) -> str:
    """The line with these keys (spelled as Slurm does) set: replaced where they stand, else added
    at its end. The text of other keys stays."""
    text = entry.text
    for key, value in changed.items():
        shown = quoted(value)
        names = _SAME.get(key.lower(), (key.lower(),))
        for match in _PAIR.finditer(text):
            if match[1].lower() in names:
                text = f"{text[: match.start()]}{match[1]}={shown}{text[match.end() :]}"
                break
        else:
            text = f"{text} {key}={shown}"
    return text


def quoted(value: str) -> str:
    """A value as a line takes it: in quotes where it has blanks."""
    return f'"{value}"' if re.search(r"\s", value) else value


_SAME = {"features": ("features", "feature")}
"""Two spellings of one key."""


def _entries(text: str, path: Path, folder: Path, reading: _Reading) -> Iterator[ConfEntry]:
    for number, line in _logical(text):
        if match := _INCLUDE.match(line):
            other = folder / match[1]
            if other in reading.files or len(reading.files) >= _MOST_FILES:
                continue
            reading.files.append(other)
            try:
                included = _text(other)
            except UsageError as error:
                reading.notes.append(str(error))
                continue
            # Slurm looks for what an included file includes beside slurm.conf too.
            yield from _entries(included, other, folder, reading)
            continue
        keys = {m[1].lower(): m[3] if m[2] is None else m[2] for m in _PAIR.finditer(line)}
        if keys:
            yield ConfEntry(path, number, line, keys)


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that a backslash continues joined, comments taken off, with the first's
    number from 1."""
    begun, first = "", 0
    for number, raw in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        line = _COMMENT.sub("", raw).rstrip()
        first = first or number
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        joined, start = (begun + line).strip(), first
        begun, first = "", 0
        if joined:
            yield start, joined
    if begun.strip():
        yield first, begun.strip()


def _text(path: Path) -> str:
    try:
        raw = reading.content(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"{reading.shown(str(path), 300)} cannot be read: {error.strerror}"
        ) from None
    if b"\0" in raw:
        raise UsageError(f"{path} is no slurm.conf: it is not text")
    return raw.decode(errors="replace")
