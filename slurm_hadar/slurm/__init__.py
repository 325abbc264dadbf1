"""Everything that talks to Slurm: one interface, two back ends, and the parsers they share.

Who reads or steers a site's Slurm holds a :class:`slurm_hadar.slurm.cluster.Cluster`. What is meant
for waiting jobs goes through :mod:`slurm_hadar.slurm.pending`.
"""
