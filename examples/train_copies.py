"""Train a network on handwritten digits as copies on several nodes (alone: an ordinary training).

python train_copies.py --model resnet18 --epochs 30 --checkpoint run.pt
"""

import argparse
import json
from pathlib import Path

import torch
from train_digits import digits, without_compiler

from slurm_hadar.runtime import Copies, FixedScale
from slurm_hadar.runtime.samples import to_plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18", help="name in the profiles")
    work = parser.add_mutually_exclusive_group()
    work.add_argument("--epochs", type=int)
    work.add_argument("--samples", type=lambda text: int(float(text)))
    parser.add_argument("--batch", type=int, default=64, help="samples of one step of one copy")
    parser.add_argument("--tasks", type=int, help="a global batch in so many tasks (FixedScale)")
    parser.add_argument("--hidden", type=int, default=32, help="width; 1000: a million parameters")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--round", type=float, default=30.0, help="longest round, s")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--data", type=Path, help="file to keep the digits in")
    parser.add_argument("--lineage", type=Path, help="file for the record of what went in")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    without_compiler()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = args.checkpoint.parent if args.checkpoint else Path()
    x, y, test_x, test_y = (
        table.to(device) for table in digits(args.data or folder / "digits.npy")
    )
    model = torch.nn.Sequential(
        *(torch.nn.Linear(64, args.hidden), torch.nn.ReLU()),
        *(torch.nn.Linear(args.hidden, args.hidden), torch.nn.ReLU()),
        torch.nn.Linear(args.hidden, 10),
    ).to(device)
    how = {"tasks": args.tasks} if args.tasks else {"round_s": args.round}
    run = (FixedScale if args.tasks else Copies)(
        model,
        torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9),
        dataset_size=len(x),
        samples=args.samples or (args.epochs or 3) * len(x),
        batch=args.batch,
        seed=args.seed,
        path=args.checkpoint,
        name=args.model,
        **how,
    )
    for batch in run:
        loss = torch.nn.functional.cross_entropy(model(x[batch.indices]), y[batch.indices])
        run.backward(loss)
        run.step()

    if not run.first:
        return
    with torch.no_grad():
        right = (model(test_x).argmax(1) == test_y).float().mean()
    print(f"{args.model}: {run.samples} samples, test accuracy {100 * right:.1f}%")
    if args.lineage:
        content = {"dataset_size": len(x), "seed": args.seed, "segments": to_plain(run.segments)}
        content |= {"samples": run.samples, "copies": run.copies, "lost": run.lost}
        content |= {"rounds": run.rounds, "parameters": sum(p.numel() for p in model.parameters())}
        args.lineage.write_text(json.dumps(content))


if __name__ == "__main__":
    main()
