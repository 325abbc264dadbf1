"""Reading and changing single settings of a slurm.conf: text in, text out.

Every change is marked in the file itself, so that it can be taken back line by line after others
have edited the file too.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

BEGIN = (
    "# slurm-hadar begin: written by 'hadar plugins install', taken back by 'hadar plugins remove'"
)
END = "# slurm-hadar end"
_WAS = "#slurm-hadar was: "
_OURS = " # slurm-hadar"
_SETTING = re.compile(r"\s*([A-Za-z]+)\s*=(.*)$")
_REMARK = re.compile(r"\s#")
_FEATURES = re.compile(r"\bfeatures?=(\S+)", re.IGNORECASE)
_PARTITION = re.compile(r"\s*PartitionName\s*=\s*(\S+)", re.IGNORECASE)
_IS_DEFAULT = re.compile(r"\sDefault\s*=\s*(YES|TRUE|UP|1)\b", re.IGNORECASE)
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_MOST_FILES = 50


@dataclass(frozen=True, slots=True)
class ConfSetting:
    """A setting as it holds: its value, the file, and the line (from 0) that sets it."""

    value: str
    path: Path
    line: int


def settings(text: str, path: Path) -> dict[str, ConfSetting]:
    """The settings that hold, by name in small letters; the last one of a name wins.

    Files that are included are read; those that cannot be are left out.
    """
    found: dict[str, ConfSetting] = {}
    for where, number, line in _lines(text, path, [path]):
        if match := _SETTING.match(line):
            value = _REMARK.split(match[2], maxsplit=1)[0].strip()
            found[match[1].lower()] = ConfSetting(value, where, number)
    return found


def node_features(text: str, path: Path) -> set[str]:
    """All features that nodes have by the configuration."""
    found: set[str] = set()
    for _, _, line in _lines(text, path, [path]):
        if match := _FEATURES.search(line):
            found.update(match[1].strip('"').split(","))
    return found - {""}


def partitions(text: str, path: Path) -> set[str]:
    """The names of all partitions of the configuration."""
    found = {
        match[1] for _, _, line in _lines(text, path, [path]) if (match := _PARTITION.match(line))
    }
    return {name for name in found if name.upper() != "DEFAULT"}


def default_partition(text: str, path: Path) -> str:
    """The partition of jobs that name none; empty where there is none."""
    found = ""
    for _, _, line in _lines(text, path, [path]):
        name = _PARTITION.match(line)
        if name and name[1].upper() != "DEFAULT" and _IS_DEFAULT.search(line):
            found = name[1]
    return found


def _lines(text: str, path: Path, seen: list[Path]) -> Iterator[tuple[Path, int, str]]:
    """Lines that are no comments, with their file and number (from 0)."""
    for number, line in enumerate(text.split("\n")):
        if match := _INCLUDE.match(line):
            other = path.parent / match[1]
            if other not in seen and len(seen) < _MOST_FILES:
                seen.append(other)
                try:
                    included = other.read_text(errors="surrogateescape")
                except (OSError, ValueError):
                    # ValueError: a zero byte in the name.
                    continue
                yield from _lines(included, other, seen)
        elif not line.lstrip().startswith("#"):
            yield path, number, line


def with_settings(text: str, added: Mapping[str, str], replaced: Mapping[int, str]) -> str:
    """``text`` with settings (name -> value) in a block at its end, and lines (number from 0 ->
    new text) put in the place of others, which stay as comments."""
    lines = text.split("\n")
    for number, line in replaced.items():
        lines[number] = f"{_WAS}{lines[number]}\n{line}{_OURS}"
    if added:
        if lines[-1] == "":
            lines.pop()
        lines += [BEGIN, *(f"{name}={value}" for name, value in added.items()), END, ""]
    return "\n".join(lines)


def without_ours(text: str) -> str:
    """``text`` without anything that :func:`with_settings` did to it."""
    kept: list[str] = []
    inside = False
    for line in text.split("\n"):
        if line == BEGIN:
            inside = True
        elif inside:
            inside = line != END
        elif line.startswith(_WAS):
            kept.append(line.removeprefix(_WAS))
        elif not line.endswith(_OURS):
            kept.append(line)
    return "\n".join(kept)


def can_be_replaced(text: str, number: int) -> bool:
    """Whether a line stands alone: not continued, and with nothing but this one setting."""
    lines = text.split("\n")
    continued = lines[number].rstrip().endswith("\\")
    return not continued and not (number and lines[number - 1].rstrip().endswith("\\"))
