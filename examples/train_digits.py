"""Train a small network on handwritten digits: a plain PyTorch loop that resumes.

python train_digits.py --model resnet18 --epochs 30 --checkpoint run.pt
"""

import argparse
import json
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch

from slurm_hadar.runtime import Training, join


def digits(cache: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels to train on, and those kept back for the test."""
    try:
        table = np.load(cache)
    except (OSError, ValueError):
        # scikit-learn takes a second to import, so its table is read once and kept.
        from sklearn.datasets import load_digits

        bunch = load_digits()
        table = np.column_stack([bunch.data, bunch.target]).astype(np.uint8)
        aside = cache.with_name(f".{cache.name}.{time.time_ns()}.npy")
        np.save(aside, table)
        aside.replace(cache)
    x = torch.from_numpy(table[:, :64].astype(np.float32) / 16)
    y = torch.from_numpy(table[:, 64].astype(np.int64))
    return x[:1500], y[:1500], x[1500:], y[1500:]


def without_compiler() -> None:
    """Keep PyTorch from importing its compiler, which this network does not use.

    The optimizer imports it at its first step: a second of CPU time and 90 MB, in each of many
    small jobs that share a few cores. A training on real GPUs has no need of this.
    """
    stub = types.ModuleType("torch._dynamo")
    stub.graph_break = lambda: None
    stub.disable = lambda function, *_, **__: function
    sys.modules.setdefault("torch._dynamo", stub)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="name in the profiles")
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--epochs", type=int)
    work.add_argument("--samples", type=lambda text: int(float(text)))
    parser.add_argument("--batch", default="64", help="global batch: 64, or a range 64:512")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between checkpoints")
    parser.add_argument("--data", type=Path, help="file to keep the digits in")
    parser.add_argument("--lineage", type=Path, help="file for the record of what went in")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rank, ranks, local = join()
    if ranks == 1:
        without_compiler()
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    folder = args.checkpoint.parent if args.checkpoint else Path()
    data = digits(args.data or folder / "digits.npy")
    x, y, test_x, test_y = (table.to(device) for table in data)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    model.to(device)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    least, _, most = args.batch.partition(":")
    run = Training(
        model,
        optimizer,
        dataset_size=len(x),
        samples=args.samples or (args.epochs or 3) * len(x),
        batch=(int(least), int(most or least)),
        seed=args.seed,
        path=args.checkpoint,
        every_s=args.every,
        name=args.model,
    )
    for batch in run:
        loss = torch.nn.functional.cross_entropy(model(x[batch.indices]), y[batch.indices])
        run.backward(loss)
        run.step()

    if rank > 0:
        return
    right = (model(test_x).argmax(1) == test_y).float().mean()
    print(f"{args.model}: {run.samples} samples, test accuracy {100 * right:.1f}%")
    if args.lineage:
        from slurm_hadar.runtime.samples import to_plain

        rows = to_plain(run.segments)
        content = {
            "dataset_size": len(x),
            "seed": args.seed,
            "samples": run.samples,
            "segments": rows,
        }
        args.lineage.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
