"""What a view is made from, and the speeds of its jobs, read from the profiles once."""

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_hadar.config import Config
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory, batch_of, profile_key
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.view import BoolArray, FloatArray
from slurm_hadar.profiles.rates import Rates


@dataclass(frozen=True)
class Sources:
    """``past``: what the controller remembers. ``in_limit`` False: rates too slow for a job's time
    limit stay."""

    observation: Observation
    config: Config
    rates: Rates
    past: ControllerHistory
    in_limit: bool = True


@dataclass(frozen=True)
class JobRates:
    """Samples/s of J jobs on ``kinds``, R types of GPUs, and ``counts``, C numbers of them.

    ``table``: (J, R, C), 0 where a table says that a job cannot run so; ``known``: whether that was
    measured or stands in a table. ``own``, ``sure``: the same of a table or of the owner's own runs
    alone; ``timed``: (J,) whether these are samples/s at all, and not ratios only; ``error``: how
    far ``table`` may be off, as in ``Prospects.rate_error``.
    """

    kinds: tuple[str, ...]
    counts: tuple[int, ...]
    table: FloatArray
    known: BoolArray
    own: FloatArray
    sure: BoolArray
    timed: BoolArray
    error: FloatArray


def job_rates(
    rates: Rates, jobs: Sequence[Job], kinds: tuple[str, ...], counts: tuple[int, ...]
) -> JobRates:
    """The speeds of these jobs, in their order."""
    asked = [(job.uid, profile_key(job), batch_of(job)) for job in jobs]
    table, known = rates.rates_for(asked, kinds, counts)
    own, sure, timed = rates.own_rates_for(asked, kinds, counts)
    error = rates.errors_for(asked, kinds, counts)
    return JobRates(kinds, counts, table, known, own, sure, timed, error)
