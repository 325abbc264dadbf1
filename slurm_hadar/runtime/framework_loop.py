"""A training whose loop belongs to a framework: its position, its samples, its steering.

The framework's callback calls :meth:`Hosted.take_over`, loads, calls :meth:`Hosted.open`, takes the
batches from :meth:`Hosted.passes`, calls :meth:`Hosted.trained` after each pass and
:meth:`Hosted.boundary` before the first pass of the next global batch.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.exchange.progress import Saved
from slurm_hadar.runtime import batches, finite, samples
from slurm_hadar.runtime.attempts import Attempt, Superseded
from slurm_hadar.runtime.checkpoint_store import CheckpointStore, Say, State
from slurm_hadar.runtime.core import SessionCore, SessionOptions
from slurm_hadar.runtime.keywords import takes
from slurm_hadar.runtime.planned_batch import ChosenBatch
from slurm_hadar.runtime.save_and_leave import TrainingSteering


class HostedStore(CheckpointStore):
    """Checkpoints in the framework's own format; ``write`` makes the newest one, in all processes.

    What the framework is to put into it stands in ``kept``, for as long as ``write`` runs.
    """

    def __init__(self, path: Path, write: Callable[[], None], say: Say) -> None:
        super().__init__(path, {}, say, trusted=False)
        self.collective = True
        self.kept = ""
        self.model: Any = None
        self._write_all = write

    def _write(self, kept: Mapping[str, Any]) -> None:
        self.kept = json.dumps(kept)
        try:
            self._write_all()
        except HadarError:
            raise
        except Exception as error:
            if self.attempt is not None:
                self.attempt.check()
            # Each library reports a failing write in its own way: torch as RuntimeError.
            raise OSError((str(error) or repr(error)).splitlines()[0]) from None
        finally:
            self.kept = ""

    def nonfinite(self) -> str:
        """As of any store; of the framework's model."""
        return finite.nonfinite(self.model)


@dataclass(frozen=True)
class HostedOptions(SessionOptions):
    """See :class:`Hosted`."""

    batch: int | tuple[int, int]
    _: KW_ONLY
    samples: int | None = None
    seed: int = 0
    learning_rate: batches.LearningRateRule = "auto"


class Hosted:
    """One training in a framework's loop.

    ``batch``: the global batch in samples, fixed or a range ``(least, most)`` within which a plan
    may choose; the other arguments as in :class:`slurm_hadar.runtime.Training`. The signals are
    taken from here on. Raises UsageError for arguments that make no sense.
    """

    @takes(HostedOptions)
    def __init__(self, options: HostedOptions) -> None:
        batch, samples = options.batch, options.samples
        self.range = (batch, batch) if isinstance(batch, int) else batch
        if not 0 < self.range[0] <= self.range[1]:
            raise UsageError(f"batch={batch}: a number above 0, or a range (least, most)")
        if options.seed < 0 or (samples is not None and samples < 1):
            raise UsageError("seed >= 0 and samples >= 1 are needed")
        self._core = SessionCore(options)
        self.signals = self._core.signals
        self.work, self.total = samples, 0
        self._seed, self._rule = options.seed, options.learning_rate
        self._given: deque[tuple[int, int]] = deque()
        self._state: State | None = None
        self._store: HostedStore | None = None
        self._steering: TrainingSteering | None = None
        self._passes, self._pending = 1, 0
        self._order: tuple[int, Any] = (-1, None)

    @property
    def opened(self) -> bool:
        """Whether the position is known."""
        return self._state is not None

    @property
    def state(self) -> State:
        """Where the training stands; only once it is opened."""
        assert self._state is not None
        return self._state

    @property
    def first(self) -> bool:
        """Whether this process writes the files; only once it is opened."""
        return self._ranks.first

    def take_over(self, path: Path, write: Callable[[], None]) -> None:
        """Become the attempt that may save, once all processes have joined and before the
        checkpoint is loaded; in every process alike.

        ``write``: has the framework write the newest checkpoint into :attr:`folder`. Raises
        Superseded where a later attempt has taken over already, UsageError where the checkpoint
        could not be saved.
        """
        self._core.join()
        self._ranks = self._core.ranks
        self._store = HostedStore(path, write, self._core.say)
        identity = self._store.begin_all_ranks(self._ranks)
        assert identity is not None
        self.attempt = Attempt(path, identity)
        """The right to write; of rank 0, in all processes."""

    def open(self, dataset_size: int, total: int, kept: str | None, passes: int = 1) -> None:
        """Take up the position in ``kept`` (None: begin), after :meth:`take_over`.

        ``passes``: into how many each process cuts its part of a global batch. Raises UsageError
        when the batch or the data set is too small for that, or ``kept`` is another training's.
        """
        assert self._store is not None
        self._passes = passes
        self._parts = self._ranks.size * passes
        if min(self.range[0], dataset_size, total) < self._parts:
            raise UsageError(
                f"{self._ranks.size} processes x {passes} accumulated passes need a batch and a "
                f"data set of {self._parts} samples at least"
            )
        # In a framework each process has one GPU, however its model is wrapped.
        self._core.find_gpus(None)
        low, count = self.range[0], self._core.gpus
        state = State(dataset_size, self._seed, low, -(-low // max(1, count)))
        if kept is not None:
            record = json.loads(kept)
            self._store.check(state, record)
            self._store.restore(state, record)
        state.attempt = max(state.attempt, self.attempt.identity.number)
        if kept is not None:
            gpus = f"{count} GPU{'s' * (count != 1)}"
            self._core.say(f"resumed at {state.samples} samples (attempt {state.attempt}, {gpus})")
        what = f"the position in checkpoint {self._store.path}"
        self._ranks.must_agree(state.samples, what)
        exchange = self._core.exchange
        self._store.note_lost(state, exchange.before if exchange else None)
        self.total, self._state = total, state

    def of_the_first(self, value: bool) -> bool:
        """What the first process says: the others may see its files later."""
        return self._ranks.gather(value)[0]

    def fail_all_ranks(self, error: Exception | None) -> None:
        """Raises OSError in every process where one of them could not save."""
        found = [one for one in self._ranks.gather(str(error or "")) if one]
        if error is not None:
            raise error
        if found:
            raise OSError(found[0].splitlines()[0])

    def note_saved(self) -> None:
        """The framework saved of its own accord, and it can be gone on from."""
        assert self._store is not None
        self._store.saved = Saved(self.state.samples, time.time(), 0.0)

    def report(self, line: str) -> None:
        """Say it in this process, also before the others have joined."""
        self._core.options.log(line)

    def is_finite(self) -> bool:
        """Whether loss and parameters may go into a checkpoint; in every process alike."""
        return self._steering is None or self._steering.is_finite()

    @contextmanager
    def reported(self, *, quiet: bool) -> Iterator[None]:
        """Report where a later attempt has taken over, unless ``quiet``."""
        assert self._store is not None
        try:
            yield
        except Superseded as superseded:
            if not quiet:
                self._store.leave_to(superseded)
            raise

    def begin(self, optimizer: Any, scheduler: Any, model: Any = None) -> None:
        """The training starts or goes on now, with these as the checkpoint left them."""
        assert self._store is not None
        self._store.model = model
        # The framework may have put its own handlers there since.
        self.signals.restore()
        self.signals.install()
        chosen = ChosenBatch(*self.range, optimizer, scheduler, self._rule)
        self._steering = TrainingSteering(self._core, self.state, self._store, chosen)
        self._steering.begin()

    def passes(self) -> Iterator[list[int]]:
        """Indices of this process's passes from where the training stands to the epoch's end.

        The reader may run ahead of the training. No pass is empty: where an epoch's or the
        work's rest has fewer samples than there are passes, some samples are given to two.
        """
        self._given.clear()
        state, rank, ranks = self.state, self._ranks.rank, self._ranks.size
        done, epoch = state.samples, state.samples // state.dataset_size
        order = samples.order(state.seed, epoch, state.dataset_size)
        while done < self.total and done // state.dataset_size == epoch:
            size, start = self._size(done), done % state.dataset_size
            low, high = start + size * rank // ranks, start + size * (rank + 1) // ranks
            for number in range(self._passes):
                begin = low + (high - low) * number // self._passes
                end = low + (high - low) * (number + 1) // self._passes
                last = number == self._passes - 1
                indices = order[begin:end]
                self._given.append((samples.digest(indices), size if last else 0))
                if begin == end:
                    # All must take part in the step: it trains a sample of another once more.
                    indices = order[[min(begin, start + size - 1)]]
                yield indices.tolist()
            done += size

    @property
    def passes_per_epoch(self) -> int:
        """Passes of this process over a whole epoch in the least batch: the most there can be."""
        steps, rest = divmod(self.state.dataset_size, self.range[0])
        return (steps + (rest >= self._parts)) * self._passes

    def _size(self, done: int) -> int:
        """The global batch after ``done`` samples.

        An epoch's last one may be smaller; a rest too small for all processes goes in with it.
        """
        rest = min(self.state.dataset_size - done % self.state.dataset_size, self.total - done)
        size = min(self.state.batch, rest)
        return rest if rest - size < self._parts else size

    def trained(self) -> bool:
        """A pass was trained. True when it ended a global batch: :meth:`boundary` is due before the
        next one begins."""
        digest, size = self._given.popleft()
        if self._steering is not None:
            self._steering.give(digest)
        self.state.samples += size
        self._pending += size
        if size and self._steering is not None:
            self._steering.loss.step()
        return size > 0

    @property
    def at_end(self) -> bool:
        """Whether an epoch, or all the work, ended with the last global batch."""
        return self.finished or self.state.samples % self.state.dataset_size == 0

    @property
    def finished(self) -> bool:
        """Whether all the work is done."""
        return self.state.samples >= self.total

    def loss(self, loss: Any) -> None:
        """The loss of a pass, where the framework shows it; before :meth:`trained`."""
        if self._steering is not None:
            self._steering.loss.note(loss)

    def boundary(self) -> None:
        """Save, answer, wait and report where needed; on TERM the process leaves with 143.

        Nothing happens when no global batch ended since the last time.
        """
        size, self._pending = self._pending, 0
        if size and self._steering is not None:
            self._steering.boundary(size, must_agree=self.at_end)

    def finish(self) -> None:
        """The framework ended its loop."""
        if self._steering is not None:
            self.boundary()
            self._steering.finish()
        self.signals.restore()

    def checkpoint_content(self) -> str:
        """What a checkpoint must carry, also one that the framework writes of its own accord."""
        assert self._store is not None
        if self._store.kept:
            return self._store.kept
        if self._steering is not None:
            self._steering.agree_on_samples()
        return json.dumps(self._store.describe(self.state, moving=False))


def position(kept: str) -> Mapping[str, Any]:
    """The fields of what a checkpoint carries. Raises ValueError."""
    found = json.loads(kept)
    if not isinstance(found, dict):
        raise ValueError(kept)
    return found
