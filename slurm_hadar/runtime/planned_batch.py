"""The global batch that a plan chooses, within what the training allows."""

from dataclasses import dataclass
from typing import Any

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.plan_file import JobPlan
from slurm_hadar.runtime import batches
from slurm_hadar.runtime.checkpoint_store import State
from slurm_hadar.runtime.core import SessionCore


@dataclass(frozen=True, slots=True)
class ChosenBatch:
    """That a plan may choose the global batch, ``least`` to ``most`` samples, and how the learning
    rate follows; see :func:`slurm_hadar.runtime.batches.rate_factor`."""

    least: int
    most: int
    optimizer: Any
    scheduler: Any
    rule: batches.LearningRateRule


class PlannedBatch:
    """The batch in ``state`` as plans change it."""

    def __init__(self, chosen: ChosenBatch, state: State, core: SessionCore) -> None:
        self._chosen, self._state = chosen, state
        self._exchange, self._say = core.exchange, core.say
        self._refused = 0

    def first(self, plan: JobPlan | None) -> int:
        """The batch with which the training starts or goes on."""
        within = min(max(self._state.batch, self._chosen.least), self._chosen.most)
        return self.wanted(plan) or within

    def wanted(self, plan: JobPlan | None) -> int:
        """The batch that the plan asks for and the job allows, 0: leave it.

        A plan that asks to save speaks of the next attempt.
        """
        if plan is None or plan.batch is None or plan.batch == self._state.batch:
            return 0
        if plan.save and self._exchange is not None and plan.restarts == self._exchange.restarts:
            return 0
        least, most = self._chosen.least, self._chosen.most
        if least <= plan.batch <= most:
            return plan.batch
        if self._refused != plan.batch:
            self._refused = plan.batch
            self._say(f"the plan's batch {plan.batch} is not taken; allowed are {least} to {most}")
        return 0

    def change(self, batch: int) -> bool:
        """Train with this batch from now on, 0: as before; whether that is another one."""
        state, chosen = self._state, self._chosen
        if not batch or batch == state.batch:
            return False
        try:
            factor, rule = batches.rate_factor(chosen.rule, chosen.optimizer, state.batch, batch)
        except ValueError as error:
            raise UsageError(str(error)) from None
        batches.scale_rate(chosen.optimizer, chosen.scheduler, factor)
        self._say(
            f"global batch {state.batch} -> {batch} at {state.samples} samples; "
            f"learning rate x {factor:g} ({rule})"
        )
        state.batch = batch
        return True
