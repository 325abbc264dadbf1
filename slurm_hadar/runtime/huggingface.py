"""Hugging Face Trainer: a callback that saves when asked, answers, tells its progress and resumes.

::

    run = HadarTransformersCallback(batch=64, name="bert")
    trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[run])
    trainer.train(resume_from_checkpoint=run.resume(trainer))
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.runtime import checkpoint
from slurm_hadar.runtime.framework_loop import Hosted, position

try:
    from transformers import TrainerCallback, trainer_utils
except ImportError:
    raise ImportError(
        "Hugging Face's Trainer is not installed here: pip install transformers accelerate"
    ) from None

_STANDS_FOR = "hadar_stands_for"
MARK = "hadar.json"
"""The file that ends a checkpoint folder: without it the folder is taken for half written."""


class HadarTransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Steers a ``Trainer``; the checkpoints are its own folders in ``output_dir``.

    The other arguments are those of :class:`slurm_hadar.runtime.framework_loop.Hosted`: ``batch``
    is the **global** batch in samples, over all processes and accumulated passes, and stands for
    the trainer's ``per_device_train_batch_size``. All the work is the trainer's
    ``num_train_epochs`` (or ``max_steps`` global batches), or ``samples``. Of the checkpoints that
    were asked for the newest two are kept; the trainer's own are its own affair. Raises UsageError
    for what does not fit together.
    """

    def __init__(self, *, batch: int | tuple[int, int], **options: Any) -> None:
        self._run = Hosted(batch, **options)
        self._trainer: Any = None
        self._save: Callable[[Any, Any], None]
        self._output = Path()
        self._asked = False

    @property
    def samples(self) -> int:
        """Samples in the lineage of the parameters."""
        return self._run.state.samples if self._run.opened else 0

    def resume(self, trainer: Any) -> str | None:
        """Take over the order of the samples in ``trainer``; returns the checkpoint to go on from.

        That is the newest whole one, for ``train(resume_from_checkpoint=...)``; None to begin.
        """
        self._trainer = trainer
        arguments, dataset = trainer.args, trainer.train_dataset
        try:
            size = len(dataset)
        except TypeError:
            raise UsageError("train_dataset has no length; the order needs one") from None
        steps, low = arguments.max_steps, self._run.range[0]
        total = self._run.work or (
            steps * low if steps > 0 else math.ceil(arguments.num_train_epochs * size)
        )
        # Kept: the script may change its folder later.
        output = self._output = Path(arguments.output_dir).absolute()
        self._run.take_over(output / "checkpoint", self._write)
        folder = self._newest(output)
        kept = (folder / MARK).read_text() if folder else None
        self._run.open(size, total, kept, arguments.gradient_accumulation_steps)
        self._save = _own_method(trainer, "_save_checkpoint")

        def save(model: Any, trial: Any) -> None:
            self._save_own(model, trial)

        _stand_for(trainer, "_save_checkpoint", save)
        # Where the trainer writes checkpoints and removes old ones, in the end too.
        trainer._get_output_dir = lambda *_, **__: str(self._run.attempt.folder)
        train = _own_method(trainer, "training_step")

        def training_step(*arguments: Any, **named: Any) -> Any:
            loss = train(*arguments, **named)
            if getattr(trainer.accelerator, "scaler", None) is None:
                # A scaler skips the step of a loss that is not finite.
                self._run.loss(loss)
            return loss

        _stand_for(trainer, "training_step", training_step)
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
        self._run.begin(optimizer, getattr(scheduler, "scheduler", scheduler), kwargs.get("model"))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All callbacks, loggers and evaluations of the last step are complete: save now if due."""
        self._run.boundary()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """A global batch went in."""
        while not self._run.trained():
            pass
        run = self._run.state
        state.epoch = run.samples / run.dataset_size
        control.should_training_stop = control.should_training_stop or self._run.finished
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All work is done, or the training was stopped early."""
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
        self._asked = True
        try:
            self._trainer._save_checkpoint(self._trainer.model, None)
        finally:
            self._asked = False

    def _save_own(self, model: Any, trial: Any) -> None:
        """Stands for the trainer's own way to save; it comes here of its own accord too."""
        with self._run.reported(quiet=self._asked):
            self._save_fenced(model, trial)

    def _save_fenced(self, model: Any, trial: Any) -> None:
        """Write in the attempt's folder, then publish: an attempt that was stopped meanwhile
        must not write over a later one's."""
        trainer, output = self._trainer, self._output
        if not self._asked and not self._run.is_finite():
            # Reported there. What the trainer keeps of older ones must not go for this one.
            return
        folder = output / f"checkpoint-{trainer.state.global_step}"
        kept = position(self._run.checkpoint_content())
        record = {**kept, "asked": self._asked}
        if self._run.of_the_first(_is_of(folder, kept)):
            # Saved at this very position already, of the trainer's own accord.
            self._publish_mark(folder, {**record, "files": _sizes(folder)})
            return
        written = self._run.attempt.folder / folder.name
        best = trainer.state.best_model_checkpoint
        failure: Exception | None = None
        try:
            self._save(model, trial)
            if trainer.state.best_model_checkpoint != best:
                trainer.state.best_model_checkpoint = str(folder)
                if self._run.first:
                    trainer.state.save_to_json(str(written / "trainer_state.json"))
        except Exception as error:
            failure = error
        try:
            self._run.fail_all_ranks(failure)
            if self._run.first:
                (written / MARK).write_text(json.dumps({**record, "files": _sizes(written)}))
                checkpoint.publish_folder(self._run.attempt, written, folder)
                self._rotate(output)
            self._run.note_saved()
        finally:
            if self._run.first:
                shutil.rmtree(written, ignore_errors=True)

    def _publish_mark(self, folder: Path, record: Mapping[str, Any]) -> None:
        if self._run.first:
            written = self._run.attempt.folder / MARK
            written.write_text(json.dumps(record))
            checkpoint.publish_file(self._run.attempt, written, folder / MARK)

    def _rotate(self, output: Path) -> None:
        attempt, limit = self._run.attempt, self._trainer.args.save_total_limit
        for old in [path for path, record in _whole(output) if record.get("asked")][2:]:
            checkpoint.remove_folder(attempt, old)
        if limit is not None and limit > 0:
            for old in _surplus(output, limit, self._trainer.state.best_model_checkpoint):
                checkpoint.remove_folder(attempt, old)

    def _newest(self, output: Path) -> Path | None:
        found = _whole(output, self._run.report)
        return found[0][0] if found else None


def _surplus(output: Path, limit: int, best: str | None) -> list[Path]:
    """The trainer's checkpoints beyond ``limit``, the oldest first; never the newest or ``best``.

    As ``transformers.trainer_utils.rotate_checkpoints``, which removes them itself.
    """
    every = [Path(name) for name in trainer_utils.sort_checkpoints(str(output), use_mtime=True)]
    kept = {*every[-1:], *([Path(best)] if best else [])}
    others = [path for path in every if path not in kept]
    return others[: max(0, len(every) - max(limit, len(kept)))]


def _is_of(folder: Path, kept: Mapping[str, Any]) -> bool:
    """Whether ``folder`` is a whole checkpoint of this attempt at this very position."""
    try:
        there = position((folder / MARK).read_text())
    except (OSError, ValueError):
        return False
    return all(there.get(key) == kept[key] for key in ("samples", "attempt"))


def _sizes(folder: Path) -> dict[str, int]:
    """The files of a checkpoint and their bytes, without the mark."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARK
    }


def _own_method(trainer: Any, name: str) -> Any:
    """The trainer's method as its owner wrote it, where a callback stands for it already too."""
    found = getattr(trainer, name)
    return getattr(found, _STANDS_FOR, found)


def _stand_for(trainer: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(function, _STANDS_FOR, _own_method(trainer, name))
    setattr(trainer, name, function)


def _nothing(line: str) -> None:
    pass


def _whole(
    output: Path, say: Callable[[str], None] = _nothing
) -> list[tuple[Path, dict[str, Any]]]:
    """The checkpoints that were written to the end, the newest first.

    One whose files are missing or have other sizes than were written is reported and left out;
    files that a script added do no harm. Raises HadarError
    for one that a newer release wrote or that cannot be read now.
    """
    found = []
    for mark in output.glob(f"checkpoint-*/{MARK}"):
        try:
            record = dict(position(mark.read_text()))
            checkpoint.check_format(record.get("format"), f"checkpoint {mark.parent}")
            row = (int(record["samples"]), float(record["time"]), mark.parent, record)
            sizes = _sizes(mark.parent)
            if any(sizes.get(name) != size for name, size in record.get("files", {}).items()):
                say(f"checkpoint {mark.parent} is damaged; going on from the one before")
                continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            checkpoint.raise_if_passing(error, mark.parent)
            continue
        found.append(row)
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


HadarCallback = HadarTransformersCallback
"""The name until 2026-11-27: a script that has it may be requeued at any time."""

__all__ = ["HadarCallback", "HadarTransformersCallback"]
