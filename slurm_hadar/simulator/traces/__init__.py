"""Traces of jobs: Gavel's, our own format and what ``sacct`` prints, read into a workload."""

from slurm_hadar.simulator.traces.reader import open_sacct, open_trace, shipped_names

__all__ = ["open_sacct", "open_trace", "shipped_names"]
