"""Hugging Face Trainer: a callback that saves when asked, answers, tells its progress and resumes.

::

    run = HadarCallback(batch=64, name="bert")
    trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[run])
    trainer.train(resume_from_checkpoint=run.resume(trainer))
"""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.hosted import Hosted, position

try:
    from transformers import TrainerCallback
except ImportError:
    raise ImportError(
        "Hugging Face's Trainer is not installed here: pip install transformers accelerate"
    ) from None

MARK = "hadar.json"
"""The file that ends a checkpoint folder: without it the folder is taken for half written."""


class HadarCallback(TrainerCallback):  # type: ignore[misc]
    """Steers a ``Trainer``; the checkpoints are its own folders in ``output_dir``.

    The other arguments are those of :class:`slurm_hadar.runtime.hosted.Hosted`: ``batch`` is the
    **global** batch in samples, over all processes and accumulated passes, and stands for the
    trainer's ``per_device_train_batch_size``. All the work is the trainer's ``num_train_epochs``
    (or ``max_steps`` global batches), or ``samples``. Of the checkpoints that were asked for the
    newest two are kept; the trainer's own are its own affair. Raises UsageError for what does not
    fit together.
    """

    def __init__(self, *, batch: int | tuple[int, int], **options: Any) -> None:
        self._run = Hosted(batch, **options)
        self._trainer: Any = None

    @property
    def samples(self) -> int:
        """Samples in the lineage of the parameters."""
        return self._run.state.samples if self._run.opened else 0

    def resume(self, trainer: Any) -> str | None:
        """Take over the order of the samples in ``trainer``; returns the checkpoint to go on from.

        That is the newest whole one, for ``train(resume_from_checkpoint=...)``; None to begin.
        """
        arguments, dataset = trainer.args, trainer.train_dataset
        try:
            size = len(dataset)
        except TypeError:
            raise UsageError("train_dataset has no length; the order needs one") from None
        steps, low = arguments.max_steps, self._run.range[0]
        total = self._run.work or (
            steps * low if steps > 0 else math.ceil(arguments.num_train_epochs * size)
        )
        folder = self._newest(Path(arguments.output_dir))
        kept = (folder / MARK).read_text() if folder else None
        self._trainer = trainer
        self._run.open(
            size,
            total,
            Path(arguments.output_dir).absolute() / "checkpoint",
            self._write,
            kept,
            arguments.gradient_accumulation_steps,
        )
        # The order goes on by itself: nothing is to be read and thrown away.
        arguments.ignore_data_skip = True
        before = trainer.get_train_dataloader
        trainer.get_train_dataloader = lambda: self._loader(before())
        return str(folder) if folder else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The training starts or goes on."""
        if self._trainer is None:
            raise UsageError("train(resume_from_checkpoint=run.resume(trainer)) is needed")
        optimizer, scheduler = kwargs["optimizer"], kwargs["lr_scheduler"]
        # accelerate wraps both.
        optimizer = getattr(optimizer, "optimizer", optimizer)
        self._run.begin(optimizer, getattr(scheduler, "scheduler", scheduler))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """A global batch went in."""
        while not self._run.trained():
            pass
        run = self._run.state
        state.epoch = run.samples / run.dataset_size
        control.should_training_stop = control.should_training_stop or self._run.finished
        self._run.boundary()
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The trainer wrote a checkpoint of its own accord; it can be gone on from."""
        self._mark(Path(args.output_dir), asked=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All work is done, or somebody stopped early."""
        self._run.finish()

    def _loader(self, made: Any) -> "DataLoader[Any]":
        """The trainer's loader with our order; each process reads its own part."""
        return DataLoader(
            made.dataset,
            batch_sampler=_Passes(self._run),
            collate_fn=made.collate_fn,
            num_workers=made.num_workers,
            pin_memory=made.pin_memory,
        )

    def _write(self) -> None:
        trainer = self._trainer
        trainer._save_checkpoint(trainer.model, None)
        self._mark(Path(trainer.args.output_dir), asked=True)

    def _mark(self, output: Path, *, asked: bool) -> None:
        kept = self._run.kept()
        if not self._run.first:
            return
        folder = output / f"checkpoint-{self._trainer.state.global_step}"
        for path in [*folder.iterdir(), folder]:
            checkpoint.sync(path)
        aside = folder / f".{MARK}"
        aside.write_text(json.dumps({**position(kept), "asked": asked}))
        aside.replace(folder / MARK)
        if asked:
            for old in [path for path, record in _whole(output) if record.get("asked")][2:]:
                shutil.rmtree(old, ignore_errors=True)

    def _newest(self, output: Path) -> Path | None:
        found = _whole(output)
        return found[0][0] if found else None


def _whole(output: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The checkpoints that were written to the end, the newest first."""
    found = []
    for mark in output.glob(f"checkpoint-*/{MARK}"):
        try:
            record = dict(position(mark.read_text()))
            found.append((int(record["samples"]), float(record["time"]), mark.parent, record))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    found.sort(key=lambda row: row[:2], reverse=True)
    return [(folder, record) for _, _, folder, record in found]


class _Passes:
    """A batch sampler of an epoch's rest.

    Its length is that of a whole epoch in the least batch: the trainer counts epochs by it, and
    takes no harm when there are fewer.
    """

    def __init__(self, run: Hosted) -> None:
        self._run = run

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._run.passes()

    def __len__(self) -> int:
        return self._run.passes_per_epoch


__all__ = ["HadarCallback"]
