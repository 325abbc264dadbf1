"""Limits of the queues of attained service, which simulations of tasks use too."""

QUEUES = (3250.0, 7200.0, 18000.0)
"""Rising, in GPU-seconds: those of the simulator of Tiresias's authors (recalled)."""
