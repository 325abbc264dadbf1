"""slurm-hadar: makes a mixed GPU cluster under an unmodified Slurm act as one machine."""

__version__ = "0.1.0"
