"""The options of the timetable policy, read from ``View.options``."""

from typing import Annotated

from pydantic import Field

from slurm_hadar.policies.options import Amount, PolicyOptions, Whole


class TimetableOptions(PolicyOptions):
    """Keys other than these are other policies' and are ignored. Times are parts of the horizon,
    so that one setting serves minutes and weeks."""

    stretch: Annotated[Amount, Field(ge=1, le=10)] = 1.03
    """The horizon: this many times the least time in which all present work could be done."""
    keep: Annotated[Amount, Field(ge=1, le=10)] = 1.015
    """The horizon stands until it is closer than this many times that least time."""
    duty: Annotated[Amount, Field(ge=0.1, le=1)] = 0.9
    """Most part of any time that a job is planned to run, unless it needs more to be ready."""
    caution: Annotated[Amount, Field(le=0.95)] = 0.1
    """How much less than that, where a job's speeds are estimates."""
    critical: Annotated[Amount, Field(le=2)] = 0.97
    """Jobs planned to run this part of all the time until the horizon go first."""
    follow: Amount = 0.15
    """How much more a place is worth when the timetable has it all the time than when it has it
    not. The prices alone leave ties; much more than that, and gangs that the fluid plan splits
    over the hours of a bucket keep others from finishing."""
    solve_every: Amount = 1 / 64
    """A new timetable after this part of the horizon, and when jobs arrive."""
    choose_every: Amount = 1 / 256
    """Places are chosen anew after this part of the horizon, and when jobs come or go."""
    waste: Annotated[Amount, Field(ge=1)] = 1.5
    """The horizon counts on no number of GPUs that spends more than this many times the GPU time of
    the job's best."""
    settle: Amount = 0.1
    """Part of a job's own remaining time over which a restart may pay for itself, at the least."""
    buckets: Annotated[Whole, Field(ge=2, le=60)] = 12
    """Parts into which the time until the horizon is cut."""
    ratio: Annotated[Amount, Field(ge=1.01, le=10)] = 1.8
    """Each bucket of time is this many times as long as the one before."""
    exact: Annotated[Whole, Field(le=1e7)] = 30_000
    """Up to so many (job, option, bucket) triples each job stands alone in the programme; above,
    like jobs are put into one class."""
    coarse: Annotated[Whole, Field(ge=500, le=1e7)] = 8_000
    """About so many triples with classes."""
    newcomers: Annotated[Amount, Field(le=1)] = 0.01
    """A new timetable when this part of the jobs is new; the others are fitted into the old one."""
    gain_over_cost: Amount = 2.0
    """A move must gain this many times what it costs."""
    doubt_stretch: Annotated[Amount, Field(ge=1, le=10)] = 2.0
    """``stretch`` where all jobs are in doubt; in between where some are."""
    doubt_power: Annotated[float, Field(strict=True, ge=-4, le=1)] = 0.0
    """Where no job's work is known, a speed x counts for 1 + (x^a - 1) / a with this a; in
    proportion where all of it is, in between where some is."""
    curiosity: Annotated[Amount, Field(le=4)] = 1.0
    """A speed that was not tried counts for this many standard deviations more than expected."""
    fairness: Annotated[Amount, Field(le=8)] = 0.0
    """Above 0: a job's weight is multiplied by its user's finish-time fairness to this power, so
    the jobs of users who are behind an equal part of the cluster count for more."""
    min_stay_s: Amount = 0.0
    """No move of a job that came to its place less than this ago, s."""
