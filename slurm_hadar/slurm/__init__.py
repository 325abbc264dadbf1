"""Everything that talks to Slurm: one interface, two back ends, and the parsers they share.

Other rooms import :mod:`slurm_hadar.slurm.cluster` and nothing below it.
"""
