"""How the rounds of copies go: what the user may choose, checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime.core import SessionOptions, WorkOptions

_RULES: dict[str, Callable[[float], float]] = {
    "auto": lambda factor: factor,
    "sqrt": lambda factor: factor**0.5,
    "none": lambda factor: 1.0,
}


@dataclass(frozen=True, kw_only=True)
class CopiesOptions(SessionOptions, WorkOptions):
    """See :class:`slurm_hadar.runtime.copies.Copies`, whose arguments these are. Raises UsageError
    for what makes no sense."""

    batch: int
    every_s: float = 0.0
    round_s: float = 30.0
    round_epochs: float = 0.125
    overhead: float = 0.02
    optimizer_state: str = "average"
    shares: Sequence[float] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = self.learning_rate
        if self.dataset_size < 1 or self.seed < 0 or self.batch < 1:
            raise UsageError("dataset_size >= 1, batch >= 1 and seed >= 0 are needed")
        if self.schedule not in ("epoch", "step"):
            raise UsageError(f"schedule={self.schedule!r}: epoch or step")
        if self.optimizer_state not in ("average", "local", "reset"):
            raise UsageError(f"optimizer_state={self.optimizer_state!r}: average, local or reset")
        if not (callable(rule) or rule in _RULES):
            raise UsageError(f"learning_rate={rule!r}: auto, sqrt, none or a function")
        if self.round_s <= 0 or self.round_epochs <= 0 or self.overhead <= 0:
            raise UsageError("round_s, round_epochs and overhead must be above 0")

    def check_shares(self, copies: int) -> None:
        """Raise UsageError for shares that are not those of so many copies."""
        if self.shares and (len(self.shares) != copies or min(self.shares) <= 0):
            raise UsageError(f"shares: {copies} numbers above 0 are needed, one per copy")

    @property
    def least(self) -> int:
        """Samples of a round that the quality wants."""
        return max(1, int(self.round_epochs * self.dataset_size))

    def factor(self, factor: float) -> float:
        """A factor of the learning rate, by the rule that the user chose."""
        rule = self.learning_rate
        return rule(factor) if callable(rule) else _RULES[rule](factor)
