"""The demonstration: the same trainings under plain Slurm and under slurm-hadar."""
