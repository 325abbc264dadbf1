"""The mathematics that policies share. Knows nothing of Slurm, jobs or clocks."""
