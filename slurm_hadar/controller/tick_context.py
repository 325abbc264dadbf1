"""What all steps of one tick share, each part computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation.pending.hint_updates import HintInput
from slurm_hadar.controller.actuation.pending.lent_places import Memory
from slurm_hadar.controller.actuation.refusal_backoff import Refusals
from slurm_hadar.controller.actuation.running import idle_allocations
from slurm_hadar.controller.actuation.running.idle_allocations import IdleRecord
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import ControllerHistory
from slurm_hadar.domain.job import Job
from slurm_hadar.profiles.rates import Rates


@dataclass(frozen=True)
class TickContext:
    """``observation``: the whole cluster; ``trainers``: trainings on idle nodes; ``others``: the
    cluster as if these gave way, which the policy sees (its free GPUs are ``others.free_gpus``).

    ``past``: what the controller remembers of the jobs; ``refusals``: job -> those of its hints;
    ``lent``: the exchanged places in the queue, as the last tick left them.
    """

    config: Config
    rates: Rates
    observation: Observation
    trainers: Sequence[Job]
    others: Observation
    past: ControllerHistory
    refusals: Mapping[str, Refusals]
    lent: Memory
    idle: IdleRecord = idle_allocations.NONE
    """What is known of jobs that leave their GPUs idle."""

    @cached_property
    def hint_input(self) -> HintInput:
        """For the hints of the jobs that the policy sees."""
        return HintInput(self.others, self.config, self.refusals)
