"""How long a live test waits before it looks again."""

from itertools import accumulate, repeat


def pauses(longest=1.6):
    """Seconds, without end. A look is often a tick and a question to Slurm, 0.1 s of CPU time: in a
    long wait there are fewer of them, and other tests get the CPU."""
    return accumulate(repeat(1.25), lambda pause, factor: min(pause * factor, longest), initial=0.3)
