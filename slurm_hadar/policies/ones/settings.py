"""The options of the ones policy, read from ``View.options``."""

from typing import Annotated, Literal

from pydantic import Field

from slurm_hadar.policies.options import Amount, Flag, PolicyOptions, Whole


class OnesOptions(PolicyOptions):
    """Keys other than these are other policies' and are ignored."""

    generations: Annotated[Whole, Field(le=10_000)] = 20
    """Generations of a decision; the search ends then, whatever the clock says."""
    population: Annotated[Whole, Field(le=4096)] = 0
    """Candidates; 0: as many as there are GPUs, within 16 and 64."""
    theta: Annotated[Amount, Field(le=0.5)] = 0.15
    """Chance that a mutation preempts a job."""
    cells: Annotated[Whole, Field(ge=256)] = 65_536
    """Most candidates x GPUs (or x jobs, where these are more), so that a large cluster's
    generation stays short."""
    every_s: Amount = 1800.0
    """A new search after this time, and whenever jobs come, end, or are not where they were put."""
    price: Amount = 3.0
    """Weight of the GPU-seconds that are taken from jobs yet to come."""
    limits: Literal["noise", "paper"] = "noise"
    """``noise``: the measured noise scale alone says what a larger batch costs. ``paper``: ONES's
    own limits besides, which start small and double."""
    preempt: Flag = True
    """Whether a running job may be stopped for others."""
    gain_over_cost: Amount = 1.5
    """A move must gain this many times what it costs."""
    min_stay_s: Amount = 0.0
    """No move of a job that came to its place less than this ago, s."""
