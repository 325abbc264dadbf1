"""A real Slurm on this machine with pretend GPUs: the cluster of the demo and of the live tests.

Start with :class:`slurm_hadar.sandbox.cluster.Sandbox`.
"""
