"""Train a network on handwritten digits with PyTorch Lightning.

python train_lightning.py --model resnet18 --epochs 30 --checkpoint run.ckpt
"""

import argparse
from pathlib import Path

import lightning.pytorch as lightning
import torch
from train_digits import digits

from slurm_hadar.runtime.lightning import HadarLightningCallback


class Digits(lightning.LightningModule):
    """A small network, as one writes it for Lightning."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
        )

    def training_step(self, batch, number):
        """The loss of one pass."""
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="name in the profiles")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=lambda text: int(float(text)))
    parser.add_argument("--batch", type=int, default=64, help="global batch")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--checkpoint", type=Path, default=Path("run.ckpt"))
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(0, verbose=False)
    x, y, test_x, test_y = digits(args.checkpoint.parent / "digits.npy")
    run = HadarLightningCallback(
        args.checkpoint, batch=args.batch, samples=args.samples, name=args.model
    )
    model = Digits(args.lr)
    trainer = lightning.Trainer(
        # With samples= it is the callback that ends the training.
        max_epochs=-1 if args.samples else args.epochs,
        callbacks=[run],
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    dataset = torch.utils.data.TensorDataset(x, y)
    trainer.fit(model, run.loader(dataset), ckpt_path=run.resume())

    right = (model.net(test_x).argmax(1) == test_y).float().mean()
    print(f"{args.model}: {run.samples} samples, test accuracy {100 * right:.1f}%")


if __name__ == "__main__":
    main()
