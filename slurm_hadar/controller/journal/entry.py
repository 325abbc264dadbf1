"""What the journal holds: actions and decisions, as rows of the state file."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = "id, job, kind, phase, opened_s, changed_s, details, outcome, steps, shown, effect"
"""Of the journal's table."""
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
_STEP = re.compile(r"(.*)@([0-9]+(?:\.[0-9]+)?(?:e[+]?[0-9]+)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """One action in the journal. Times in s.

    ``outcome`` is None while it is under way, ``shown`` (what Slurm showed of it at a later look)
    while that was not seen yet: then it is closed. ``steps``: the phases after the first, with the
    time of each; ``effect``: what a move cost and gained, None while that is not known.
    """

    id: int
    job: str
    kind: str
    phase: str
    opened_s: float
    changed_s: float
    details: Mapping[str, object]
    outcome: str | None
    steps: tuple[tuple[str, float], ...] = ()
    shown: str | None = None
    effect: Mapping[str, object] | None = None

    def reached_s(self, phase: str) -> float | None:
        """When it came as far as a phase after its first; None where it did not."""
        return next((time for name, time in self.steps if name == phase), None)


WAITS, NOT_STEERED = "waits", "not steered"
"""A decision's placement where there is none."""
NOWHERE = ("", WAITS, NOT_STEERED)
"""The same; empty: of a plan file."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The last decision on a job: ``placement`` as text, and the reason."""

    job: str
    time_s: float
    placement: str
    reason: str


def entry_of(row: Sequence[Any]) -> Entry:
    """A row of the journal, its columns in the order of :data:`COLUMNS`. What cannot be read of it
    is left out."""
    id_, job, kind, phase, opened_s, changed_s, details, outcome, steps, shown, effect = row
    return Entry(
        id_, job, kind, phase, opened_s, changed_s, _object(details) or {}, outcome,
        _steps(steps), shown, _object(effect),
    )  # fmt: skip


NOT_MEANT, NOT_STARTED = "which was not meant", "has not started it"
NOT_CARRIED_OUT = "not carried out"


def is_in_vain(shown: str) -> bool:
    """Whether what Slurm shows of a move is that the job did not come to its place."""
    return NOT_MEANT in shown or NOT_STARTED in shown


def gist(decision: Decision) -> tuple[str, str]:
    """What makes a decision another one: "ends in 7 min" is not, when it was 8 before."""
    return decision.placement, _FIGURE.sub("", decision.reason)


def _steps(text: str) -> tuple[tuple[str, float], ...]:
    matches = (_STEP.fullmatch(part) for part in text.split())
    return tuple((step[1], float(step[2])) for step in matches if step is not None)


def _object(text: str | None) -> Mapping[str, object] | None:
    try:
        value = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
