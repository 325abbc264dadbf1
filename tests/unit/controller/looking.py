"""A controller that sees what a test shows it."""

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.tick import Controller


class Looking(Controller):
    """It sees ``shown`` in place of a cluster."""

    shown: Observation

    def observe(self) -> Observation:
        return self.shown
