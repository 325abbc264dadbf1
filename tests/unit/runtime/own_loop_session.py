"""A training as people write it: small CNN, AMP, OneCycle, clipping, EMA, early stopping."""

import argparse
import copy
import time

import torch
from torch import nn

from slurm_hadar.runtime import Session


class Ema:
    """An exponential average of the parameters."""

    def __init__(self, model, decay=0.9):
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.decay)

    def state_dict(self):
        return self.model.state_dict()

    def load_state_dict(self, state):
        self.model.load_state_dict(state)


class Pictures(torch.utils.data.Dataset):
    """Random pictures, with noise that is drawn anew each time."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 4, (size,), generator=generator)
        self.pictures = torch.randn(size, 1, 8, 8, generator=generator) * 0.5
        self.pictures += self.labels[:, None, None, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pictures[index] + 0.1 * torch.randn(1, 8, 8), self.labels[index], index


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, 4),
    )


@torch.no_grad()
def validate(model, loader):
    model.eval()
    loss = sum(nn.functional.cross_entropy(model(x), y, reduction="sum") for x, y, _ in loader)
    model.train()
    return float(loss)


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=6)
    arguments.add_argument("--accumulate", type=int, default=2)
    arguments.add_argument("--workers", type=int, default=0)
    arguments.add_argument("--patience", type=int, default=2)
    arguments.add_argument("--pace", type=float, default=0.0)
    arguments.add_argument("--compile", action="store_true")
    args = arguments.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Pictures(216, 1), 16, shuffle=True, drop_last=True, num_workers=args.workers
    )
    held_out = torch.utils.data.DataLoader(Pictures(64, 2), 32)
    model = make_model()
    ema = Ema(model)
    if args.compile:
        model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = args.epochs * len(loader) // args.accumulate
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
    track = {"best": float("inf"), "stale": 0}

    session = Session("run.pt", model=model, optim=optimizer, sched=scheduler, ema=ema, track=track)
    for epoch in session.epochs(args.epochs):
        for number, (x, y, which) in enumerate(session.batches(loader), session.batch + 1):
            print("read", epoch, *which.tolist(), flush=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            (loss / args.accumulate).backward()
            if number % args.accumulate == 0:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                ema.update(model)
            time.sleep(args.pace)
        loss = validate(ema.model, held_out)
        print("epoch", epoch, loss, scheduler.get_last_lr()[0], flush=True)
        if loss < track["best"]:
            track["best"], track["stale"] = loss, 0
            torch.save(ema.state_dict(), "best.pt")
        else:
            track["stale"] += 1
        if track["stale"] >= args.patience:
            session.stop()

    torch.save([model.state_dict(), optimizer.state_dict(), ema.state_dict()], "end.pt")


if __name__ == "__main__":
    main()
