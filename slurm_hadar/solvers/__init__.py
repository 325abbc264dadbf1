"""The mathematics that policies share. Independent of Slurm, jobs and clocks."""
