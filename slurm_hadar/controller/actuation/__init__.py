"""From a plan to what is sent to Slurm, and what became of it."""
