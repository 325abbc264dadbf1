"""Trials of saves: a training is stopped, or killed, before every statement that changes files.

In one scene it is moved: asked to save, it answers and gets TERM. A stopped one is continued when
the next attempt has completed the training. No Slurm takes part.
"""

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.digits import write_digits
from benchmarks.faults.planted_saves import CHECKPOINT, SAVE_FAULTS
from benchmarks.faults.saver import EXCHANGE, JOB, LINEAGE, SAMPLES, SIZE, WISH, Attempt, fork
from slurm_hadar.controller.actuation.move_steps import acknowledged
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange import files
from slurm_hadar.exchange.progress import Progress, own_files, parse
from slurm_hadar.runtime.attempts import SUPERSEDED, attempts_folder, present
from slurm_hadar.runtime.leaving import LEFT_ON_TERM
from slurm_hadar.runtime.samples import check_lineage, from_plain

HOWS = ("stall", "kill")
SCENES = {"first": 0, "again": 1, "asked": 0}
"""The attempt that is stopped, and its restart count: the training's first one; one that comes
after an attempt that was killed in the middle of a save and left files; one that is moved."""
TAKE_OVER_S = 10.0
"""In this time the next attempt must take over and complete the training, which needs 1 s."""
_LONGEST_S = 60.0
_LAST_STEP = f"publish os.rename .{CHECKPOINT}.attempts/ATTEMPT/R.{CHECKPOINT}"
_READS_PLAN = f"open {EXCHANGE}/plan.{JOB}.json"
_TIMES = 3
"""So many times one statement counts as a point of its own."""
_TRIED_AT = 2
"""Points at which a planted fault is tried."""


@dataclass(frozen=True)
class SavePoint:
    """A statement of an attempt of a scene that changes files."""

    scene: str
    at: str

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.scene} attempt, {self.at}"


@dataclass(frozen=True)
class SaveCase:
    """A training that is stopped or killed at a point. ``how``: one of :data:`HOWS`; ``plant``: a
    fault in the runtime."""

    point: SavePoint
    how: str
    plant: str | None = None

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.point.name}, {self.how}"


@dataclass
class SaveFound:
    """What a trial came to. ``code``: exit code of the attempt; ``next_s``: how long the next one
    took; ``wrong``: sentences, empty where all held."""

    reached: bool = False
    code: int | None = None
    next_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def exit_fault(code: int | None, *, completed: bool, end: int = 0) -> str | None:
    """What is wrong with the exit code of an attempt that was continued after another took over.

    ``completed``: whether all that it had to save was in the checkpoint when it stopped; then it
    may ``end`` as one that was not stopped.
    """
    if code == SUPERSEDED or (completed and code == end):
        return None
    return f"the stale attempt ended with exit code {code}, expected {SUPERSEDED}"


def left_over(names: Sequence[str], newest: str) -> list[str]:
    """Of the paths in a training's folder those that should not be there. ``newest``: the name of
    the newest attempt."""
    folder = attempts_folder(Path(CHECKPOINT)).name
    kept = {CHECKPOINT, f"{CHECKPOINT}.previous", LINEAGE, "out", folder}
    # A rename does nothing where the older checkpoint has both names already.
    kept |= {f"{folder}/{newest}{name}" for name in ("", "/owner", "/previous")}
    # In the exchange folder an aside of a killed writer stays, as in any folder of many users.
    return sorted(one for one in set(names) - kept if one.split("/")[0] != EXCHANGE)


def answer_faults(answers: Sequence[Progress], saved: int) -> list[str]:
    """What is wrong with what attempts tell. ``saved``: samples in the published checkpoint."""
    move = {"restarts": 1, "save": WISH}
    entry = Entry(1, JOB, "move", "asked", 0.0, 0.0, move, None)
    wrong = []
    if any(acknowledged(entry, one) for one in answers):
        wrong.append("an answer counts for another attempt than was asked")
    if any(one.ack is not None and one.ack.samples > saved for one in answers):
        wrong.append("a wish to save was answered before it was saved")
    return wrong


class Saves:
    """Runs trials in processes that have PyTorch loaded, several at a time."""

    def __init__(self, folder: Path, pool: ProcessPoolExecutor) -> None:
        self._folder, self._pool, self._trials = folder, pool, 0
        self._named: dict[str, list[str]] = {}

    def points(self) -> list[SavePoint]:
        """The points of all scenes, in their order; makes what the trials begin from."""
        self._named = self._pool.submit(_prepare, self._folder).result()
        return [SavePoint(scene, at) for scene in SCENES for at in self._named[scene]]

    def planted(self, plant: str) -> list[SaveCase]:
        """Where a planted fault is tried, after :meth:`points`."""
        scene = SAVE_FAULTS[plant].scene
        points = [SavePoint(scene, at) for at in self._named[plant][:_TRIED_AT]]
        return [SaveCase(point, "stall", plant) for point in points]

    def run(
        self,
        some: Sequence[SaveCase],
        tell: Callable[[SaveCase, SaveFound], None] = lambda case, found: None,
    ) -> list[tuple[SaveCase, SaveFound]]:
        """Run every case; ``tell`` is called with each answer, in the order of the cases."""
        waiting: list[tuple[SaveCase, Future[SaveFound]]] = []
        for case in some:
            self._trials += 1
            waiting.append(
                (case, self._pool.submit(_trial, self._folder, f"t{self._trials}", case))
            )
        answers = []
        for case, future in waiting:
            answers.append((case, future.result()))
            tell(*answers[-1])
        return answers


@contextmanager
def saves(side_by_side: int) -> Iterator[Saves]:
    """Trials of saves in a folder that is removed at the end."""
    # Forked processes have the forking thread only, so no library may start more.
    before = dict(os.environ)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="hadar-saves-") as name,
            ProcessPoolExecutor(
                side_by_side, multiprocessing.get_context("spawn"), initializer=_load
            ) as pool,
        ):
            yield Saves(Path(name), pool)
    finally:
        os.environ.clear()
        os.environ |= before


def _load() -> None:
    import torch

    torch.set_num_threads(1)


def _prepare(folder: Path) -> dict[str, list[str]]:
    found = {}
    first, again, asked = (folder / scene for scene in SCENES)
    first.mkdir()
    write_digits(folder / "digits.npy")
    shutil.copytree(first, folder / "watched")
    found["first"] = _points_of(folder / "watched", 0)
    last = [name for name in found["first"] if _LAST_STEP in name][-1]
    again.mkdir()
    code = _wait(fork(Attempt(again, 0, last, signal.SIGKILL)), _LONGEST_S)
    if code != -signal.SIGKILL:
        raise HadarError(f"the training was not killed at {last}: it ended with {code}")
    shutil.copytree(again, folder / "watched again")
    found["again"] = _points_of(folder / "watched again", 1)
    (asked / EXCHANGE).mkdir(parents=True)
    shutil.copytree(asked, folder / "watched asked")
    names = _points_of(folder / "watched asked", 0, most=_TIMES + 1)
    wish = max(n for n, name in enumerate(names) if _READS_PLAN in name)
    # What comes before is the same as in the first scene, but for the progress file.
    found["asked"] = [one for n, one in enumerate(names) if n >= wish or f" {EXCHANGE}/" in one]
    for plant, fault in SAVE_FAULTS.items():
        shutil.copytree(folder / fault.scene, folder / plant)
        names = _points_of(folder / plant, SCENES[fault.scene], plant)
        found[plant] = [name for name in names if name.startswith(fault.at)]
    return found


def _points_of(
    folder: Path, restarts: int, plant: str | None = None, most: int = _TIMES
) -> list[str]:
    log = folder.parent / f"{folder.name}.log"
    code = _wait(fork(Attempt(folder, restarts, log=log, plant=plant)), _LONGEST_S)
    if code != _end_of(folder):
        raise HadarError(f"the training ended with {code}: {_said(folder)}")
    names = [str(json.loads(line)) for line in log.read_text().splitlines()]
    return [name for name in names if int(name.rsplit("#", 1)[1]) <= most]


def _end_of(folder: Path) -> int:
    """Exit code of an attempt that is not disturbed; one in an exchange folder is moved."""
    return LEFT_ON_TERM if (folder / EXCHANGE).exists() else 0


def _trial(scenes: Path, name: str, case: SaveCase) -> SaveFound:
    folder = scenes / name
    shutil.copytree(scenes / case.point.scene, folder)
    try:
        return _Trial(folder, case).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Trial:
    def __init__(self, folder: Path, case: SaveCase) -> None:
        self.folder, self.case = folder, case
        self.restarts = SCENES[case.point.scene]
        # Of one that is moved a save is all that it has to do.
        self.all_saved = SAMPLES if case.point.scene != "asked" else 1
        self.found = SaveFound()

    def run(self) -> SaveFound:
        stops, found = self.case.how == "stall", self.found
        with_signal = signal.SIGSTOP if stops else signal.SIGKILL
        stale = fork(
            Attempt(
                self.folder, self.restarts, self.case.point.at, with_signal, plant=self.case.plant
            )
        )
        found.code = _wait(stale, _LONGEST_S)
        found.reached = found.code == -with_signal
        if not found.reached:
            found.wrong.append(f"the point was not reached: the attempt ended with {found.code}")
            return found
        completed = _samples(self.folder) >= self.all_saved
        self._look_at_answers()
        went = self._next()
        self._look_at_answers()
        if stops:
            before = _published(self.folder)
            os.kill(stale, signal.SIGCONT)
            found.code = _wait(stale, _LONGEST_S)
            after = _published(self.folder)
            if went:
                changed = [one for one in before | after if before.get(one) != after.get(one)]
                found.wrong += [f"the stale attempt was continued and it changed {one}"
                                for one in sorted(changed)]  # fmt: skip
                fault = exit_fault(found.code, completed=completed, end=_end_of(self.folder))
                found.wrong += [f"{fault}: {_said(self.folder)}"] if fault else []
            self._look_at_answers()
        if went:
            self._look()
        return found

    def _look_at_answers(self) -> None:
        texts = [files.read_owned(path, {os.getuid()}) for path in
                own_files(self.folder / EXCHANGE, JOB, os.getuid())]  # fmt: skip
        answers = [one for one in (parse(text) for text in texts if text) if one]
        for fault in answer_faults(answers, _samples(self.folder)):
            if fault not in self.found.wrong:
                self.found.wrong.append(fault)

    def _next(self) -> bool:
        """Whether the next attempt completes the training in time."""
        began = time.monotonic()
        pid = fork(Attempt(self.folder, self.restarts + 1, plant=self.case.plant))
        code = _wait(pid, TAKE_OVER_S)
        self.found.next_s = time.monotonic() - began
        if code is None:
            self.found.wrong.append(f"the next attempt did not complete within {TAKE_OVER_S:g} s")
            os.kill(pid, signal.SIGKILL)
            _wait(pid, _LONGEST_S)
        elif code:
            said = _said(self.folder)
            self.found.wrong.append(f"the next attempt ended with exit code {code}: {said}")
        return code == 0

    def _look(self) -> None:
        """At what the last attempt left."""
        record = json.loads((self.folder / LINEAGE).read_text())
        rows = from_plain(record["segments"])
        fault = check_lineage(rows, SIZE, samples=SAMPLES, seed=0)
        if not fault and _samples(self.folder) != SAMPLES:
            fault = f"the checkpoint has {_samples(self.folder)} samples of {SAMPLES}"
        self.found.wrong += [f"the lineage is not exact: {fault}"] if fault else []
        names = [str(one.relative_to(self.folder)) for one in self.folder.rglob("*")]
        newest = max(present(self.folder / CHECKPOINT)).name
        self.found.wrong += [f"left over: {name}" for name in left_over(names, newest)]


def _wait(pid: int, seconds: float) -> int | None:
    """Exit code of the process, minus a signal that ended or stopped it; None: it runs still."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if done and os.WIFSTOPPED(status):
            return -os.WSTOPSIG(status)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def _published(folder: Path) -> dict[str, bytes]:
    names = (CHECKPOINT, f"{CHECKPOINT}.previous", LINEAGE)
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


def _samples(folder: Path) -> int:
    """Samples in the lineage of the published checkpoint, 0 without one."""
    from slurm_hadar.runtime import checkpoint

    try:
        content = checkpoint.read(folder / CHECKPOINT, lazy=True)
    except FileNotFoundError:
        return 0
    return int(json.loads(content["state"])["samples"])


def _said(folder: Path) -> str:
    return (folder / "out").read_text(errors="replace")[-300:].strip()


def summary(answers: Sequence[tuple[SaveCase, SaveFound]]) -> list[str]:
    """A line for each way in which attempts were disturbed."""
    lines = []
    for how in HOWS:
        some = [(case, found) for case, found in answers if case.how == how]
        if not some:
            continue
        broken = sum(bool(found.wrong) for _, found in some)
        points = len({case.point for case, _ in some})
        codes = [found.code for _, found in some]
        left = codes.count(0) + codes.count(LEFT_ON_TERM)
        longest = max(found.next_s for _, found in some)
        ended = f"; {codes.count(SUPERSEDED)} ended with {SUPERSEDED}" if how == "stall" else ""
        ended += f", {left} had nothing left to write" if how == "stall" else ""
        lines.append(
            f"saves, {how}: {len(some)} trials at {points} points, {broken} broke a promise"
            f"{ended}; the next attempt completed within {longest:.1f} s"
        )
    return lines


def caught(answers: Sequence[tuple[SaveCase, SaveFound]]) -> dict[str, str | None]:
    """Planted fault -> the sentence that caught it, None: it was not caught."""
    wrong: dict[str, list[str]] = {plant: [] for plant in SAVE_FAULTS}
    for case, found in answers:
        wrong[case.plant or ""] += found.wrong
    return {plant: SAVE_FAULTS[plant].reported_by(said) for plant, said in wrong.items()}
