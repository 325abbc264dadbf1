"""Reasons as they may be shown to a user who may know nothing of others' jobs."""

import re
from collections.abc import Collection

_JOB = re.compile(r"\bjob (\d+(?:[_+]\d+)?)\b")
_PLACE = re.compile(
    r"\b(?:number )?\d+ of \d+ "
    r"(?=in the policy's queue|in turn\b|by attained service|in the order |jobs have less left)"
)
"""A job's place among all, as policies of this package write it: how many others there are."""


def without_others(text: str, ids: Collection[str] = ()) -> str:
    """A reason with no number of a job but ``ids``, nor how many jobs there are."""
    text = _PLACE.sub("", text).replace("; jobs have less left", "; others have less left")
    return _JOB.sub(lambda found: found[0] if found[1] in ids else "another job", text)
