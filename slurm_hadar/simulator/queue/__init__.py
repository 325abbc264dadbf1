"""Jobs in Slurm's own order: its schedulers start them, and a controller steers some."""
