"""The JSON file of a table: ``{"version": 1, "source": str, "rows": [...]}``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from slurm_hadar import reading
from slurm_hadar.domain.errors import UsageError

Rows = list[list[object]]


def parsed(text: str, table: str) -> tuple[Rows, Mapping[str, object]]:
    """The rows, and all that the file says. ``table``: as messages name it, ``CPU table x.json``.

    Raises UsageError that names the table.
    """
    try:
        data = reading.parsed(text)
    except ValueError as error:
        raise UsageError(f"{table} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("version") != 1:
        raise UsageError(f'{table}: "version": 1 is missing')
    rows = data.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise UsageError(f'{table}: "rows" is no list of rows')
    return rows, data


def read(path: Path, table: str, setting: str) -> str:
    """The text of a site's own table. ``setting``: which one names the file.

    Raises UsageError when it cannot be read.
    """
    try:
        return reading.content(path, reading.TABLE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{table} {path} cannot be read ({error}); correct {setting}") from None


def number(value: object) -> float:
    """A number of a row; nan for what is none."""
    # A whole number beyond this is none of ours, and Python cannot make a float of all of them.
    known = isinstance(value, (int, float)) and abs(value) < 1e300
    return float(cast(float, value)) if known else math.nan
