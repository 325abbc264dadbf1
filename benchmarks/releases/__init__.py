"""The contract with Slurm on its releases: run, and written into docs/releases.md."""
