"""A training that stops itself (SIGSTOP) or dies (SIGKILL) at a named point of a save.

``python stalled_training.py KIND FOLDER SAMPLES``; STALL="os.rename 2" names the point, STALL_BY
the signal. "remove 1" is where a published checkpoint folder is about to go. Every process believes
that it has the same process ID, as in containers.
"""

import os
import signal
import sys
import time
from collections import Counter
from typing import Any

POINT, BY = os.environ.get("STALL"), os.environ.get("STALL_BY", "SIGSTOP")
REAL_PID = os.getpid()
os.getpid = lambda: 7
KIND, FOLDER, SAMPLES = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE, BATCH = 64, 8
counts: Counter[str] = Counter()
saving = False


def watch(event, arguments):
    """Renames, links and opened files below the folder, while the training saves."""
    if not saving or event not in ("open", "os.rename", "os.link", "shutil.rmtree"):
        return
    if FOLDER not in str(arguments[0]) or (event == "open" and str(arguments[1])[0] not in "wx"):
        return
    if event != "open" and str(arguments[0]).startswith(f"{FOLDER}/checkpoint-"):
        event = "remove"
    counts[event] += 1
    if f"{event} {counts[event]}" == POINT:
        os.kill(REAL_PID, getattr(signal, BY))


sys.addaudithook(watch)
if KIND not in ("lightning", "huggingface"):
    import benchmarks.small_torch  # noqa: F401
import torch  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
X = torch.randn(SIZE, 4)
Y = X.sum(1, keepdim=True)


def model_and_optimizer():
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def began(samples):
    """Saves from the second step on are watched."""
    global saving
    saving = samples >= 2 * BATCH


def own(kind):
    from slurm_hadar import runtime

    model, optimizer = model_and_optimizer()
    options = {"dataset_size": SIZE, "samples": SAMPLES, "batch": BATCH, "every_s": 0.0}
    each: dict[str, dict[str, Any]] = {"FixedScale": {"tasks": 2}, "Copies": {"round_s": 0.01}}
    more = each.get(kind, {})
    run = getattr(runtime, kind)(model, optimizer, path=f"{FOLDER}/c.pt", **options, **more)
    for batch in run:
        run.backward(torch.nn.functional.mse_loss(model(X[batch.indices]), Y[batch.indices]))
        run.step()
        if kind == "Copies":
            time.sleep(0.02)  # longer than a round, so every round is one step and there are many
        began(run.samples)
    return run.samples


def lightning():
    import lightning.pytorch as pl

    from slurm_hadar.runtime.lightning import HadarLightningCallback

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch, number):
            began(run.samples)
            return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    run = HadarLightningCallback(f"{FOLDER}/c.pt", batch=BATCH, samples=SAMPLES, every_s=0.0)
    trainer = pl.Trainer(
        max_epochs=-1, callbacks=[run], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(X, Y)
    trainer.fit(Module(), run.loader(data), ckpt_path=run.resume())
    return run.samples


def huggingface():
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from slurm_hadar.runtime.huggingface import HadarTransformersCallback

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}

    class Begins(TrainerCallback):
        def on_step_end(self, *_, **__):
            began(run.samples)

    arguments = TrainingArguments(
        output_dir=FOLDER, num_train_epochs=-(-SAMPLES // SIZE), save_strategy="no",
        logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    run = HadarTransformersCallback(batch=BATCH, samples=SAMPLES, every_s=0.0)
    data = [{"x": X[i], "labels": Y[i]} for i in range(SIZE)]
    trainer = Trainer(Module(), arguments, train_dataset=data, callbacks=[Begins(), run])
    trainer.train(resume_from_checkpoint=run.resume(trainer))
    return run.samples


print({"lightning": lightning, "huggingface": huggingface}.get(KIND, lambda: own(KIND))())
