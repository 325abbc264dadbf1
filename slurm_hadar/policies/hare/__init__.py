"""Hare (TCC 12(4) 2024): the tasks of a round dealt over unequal GPUs."""
