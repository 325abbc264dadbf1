"""Rows of a trace file with their line numbers, and numbers that are checked."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import UsageError


def text_of(path: Path) -> str:
    """A trace's text. Raises UsageError when it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"trace {path} cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: its cells by column."""

    file: str
    line: int
    cells: dict[str, str]

    def error(self, what: str) -> UsageError:
        """An error that says where."""
        return UsageError(f"{self.file}, line {self.line}: {what}")

    def text(self, column: str) -> str:
        """A cell, "" where the table lacks the column."""
        return self.cells.get(column, "").strip()

    def number(self, column: str, least: float = 0.0, above: bool = False) -> float:
        """A finite number of at least ``least`` (``above``: greater). Raises UsageError."""
        words = self.text(column)
        try:
            value = float(words)
        except ValueError:
            raise self.error(f"{column} is {words!r}, which is no number") from None
        if not math.isfinite(value):
            raise self.error(f"{column} is {words}, which is no finite number")
        if value < least or (above and value == least):
            raise self.error(f"{column} is {words}; it must be {_bound(least, above)}")
        return value

    def whole(self, column: str, least: int = 1, most: int = 100_000) -> int:
        """A whole number within bounds. Raises UsageError."""
        value = self.number(column, least)
        if value != int(value) or value > most:
            raise self.error(f"{column} is {self.text(column)}; it must be a whole number")
        return int(value)


def _bound(least: float, above: bool) -> str:
    return f"more than {least:g}" if above else f"{least:g} or more"


def rows(text: str, file: str, needed: Sequence[str], delimiter: str = ",") -> Iterator[Row]:
    """The rows below the header; empty lines and those that begin with ``#`` are skipped.

    Raises UsageError for a missing column, a row of another length, or a table without header.
    """
    lines = (
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    header: list[str] = []
    for number, line in lines:
        cells = line.split("|") if delimiter == "|" else next(csv.reader([line], strict=False))
        if not header:
            header = [name.strip() for name in cells]
            missing = [name for name in needed if name not in header]
            if missing:
                raise UsageError(
                    f"{file}, line {number}: column {missing[0]} is missing; "
                    f"the header has {', '.join(header)}"
                )
            continue
        if len(cells) != len(header):
            raise UsageError(
                f"{file}, line {number}: {len(cells)} cells, the header has {len(header)}"
            )
        yield Row(file, number, dict(zip(header, cells, strict=True)))
    if not header:
        raise UsageError(f"{file} is empty")
