"""What a loop does after step() belongs to the iteration that ended, and no move loses it.

Loops that validate, average weights, log, step a scheduler of their own and may stop early get TERM
in the middle of an iteration, and must end as a run that was never interrupted.
"""

import copy
import os
import signal
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from missing import missing
from small_training import BATCH, N, X, Y, outside_slurm

from slurm_hadar.runtime import Copies, FixedScale, Training, check_lineage, lineage

EPOCHS = 3
STEPS = N // BATCH
pytestmark = pytest.mark.usefixtures(outside_slurm.__name__)


class Averaged:
    """An exponential moving average, a log and early stopping, as people write them."""

    def __init__(self, model, patience=100):
        self.model = copy.deepcopy(model)
        self.log, self.validations, self.best, self.bad = [], [], float("inf"), 0
        self.patience = patience

    def after_step(self, model, samples):
        with torch.no_grad():
            for mine, other in zip(self.model.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(other, alpha=0.1)
        self.log.append(samples)

    def validate(self, samples):
        with torch.no_grad():
            loss = float(torch.nn.functional.mse_loss(self.model(X), Y))
        self.validations.append((samples, round(loss, 6)))
        self.bad = 0 if loss < 0.01 * self.best else self.bad + 1
        self.best = min(self.best, loss)
        return self.bad >= self.patience

    def state_dict(self):
        fields = {k: v for k, v in vars(self).items() if k != "model"}
        return {"model": self.model.state_dict(), **copy.deepcopy(fields)}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        vars(self).update({k: copy.deepcopy(v) for k, v in state.items() if k != "model"})


def seen(averaged, model, scheduler):
    values = [p.detach().clone() for m in (model, averaged.model) for p in m.parameters()]
    counts = (averaged.log, averaged.validations, averaged.bad, scheduler.last_epoch)
    return counts, values


def run_to_the_end(path, leave_at=(), patience=100, save_at=()):
    """Attempts until the work is done. ``leave_at``: steps in whose iterations TERM comes."""
    left = list(leave_at)
    for _ in range(len(left) + 1):
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        averaged = Averaged(model, patience)
        run = Training(
            model, optimizer, dataset_size=N, epochs=EPOCHS, batch=BATCH, path=path,
            also={"averaged": averaged, "own": scheduler}, log=lambda line: None,
        )  # fmt: skip
        try:
            for batch in run:
                step = run.samples // BATCH + 1
                if step in left:
                    left.remove(step)
                    os.kill(os.getpid(), signal.SIGTERM)
                run.backward(
                    torch.nn.functional.mse_loss(model(X[batch.indices]), Y[batch.indices])
                )
                run.step()
                if step in save_at:
                    run.save()
                scheduler.step()
                averaged.after_step(model, run.samples)
                if batch.ends_epoch and averaged.validate(run.samples):
                    run.stop()
        except SystemExit as left_by:
            assert left_by.code == 143
        else:
            assert not left
            return run, seen(averaged, model, scheduler)
    raise AssertionError("it did not come to its end")


@pytest.mark.parametrize("leave_at", [(1,), (STEPS,), (3, STEPS + 1, 2 * STEPS), (3 * STEPS,)])
def test_a_moved_loop_ends_as_one_that_was_not_interrupted(tmp_path, leave_at):
    _, (counts, values) = run_to_the_end(tmp_path / "a.pt")
    assert counts[1] and len(counts[0]) == 3 * STEPS and counts[3] == 3 * STEPS
    run, (moved_counts, moved_values) = run_to_the_end(tmp_path / "b.pt", leave_at)
    assert run.attempt == 1 + len(leave_at)
    assert moved_counts == counts
    assert all(torch.equal(one, other) for one, other in zip(values, moved_values, strict=True))
    assert check_lineage(lineage(tmp_path / "b.pt"), N, samples=N * EPOCHS, seed=0) is None


def test_early_stopping_in_the_iteration_of_term_is_kept(tmp_path):
    whole, (counts, _) = run_to_the_end(tmp_path / "a.pt", patience=1)
    assert whole.samples < N * EPOCHS, "nothing stopped it early, so this shows nothing"
    last = whole.samples // BATCH
    moved, (moved_counts, _) = run_to_the_end(tmp_path / "b.pt", (last,), patience=1)
    assert moved.samples == whole.samples and moved_counts == counts


def test_a_save_by_hand_does_not_stand_for_the_end_of_its_iteration(tmp_path):
    _, (counts, _) = run_to_the_end(tmp_path / "a.pt")
    _, (moved, _) = run_to_the_end(tmp_path / "b.pt", (4,), save_at=(4,))
    assert moved == counts


def copies_to_the_end(kind, path, passes, leave_at=()):
    """As :func:`run_to_the_end`; an iteration trains ``N // passes`` samples of an epoch."""
    more, gamma = {"tasks": passes // STEPS}, 0.99
    if kind is Copies:
        # A round is broken off by the move, and a scheduler steps at the ends of rounds.
        more, gamma = {"round_epochs": 1.0}, 1.0
    left = list(leave_at)
    for _ in range(len(left) + 1):
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
        averaged = Averaged(model)
        run = kind(
            model, optimizer, dataset_size=N, epochs=EPOCHS, batch=BATCH, path=path,
            scheduler=scheduler, also={"averaged": averaged}, log=lambda line: None, **more,
        )  # fmt: skip
        try:
            for batch in run:
                done = len(averaged.log) + 1
                if done in left:
                    left.remove(done)
                    os.kill(os.getpid(), signal.SIGTERM)
                run.backward(
                    torch.nn.functional.mse_loss(model(X[batch.indices]), Y[batch.indices])
                )
                run.step()
                averaged.after_step(model, done)
                if done % passes == 0:
                    averaged.validate(done)
        except SystemExit as left_by:
            assert left_by.code == 143
        else:
            assert not left
            return seen(averaged, model, scheduler)
    raise AssertionError("it did not come to its end")


@pytest.mark.parametrize(
    ("kind", "passes"), [(Copies, STEPS), (FixedScale, STEPS), (FixedScale, 2 * STEPS)]
)
@pytest.mark.parametrize("leave_at", [(1,), (5,), (3, 6, 10), (15,)])
def test_copies_come_to_the_end_of_their_iteration(tmp_path, kind, passes, leave_at):
    counts, values = copies_to_the_end(kind, tmp_path / "a.pt", passes)
    assert counts[0] == list(range(1, EPOCHS * passes + 1)) and len(counts[1]) == EPOCHS
    moved_counts, moved_values = copies_to_the_end(kind, tmp_path / "b.pt", passes, leave_at)
    assert moved_counts == counts
    assert all(torch.equal(one, other) for one, other in zip(values, moved_values, strict=True))
    rows = lineage(tmp_path / "b.pt")
    assert check_lineage(rows, N, samples=EPOCHS * N, seed=0) is None


def test_a_loop_left_with_break_goes_on_in_another_one(tmp_path):
    """As people write it who want an outer loop over epochs."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    run = Training(
        model, optimizer, dataset_size=N, epochs=EPOCHS, batch=BATCH, path=tmp_path / "c.pt",
        log=lambda line: None,
    )  # fmt: skip
    begun = []
    while run.samples < run.total:
        begun.append(run.samples)
        for batch in run:
            run.backward(model(X[batch.indices]).mean())
            run.step()
            if batch.ends_epoch and run.epoch < EPOCHS:
                run.save()
                break
    assert begun == [0, N, 2 * N] and run.attempt == 1
    assert check_lineage(lineage(tmp_path / "c.pt"), N, samples=N * EPOCHS, seed=0) is None


def test_what_an_earlier_attempt_saved_after_it_was_loaded_is_not_lost(tmp_path):
    """It still ran when the next one loaded, and saved once more before that took over."""

    def make():
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        made = Training(
            model, optimizer, dataset_size=N, epochs=1, batch=BATCH, path=tmp_path / "c.pt",
            log=lambda line: None,
        )  # fmt: skip
        return made, model

    def train(run, model, most=100):
        seen = 0
        for batch in run:
            run.backward(torch.nn.functional.mse_loss(model(X[batch.indices]), Y[batch.indices]))
            run.step()
            seen += len(batch.indices)
            if seen == most:
                run.save()
                break
        return seen

    first, model = make()
    train(first, model, 2 * BATCH)
    later, later_model = make()
    assert later.samples == 2 * BATCH
    train(first, model, BATCH)
    assert train(later, later_model) == N - 3 * BATCH
    assert check_lineage(lineage(tmp_path / "c.pt"), N, samples=N, seed=0) is None
    with pytest.raises(SystemExit) as left_by:
        first.save()
    assert left_by.value.code == 77


def lightning_run(path, leave_at):
    if not find_spec("lightning"):
        missing("the extra lightning is not installed")
    import lightning.pytorch as pl

    from slurm_hadar.runtime.lightning import HadarLightningCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch, number):
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def validation_step(self, batch, number):
            pass

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    class Watching(pl.Callback):
        """Stands behind ours, so that its hooks come after ours."""

        state_key = "watching"

        def __init__(self, module):
            self.averaged = Averaged(module.net)

        def on_train_batch_end(self, trainer, module, *_):
            self.averaged.after_step(module.net, trainer.global_step)
            if trainer.global_step in left:
                left.remove(trainer.global_step)
                os.kill(os.getpid(), signal.SIGTERM)

        def on_validation_epoch_end(self, trainer, module):
            self.averaged.validate(trainer.global_step)

        def on_train_epoch_end(self, trainer, module):
            self.averaged.log.append(("epoch", trainer.current_epoch, trainer.global_step))

        def state_dict(self):
            return self.averaged.state_dict()

        def load_state_dict(self, state):
            self.averaged.load_state_dict(state)

    left = list(leave_at)
    data = torch.utils.data.TensorDataset(X, Y)
    for _ in range(len(leave_at) + 1):
        module = Module()
        watching = Watching(module)
        run = HadarLightningCallback(path, batch=BATCH, log=lambda line: None)
        trainer = pl.Trainer(
            max_epochs=EPOCHS, callbacks=[run, watching], logger=False, accelerator="cpu",
            devices=1, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        held = torch.utils.data.DataLoader(data, batch_size=N)
        try:
            trainer.fit(module, run.loader(data), held, ckpt_path=run.resume())
        except SystemExit as left_by:
            assert left_by.code == 143
            continue
        counts, values = seen(
            watching.averaged, module.net, trainer.lr_scheduler_configs[0].scheduler
        )
        loop = trainer.fit_loop.epoch_loop
        logged = (loop._batches_that_stepped, trainer.global_step, trainer.current_epoch)
        return (counts, logged), values
    raise AssertionError("it did not come to its end")


class Trainer:
    """Names for the parameters of the test below."""

    lightning = staticmethod(lightning_run)

    @staticmethod
    def huggingface(path, leave_at):
        if not find_spec("transformers"):
            missing("the extra huggingface is not installed")
        from transformers import Trainer, TrainerCallback, TrainingArguments

        from slurm_hadar.runtime.huggingface import HadarTransformersCallback

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.net = torch.nn.Linear(4, 1)

            def forward(self, x, labels):
                return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}

        class Watching(TrainerCallback):
            def __init__(self, module):
                self.averaged = Averaged(module.net)

            def on_step_end(self, args, state, control, model, **_):
                self.averaged.after_step(model.net, state.global_step)
                if state.global_step in left:
                    left.remove(state.global_step)
                    os.kill(os.getpid(), signal.SIGTERM)

            def on_evaluate(self, args, state, control, **_):
                self.averaged.validate(state.global_step)

            def on_log(self, args, state, control, logs, **_):
                if "loss" in logs:
                    self.averaged.log.append(("log", state.global_step))

        left = list(leave_at)
        states: dict[int, Any] = {}
        data = [{"x": X[i], "labels": Y[i]} for i in range(N)]
        for _ in range(len(leave_at) + 1):
            module = Module()
            watching = Watching(module)
            arguments = TrainingArguments(
                output_dir=str(path), num_train_epochs=EPOCHS, save_strategy="no",
                logging_strategy="steps", logging_steps=2, eval_strategy="epoch", report_to=[],
                disable_tqdm=True, use_cpu=True, learning_rate=0.02,
            )  # fmt: skip
            run = HadarTransformersCallback(batch=BATCH, log=lambda line: None)
            trainer = Trainer(
                module, arguments, train_dataset=data, eval_dataset=data[:8],
                callbacks=[run, watching],
            )  # fmt: skip
            found = run.resume(trainer)
            if found:
                # Trainer keeps no callback's tensors: a script saves them beside the checkpoint.
                watching.averaged.load_state_dict(states[int(found.rsplit("-", 1)[1])])
            real = trainer._save_checkpoint

            def save(model, trial, real=real, trainer=trainer, watching=watching):
                states[trainer.state.global_step] = watching.averaged.state_dict()
                real(model, trial)

            trainer._save_checkpoint = save
            try:
                trainer.train(resume_from_checkpoint=found)
            except SystemExit as left_by:
                assert left_by.code == 143
                continue
            scheduler = trainer.lr_scheduler
            counts, values = seen(watching.averaged, module.net, scheduler)
            return (counts, trainer.state.global_step), values
        raise AssertionError("it did not come to its end")


@pytest.mark.parametrize("kind", ["lightning", "huggingface"])
@pytest.mark.parametrize("leave_at", [(STEPS,), (2, STEPS + 3)])
def test_a_framework_comes_to_the_end_of_its_iteration(tmp_path, kind, leave_at):
    run = getattr(Trainer, kind)
    counts, values = run(tmp_path / "a", ())
    moved_counts, moved_values = run(tmp_path / "b", leave_at)
    assert moved_counts == counts
    assert all(torch.equal(one, other) for one, other in zip(values, moved_values, strict=True))
