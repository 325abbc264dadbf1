"""Where a rate comes from: whose runs measured it or let it be inferred, or which table has it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from slurm_hadar.profiles.estimate import ExpectedRate
from slurm_hadar.profiles.fitted_rates import InferredRate
from slurm_hadar.profiles.measured import Measurement
from slurm_hadar.profiles.measured_correction import Correction

_MOST_NAMED = 4
"""Places that a text names from which a rate is inferred."""


@dataclass(frozen=True, slots=True)
class RateOrigin:
    """Where a rate comes from. ``kind``: whose runs measured it, else ``inferred`` from its owner's
    runs elsewhere, ``table`` or ``estimate``; ``corrected_by``: whose measurements changed what was
    not measured; ``text``: both for a person.
    """

    kind: Literal["this_job", "owner", "other_users", "inferred", "table", "estimate"]
    text: str
    corrected_by: Literal["", "owner", "other_users"] = ""


@dataclass(frozen=True, slots=True)
class Place:
    """What a rate is of. ``batch``: the declared global one; ``spread``: on several nodes."""

    gpu_type: str
    gpus: int
    batch: int | None
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a rate: what is expected without measurements, the corrections by its
    owner's and by all users' measurements, and what a fit to its owner's infers, None where there
    is none. ``in_full``: whether what others measured counts as it is; ``shifted``: whether it
    changes what is inferred."""

    cell: ExpectedRate
    own: Correction
    others: Correction
    inferred: InferredRate | None
    in_full: Callable[[], bool]
    shifted: Callable[[], bool]


def origin(evidence: Evidence, place: Place, uid: int | None, job: str) -> RateOrigin:
    """The origin of one rate of the jobs of ``uid``. ``job``: the id of the one that is asked for,
    whose own measurements are named."""
    cell, own, others = evidence.cell, evidence.own, evidence.others
    kind: Literal["inferred", "table", "estimate"] = "table" if cell.known else "estimate"
    words, where = cell.how, (place.gpu_type, place.gpus, place.batch)
    if evidence.inferred is not None:
        kind, words = "inferred", _inferred(evidence.inferred, place)
    stands = place.gpu_type in own.types()
    for by in () if place.spread else (own,) if stands else (own, others):
        if by.measured(*where) is not None:
            whose: Literal["owner", "other_users"] = "owner" if by is own else "other_users"
            if short_s := by.short_s(*where):
                return RateOrigin(kind, f"{words}, measured for {short_s:.0f} s only", whose)
            rows = _rows(by, place)
            if by is own:
                return _measured(rows, job, uid)
            if evidence.in_full():
                return RateOrigin("other_users", f"measured by other users ({_runs(rows)})")
            within = "corrected within bounds by what other users measured"
            return RateOrigin(kind, f"{words}, {within} ({_runs(rows)})", whose)
    if kind == "inferred":
        if evidence.shifted():
            within = "corrected within bounds by what other users measured"
            return RateOrigin(kind, f"{words}, {within}", "other_users")
        return RateOrigin(kind, words)
    if own:
        what = "what was measured" if uid is None else "what its owner's runs measured"
        return RateOrigin(kind, f"{words}, corrected by {what}", "owner")
    if others:
        return RateOrigin(kind, f"{words}, corrected by what other users measured", "other_users")
    return RateOrigin(kind, words)


def _inferred(found: InferredRate, place: Place) -> str:
    """Of many places those that were measured for longest are named. A batch is where it is another
    one."""
    named: dict[str, tuple[str, int, int]] = {}
    for row in found.rows:
        size = "" if row.batch == place.batch else f" with batch {row.batch}"
        named[f"{row.gpus} x {row.gpu_type}{size}"] = (row.gpu_type, row.gpus, row.batch)
    first = sorted(list(named)[:_MOST_NAMED], key=named.__getitem__)
    if len(named) > _MOST_NAMED:
        places = f"{', '.join(first)} and {len(named) - _MOST_NAMED} more"
    else:
        places = " and ".join([", ".join(first[:-1]), first[-1]] if first[1:] else first)
    # Of a logarithm: so far down and further up, or the other way about.
    off = 1.0 - math.exp(-found.sd)
    return f"inferred from {places} that its owner's runs measured, within about {off:.0%}"


def _rows(correction: Correction, place: Place) -> list[Measurement]:
    return [
        row
        for (kind, number, size), found in correction.rows.items()
        if kind == place.gpu_type and number == place.gpus and place.batch in (None, size)
        for row in found
    ]


def _runs(rows: Sequence[Measurement]) -> str:
    runs = sum(row.runs for row in rows)
    seconds = sum(row.seconds for row in rows)
    return f"{runs} {'run' if runs == 1 else 'runs'}, {seconds:.0f} s"


def _measured(rows: Sequence[Measurement], job: str, uid: int | None) -> RateOrigin:
    """Of a user's own ``rows``. Of each only the last run is known by name."""
    if uid is None:
        return RateOrigin("owner", f"measured ({_runs(rows)})")
    if not job or all(row.last_run.rpartition(".")[0] != job for row in rows):
        return RateOrigin("owner", f"measured in runs of its owner ({_runs(rows)})")
    if sum(row.runs for row in rows) == 1:
        return RateOrigin("this_job", f"measured by this job ({_runs(rows)})")
    text = f"measured in runs of its owner, this job's among them ({_runs(rows)})"
    return RateOrigin("this_job", text)
