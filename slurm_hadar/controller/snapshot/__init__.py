"""From what Slurm shows to the view that a policy gets."""
