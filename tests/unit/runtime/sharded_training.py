"""A training of several processes over gloo, its model in shards or not, stopped as each run says.

``python sharded_training.py FOLDER RUNS``: RUNS is a JSON list; each run forks its processes, since
to import torch takes longer than to train. Keys of a run: ``ranks``; ``kind`` (fsdp, plain,
accelerate, or positions for a loop of ours); ``term``: global batches after which rank 1 asks to
leave; ``at``: [rank, signal or "slow", event], see :func:`watch`; ``background``, ``every_s``,
``slow_s``: seconds that a slow write takes. A run that stops goes on when the last one ended. Exit
Under torchrun the runs are its restarts. Exit
codes go to ``codes.json``, what each rank read to ``read.N``, what it said to ``said.N``, of run N.

What shards a model is imported where it is used: pytest imports this in each of its processes.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import slurm_hadar.runtime.ranks
from slurm_hadar.runtime import Session, Training, join

SIZE, TOGETHER, EPOCHS = 96, 24, 3
STEPS = EPOCHS * SIZE // TOGETHER


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SIZE, 10, generator=generator, dtype=torch.float64)
    return TensorDataset(torch.arange(SIZE), x, x.sum(1, keepdim=True).sin())


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(10, 13), torch.nn.Tanh(), torch.nn.Linear(13, 7), torch.nn.Linear(7, 1)
    ).double()


def optimizer_and_scheduler(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.03, total_steps=STEPS)


def watch(rank, folder, run):
    """Kill, stop or slow down the rank at its n-th ``open``, ``rename`` or ``link`` in a save."""
    if "at" not in run or run["at"][0] != rank:
        return
    _, what, point = run["at"]
    counts: Counter[str] = Counter()

    def look(event, arguments):
        short = event.removeprefix("os.")
        if short not in ("open", "rename", "link") or str(folder) not in str(arguments[0]):
            return
        name = Path(str(arguments[0])).name
        if short == "open" and (str(arguments[1])[0] not in "wx" or not name.endswith(".distcp")):
            return
        counts[short] += 1
        if what == "slow":
            if short == "open":
                time.sleep(run["slow_s"])
        elif f"{short} {counts[short]}" == point:
            os.kill(os.getpid(), signal.Signals[what])

    sys.addaudithook(look)


def session_loop(rank, size, run, seen):
    model = make_model()
    loader, sampler = DataLoader(data(), TOGETHER // size), None
    optimizer, scheduler = optimizer_and_scheduler(model)
    if run["kind"] == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
        generator = torch.Generator().manual_seed(4)
        loader = DataLoader(data(), TOGETHER // size, shuffle=True, generator=generator)
        model, optimizer, loader, scheduler = accelerator.prepare(
            model, optimizer, loader, scheduler
        )
    else:
        sampler = DistributedSampler(data(), size, rank, seed=3)
        loader = DataLoader(data(), TOGETHER // size, sampler=sampler)
    if run["kind"] == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(model)
        optimizer, scheduler = optimizer_and_scheduler(model)
    options = {key: run[key] for key in ("background", "every_s", "sharded") if key in run}
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    note: dict[str, list[int]] = {"steps": []}
    session = Session("run.pt", **parts, note=note, **options)
    for epoch in session.epochs(EPOCHS):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for number, (which, x, y) in enumerate(session.batches(loader), session.batch):
            print("read", epoch, number, *which.tolist(), file=seen, flush=True)
            loss = torch.nn.functional.mse_loss(model(x), y)
            if run["kind"] == "accelerate":
                accelerator.backward(loss)
            else:
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            note["steps"].append(number)
            time.sleep(run.get("step_s", 0.0))
            if rank == 1 % size and session.samples + TOGETHER == run.get("term", -1) * TOGETHER:
                os.kill(os.getpid(), signal.SIGTERM)
    return model, session


def own_order(rank, size, run, seen):
    model = make_model()
    if size > 1:
        from torch.distributed.fsdp import fully_shard

        for layer in (model[0], model[2], model):
            fully_shard(layer)
    optimizer, scheduler = optimizer_and_scheduler(model)
    training = Training(
        model, optimizer, scheduler=scheduler, schedule="step", dataset_size=SIZE, epochs=EPOCHS,
        batch=TOGETHER, path="run.pt", per_gpu=5,
    )  # fmt: skip
    rows = data().tensors
    for batch in training:
        if batch.weight:
            print("read", batch.epoch, 0, *batch.indices.tolist(), file=seen, flush=True)
        x, y = rows[1][batch.indices], rows[2][batch.indices]
        training.backward(torch.nn.functional.mse_loss(model(x), y))
        training.step()
        if batch.last and rank == 1 % size and training.samples == run.get("term", 0) * TOGETHER:
            os.kill(os.getpid(), signal.SIGTERM)
    return model, training


def forked(rank, number, run):
    os.dup2(os.open(f"said.{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(run["ranks"]), LOCAL_RANK=str(rank), MASTER_PORT="1",
        MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", SLURM_JOB_ID="12", HADAR_PAUSE_S="0",
        SLURM_RESTART_COUNT=str(run.get("restarts", number)),
    )  # fmt: skip
    join("gloo", init_method=f"file://{Path.cwd()}/store.{number}")
    train(rank, number, run)


def of_torchrun():
    """A process that torchrun started; the runs are its restarts."""
    os.chdir(sys.argv[1])
    rank, _, _ = join("gloo")
    number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    train(rank, number, json.loads(sys.argv[2])[number])


def train(rank, number, run):
    torch.set_num_threads(1)
    # Agree in each step, so that a run ends where it was asked to.
    slurm_hadar.runtime.ranks._EVERY_S = 0.0
    watch(rank, Path.cwd(), run)
    loop = own_order if run["kind"] == "positions" else session_loop
    with Path(f"read.{number}.{rank}").open("w") as seen:
        model, session = loop(rank, run["ranks"], run, seen)
    model = getattr(model, "module", model)
    from torch.distributed.checkpoint import state_dict

    full = state_dict.get_model_state_dict(
        model, options=state_dict.StateDictOptions(full_state_dict=run["ranks"] > 1)
    )
    if rank == 0:
        torch.save([session.samples, full], "end.pt")


def main():
    folder, runs = sys.argv[1], json.loads(sys.argv[2])
    os.chdir(folder)
    if any(run["kind"] == "accelerate" for run in runs):
        import accelerate  # noqa: F401
    codes, stopped = {}, {}
    for number, run in enumerate(runs):
        pids = []
        for rank in range(run["ranks"]):
            pid = os.fork()
            if not pid:
                try:
                    forked(rank, number, run)
                except Exception:
                    sys.excepthook(*sys.exc_info())
                    sys.exit(1)
                sys.exit(0)
            pids.append(pid)
        ended = follow(pids)
        if ended is None:
            stopped[number] = pids
        else:
            codes[number] = ended
    for number, pids in stopped.items():
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        codes[number] = follow(pids)
    Path("codes.json").write_text(json.dumps([codes[number] for number in range(len(runs))]))


def follow(pids):
    """The exit codes; None where one is stopped. As srun, it ends the others when one is killed."""
    codes: dict[int, int]
    codes, end = {}, time.monotonic() + 240
    while len(codes) < len(pids):
        for pid in pids:
            if pid in codes:
                continue
            found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                return None
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if -signal.SIGKILL in codes.values() or time.monotonic() > end:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
                codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


if __name__ == "__main__":
    of_torchrun() if "TORCHELASTIC_RUN_ID" in os.environ else main()
