"""A training without torch: says how far it is, saves when asked to, saves and leaves on TERM. It
ends at its number of samples, or as soon as its folder has a file ``finish``."""

import os
import signal
import sys
import time
from pathlib import Path

from slurm_hadar.exchange.job_side import Exchange, host, in_step
from slurm_hadar.exchange.progress import Ack, Progress

_STEP_S, _SAMPLES = 0.1, 10


def main(folder, total, linger):
    exchange = Exchange.from_env(print)
    assert exchange is not None
    saved, log = folder / f"{exchange.job}.saved", folder / f"{exchange.job}.log"
    done = int(saved.read_text()) if saved.exists() else 0
    before, started, ack = done, time.time(), None

    def note(word):
        with log.open("a") as stream:
            stream.write(f"{word} {exchange.restarts} {host()}\n")

    def leave(*_):
        time.sleep(linger)
        saved.write_text(str(done))
        note("left")
        os._exit(0)

    def tell():
        now = time.time()
        exchange.tell(
            Progress(
                job=exchange.job,
                time=now,
                restarts=exchange.restarts,
                host=host(),
                pid=os.getpid(),
                in_step=in_step(os.environ),
                started=started,
                model="quick",
                samples=done,
                rate=(done - before) / max(now - started, 1e-3),
                window_s=now - started,
                batch=_SAMPLES,
                gpus=1,
                ack=ack,
                restart_s=0.5,
                finished=done >= total,
            )
        )

    # One that is asked to leave between the two would seem to have been lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, leave)
    note("begin")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while done < total:
        time.sleep(_STEP_S)
        done += _SAMPLES
        if (folder / "finish").exists():
            total = done
        plan = exchange.plan(now=True)
        asked = plan is not None and plan.save and plan.restarts == exchange.restarts
        if asked and (ack is None or ack.save != plan.save):
            saved.write_text(str(done))
            ack = Ack(plan.save, time.time(), done)
            tell()
        elif exchange.due():
            tell()
    tell()
    note("left")


main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
