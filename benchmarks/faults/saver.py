"""A training in a forked process that stops itself, or dies, at a named point of a save or a move.

Points are the statements by which the training changes files or reads its plan: found by an audit
hook of Python and by standing in for ``os.fsync`` and for the stream that PyTorch writes to, which
no event tells of.
"""

import json
import os
import re
import runpy
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slurm_hadar
from benchmarks.faults.planted_saves import CHECKPOINT, SAVE_FAULTS

ROOT = Path(__file__).parents[2]
LINEAGE = "lineage.json"
EXCHANGE, JOB, WISH = "exchange", "12", "f00d"
"""An attempt has an exchange folder where its folder has one of this name; the nonce with which the
first attempt of the job is asked to save there."""
SAMPLES, BATCH, SIZE = 200, 50, 1500
"""Four saves: without a checkpoint before, with one, with two, and at the end."""
_PACKAGE = str(Path(slurm_hadar.__file__).parent) + os.sep
_CHANGES = ("os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.chmod")
_RANDOM = re.compile(r"[0-9a-f]{16}")
_ATTEMPT = re.compile(r"\d+\.\d+\.\d+\.R")


@dataclass(frozen=True)
class Attempt:
    """One attempt of the training in ``folder``. ``restarts``: Slurm's count; ``at``: the point
    before which it sends itself ``by``, "": none; ``log``: a file for its points, None: none;
    ``plant``: a fault in the runtime."""

    folder: Path
    restarts: int
    at: str = ""
    by: signal.Signals = signal.SIGSTOP
    log: Path | None = None
    plant: str | None = None


def fork(attempt: Attempt) -> int:
    """Start the attempt in a process of its own; its process ID.

    Forked, since to import PyTorch takes longer than the training: the caller must have one thread
    only.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = _run(attempt)
    finally:
        os._exit(code)


def _run(attempt: Attempt) -> int:
    """The training itself; the exit code that an interpreter of its own would end with."""
    output = os.open(attempt.folder / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    folder = attempt.folder
    _environment(attempt)
    if attempt.plant:
        SAVE_FAULTS[attempt.plant].put()
    points = Points(attempt)
    points.watch()
    if not attempt.restarts and (folder / EXCHANGE).exists():
        _move(points, folder / EXCHANGE)
    sys.argv = ["train_digits.py", "--batch", str(BATCH), "--samples", str(SAMPLES), "--every", "0"]
    sys.argv += ["--checkpoint", f"{folder}/{CHECKPOINT}", "--lineage", f"{folder}/{LINEAGE}"]
    sys.argv += ["--data", f"{folder.parent}/digits.npy"]
    try:
        runpy.run_path(str(ROOT / "examples" / "train_digits.py"), run_name="__main__")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _environment(attempt: Attempt) -> None:
    for name in [one for one in os.environ if one.startswith(("SLURM", "HADAR", "PMI"))]:
        del os.environ[name]
    os.environ |= {"SLURM_JOB_ID": JOB, "SLURM_RESTART_COUNT": str(attempt.restarts)}
    if (attempt.folder / EXCHANGE).exists():
        os.environ["HADAR_EXCHANGE"] = str(attempt.folder / EXCHANGE)


def _move(points: "Points", folder: Path) -> None:
    """Move this attempt: when it first tells its progress it is asked to save, by its plan and the
    signal, as a controller does; when it has answered it gets TERM, as Slurm sends it."""
    from slurm_hadar.exchange.job_side import Exchange
    from slurm_hadar.exchange.plan_file import JobPlan, write_plan

    write = Exchange.tell
    sent: set[signal.Signals] = set()

    def write_and_signal(self: Exchange, state: Any) -> None:
        write(self, state)
        wanted = signal.SIGUSR2 if state.ack is None else signal.SIGTERM
        if wanted in sent:
            return
        sent.add(wanted)
        if wanted == signal.SIGUSR2:
            with points.unnoted():
                write_plan(folder, JobPlan(JOB, save=WISH))
        signal.raise_signal(wanted)

    setattr(Exchange, "tell", write_and_signal)  # noqa: B010


class Points:
    """Writes each point to the attempt's log, and sends the signal before the one named ``at``.

    A point is named by the function of the runtime, by what it does to which file, and by how often
    that came.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt, self._folder = attempt, str(attempt.folder)
        self._log = attempt.log.open("a", buffering=1) if attempt.log else None
        self._seen: Counter[str] = Counter()
        self._noted = True

    @contextmanager
    def unnoted(self) -> Iterator[None]:
        """What is done inside belongs to others."""
        self._noted = False
        try:
            yield
        finally:
            self._noted = True

    def watch(self) -> None:
        """From now on."""
        import torch

        sync, save = os.fsync, torch.save

        def noted_sync(handle: Any) -> None:
            self._touch("os.fsync", Path(f"/proc/self/fd/{handle}").readlink())
            sync(handle)

        def noted_save(content: Any, stream: Any) -> None:
            save(content, _Noted(stream, lambda: self._touch("write", stream.name)))

        vars(os)["fsync"], vars(torch)["save"] = noted_sync, noted_save
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: tuple[object, ...]) -> None:
        opens = event == "open" and (_writes(arguments[1], arguments[2]) or _is_plan(arguments[0]))
        if not (opens or event in _CHANGES):
            return
        paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
        self._touch(event, *(one for one in paths if isinstance(one, str | bytes | os.PathLike)))

    def _touch(self, what: str, *paths: "str | bytes | os.PathLike[Any]") -> None:
        if not self._noted:
            return
        places = [os.fsdecode(one) for one in paths]
        ours = _function()
        if ours is None or not (ours.startswith("attempts.py") or _below(places, self._folder)):
            return
        name = " ".join([ours, what, *(_plain(place, self._folder) for place in places)])
        self._seen[name] += 1
        name = f"{name} #{self._seen[name]}"
        if self._log is not None:
            self._log.write(json.dumps(name) + "\n")
        if name == self._attempt.at:
            # This very thread: another one that is stopped first would let it go on.
            signal.pthread_kill(threading.get_ident(), self._attempt.by)


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wxa+")
    return isinstance(flags, int) and flags & os.O_ACCMODE != os.O_RDONLY


def _is_plan(path: object) -> bool:
    return not isinstance(path, int) and str(path).endswith(f"/plan.{JOB}.json")


def _below(places: list[str], folder: str) -> bool:
    return any(place.startswith(folder) for place in places)


def _plain(place: str, folder: str) -> str:
    """The path in the folder, without what differs from run to run."""
    inside = place.removeprefix(folder).lstrip("/") or "."
    return _ATTEMPT.sub("ATTEMPT", _RANDOM.sub("R", inside))


def _function() -> str | None:
    """``attempts.py _remove``: the function of the runtime that is at work, if any."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            return f"{Path(name).name} {frame.f_code.co_name}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


class _Noted:
    """A stream that tells of each write."""

    def __init__(self, stream: Any, note: Callable[[], None]) -> None:
        self._stream, self._note = stream, note

    def write(self, data: bytes) -> int:
        """Hand the bytes on."""
        self._note()
        written: int = self._stream.write(data)
        # Else Python would hold back what was written until the file is closed.
        self._stream.flush()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
