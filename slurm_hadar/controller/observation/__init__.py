"""What one tick reads: Slurm's answers, the exchange folder, what we did before."""
