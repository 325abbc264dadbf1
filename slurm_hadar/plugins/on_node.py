"""What the prolog, the epilog and the task prolog run on compute nodes, as the job's own user.

The task prolog runs ``python -m slurm_hadar.plugins.on_node``; prolog and epilog, which slurmd
starts as root, ``slurm_hadar.plugins.on_node_as_job_user``. Whatever is wrong, it ends quietly with
0: no job and no node may suffer from it. The shell programs around it bound its time.
"""

import argparse
import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from slurm_hadar.exchange.job_side import host, in_step, job_id
from slurm_hadar.exchange.plan_file import JobPlan, read_plan
from slurm_hadar.folder_probe import asked
from slurm_hadar.profiles.gpu_sampling import GpuReader, SampledGpu, chosen
from slurm_hadar.profiles.gpu_sampling_files import NodeUse, new_path, own_uses, write_use
from slurm_hadar.profiles.gpu_sampling_watch import INTERVAL_S, SamplingThread

_WRITE_S = 60.0
_LONGEST_S = 31 * 86400.0
_LAST_WORDS_S = 2.0
_ANSWER_S = 2.0
"""Longest wait for the exchange folder: less than the shell programs give us, see
:data:`slurm_hadar.plugins.programs.SECONDS`."""
_VALUE = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_PATH = re.compile(r"/[A-Za-z0-9_./:-]{0,200}")
_PR_SET_DUMPABLE = 4
_OURS = b"slurm_hadar.plugins.on_node"
"""In the command line of each sampler, and of those that an older release started."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; 0 always."""
    with contextlib.suppress(Exception, SystemExit):
        parser = argparse.ArgumentParser(prog="on_node")
        parser.add_argument("step", choices=("prolog", "epilog", "task-prolog"))
        parser.add_argument("--exchange", type=Path, required=True)
        parser.add_argument("--uid", type=int, default=-1)
        words = parser.parse_args(argv)
        match words.step:
            case "prolog":
                _begin(words.exchange)
            case "epilog":
                _end(words.exchange)
            case _:
                folder, uid = words.exchange, words.uid
                lines = asked(
                    str(folder), lambda: task_output(folder, uid, os.environ).encode(), _ANSWER_S
                )
                sys.stdout.write(lines.decode())
                sys.stdout.flush()
                _start_watcher(folder)
    return 0


def task_output(folder: Path, uid: int, environment: Mapping[str, str]) -> str:
    """What a task prolog prints: the plan of this job as ``export NAME=value`` lines.

    A value that is more than letters, digits and ``_.:-`` is left out, since Slurm takes each line
    for a command. The exchange folder is the site's own word and may hold ``/`` too; it is exported
    where the job does not know it yet.
    """
    job = job_id(environment)
    plan = read_plan(folder, job, (uid, os.getuid())) if job else None
    if plan is None:
        return ""
    lines = [f"export {name}={value}\n" for name, value in _values(plan) if _VALUE.fullmatch(value)]
    if "HADAR_EXCHANGE" not in environment and _PATH.fullmatch(str(folder)):
        lines.append(f"export HADAR_EXCHANGE={folder}\n")
        if uid >= 0:
            lines.append(f"export HADAR_CONTROLLER_UID={uid}\n")
    return "".join(lines)


def _values(plan: JobPlan) -> Iterator[tuple[str, str]]:
    if plan.gpus:
        yield "HADAR_PLAN_GPUS", str(sum(plan.gpus.values()))
        yield "HADAR_PLAN_TYPE", next(iter(plan.gpus)) if len(plan.gpus) == 1 else "mixed"
    if plan.batch is not None:
        yield "HADAR_PLAN_BATCH", str(plan.batch)
    yield "HADAR_PLAN_COPIES", str(plan.copies)
    if plan.shares:
        yield "HADAR_PLAN_SHARES", ":".join(f"{share:.6g}" for share in plan.shares)
    if plan.cpus_per_gpu is not None:
        yield "HADAR_PLAN_CPUS_PER_GPU", f"{plan.cpus_per_gpu:g}"


def _begin(folder: Path) -> None:
    """Start a sampler that stays, unless this node or this job has no GPU."""
    from slurm_hadar.profiles.gpu_sampling import NoGpuDriver
    from slurm_hadar.profiles.gpu_sampling_watch import open_gpus

    job = _number()
    _keep_closed()
    if not job or os.fork():
        return
    # The child: in a session of its own, since slurmd ends the prolog's when the prolog is done.
    try:
        os.setsid()
        os.chdir("/")
        os.nice(19)
        with contextlib.suppress(NoGpuDriver):
            reader = open_gpus()
            if gpus := chosen(reader.gpus(), os.environ):
                sample(folder, job, reader, gpus)
    finally:
        os._exit(0)


def _start_watcher(folder: Path) -> None:
    """Beside the batch script of a job with ``checkpoint=watch:PATH`` or ``progress``: start what
    reports its checkpoints and progress, as the job's user and within the job. It ends with the
    batch step."""
    job = _number()
    declares = os.environ.get("HADAR_CHECKPOINT", "").startswith("watch:")
    declares = declares or "HADAR_PROGRESS" in os.environ
    if not (declares and job) or in_step(os.environ):
        return
    step, task = _step_daemon(job)
    if not step or os.fork():
        return
    try:
        os.setsid()
        # Slurm reads what the task prolog prints to its end.
        null = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(null, handle)
        os.nice(19)
        os.environ.setdefault("HADAR_EXCHANGE", str(folder))
        from slurm_hadar.runtime import watch

        watch.run([], lambda: _command_line(step).startswith(_daemon_of(job)), task)
    finally:
        os._exit(0)


def _step_daemon(job: str) -> tuple[int, int]:
    """The slurmstepd that this process descends from, and its child, which bears its name until it
    becomes the task; (0, 0): none."""
    pid, step, task = os.getpid(), 0, 0
    while pid > 1:
        if _command_line(pid).startswith(_daemon_of(job)):
            step, task = pid, task or pid
        try:
            # The name in brackets may hold anything.
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return step, task


def _keep_closed() -> None:
    """Let no debugger of the same user in, also where slurmd's user is not root: this process may
    be outside of the job's cgroup, so foreign code in it would see all GPUs and outlive the job."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def sample(folder: Path, job: str, reader: GpuReader, gpus: Sequence[SampledGpu]) -> None:
    """Look at a job's GPUs until TERM, until its file is taken away, or until the job is gone.

    Raises OSError where the file cannot be written.
    """
    here = host()
    for path, _ in own_uses(folder, job, here, os.getuid()):
        path.unlink(missing_ok=True)
    path = new_path(folder, job)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    begin, seen = time.monotonic(), False
    with SamplingThread(reader, gpus, INTERVAL_S) as watch:

        def tell(finished: bool) -> None:
            uses = tuple(watch.uses())
            write_use(path, NodeUse(job, here, os.getpid(), time.time(), finished, uses))

        tell(finished=False)
        while not stop.wait(_WRITE_S):
            there = _has_step(job)
            if (seen and not there) or time.monotonic() - begin > _LONGEST_S:
                break
            seen = seen or there
            if watch.problem or not path.exists():
                break
            tell(finished=False)
    if path.exists():
        tell(finished=True)
    reader.close()


def _has_step(job: str) -> bool:
    """Whether a slurmstepd of the job runs here. For where no epilog ends the sampler."""
    begins = _daemon_of(job)
    with os.scandir("/proc") as entries:
        return any(
            _command_line(int(entry.name)).startswith(begins)
            for entry in entries
            if entry.name.isdecimal()
        )


def _daemon_of(job: str) -> bytes:
    """How the command line of each slurmstepd of a job begins."""
    return f"slurmstepd: [{job}.".encode()


def _end(folder: Path) -> None:
    """End the sampler of this job on this node, and give it time for its last sample."""
    job = _number()
    if not job:
        return

    def running() -> bytes:
        uses = own_uses(folder, job, host(), os.getuid())
        return b" ".join(b"%d" % use.pid for _, use in uses if not use.finished and use.pid > 1)

    found = map(int, asked(str(folder), running, _ANSWER_S).split())
    ours = [pid for pid in found if _OURS in _command_line(pid)]
    for pid in ours:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _LAST_WORDS_S
    while time.monotonic() < until and any(_OURS in _command_line(pid) for pid in ours):
        time.sleep(0.05)


def _number() -> str:
    """Slurm's own number of the job, an array's task included; empty for what is no number.

    A prolog does not learn which task of which array it stands before.
    """
    number = os.environ.get("SLURM_JOB_ID", "")
    return number if number.isascii() and number.isdecimal() else ""


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main())
