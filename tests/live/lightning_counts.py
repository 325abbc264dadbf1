"""``python lightning_counts.py FOLDER STEPS``: a training with Lightning as its own pages show it.

On a cluster it saves and requeues itself on USR1. Each step of the optimizer writes its number.
"""

import os
import sys
import time
from pathlib import Path

import lightning
import torch

# What is left is quick once it was moved.
_PAUSE_S = 0.005 if os.environ.get("SLURM_RESTART_COUNT") else 0.05


class Line(lightning.LightningModule):
    """One layer; its number of steps is what a checkpoint holds of its place."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.layer = folder, torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        time.sleep(_PAUSE_S)
        with (self.folder / "steps").open("a") as stream:
            stream.write(f"{self.global_step}\n")
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(folder, steps):
    folder = Path(folder)
    with (folder / "begun").open("a") as stream:
        stream.write(f"{os.environ['SLURMD_NODENAME']}\n")
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_steps=int(steps),
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Line(folder), torch.utils.data.DataLoader(data, batch_size=4))
    print(f"done at {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
