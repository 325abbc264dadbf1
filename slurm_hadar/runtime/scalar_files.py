"""How far a training is, from the files that TensorBoard or wandb write, read as the job's user.

Neither program is imported: the watcher runs where they may not be, and only the step of each
record is wanted. A TensorBoard event file is a TFRecord file of ``Event`` messages
(tensorflow/core/lib/io/record_writer.h, tensorflow/core/util/event.proto); a ``.wandb`` file is a
LevelDB log (leveldb's doc/log_format.md) behind a header of 7 bytes, of ``Record`` messages
(wandb/proto/wandb_internal.proto). Checksums are not looked at: what is no such file is left alone.
"""

import contextlib
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from slurm_hadar.domain.declaration_values import PROGRESS_FILES
from slurm_hadar.runtime.found_files import found
from slurm_hadar.runtime.meter import SampleCount

_MOST_BYTES = 4 << 20
"""Read at one look, of all files together."""
_CHUNK = 1 << 20
_MOST_STEPS = 10**15
_LONGEST_RECORD = 1 << 18
"""Bytes of a wandb record that is put together; a longer one is passed over."""
_LONGEST_EVENT = 1 << 31
_STEP_WITHIN = 64
"""Bytes of an event in which its step stands: fields are written in their order."""
_BLOCK, _FRAME = 32768, struct.Struct("<IHB")
_WANDB_HEADER = b":W&B"
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class NoSuchFile(Exception):
    """The content is not what the name says."""


class StepFile(Protocol):
    """The part of a file that is known; ``at``: bytes of it."""

    at: int

    def steps(self, data: bytes) -> Iterator[int]:
        """The steps of the whole records in ``data``, which follows :attr:`at`; moves it on. Raises
        :class:`NoSuchFile`."""
        ...


class EventFile:
    """One ``*tfevents*`` file; the step of an event is the ``global_step`` of its scalars."""

    def __init__(self) -> None:
        self.at = 0

    def steps(self, data: bytes) -> Iterator[int]:
        """As :class:`StepFile`; the rest of a long event is passed over unread."""
        begin, place = self.at, 0
        while len(data) - place >= 12:
            (length,) = struct.unpack_from("<Q", data, place)
            if length > _LONGEST_EVENT:
                raise NoSuchFile
            head = data[place + 12 : place + 12 + min(length, _STEP_WITHIN)]
            if len(head) < min(length, _STEP_WITHIN):
                break
            for number, value in fields(head):
                if number == 2 and isinstance(value, int):
                    yield value
                    break
            place += 12 + length + 4
            self.at = begin + place


class WandbFile:
    """One ``.wandb`` file. A row counts by a key ``global_step``, as Lightning's
    ``trainer/global_step``, once one has it, else by wandb's own step."""

    def __init__(self) -> None:
        self.at = 0
        self._record: bytearray | None = None
        self._named = False

    def steps(self, data: bytes) -> Iterator[int]:
        """As :class:`StepFile`."""
        place = 0
        if not self.at:
            if len(data) < 7:
                return
            if not data.startswith(_WANDB_HEADER):
                raise NoSuchFile
            place = self.at = 7
        begin = self.at - place
        while True:
            left = _BLOCK - (begin + place) % _BLOCK
            if left < _FRAME.size:
                place += left
                continue
            if len(data) - place < _FRAME.size:
                return
            _, length, kind = _FRAME.unpack_from(data, place)
            if not _FULL <= kind <= _LAST or _FRAME.size + length > left:
                raise NoSuchFile
            end = place + _FRAME.size + length
            if end > len(data):
                return
            yield from self._fragment(kind, data[place + _FRAME.size : end])
            place = end
            self.at = begin + place

    def _fragment(self, kind: int, data: bytes) -> Iterator[int]:
        if kind in (_FULL, _FIRST):
            self._record = bytearray()
        if self._record is None:
            return
        self._record += data
        if len(self._record) > _LONGEST_RECORD:
            self._record = None
        elif kind in (_FULL, _LAST):
            for number, history in fields(bytes(self._record)):
                if number == 2 and isinstance(history, bytes):
                    yield from self._row(history)
            self._record = None

    def _row(self, history: bytes) -> Iterator[int]:
        own, named = 0, None
        for number, part in fields(history):
            if number == 1 and isinstance(part, bytes) and named is None:
                named = _global_step(part)
            elif number == 2 and isinstance(part, bytes):
                own = max((value for _, value in fields(part) if isinstance(value, int)), default=0)
        self._named = self._named or named is not None
        if named is not None:
            yield named
        elif not self._named:
            yield own


def _global_step(item: bytes) -> int | None:
    """The value of a row's item where its key ends in ``global_step``."""
    key, text = b"", b""
    for number, value in fields(item):
        if isinstance(value, bytes):
            if number in (1, 2):
                key = value
            elif number == 16:
                text = value
    if re.split(rb"[/.]", key)[-1] != b"global_step":
        return None
    with contextlib.suppress(ValueError, OverflowError):
        return int(float(text))
    return None


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of the fields of a protobuf message, as far as it goes; groups, which no
    such message has, end it."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        match key & 7:
            case 0:
                value, place = _varint(message, place)
                yield key >> 3, value
            case 1:
                place += 8
            case 2:
                length, place = _varint(message, place)
                if place + length > len(message):
                    return
                yield key >> 3, message[place : place + length]
                place += length
            case 5:
                place += 4
            case _:
                return


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number and the place behind it; one that is cut off ends the message."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            break
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    return 0, len(message)


class ScalarFileProgress(SampleCount):
    """The highest step in the files that this attempt writes, and its rate.

    Each attempt writes files of its own, so those that were there before count only once they
    grow. ``path``: a file or a folder, of which four levels are looked at.
    """

    def __init__(self, text: str, path: Path) -> None:
        """``text``: a declared ``progress``. Raises ValueError where it names no such files."""
        super().__init__()
        match = re.fullmatch(PROGRESS_FILES, text, re.ASCII)
        if match is None:
            raise ValueError(text)
        self._tensorboard = match["writer"] == "tensorboard"
        self._unit, self._path = int(match["unit"] or 1), path
        self._before: Mapping[str, int] | None = None
        self._files: dict[str, StepFile | None] = {}
        self._step = 0

    def look(self) -> None:
        """Read what was written since the last look, or a part of it. Raises
        :class:`.found_files.TooMuch`."""
        sizes = {name: size for name, _, size in found(self._path) if self._is_one(Path(name).name)}
        if self._before is None:
            self._before = sizes
        left = _MOST_BYTES
        for name, size in sizes.items():
            if self._before.get(name) == size or left <= 0:
                continue
            file = self._files.setdefault(name, EventFile() if self._tensorboard else WandbFile())
            if file is None or file.at >= size:
                continue
            try:
                for data in _new(name, file, left):
                    left -= len(data)
                    steps = (step for step in file.steps(data) if step <= _MOST_STEPS)
                    self._step = max(self._step, max(steps, default=0))
            except NoSuchFile:
                self._files[name] = None
        if self._step and self._step * self._unit <= _MOST_STEPS:
            self.note(self._step * self._unit)

    def _is_one(self, name: str) -> bool:
        return "tfevents" in name if self._tensorboard else name.endswith(".wandb")


def _new(name: str, file: StepFile, most: int) -> Iterator[bytes]:
    """What follows the part of a file that is known, in pieces; ends where no record is whole."""
    try:
        # Never waits for a writer, should a pipe have taken the file's place.
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            while most > 0 and stat.S_ISREG(os.fstat(handle).st_mode):
                at = file.at
                data = os.pread(handle, min(_CHUNK, most), at)
                if not data:
                    return
                yield data
                most -= len(data)
                if file.at == at:
                    return
        finally:
            os.close(handle)
    except OSError:
        return
