"""A solver of linear and integer programmes that prints nothing and answers alike each time."""

from typing import Any

import highspy


class _QuietHighs(highspy.Highs):
    def enableCallbacks(self) -> None:
        # HiGHS 1.16 prints its banner to stdout here, called by the constructor; what a command
        # prints there may be JSON.
        above: Any = super()
        self.setOptionValue("output_flag", False)
        above.enableCallbacks()


def new_solver() -> highspy.Highs:
    """HiGHS with one thread, a fixed seed and no output."""
    make: Any = _QuietHighs
    solver: highspy.Highs = make()
    for name, setting in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, setting)
    return solver
