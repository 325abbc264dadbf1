"""A job that ends in the moment in which it is asked to save: its move finds it gone.

``python -m benchmarks.faults.ends FILE``: where it is not asked, it ends when there is such a file.
"""

import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from slurm_hadar.exchange.job_side import Exchange, host
from slurm_hadar.exchange.progress import Progress

_LOOK_S = 0.1


def main() -> None:
    """Tell of progress until then."""
    # Whoever asks it to save sends this as well.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    over = Path(sys.argv[1])
    exchange = Exchange.from_env(print)
    if exchange is None:
        sys.exit("there is no exchange folder")
    began = time.time()
    progress = Progress(
        exchange.job, began, exchange.restarts, host(), 0, False, began, "ends", 8, 8.0, 1.0, 8, 1
    )
    while not over.exists():
        if exchange.due():
            exchange.tell(replace(progress, time=time.time()))
        plan = exchange.plan(now=True)
        if plan is not None and plan.save:
            break
        time.sleep(_LOOK_S)
    exchange.tell(replace(progress, time=time.time(), finished=True))


if __name__ == "__main__":
    main()
