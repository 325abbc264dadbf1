"""Advice for a site from its own past: what idled, who waited, which lines of slurm.conf help."""
