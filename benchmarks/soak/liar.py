"""What a job runs that reports false rates, and says that it saved when it did not.

``python liar.py SECONDS``: as a job, with HADAR_EXCHANGE in its environment.
"""

import os
import random
import sys
import time
from pathlib import Path

from slurm_hadar.exchange import files
from slurm_hadar.exchange.job_side import host, job_id
from slurm_hadar.exchange.plan_file import read_plan

_RATES = (1e9, 1e-6, 1.0, 1e4)
_ENOUGH_RESTARTS = 4


def main() -> None:
    """Report until the time is over; after some restarts not at all."""
    folder, job = os.environ.get("HADAR_EXCHANGE"), job_id(os.environ)
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    end = time.monotonic() + float(sys.argv[1])
    if not folder or not job or restarts > _ENOUGH_RESTARTS:
        return
    path = Path(folder) / f"progress.{job}.{os.urandom(8).hex()}.json"
    while time.monotonic() < end:
        now = time.time()
        try:
            plan = read_plan(Path(folder), job, (os.getuid(),))
            ack = None
            if plan is not None and plan.save:
                ack = {"save": plan.save, "time": now, "samples": 10**12}
            content = {
                "job": job, "time": now, "restarts": restarts, "host": host(), "pid": os.getpid(),
                "in_step": False, "started": now - 1e6, "model": "paced",
                "samples": random.randrange(10**12), "rate": random.choice(_RATES),
                "window_s": 60.0, "batch": 8, "gpus": 1, "lost": 0, "finished": False,
                "checkpoint": {"samples": 10**12, "time": now, "seconds": 0.0}, "ack": ack,
            }  # fmt: skip
            files.write_json(path, content)
        except (OSError, ValueError):
            pass
        time.sleep(0.5)


if __name__ == "__main__":
    main()
