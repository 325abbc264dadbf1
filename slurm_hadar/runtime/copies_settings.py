"""How the rounds of copies go: what the user may choose, checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_hadar.domain.errors import UsageError

Rule = str | Callable[[float], float]
_RULES: dict[str, Callable[[float], float]] = {
    "auto": lambda factor: factor,
    "sqrt": lambda factor: factor**0.5,
    "none": lambda factor: 1.0,
}


@dataclass(frozen=True, slots=True)
class CopiesSettings:
    """See :class:`slurm_hadar.runtime.copies.Copies`, whose arguments these are.

    ``least``: samples of a round that the quality wants. ``factor``: learning-rate rule.
    """

    least: int
    round_s: float
    overhead: float
    every_s: float
    optimizer_state: str
    shares: tuple[float, ...]
    factor: Callable[[float], float]
    schedule: str

    @classmethod
    def checked(
        cls,
        *,
        dataset_size: int,
        copies: int,
        round_epochs: float,
        round_s: float,
        overhead: float,
        every_s: float,
        optimizer_state: str,
        shares: Sequence[float],
        learning_rate: Rule,
        schedule: str,
    ) -> "CopiesSettings":
        """The settings for ``copies`` copies. Raises UsageError for what makes no sense."""
        if schedule not in ("epoch", "step"):
            raise UsageError(f"schedule={schedule!r}: epoch or step")
        if optimizer_state not in ("average", "local", "reset"):
            raise UsageError(f"optimizer_state={optimizer_state!r}: average, local or reset")
        if not (callable(learning_rate) or learning_rate in _RULES):
            raise UsageError(f"learning_rate={learning_rate!r}: auto, sqrt, none or a function")
        if round_s <= 0 or round_epochs <= 0 or overhead <= 0:
            raise UsageError("round_s, round_epochs and overhead must be above 0")
        if shares and (len(shares) != copies or min(shares) <= 0):
            raise UsageError(f"shares: {copies} numbers above 0 are needed, one per copy")
        return cls(
            least=max(1, int(round_epochs * dataset_size)),
            round_s=round_s,
            overhead=overhead,
            every_s=every_s,
            optimizer_state=optimizer_state,
            shares=tuple(shares),
            factor=learning_rate if callable(learning_rate) else _RULES[learning_rate],
            schedule=schedule,
        )
