"""The jobs of a soak: what is submitted, and how each writes down that it began."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.runtime.samples import check_lineage, from_plain
from slurm_hadar.sandbox.cluster import Sandbox

ROOT = Path(__file__).parents[2]
DIGITS = "digits.npy"
"""What the trainings read, in the folder of the soak."""
MODEL = "paced"
SPEEDS = {"v100": 160.0, "p100": 110.0, "k80": 80.0}
"""Samples/s of one GPU."""
HOSTILE = {"understated": 1, "false rates": 1, "never saves": 1, "refuses": 1}
"""Jobs of users who mean no good: a training that declares a twentieth of its work, one that
reports false rates and saves that never were, one that ignores each request to save, and one that
asks Slurm to requeue it as soon as it starts, twice."""
KINDS = {
    "training": 6,
    "plain": 4,
    "copies": 2,
    "idle nodes": 2,
    "array": 2,
    **HOSTILE,
    "ordinary": 4,
}
"""Kind -> weight in the draw. All but the last go through hbatch and opt in."""
TRAINS = ("training", "copies", "idle nodes", "understated")
"""The kinds that train, with our runtime; the others sleep."""

_BEGIN = """#!/bin/bash
{declared}
name={folder}/{name}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
where="$SLURMD_NODENAME ${{EPOCHREALTIME/,/.}}"
exec 9>>$name.lock
flock -n 9 || echo "twice $where" >> $name.starts
flock -w 5 -s 9
echo "${{SLURM_RESTART_COUNT:-0}} $where" >> $name.starts
[ -n "$SLURM_JOB_GPUS" ] || echo "bare $where" >> $name.starts
"""
"""The lock is shared by all who run, so that a third attempt meets the second one too."""
_TRAIN = """exec {python} {root}/benchmarks/soak/noted.py {folder}/{name}.ends \\
  {root}/benchmarks/small_torch.py {root}/examples/train_digits.py --model {model} --batch 8 \\
  --samples {samples} --every 5 --checkpoint {folder}/{name}.pt --data {folder}/{digits} \\
  --lineage {folder}/{name}.json
"""
_COPIES = """trap '' USR2
exec {python} -m slurm_hadar.runtime.copies_launch -- \\
  {python} {root}/benchmarks/soak/noted.py {folder}/{name}.ends \\
  {root}/benchmarks/small_torch.py {root}/examples/train_copies.py \\
  --model {model} --batch 8 --samples {samples} --round 2 --lr 0.02 \\
  --checkpoint {folder}/{name}.pt --data {folder}/{digits} --lineage {folder}/{name}.json
"""
_SLEEP = "exec sleep {seconds:.1f}\n"
_LIE = "exec {python} {root}/benchmarks/soak/liar.py {seconds:.1f}\n"
_DEAF = "trap '' USR1 USR2 TERM\n"
_REFUSE = """if [ "${{SLURM_RESTART_COUNT:-0}}" -lt 2 ]; then
  scontrol requeue $SLURM_JOB_ID 9>&- && sleep 60 9>&-
fi
"""
"""Without the lock: Slurm's proctrack/linuxproc may miss what a script forks while it is killed."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One submission. ``tasks``: of an array, else 1. ``samples``: 0 for what trains nothing."""

    name: str
    kind: str
    tasks: int
    samples: int

    @property
    def managed(self) -> bool:
        """Whether it opted in."""
        return self.kind != "ordinary"

    @property
    def any_gpu(self) -> bool:
        """Whether it takes one GPU of any node, from the moment of its submit on."""
        return self.kind not in ("copies", "idle nodes")

    @property
    def most_nodes(self) -> int:
        """What it may run on at a time; see what ``script`` declares."""
        return 2 if self.kind in ("copies", "idle nodes") else 1


def draw(random_: random.Random, number: int, kind: str = "") -> Sent:
    """The next submission; without a ``kind`` one by weight."""
    kind = kind or random_.choices(list(KINDS), list(KINDS.values()))[0]
    samples = random_.randrange(1600, 4800, 8) if kind in TRAINS else 0
    return Sent(f"soak{number}", kind, random_.randrange(2, 5) if kind == "array" else 1, samples)


def training(number: int) -> Sent:
    """One that trains for 20 s on the fastest GPU."""
    return Sent(f"soak{number}", "training", 1, 3200)


def script(folder: Path, sent: Sent, seconds: float) -> str:
    """The batch script of a submission. ``seconds``: of a job that sleeps."""
    # By name: with any type the controller may leave one out that is measured as far slower, and
    # one of the jobs reports false rates.
    types = ",".join(SPEEDS)
    declared = f"#HADAR model={MODEL} types={types} batch=8 samples={sent.samples} checkpoint=yes"
    text = _BEGIN + (_SLEEP if not sent.samples else _COPIES)
    match sent.kind:
        case "training":
            text, declared = _BEGIN + _TRAIN, f"{declared} gpus=1"
        case "understated":
            text = _BEGIN + _TRAIN
            declared = declared.replace(f"={sent.samples} ", f"={sent.samples // 20} ") + " gpus=1"
        case "false rates":
            text, declared = _BEGIN + _LIE, declared.replace("=0 ", "=4000 ") + " gpus=1"
        case "never saves":
            text = _BEGIN + _DEAF + _SLEEP
            declared = declared.replace("=0 ", "=4000 ") + " gpus=1"
        case "refuses":
            text, declared = _BEGIN + _REFUSE + _SLEEP, "#HADAR types=any gpus=1"
        case "copies":
            declared += " fork=1-2"
        case "idle nodes":
            declared += " backfill=yes nodes=1-2 restart_cost=2"
        case "ordinary":
            declared = "# nothing is declared"
        case _:
            declared = "#HADAR types=any gpus=1"
    return text.format(
        declared=declared, folder=folder, name=sent.name, python=sys.executable, root=ROOT,
        model=MODEL, samples=sent.samples, seconds=seconds, digits=DIGITS,
    )  # fmt: skip


def submit(box: Sandbox, folder: Path, sent: Sent, seconds: float) -> str:
    """Hand it to hbatch or sbatch; why it was refused, or "". ``seconds``: of a job that sleeps."""
    bin_ = Path(sys.executable).parent
    words = [f"--job-name={sent.name}", "--gres=gpu:1", f"--output={folder}/{sent.name}.out"]
    words += ["--open-mode=append"]
    if sent.kind == "idle nodes":
        words += ["--partition=idle"]
    if sent.kind in ("copies", "idle nodes"):
        words += ["--ntasks-per-node=1"]
    if sent.tasks > 1:
        words += [f"--array=0-{sent.tasks - 1}"]
    path = folder / f"{sent.name}.sh"
    path.write_text(script(folder, sent, seconds))
    wrapper = "sbatch" if sent.kind == "ordinary" else str(bin_ / "hbatch")
    if sent.kind == "ordinary":
        wrapper = str(box.programs.bin_dir / wrapper)
    env = {**os.environ, **box.env, "HADAR_PROGRESS_S": "0.5", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [wrapper, "--parsable", *words, str(path)],
            env=env, cwd=folder, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "no answer within 90 s"
    return "" if done.returncode == 0 else done.stderr.strip()[-200:] or "refused"


@dataclass(frozen=True, slots=True)
class Start:
    """A line that a job wrote when it began. ``word``: its restart count; ``twice`` before it where
    another attempt still ran, ``bare`` after it where it had no GPU. ``at_s``: since the epoch."""

    word: str
    node: str
    at_s: float

    @property
    def counts(self) -> bool:
        """Whether it is the start itself, and not a remark about it."""
        return self.word not in ("twice", "bare")


def starts(folder: Path, name: str) -> list[Start]:
    """What a job wrote when it began, each time."""
    try:
        lines = (folder / f"{name}.starts").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [Start(word, node, float(at_s)) for word, node, at_s in map(str.split, lines)]


@dataclass(frozen=True, slots=True)
class Ended:
    """A line that a training process wrote when it ended by itself. ``at_s``: since the epoch."""

    pid: int
    code: int
    at_s: float


def ends(folder: Path, name: str) -> list[Ended]:
    """How the processes of a training ended, but for those that were killed."""
    try:
        lines = (folder / f"{name}.ends").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [Ended(int(pid), int(code), float(at_s)) for pid, code, at_s in map(str.split, lines)]


def inexact(folder: Path, sent: Sent) -> str:
    """Why the lineage of a training that completed is not exact, or ""."""
    try:
        record = json.loads((folder / f"{sent.name}.json").read_text())
    except (OSError, ValueError) as error:
        return f"it left no lineage ({error})"
    rows = from_plain(record["segments"])
    return check_lineage(rows, record["dataset_size"], samples=sent.samples, seed=0) or ""


def last_words(folder: Path, names: Sequence[str], most: int = 400) -> str:
    """The end of a job's own output."""
    for name in names:
        path = folder / f"{name}.out"
        if path.exists():
            return path.read_text(errors="replace")[-most:].strip()
    return ""
