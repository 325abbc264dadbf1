"""The options of Hadar, read from ``View.options``."""

from typing import Literal, get_args

from slurm_hadar.policies.options import Amount, Flag, PolicyOptions, Whole

Utility = Literal["throughput", "lifetime", "makespan", "fairness"]
UTILITIES: tuple[str, ...] = get_args(Utility)


class HadarOptions(PolicyOptions):
    """Keys other than these are other policies' and are ignored."""

    utility: Utility = "throughput"
    """What the worth of a job's end is counted by."""
    gain_over_cost: Amount = 2.0
    """A move must save at least this many times its restart."""
    least_gain: Amount = 0.1
    """... and this part of the time left, as rates are never exact. Not asked of moves that cost
    nothing."""
    min_stay_s: Amount = 600.0
    """No move of a job that came to its place less than this ago."""
    preempt: Flag = True
    """Whether a running job may be stopped for one that gains more, without a place of its own."""
    communication: Amount = 0.05
    """Part by which a job is slower when its GPUs are on several nodes."""
    beam: Whole = 4
    """States kept by the take-or-skip programme; 1: greedy."""
    effort: Whole = 4000
    """Most jobs times states: the beam is narrowed on long queues, down to greedy."""
    branch: Whole = 2
    """Ways to take a job that the programme tries."""
    patience: Amount = 0.5
    """While prices hold, a job takes no place worth less than this part of its best one."""
    critical: Amount = 0.8
    """Jobs that need this part of the horizon even on their best GPUs go first, and so do gangs of
    a size that need it together."""
