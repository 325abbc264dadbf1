"""A training without torch, for a batch script: MODEL BATCH SAMPLES RESTART_S SAVED.

Its speed is that of the pretend GPU that it runs on (HADAR_TRUE_RATES). Under a controller it
reports its progress and saves when asked; it saves on TERM too, and goes on from what was saved.
SAVED holds the samples and, after TERM, the time at which training stopped: an attempt that goes on
from there reports how long there was no training.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar.exchange.job_side import Exchange, host, in_step
from slurm_hadar.exchange.progress import Ack, Progress

_STEP_S = 0.2


def speed(pace: Mapping[str, object], node: str, model: str) -> float:
    """Samples/s of the model on one GPU of that node."""
    nodes, rates = pace["nodes"], pace["rates"]
    if not isinstance(nodes, dict) or not isinstance(rates, dict):
        raise ValueError("the pacing file is not whole")
    return float(rates[model][nodes[node][0]]["1"])


def train(model: str, batch: int, samples: int, restart_s: float, saved: Path) -> None:
    """Train until all samples are done."""
    exchange = Exchange.from_env(print)
    pace = json.loads(Path(os.environ["HADAR_TRUE_RATES"]).read_text())
    rate = speed(pace, host(), model)
    kept = json.loads(saved.read_text()) if saved.exists() else {}
    before, stopped_at = float(kept.get("samples", 0.0)), kept.get("stopped_at")
    began, ack = time.time(), None
    if before:
        time.sleep(restart_s)
    started = time.time()
    # A crashed attempt leaves no time, and a first one stopped nowhere: nothing is measured then.
    without_s = None if stopped_at is None else max(0.0, started - float(stopped_at))

    def done() -> float:
        return min(float(samples), before + rate * (time.time() - started))

    def save(stopped_at: float | None = None) -> float:
        at = done()
        aside = saved.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps({"samples": at, "stopped_at": stopped_at}))
        aside.replace(saved)
        return at

    def leave(*_: object) -> None:
        save(time.time())
        os._exit(0)

    def tell() -> None:
        if exchange is None:
            return
        now = time.time()
        exchange.tell(
            Progress(
                job=exchange.job, time=now, restarts=exchange.restarts, host=host(),
                pid=os.getpid(), in_step=in_step(os.environ), started=began, model=model,
                samples=int(done()), rate=rate, window_s=now - started, batch=batch, gpus=1,
                ack=ack, restart_s=without_s, finished=done() >= samples,
            )
        )  # fmt: skip

    signal.signal(signal.SIGTERM, leave)
    while done() < samples:
        time.sleep(min(_STEP_S, max(0.0, (samples - done()) / rate)))
        plan = exchange.plan(now=True) if exchange is not None else None
        asked = plan is not None and exchange is not None and plan.restarts == exchange.restarts
        if asked and plan is not None and plan.save and (ack is None or ack.save != plan.save):
            ack = Ack(plan.save, time.time(), int(save()))
            tell()
        elif exchange is not None and exchange.due():
            tell()
    tell()


if __name__ == "__main__":
    name, batch_, total, cost, path = sys.argv[1:]
    train(name, int(batch_), int(total), float(cost), Path(path))
