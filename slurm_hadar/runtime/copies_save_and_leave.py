"""What happens between two rounds of copies: save, answer, wait, leave, tell."""

from typing import Any

from slurm_hadar.exchange.job_side import Exchange
from slurm_hadar.runtime.checkpoint_store import CheckpointStore, Say
from slurm_hadar.runtime.copies_ledger import Ledger
from slurm_hadar.runtime.core import SessionCore
from slurm_hadar.runtime.save_and_leave import TrainingSteering

_SAVES = 20.0
"""A save is due again after this many times its own seconds (5%)."""


def resume(
    ledger: Ledger, store: CheckpointStore, exchange: Exchange | None, copies: int, say: Say
) -> dict[str, Any] | None:
    """Take over from earlier attempts and take up the checkpoint; the random state in it, None when
    there is none.

    Raises Superseded where a later attempt has taken over, HadarError for a checkpoint that cannot
    be read, UsageError for one of another training or that could not be saved.
    """
    state = ledger.state
    number = store.begin()
    random = store.load_after(state, exchange.before if exchange else None)
    state.attempt = max(number, state.attempt)
    if random is not None:
        say(f"resumed at {ledger.done} samples (attempt {state.attempt}, {copies} copies)")
    return random


class CopiesSteering(TrainingSteering):
    """What the controller and Slurm want of the copies; asked between two rounds."""

    _saved_done = -1

    def __init__(self, core: SessionCore, ledger: Ledger, store: CheckpointStore) -> None:
        # Rank 0 decides for all copies. A copy's batch stays as it is.
        super().__init__(core, ledger.state, store)
        self._every_s = 0.0
        # Each copy holds its own passes back; held here too, a round's samples would count again.
        self._emulation = None
        self.ledger = ledger

    @property
    def batch(self) -> int:
        """Samples of one step of one copy."""
        return self._state.batch

    @property
    def dataset_size(self) -> int:
        """Samples of an epoch."""
        return self._state.dataset_size

    def urgent(self) -> bool:
        """Whether the round should end now."""
        return self._urgent()

    def tick(self) -> None:
        """Tell the progress when it is time; between two steps."""
        if self._exchange is not None and self._exchange.due():
            self._tell()

    def round_over(self, size: int, gpus: int, every_s: float) -> None:
        """``size`` samples went in with ``gpus`` GPUs; may raise SystemExit after TERM."""
        self._gpus = gpus
        self._every_s = max(every_s, _SAVES * self._store.saved.seconds) if self._store.saved else 0
        self.boundary(size, must_agree=True)

    def _note_samples(self, digest: int) -> None:
        # The ledger notes in the lineage what went in.
        self._agreed = self._state.samples

    def save(self, *, moving: bool = False, background: bool = False) -> bool:
        """Save unless this position, pieces behind gaps included, is saved already."""
        if self.ledger.done != self._saved_done:
            self._saved_samples = -1
        saved = super().save(moving=moving, background=background)
        if saved:
            self._saved_done = self.ledger.done
        return saved

    def planned_shares(self, copies: int) -> tuple[float, ...]:
        """The plan's shares of the copies, in the order of ranks; empty where it has none."""
        plan = self._exchange.plan() if self._exchange else None
        if plan is None or len(plan.shares) != copies or min(plan.shares) <= 0:
            return ()
        return plan.shares

    @property
    def save_s(self) -> float:
        """Seconds of the last save, 0 where nothing was saved."""
        return self._store.saved.seconds if self._store.saved else 0.0
