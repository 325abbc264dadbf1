"""The settings that HadarE has beside Hadar's."""

from slurm_hadar.policies.hadar.settings import HadarOptions
from slurm_hadar.policies.options import Part


class ForkSettings(HadarOptions):
    """``min_stay_s`` and ``gain_over_cost`` hold for copies too."""

    averaging: Part = 0.02
    """Part of their speed that copies lose to averaging. The default is assumed: it is what the
    runtime allows itself, by rounds so long that averaging and saving take no more."""
