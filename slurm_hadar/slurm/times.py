"""Slurm's durations and dates."""

import re
from datetime import datetime
from math import ceil, inf

from slurm_hadar.domain.errors import SlurmError, UsageError
from slurm_hadar.domain.job import Job

_NO_VALUE = ("", "none", "n/a", "(null)", "invalid", "not_set", "partition_limit", "unknown")
_NO_LIMIT = ("unlimited", "infinite")
_SPAN = re.compile(r"([1-9]\d{0,5})([hdw])", re.ASCII)
_SECONDS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SET_BACK_S = 60.0
"""Clocks of machines differ by less: munge takes no message that is 5 minutes off."""
_SLACK_S = 5.0
"""Slurm reads its clock more than once in a requeue."""
_AHEAD_S = 65.0
"""Of a begin time that was set to keep a job from starting during an update, a minute and the
difference of two clocks (:mod:`slurm_hadar.slurm.pending`)."""
_DURATION = re.compile(r"(?:(\d{1,7})-)?(\d{1,9})(?::(\d{1,4}))?(?::(\d{1,4}))?(?:\.\d+)?")


def is_some_time(text: str) -> bool:
    """Whether a duration such as ``1-00:00:00`` is more than zero; a name such as NONE is not."""
    return any(char in "123456789" for char in text) and not text.startswith("-")


def parse_duration(text: str) -> float | None:
    """Seconds; inf for UNLIMITED and INFINITE; None where Slurm names none.

    Forms: ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M``, ``D-H:M:S``. None for NONE, N/A,
    INVALID, Partition_Limit, NOT_SET, Unknown. Raises :class:`SlurmError` on anything else.
    """
    word = text.strip().lower()
    if word in _NO_VALUE:
        return None
    if word in _NO_LIMIT:
        return inf
    match = _DURATION.fullmatch(word)
    if match is None:
        raise SlurmError(f"Slurm shows a duration as {text[:80]!r}, which is not understood")
    days, first, second, third = (int(part) if part else None for part in match.groups())
    assert first is not None
    if days is not None:
        return days * 86400.0 + first * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return first * 3600.0 + (second or 0) * 60 + third
    return first * 60.0 + (second or 0)


def parse_date(text: str) -> float:
    """Seconds since the epoch of an ISO time in local time; 0 for Unknown, None, N/A.

    Raises :class:`SlurmError` on anything else.
    """
    word = text.strip()
    if word.lower() in _NO_VALUE:
        return 0.0
    try:
        return datetime.fromisoformat(word).timestamp()
    except (ValueError, OverflowError, OSError):
        raise SlurmError(f"Slurm shows a time as {text[:80]!r}, which is not understood") from None


def time_before(text: str, now: float) -> float:
    """A time before ``now`` as a user writes it behind ``--since``, s since the epoch: ``24h``,
    ``7d``, ``2w`` or a date. Raises UsageError."""
    if match := _SPAN.fullmatch(text):
        return max(0.0, now - int(match[1]) * _SECONDS[match[2]])
    try:
        found = parse_date(text)
    except SlurmError:
        found = 0.0
    if not 0 < found < now:
        raise UsageError(
            f"--since {text[:40]!r} is no time before now; write 24h, 7d, 2w or 2026-01-31"
        )
    return found


def begin_time(epoch_s: float) -> str:
    """A time as ``StartTime`` takes it; not ISO, which an hour of each autumn has twice."""
    return f"uts{ceil(epoch_s)}"


def printed(epoch_s: float) -> str:
    """A time as Slurm prints it: ISO, local."""
    return datetime.fromtimestamp(epoch_s).strftime("%Y-%m-%dT%H:%M:%S")


def at_once(job: Job, now: float) -> str:
    """``StartTime`` of a waiting job that may start now.

    Not in the very second of a requeue: slurmd takes a credential of that second for one of those
    that it just revoked, and the job fails ("Job credential revoked"; seen 12 times of 12 on
    22.05.8, 6 of 12 on 24.11.5).
    """
    if set_back(job, now):
        # Counted by scontrol's own clock, which may tell another time than ours did.
        return "now+2"
    # One more second, should this clock be ahead of slurmctld's.
    return "now" if now >= startable_s(job) + 1 else begin_time(startable_s(job))


def startable_s(job: Job) -> float:
    """First second in which a waiting job may start; a requeue counts as a submission to Slurm."""
    return max(job.submit_s + 1, job.not_before_s) if job.restarts else 0.0


def set_back(job: Job, now: float) -> bool:
    """Whether the clock was set back since the job was submitted or requeued: a time that it then
    got would keep it waiting until the clock is there again."""
    return job.submit_s > now + _SET_BACK_S


def begins_as_set(job: Job, now: float, delay_s: float) -> bool:
    """Whether a requeued job waits for a begin time that was set since, rather than Slurm's own:
    later than that, and more than a minute ahead. ``delay_s``: :func:`.records.requeue_delay_s`."""
    if not job.restarts or set_back(job, now):
        return False
    return job.eligible_s > max(job.submit_s + delay_s + _SLACK_S, now + _AHEAD_S)


def format_minutes(seconds: float) -> str:
    """A time limit as scontrol takes it: whole minutes, rounded up; ``UNLIMITED`` for inf."""
    return "UNLIMITED" if seconds == inf else str(max(1, -int(-seconds // 60)))
