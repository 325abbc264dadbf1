"""Slurm's queue as a model: its schedulers, and which waiting jobs may exchange their places."""
