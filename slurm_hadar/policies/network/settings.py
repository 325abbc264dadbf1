"""The options of the network policy, read from ``View.options``."""

from slurm_hadar.policies.options import Amount, Flag, Part, PolicyOptions, Whole


class NetworkOptions(PolicyOptions):
    """Keys other than these are other policies' and are ignored."""

    first_wait_s: Amount = 3600.0
    """Longest wait for a better tier while no offer of that tier and size was accepted yet."""
    least_wait_s: Amount = 0.0
    """Least length of a tuned wait."""
    most_wait_s: Amount = 172800.0
    """Longest tuned wait."""
    spread: Amount = 2.0
    """k of mean + k x standard deviation."""
    window: Whole = 20
    """Accepted offers of a tier and size that are remembered."""
    gain_over_cost: Amount = 2.0
    """A move must save at least this many times its restart."""
    min_stay_s: Amount = 600.0
    """No move of a job that came to its place less than this ago."""
    preempt: Flag = True
    """Whether a job that runs over several racks may be stopped for one that finds a near place on
    its GPUs."""
    hurt: Amount = 0.8
    """... where the network leaves it less than this part of its speed at its nearest tier."""
    critical: Amount = 0.5
    """Jobs that need this part of the time that all the work takes go first; above 1: none."""
    rack_loss: Part = 0.05
    """Part of the speed that a job is taken to lose on several nodes of a rack where nothing is
    known of it."""
    network_loss: Part = 0.10
    """The same over several racks."""
