"""Rows of a trace file with their line numbers, and numbers that are checked."""

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar import reading
from slurm_hadar.domain.errors import UsageError

_MOST = 1e18
"""No count of samples and no rate comes near it; sums and products stay finite."""
LATEST_S = 1e12
"""Seconds beyond this leave no digits for their fractions."""
MOST_ROWS = 1_000_000
"""Of a trace, a history or a list of idle times; the largest published traces have fewer."""
_MOST_WORDS, _MOST_CELL, _LONGEST_WORD = 240, 40, 1000


def text_of(path: Path, errors: str = "strict") -> str:
    """A trace's text. Raises UsageError when it cannot be read, with ``errors="replace"`` not for
    bytes that are no UTF-8: users name jobs in any encoding, and sacct prints the bytes."""
    try:
        return reading.content(path, reading.HISTORY_BYTES).decode("utf-8-sig", errors)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} cannot be read: it is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line of a table: its cells by column."""

    file: str
    line: int
    cells: dict[str, str]

    def error(self, what: str) -> UsageError:
        """An error that says where."""
        return _error(self.file, self.line, what)

    def text(self, column: str) -> str:
        """A cell, "" where the table lacks the column."""
        return self.cells.get(column, "").strip()

    def word(self, column: str) -> str:
        """A cell as :meth:`text`. Raises UsageError for a very long one."""
        words = self.text(column)
        if len(words) > _LONGEST_WORD:
            raise self.error(f"{column} {_cut(words)!r} is longer than {_LONGEST_WORD} characters")
        return words

    def name(self, column: str) -> str:
        """What a job is called. Raises UsageError for what a terminal cannot show, or nothing."""
        words = self.text(column)
        if not words:
            raise self.error(f"{column} is empty")
        if not words.isprintable():
            raise self.error(f"{column} {_cut(words)!r} holds a character that is not to be shown")
        if len(words) > _MOST_CELL * 2:
            raise self.error(f"{column} {_cut(words)!r} is longer than {_MOST_CELL * 2} characters")
        return words

    def number(
        self, column: str, least: float = 0.0, above: bool = False, most: float = _MOST
    ) -> float:
        """A number from ``least`` (``above``: greater) to ``most``. Raises UsageError."""
        words = self.text(column)
        shown = _cut(words)
        try:
            # float() also takes 1_000 and the digits of other scripts: a slip rather than meant.
            value = float(words) if words.isascii() and "_" not in words else None
        except ValueError:
            value = None
        if value is None:
            raise self.error(f"{column} is {shown!r}, which is no number")
        if not math.isfinite(value):
            raise self.error(f"{column} is {shown}, which is no finite number")
        if value < least or (above and value == least):
            raise self.error(f"{column} is {shown}; it must be {_bound(least, above)}")
        if value > most:
            raise self.error(f"{column} is {shown}; it must be at most {most:g}")
        return value

    def whole(self, column: str, least: int = 1, most: int = 100_000) -> int:
        """A whole number within bounds. Raises UsageError."""
        value = self.number(column, least, most=math.inf)
        if value > most:
            raise self.error(f"{column} is {_cut(self.text(column))}; it must be at most {most}")
        if value != int(value):
            raise self.error(f"{column} is {self.text(column)}; it must be a whole number")
        return int(value)


def _error(file: str, line: int, what: str) -> UsageError:
    """One sentence that a terminal can show, whatever the file holds."""
    words = f"{file}, line {line}: {what}"
    if len(words) > _MOST_WORDS:
        words = words[: _MOST_WORDS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return UsageError("".join(c if c.isprintable() else "?" for c in words))


def _cut(words: str) -> str:
    shown = words if len(words) <= _MOST_CELL else words[:_MOST_CELL] + "\N{HORIZONTAL ELLIPSIS}"
    return "".join(c if c.isprintable() else "?" for c in shown)


def _bound(least: float, above: bool) -> str:
    return f"more than {least:g}" if above else f"{least:g} or more"


def rows_of(text: str) -> list[str]:
    """Split at line ends only: names may hold what ``str.splitlines`` takes for one."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def rows(
    text: str,
    file: str,
    needed: Sequence[str],
    delimiter: str = ",",
    skipped: list[str] | None = None,
) -> Iterator[CsvRow]:
    """The rows below the header; empty lines and those that begin with ``#`` are skipped.

    Raises UsageError for a missing or repeated column, a table without header, or a row of another
    length; ``skipped``: takes a sentence on each of these instead.
    """
    lines = (
        (number, line)
        for number, line in enumerate(rows_of(text), 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    header: list[str] = []
    count = 0
    for number, line in lines:
        cells = _cells(line, delimiter, file, number)
        if not header:
            header = [name.strip() for name in cells]
            missing = [name for name in needed if name not in header]
            if missing:
                words = ", ".join(header)
                raise _error(
                    file, number, f"column {missing[0]} is missing; the header has {words}"
                )
            # Which of two were meant? What sacct prints twice is the same twice.
            twice = [name for name, times in Counter(header).items() if name and times > 1]
            if twice and delimiter != "|":
                raise _error(file, number, f"column {twice[0]} stands there twice")
            continue
        count += 1
        if count > MOST_ROWS:
            raise UsageError(f"{file} has more than {MOST_ROWS:,} rows; make it shorter")
        if len(cells) != len(header):
            what = f"{len(cells)} cells, the header has {len(header)}"
            if skipped is not None:
                skipped.append(f"line {number}: {what}")
                continue
            raise _error(file, number, what + _guess(line, len(cells) - len(header), delimiter))
        yield CsvRow(file, number, dict(zip(header, cells, strict=True)))
    if not header:
        raise UsageError(f"{file} is empty")


def _cells(line: str, delimiter: str, file: str, number: int) -> list[str]:
    if delimiter == "|":
        return line.split("|")
    try:
        return next(csv.reader([line], strict=False))
    except csv.Error as error:
        raise _error(file, number, f"it is not CSV: {error}") from None


def _guess(line: str, more: int, delimiter: str) -> str:
    """What may have gone wrong with a line of another length."""
    if delimiter == "|":
        return "; if a name holds a |, run sacct without that column" if more > 0 else ""
    return "; is a quote not closed?" if line.count('"') % 2 else ""
