"""``python -m slurm_hadar.runtime.watch [PATH]``: report when a training has saved by itself, and
how far it is, by what it prints or by files that it writes.

For jobs with ``checkpoint=watch:PATH`` or ``progress=PATTERN``, whose code knows nothing of us. It
runs beside the training as the job's user, started by the task prolog or by one line in the script,
and writes the progress file of the job: the controller reads no folder of a user. It only looks,
and stops no training.
"""

import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurm_hadar.domain.declaration import parse
from slurm_hadar.domain.declaration_values import PROGRESS, PROGRESS_FILES
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.exchange.job_side import Exchange, host, in_step
from slurm_hadar.exchange.progress import Progress, Saved
from slurm_hadar.runtime.found_files import MOST, TooMuch, found
from slurm_hadar.runtime.meter import SampleCount
from slurm_hadar.runtime.scalar_files import ScalarFileProgress

LOOK_S = 2.0
STABLE_S = 3.0
"""What has not changed for so long is whole."""
_KEPT_ALIVE = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)
"""Meant for the training; a signal to the batch shell's children reaches this process too."""

Seen = tuple[tuple[str, int, int], ...]
"""Name, mtime in ns and size of each file that belongs to a checkpoint."""
_MOST_BYTES = 1 << 20
"""Of what a training prints, read at one look; of more the end."""
_LONGEST = 4096
"""Characters of a line that are looked at."""
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,6})?(?:[eE]\+?[0-9]{1,2})?)"
_MOST_SAMPLES = 10**15


class Newest:
    """The newest whole checkpoint at a path, from look to look.

    Whole: nothing that matches has changed for ``stable_s``, by this process's own clock, and it is
    not empty. A checkpoint counts from the last look before its first change, so from before it was
    begun where it is written in its place.
    """

    def __init__(self, pattern: Path, stable_s: float = STABLE_S) -> None:
        self._pattern, self._stable_s = pattern, stable_s
        self._seen: Seen | None = None
        self._looked_s = self._changed_s = self._since_s = 0.0
        self._newest_ns = 0
        self.saved: Saved | None = None
        """None: there is none, or one is being written."""
        self.whole_s: float | None = None
        """When there was one at the last look that saw one, s since the epoch."""

    def look(self, now: float, clock: float) -> Saved | None:
        """``now``: s since the epoch; ``clock``: monotonic s. Raises :class:`TooMuch`."""
        seen = tuple(sorted(found(self._pattern)))
        newest_ns = max((mtime for _, mtime, _ in seen), default=0)
        first = self._seen is None
        if first or seen != self._seen:
            if first:
                # From before this attempt, as far as is known.
                self._since_s = min(now, newest_ns / 1e9)
            elif self.saved is not None or not self._seen:
                self._since_s = self._looked_s
            self._changed_s, self._seen, before = clock, seen, self.saved
            only_removed = not first and newest_ns == self._newest_ns and before is not None
            if only_removed and before is not None:
                self._since_s = before.time
            self._newest_ns, self.saved = newest_ns, None
        if any(size for _, _, size in seen) and clock - self._changed_s >= self._stable_s:
            took_s = max(0.0, self._newest_ns / 1e9 - self._since_s)
            self.saved = self.saved or Saved(0, self._since_s, took_s)
        self._looked_s = now
        self.whole_s = self.whole_s if self.saved is None else now
        return self.saved


def path_of(words: Sequence[str], environment: Mapping[str, str]) -> Path:
    """The path to watch: the first word, else what the job declared; ``%j``, ``%A`` and ``%a`` are
    replaced as by sbatch. Raises :class:`UsageError`."""
    text = f"watch:{words[0]}" if words else environment.get("HADAR_CHECKPOINT", "")
    declared = parse([f"checkpoint={text}"] if text else [], "watch")
    if declared.habit != "watch":
        raise UsageError("no path: name one, or declare checkpoint=watch:PATH or progress=PATTERN")
    return _resolved(declared.checkpoint.partition(":")[2], environment)


def _resolved(path: str, environment: Mapping[str, str]) -> Path:
    numbers = {
        "%j": environment.get("SLURM_JOB_ID", ""),
        "%A": environment.get("SLURM_ARRAY_JOB_ID", environment.get("SLURM_JOB_ID", "")),
        "%a": environment.get("SLURM_ARRAY_TASK_ID", ""),
    }
    path = re.sub(
        "%[jAa]", lambda match: re.sub("[^0-9]", "", numbers[match[0]]), path, flags=re.ASCII
    )
    return Path.cwd() / path


def progress_of(environment: Mapping[str, str], task: int) -> SampleCount | None:
    """What the job declared to show how far it is: files, or the output of process ``task``; None
    where it did not. Raises :class:`UsageError`."""
    text = environment.get("HADAR_PROGRESS")
    if not text:
        return None
    declared = parse([f"progress={text}"], "watch").progress
    if files := re.fullmatch(PROGRESS_FILES, declared, re.ASCII):
        return ScalarFileProgress(declared, _resolved(files["path"], environment))
    return LogProgress(LinePattern(declared), output_of(task))


def watch(
    exchange: Exchange,
    path: Path | None,
    alive: Callable[[], bool],
    shown: SampleCount | None = None,
    look_s: float = LOOK_S,
) -> None:
    """Look and tell until the job is gone. ``path``: None where no checkpoint is watched."""
    newest, started, last = Newest(path) if path is not None else None, time.time(), None
    while alive() and not (shown is None and newest is None):
        # Where the one is too much, the other is watched all the same.
        try:
            if shown is not None:
                shown.look()
        except TooMuch as error:
            print(f"hadar: more than {MOST} files at {error}; not read", file=sys.stderr)
            shown = None
        saved = None
        try:
            if newest is not None:
                saved = newest.look(time.time(), time.monotonic())
        except TooMuch as error:
            print(f"hadar: more than {MOST} files at {error}; not watched", file=sys.stderr)
            newest = None
        if exchange.due() or saved != last:
            exchange.tell(_report(exchange, newest, started, shown))
        last = saved
        time.sleep(look_s)


def _report(
    exchange: Exchange, newest: Newest | None, started: float, shown: SampleCount | None
) -> Progress:
    rate, window_s = shown.rate if shown is not None else (0.0, 0.0)
    return Progress(
        job=exchange.job,
        time=time.time(),
        restarts=exchange.restarts,
        host=host(),
        pid=os.getpid(),
        in_step=in_step(os.environ),
        started=started,
        model="",
        samples=shown.samples if shown is not None else 0,
        rate=rate,
        window_s=window_s,
        batch=0,
        gpus=0,
        checkpoint=newest.saved if newest is not None else None,
        whole_s=newest.whole_s if newest is not None else None,
    )


def run(words: Sequence[str], alive: Callable[[], bool], task: int) -> int:
    """Watch as declared; 2 where nothing is, 0 otherwise, also without a controller. ``task``: the
    process whose output is the job's."""
    for number in _KEPT_ALIVE:
        signal.signal(number, signal.SIG_IGN)
    try:
        shown = progress_of(os.environ, task)
        unwatched = not os.environ.get("HADAR_CHECKPOINT", "").startswith("watch:")
        path = None if shown and unwatched and not words else path_of(words, os.environ)
    except UsageError as error:
        print(f"hadar: {error}", file=sys.stderr)
        return 2
    exchange = Exchange.from_env(lambda text: print(f"hadar: {text}", file=sys.stderr))
    if exchange is not None:
        watch(exchange, path, alive, shown)
    return 0


def main() -> int:
    """Entry point: it ends with the process that started it."""
    parent = os.getppid()
    if parent == 1 and os.getsid(0) > 1:
        # It ended before this program had begun, and init has taken this one over.
        return 0
    return run(sys.argv[1:], lambda: os.getppid() == parent, parent)


class LinePattern:
    """A declared ``progress``: text with ``*`` for anything and one number that counts.

    Each piece is looked for behind the one before, so a line takes time in proportion to its
    length. Raises ValueError for what is no such pattern.
    """

    def __init__(self, text: str) -> None:
        match = re.fullmatch(PROGRESS, text, re.ASCII)
        if match is None:
            raise ValueError(text)
        self._unit = int(match["unit"] or 1)
        before, after = match["before"].split("*"), match["after"].split("*")
        left, right = before.pop(), after.pop(0)
        self._before: list[str] = before
        self._after: list[str] = after
        # Without text in front no number begins in the middle of another.
        begin = re.escape(left) or r"(?<![0-9.])"
        self._counts = re.compile(begin + _NUMBER + re.escape(right))

    def samples(self, line: str) -> int | None:
        """What the line says, in samples; None where it does not match."""
        at = 0
        for piece in self._before:
            at = line.find(piece, at)
            if at < 0:
                return None
            at += len(piece)
        found = self._counts.search(line, at)
        if found is None:
            return None
        at = found.end()
        for piece in self._after:
            at = line.find(piece, at)
            if at < 0:
                return None
            at += len(piece)
        value = float(found[1]) * self._unit
        return int(value) if value <= _MOST_SAMPLES else None


class LogProgress(SampleCount):
    """The newest count in a growing file, such as the job's own output, and its rate. What was
    there before is not read."""

    def __init__(self, pattern: LinePattern, log: Path) -> None:
        super().__init__()
        self._pattern, self._log = pattern, log
        self._at: int | None = None
        self._rest = ""

    def look(self) -> None:
        """Read what was printed since the last look. A file that cannot be read says nothing."""
        lines = re.split(r"[\r\n]", self._rest + self._new().decode(errors="replace"))
        self._rest = lines.pop()[:_LONGEST]
        counts = [self._pattern.samples(line[:_LONGEST]) for line in lines]
        last = next((count for count in reversed(counts) if count is not None), None)
        if last is not None:
            self.note(last)

    def _new(self) -> bytes:
        try:
            # A pipe or a terminal is not to be read: its reader would miss that.
            if not stat.S_ISREG(self._log.stat().st_mode):
                return b""
            with self._log.open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if self._at is None:
                    self._at = size
                elif self._at > size:
                    self._at = 0
                stream.seek(max(self._at, size - _MOST_BYTES))
                found = stream.read(_MOST_BYTES)
                self._at = stream.tell()
                return found
        except OSError:
            return b""


def output_of(process: int) -> Path:
    """The output file of a process, under a name that is right as long as it runs."""
    return Path(f"/proc/{process}/fd/1")


if __name__ == "__main__":
    sys.exit(main())
