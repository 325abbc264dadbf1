"""Text for the reasons of policies: when a job is expected to end, and why it moves."""

from math import isfinite

from slurm_hadar.domain.view import View

UNKNOWN = "end unknown"


def time_left_text(view: View, job: int, seconds: float) -> str:
    """``8 min`` or ``2.1 h``; empty if the end is unknown, and only assumed to compare
    placements."""
    return span(seconds) if view.jobs.end_known[job] and isfinite(seconds) else ""


def span(seconds: float) -> str:
    """``45 s``, ``8 min`` or ``2.1 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def end_text(view: View, job: int, seconds: float) -> str:
    """``ends in 8 min`` or ``end unknown``."""
    left = time_left_text(view, job, seconds)
    return f"ends in {left}" if left else UNKNOWN


def end_here_text(view: View, job: int, seconds: float) -> str:
    """:func:`end_text` for a job that stays where it runs: ``reaches its time limit in 20 min`` if
    that comes before its end."""
    left_s = float(view.jobs.limit_s[job])
    if left_s < seconds and time_left_text(view, job, seconds):
        return f"reaches its time limit in {span(left_s)}"
    return end_text(view, job, seconds)


def move_reason(view: View, job: int, there_s: float, here_s: float) -> str:
    """Why a job moves that would end in ``there_s`` after the move and in ``here_s`` without it."""
    left = time_left_text(view, job, here_s)
    if left:
        return f"; it moves, as where it is it ends in {left}"
    if not (isfinite(there_s) and isfinite(here_s) and there_s > 0):
        return "; it moves"
    times = f"{here_s / there_s:.1f}"
    # A factor that rounds to 1.0 says nothing.
    faster = f", as it is expected to be {times} times as fast there" if times != "1.0" else ""
    return f"; it moves{faster}"
