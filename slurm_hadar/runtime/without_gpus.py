"""An attempt that Slurm started without the job's GPUs asks for another one.

After a restart of slurmctld 22.05.8 may start a job without a GPU although it asks for one, and
after a node went down in a requeue it may refuse every step of the next attempt (both seen). Such
an attempt would fail, or train on the CPU for days.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable

from slurm_hadar.exchange.job_side import Exchange, node_gpus
from slurm_hadar.runtime.leaving import LeftOnTerm
from slurm_hadar.runtime.signals import Signals

GAVE_NONE = "Slurm started this attempt without the job's GPUs"
WAIT_S = 60.0
"""Longest time that Slurm's programs, and then Slurm itself, may take to end this attempt."""
_LOOK_S = 0.2
_ASK_S = 20.0
_REQUESTS = ("tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task")
_WIDE = 1000
_GPU = re.compile(r"(?:^|[\s:/,])gpu(?=[\s:=,]|$)")

Say = Callable[[str], None]


def given_none(exchange: Exchange | None) -> bool:
    """Whether this attempt of a job that asks for GPUs sees none of its node's.

    Its plan says whether it does; without one, as where Slurm started it by itself, Slurm is asked.
    """
    if exchange is None or "SLURMD_NODENAME" not in os.environ or node_gpus(os.environ):
        return False
    plan = exchange.plan(now=True)
    if plan is not None and not plan.gpus:
        return False
    try:
        import torch
    except ImportError:
        # A launcher may run where only the training itself has it.
        return False
    if torch.cuda.is_available():
        return False
    return plan is not None or asks_for_gpus(exchange.job)


def asks_for_gpus(job: str) -> bool:
    """Whether the request of one job names GPUs, as squeue shows it; False where it cannot be had.

    ``job``: its number, of an array's task ``"84_2"``.
    """
    columns = ",".join(f"{name}:{_WIDE}" for name in _REQUESTS)
    argv = ["squeue", "--noheader", f"--jobs={job}", f"--Format={columns}"]
    try:
        shown = subprocess.run(argv, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return _GPU.search(shown.stdout) is not None


def another_start(exchange: Exchange, why: str, say: Say, *, at_first: bool) -> bool:
    """Ask Slurm to requeue the job; True when it then ends this attempt.

    Only after an attempt that trained, on GPUs where it knew, and ``at_first``: it must not go
    round in circles.
    """
    last, before = exchange.restarts, exchange.before
    trained = before is not None and before.restarts == last - 1 and before.gpus > 0
    if not (trained or (at_first and last == 0)):
        return False
    say(f"{why}; it is asked to requeue the job")
    try:
        # Of an array this task alone, which SLURM_JOB_ID may not mean; and no job that is ending.
        argv = ["scontrol", "requeue", "Incomplete", exchange.job]
        subprocess.run(argv, check=True, timeout=WAIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"that was refused: {error}")
        return False
    return True


def leave_without_gpus(exchange: Exchange | None, signals: Signals, say: Say) -> None:
    """In the process that keeps the files of a training: where Slurm gave no GPU, ask for another
    start and raise LeftOnTerm. Where that cannot be had it is said, and the training goes on."""
    if exchange is None or signals.leave or not given_none(exchange):
        return
    if not another_start(exchange, GAVE_NONE, say, at_first=True):
        say(f"{GAVE_NONE}; scontrol requeue {exchange.job} gives it another start")
        return
    end = time.monotonic() + WAIT_S
    while not signals.leave and time.monotonic() < end:
        time.sleep(_LOOK_S)
    raise LeftOnTerm
