"""PyTorch Lightning: a callback that saves when asked, answers, tells its progress and resumes.

::

    run = HadarLightningCallback("run.ckpt", batch=64, name="resnet18")
    trainer = Trainer(max_epochs=3, callbacks=[run])
    trainer.fit(model, run.loader(dataset), ckpt_path=run.resume())
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.framework_loop import Hosted

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        raise ImportError(
            "PyTorch Lightning is not installed here: pip install lightning"
        ) from None


class HadarLightningCallback(Callback):  # type: ignore[misc]
    """Steers a ``Trainer``; ``path`` is the checkpoint, in Lightning's own format.

    The other arguments are those of :class:`slurm_hadar.runtime.framework_loop.Hosted`: ``batch``
    is the **global** batch in samples, over all processes and accumulated passes. All the work is
    the trainer's ``max_epochs``, or ``samples``. Strategies with one process per GPU that keep the
    whole model (alone, DDP) are supported. Raises UsageError for what does not fit together.
    """

    state_key = "slurm_hadar"

    def __init__(self, path: str | Path, *, batch: int | tuple[int, int], **options: Any) -> None:
        self.path = Path(path).absolute()
        self._run = Hosted(batch, **options)
        self._trainer: Any = None
        self._kept: str | None = None
        self._random: dict[str, Any] | None = None
        self._dataset_size = 0
        self._found: Path | None = None

    @property
    def samples(self) -> int:
        """Samples in the lineage of the parameters."""
        return self._run.state.samples if self._run.opened else 0

    def loader(self, dataset: Any, **options: Any) -> "DataLoader[Any]":
        """The training's data loader: it goes on where the checkpoint ends.

        ``options`` are those of torch's ``DataLoader``, but for the batch and the order, which are
        ours.
        """
        clash = sorted({"batch_size", "shuffle", "sampler", "batch_sampler"} & set(options))
        if clash:
            raise UsageError(f"loader({clash[0]}=...): the batch and the order are the callback's")
        self._dataset_size = len(dataset)
        return DataLoader(dataset, batch_sampler=_Passes(self), **options)

    def resume(self) -> str | None:
        """The newest checkpoint that is whole, for ``fit(ckpt_path=...)``; None to begin.

        Call it just before ``fit``. Raises HadarError when there are files but none is
        whole, or one cannot be read now.
        """
        self._found = None
        previous = checkpoint.previous(self.path)
        there = [path for path in (self.path, previous) if path.exists()]
        for path in there:
            if checkpoint.is_whole(path):
                self._found = path
                if path != there[0]:
                    self._run.report(f"checkpoint {there[0]} is damaged; going on from {path}")
                return str(path)
        if there:
            raise HadarError(f"checkpoint {there[0]} is damaged; to begin from the start remove it")
        return None

    def state_dict(self) -> dict[str, Any]:
        """What every checkpoint of the trainer carries of us."""
        if not self._run.opened:
            return {}
        return {"position": self._run.checkpoint_content(), "random": checkpoint.random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up the position of a checkpoint."""
        self._kept, self._random = state_dict.get("position"), state_dict.get("random")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Look whether the trainer is set as it must be, and become the attempt that may save.

        Lightning reads the checkpoint after this.
        """
        if stage != "fit":
            return
        self._trainer = trainer
        if trainer.world_size > 1 and trainer._accelerator_connector.use_distributed_sampler:
            raise UsageError("Trainer(use_distributed_sampler=False) is needed: the order is ours")
        if self._dataset_size < 1:
            raise UsageError("hand run.loader(dataset) to fit(): a data set with a length")
        if self._run.work is None and not trainer.max_epochs > 0:
            raise UsageError("say how much work there is: Trainer(max_epochs=N) or samples=N")
        self._run.take_over(self.path, self._write)
        self._run.attempt.newest_is_damaged = self._found not in (None, self.path)
        if self._found is None and self.path.exists():
            raise HadarError(
                f"checkpoint {self.path} was saved after resume() looked for it; start again, and "
                "call resume() just before fit()"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The training starts or goes on."""
        self._open()
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        optimizer = trainer.optimizers[0]
        self._run.begin(optimizer, schedulers[0] if schedulers else None, pl_module)
        if self._random is not None and self._run.first:
            checkpoint.restore_random(self._random)
        self._random = None
        trainer.should_stop = trainer.should_stop or self._run.finished

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """All callbacks, loggers and validations of the last step are complete: save now if due."""
        loop = trainer.fit_loop.epoch_loop
        # Lightning counts the step that just ended when it restarts, as its own checkpoints are
        # written before that is counted.
        counted = 0 if loop._should_accumulate() else 1
        loop._batches_that_stepped -= counted
        try:
            self._run.boundary()
        finally:
            loop._batches_that_stepped += counted

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """A pass ended, and with the last one of a global batch a step."""
        if getattr(trainer.precision_plugin, "scaler", None) is None:
            # A scaler skips the step of a loss that is not finite.
            self._run.loss(outputs.get("loss") if isinstance(outputs, dict) else outputs)
        self._run.trained()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """With ``samples`` it is not the trainer that knows when all work is done."""
        trainer.should_stop = trainer.should_stop or self._run.finished

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """All work is done, or the training was stopped early."""
        self._run.finish()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give the signals back."""
        self._run.signals.restore()

    def _open(self) -> None:
        if self._run.opened:
            return
        total = self._run.work or self._trainer.max_epochs * self._dataset_size
        self._run.open(self._dataset_size, total, self._kept, self._trainer.accumulate_grad_batches)

    def _write(self) -> None:
        written = self._run.attempt.folder / self.path.name
        try:
            self._trainer.save_checkpoint(written)
            if self._run.first:
                checkpoint.publish(self._run.attempt, written)
        finally:
            if self._run.first:
                with contextlib.suppress(OSError):
                    written.unlink()


class _Passes:
    """A batch sampler of an epoch's rest. It has no length: a plan may change the batch."""

    def __init__(self, run: HadarLightningCallback) -> None:
        self._run = run

    def __iter__(self) -> Iterator[list[int]]:
        # Lightning reads the first batch before it says that the training starts.
        self._run._open()
        yield from self._run._run.passes()


HadarCallback = HadarLightningCallback
"""The name until 2026-11-27: a script that has it may be requeued at any time."""

__all__ = ["HadarCallback", "HadarLightningCallback"]
