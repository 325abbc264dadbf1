"""Figures as text. An absent figure is a dash."""

import re
from collections.abc import Mapping
from datetime import datetime
from math import isfinite, isnan

ABSENT = "–"
UNKNOWN = "unknown"
"""A figure that is not known yet, where a dash would look like none."""
_LONG_S = 1000 * 365 * 86400
"""A longer time comes of a speed of nearly nothing, or of a user's nonsense."""
_UNSEEN = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u200b-\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def plain(text: str) -> str:
    """One line of what can be seen and encoded, for names that users chose."""
    return _UNSEEN.sub(" ", text)


def short_name(text: str, most: int = 48) -> str:
    """A name as :func:`plain`, cut to ``most`` characters: Slurm takes names of 1,024."""
    line = plain(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def duration(seconds: float | None) -> str:
    """``42 s``, ``6 min 52 s``, ``3 h 05 min``, ``2 d 04 h``."""
    if seconds is None or isnan(seconds) or seconds < -_LONG_S:
        return ABSENT
    if seconds > _LONG_S:
        return "more than 1,000 years"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def moment(epoch_s: float) -> str:
    """A time of day in ISO's form, with the zone: ``2026-11-21T08:19:00+00:00``."""
    try:
        return datetime.fromtimestamp(epoch_s).astimezone().isoformat(timespec="seconds")
    except (OSError, OverflowError, ValueError):
        return "after the year 9999" if epoch_s > 0 else ABSENT


def clock(seconds: float) -> str:
    """``1:20`` or ``2:03:07`` since the run began."""
    if not isfinite(seconds):
        return ABSENT
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, seconds_left = divmod(rest, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{seconds_left:02d}"
    return f"{minutes}:{seconds_left:02d}"


def percent(part: float | None) -> str:
    """``73%``."""
    return ABSENT if part is None or not isfinite(part) else f"{part:.0%}"


def number(value: int | None) -> str:
    """``12,345``."""
    return ABSENT if value is None else f"{value:,}"


def counted(number: int, noun: str) -> str:
    """``1 change``, ``2 changes``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def rate(samples_per_s: float | None) -> str:
    """Samples/s with three digits that matter: ``1,240``, ``31.5``, ``0.42``."""
    if not samples_per_s or not isfinite(samples_per_s):
        return ABSENT
    if samples_per_s >= 100:
        return f"{samples_per_s:,.0f}"
    return f"{samples_per_s:.3g}"


def gpus(counts: Mapping[str, int]) -> str:
    """``2 v100 + 1 k80``."""
    if not counts:
        return ABSENT
    return " + ".join(f"{count} {plain(kind)}" for kind, count in sorted(counts.items()))
