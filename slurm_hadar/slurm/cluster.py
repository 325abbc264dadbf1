"""A Slurm cluster: its interface, and the back end that a site gets."""

from slurm_hadar import config
from slurm_hadar.slurm.interface import TASKS_PER_ARRAY, Cluster, Target, Update

__all__ = ["TASKS_PER_ARRAY", "Cluster", "Target", "Update", "open_cluster"]


def open_cluster(settings: config.Slurm) -> Cluster:
    """The back end that the site's configuration names.

    ``auto`` takes PySlurm where it can be imported and its X.Y is that of the site's Slurm, the
    commands otherwise. Raises :class:`SlurmError` where ``pyslurm`` is demanded and cannot be had.
    """
    from slurm_hadar.slurm import backend_choice

    return backend_choice.open_cluster(settings)
