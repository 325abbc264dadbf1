"""ONES (arXiv 2108.03645): evolutionary search over GPUs and batch sizes."""

from slurm_hadar.policies.ones.policy import decide

__all__ = ["decide"]
