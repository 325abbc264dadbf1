"""What every package shares: frozen records of nodes, jobs, placements, views and plans.

Nothing is imported here: ``hbatch`` reads :mod:`slurm_hadar.domain.declaration` and must not
pay for numpy.
"""
