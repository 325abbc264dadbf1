"""Everything that makes a training resume, in one checkpoint: parts, random state, position."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar.domain.errors import HadarError, UsageError
from slurm_hadar.exchange.job_side import job_id, restarts
from slurm_hadar.exchange.progress import Progress, Saved
from slurm_hadar.runtime import checkpoint, finite, samples
from slurm_hadar.runtime.attempts import Attempt, AttemptId, Superseded
from slurm_hadar.runtime.ranks import Ranks
from slurm_hadar.runtime.samples import Segment

Say = Callable[[str], None]
Stamp = tuple[tuple[int, int, int], ...]
"""What tells one checkpoint from another: inode, time (ns) and size (bytes) of newest, previous."""


@dataclass(slots=True)
class State:
    """Where the lineage of the parameters stands.

    ``batch``: global batch. ``per_gpu``: most samples that one GPU takes in a pass. ``lost``:
    samples that kills undid. ``owed``: samples that went in ahead of a pretend GPU. ``ahead``:
    start, stop, digest of what copies trained behind ``samples``, see :mod:`.copies_ledger`.
    """

    dataset_size: int
    seed: int
    batch: int
    per_gpu: int
    samples: int = 0
    attempt: int = 1
    segments: list[Segment] = field(default_factory=list)
    stopped: bool = False
    lost: int = 0
    owed: float = 0.0
    ahead: list[tuple[int, int, int]] = field(default_factory=list)


def stateful_parts(
    model: Any, optimizer: Any, scheduler: Any, scaler: Any, also: Mapping[str, Any]
) -> dict[str, Any]:
    """What has a ``state_dict``, by the name that it has in the checkpoint.

    A wrapped model is kept bare, so that one GPU and many read each other's checkpoints.
    Raises UsageError when ``also`` takes a name that is ours.
    """
    wrapped = type(model).__name__ in ("DistributedDataParallel", "DataParallel")
    bare = model.module if wrapped else model
    parts = {"model": bare, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    clash = sorted(set(parts) & set(also))
    if clash:
        raise UsageError(f"also={{{clash[0]!r}: ...}}: this name is taken; choose another")
    return {**{key: part for key, part in parts.items() if part is not None}, **also}


class CheckpointStore:
    """The checkpoints of one training; without a path nothing is kept.

    Raises UsageError when the folder is not there and cannot be made.
    """

    def __init__(
        self, path: Path | None, parts: Mapping[str, Any], say: Say, *, trusted: bool
    ) -> None:
        self.path = path
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"folder {path.parent} cannot be made: {error}") from None
        self._parts, self._say, self._trusted = parts, say, trusted
        self.collective = False
        """Whether all processes take part in a save; else the first one writes alone."""
        self.saved: Saved | None = None
        self.left: float | None = None
        """When an earlier attempt saved because it was to be moved, s since the epoch."""
        self.attempt: Attempt | None = None
        """The right to write, from :meth:`begin` on."""
        self._newest_is_damaged = False
        self.stamp: Stamp = ()
        """Of the checkpoint that was loaded."""

    def begin_all_ranks(self, ranks: Ranks) -> AttemptId | None:
        """:meth:`begin` in the first of the processes; what it did, and what it raised, in all."""
        failure: Superseded | UsageError | None = None
        if ranks.first:
            try:
                self.begin()
            except (Superseded, UsageError) as error:
                failure = error
        identity = self.attempt.identity if self.attempt is not None else None
        failure, identity = ranks.gather((failure, identity))[0]
        if failure is not None:
            raise failure
        return identity

    def begin(self) -> int:
        """Take over from all earlier attempts; returns the number of this one.

        Raises Superseded where a later start of this job has taken over already, UsageError where
        the checkpoint could not be written.
        """
        if self.path is None:
            return 1
        try:
            self.attempt = Attempt.begin(self.path, job_id(os.environ), restarts(os.environ))
        except Superseded as superseded:
            self.leave_to(superseded)
            raise
        self.attempt.newest_is_damaged = self._newest_is_damaged
        return self.attempt.identity.number

    def check_current(self) -> None:
        """Raises Superseded where another attempt has taken over."""
        if self.attempt is not None:
            try:
                self.attempt.check()
            except Superseded as superseded:
                self.leave_to(superseded)
                raise

    def leave_to(self, superseded: Superseded) -> None:
        """Report that a later attempt has taken over."""
        self._say(f"checkpoint {self.path}: {superseded.reason}; leaving without saving")

    def stamp_now(self) -> Stamp:
        """The stamp of the checkpoint as it is now."""
        if self.path is None:
            return ()
        found = []
        for path in (self.path, checkpoint.previous(self.path)):
            try:
                status = path.stat()
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)

    def nonfinite(self) -> str:
        """The first parameter or buffer of the model that holds NaN or infinity, "": none."""
        return finite.nonfinite(self._parts.get("model"))

    def load(self, state: State) -> dict[str, Any] | None:
        """Restore the parts and ``state``; returns the random state, None without a checkpoint.

        Raises HadarError for a checkpoint that cannot be read, UsageError for one of another
        training.
        """
        self.stamp = self.stamp_now()
        if self.path is None:
            return None
        found = self._read()
        if found is None:
            return None
        content, source = found
        self._newest_is_damaged = source != self.path and self.path.exists()
        if self.attempt is not None:
            self.attempt.newest_is_damaged = self._newest_is_damaged
        kept = json.loads(content["state"])
        self.check(state, kept)
        self._load_parts(content)
        self.restore(state, kept)
        return dict(content["random"])

    def _read(self) -> tuple[checkpoint.Content, Path] | None:
        """The newest whole checkpoint and its file; see :func:`.checkpoint.load`."""
        assert self.path is not None
        return checkpoint.load(self.path, self._say, trusted=self._trusted)

    def _load_parts(self, content: checkpoint.Content) -> None:
        """Put the parts where ``content`` was. Raises UsageError where they do not fit."""
        if "shards" in content:
            raise UsageError(
                f"checkpoint {self.path} is in shards, which this training does not read; go on "
                "with Session or Training, and without sharded=False"
            )
        with self._fitting():
            for key, part in self._parts.items():
                part.load_state_dict(content["parts"][key])

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """Raises UsageError where the parts are not those of the checkpoint."""
        try:
            yield
        except (KeyError, RuntimeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise UsageError(
                f"checkpoint {self.path} does not fit this training: {first}"
            ) from None

    def check(self, state: State, kept: Mapping[str, Any]) -> None:
        """Raises UsageError when ``kept`` is of another training than ``state``, HadarError when a
        newer release wrote it."""
        checkpoint.check_format(kept.get("format"), f"checkpoint {self.path}")
        for key, mine in (("dataset_size", state.dataset_size), ("seed", state.seed)):
            if kept[key] != mine:
                raise UsageError(
                    f"checkpoint {self.path} was made with {key}={kept[key]}, not {mine}; "
                    "positions in it would mean other samples"
                )

    def restore(self, state: State, kept: Mapping[str, Any]) -> None:
        """Put ``state`` where :meth:`describe` was."""
        for key in ("batch", "per_gpu", "samples", "stopped", "lost", "owed"):
            setattr(state, key, kept[key])
        state.ahead = [(int(row[0]), int(row[1]), int(row[2])) for row in kept.get("ahead", [])]
        state.attempt = kept["attempt"] + 1
        state.segments = samples.from_plain(kept["segments"])
        self.saved = Saved(state.samples, kept["time"], kept["seconds"])
        # A new job that goes on from an old one's checkpoint was not moved.
        self.left = kept["time"] if kept["moving"] and restarts(os.environ) else None

    def describe(self, state: State, *, moving: bool) -> dict[str, Any]:
        """``state`` as plain values for a checkpoint that is written now."""
        return {
            "format": checkpoint.FORMAT,
            **{name: getattr(state, name) for name in State.__slots__},
            "segments": samples.to_plain(state.segments),
            "moving": moving,
            "time": time.time(),
            "seconds": self.saved.seconds if self.saved else 0.0,
        }

    def load_after(self, state: State, before: Progress | None) -> dict[str, Any] | None:
        """Like :meth:`load`; what the last attempt had trained beyond the checkpoint is lost.

        ``before``: what that attempt reported last.
        """
        random = self.load(state)
        self.note_lost(state, before)
        return random

    def note_lost(self, state: State, before: Progress | None) -> None:
        """Count what the last attempt had trained beyond the checkpoint; see :meth:`load_after`."""
        if before is not None:
            undone = max(0, before.samples - state.samples)
            state.lost = max(state.lost, before.lost) + undone
            if undone:
                # It went on after that save: the time since is not what the move cost.
                self.left = None

    def save(self, state: State, *, moving: bool = False) -> bool:
        """Write ``state`` and the parts; False, and one line, when the disk does not take them.

        Raises Superseded where another attempt has taken over.
        """
        if self.path is None:
            return False
        begin, kept = time.monotonic(), self.describe(state, moving=moving)
        try:
            self._write(kept)
        except Superseded as superseded:
            self.leave_to(superseded)
            raise
        except OSError as error:
            self._say(f"checkpoint {self.path} cannot be written ({error}); training goes on")
            return False
        self.saved = Saved(state.samples, kept["time"], time.monotonic() - begin)
        return True

    def in_all_ranks(self, ranks: Ranks, save: Callable[[], bool]) -> bool:
        """Call ``save`` in the processes that save; whether each of them could. Raises Superseded
        in all processes."""
        done, superseded = True, None
        if ranks.first or self.collective:
            try:
                done = save()
            except Superseded as raised:
                superseded = raised
        for found, saved in ranks.gather((superseded, done)):
            if found is not None:
                raise superseded or found
            done = done and saved
        return done

    def begin_save(self, state: State) -> bool:
        """As :meth:`save`, where a store can: only begin, so that the training goes on meanwhile.

        In every process alike, after :meth:`finish_save`.
        """
        return self.save(state)

    @property
    def saving(self) -> bool:
        """Whether a save that was begun is not finished; the same in all processes."""
        return False

    def finish_save(self) -> bool:
        """Wait until the save that was begun is over; whether the disk took it.

        In every process alike. Raises Superseded as :meth:`save`.
        """
        return True

    def _write(self, kept: Mapping[str, Any]) -> None:
        """Make the newest checkpoint with ``kept`` in it. Raises OSError and Superseded."""
        if self.attempt is None:
            raise UsageError("save() belongs inside the loop over the training, or behind it")
        parts = {key: part.state_dict() for key, part in self._parts.items()}
        checkpoint.save(self.attempt, self._content(kept, parts))

    def _content(self, kept: Mapping[str, Any], parts: Mapping[str, Any]) -> checkpoint.Content:
        """What a checkpoint's file holds."""
        return {
            "parts": dict(parts),
            "random": checkpoint.random_state(),
            "state": json.dumps(kept),
        }


def lineage(path: str | Path) -> list[Segment]:
    """What went into the parameters of a checkpoint, in order; see :func:`samples.check_lineage`.

    Raises HadarError when there is no checkpoint or it cannot be read.
    """
    try:
        content = checkpoint.read(Path(path), lazy=True)
    except FileNotFoundError:
        raise HadarError(f"there is no checkpoint at {path}") from None
    return samples.from_plain(json.loads(content["state"])["segments"])
