"""The tracker (rank 0) and the copies over MPI, such that a dead rank stops no other.

A star of non-blocking messages on contiguous buffers: every wait has an end. The step must be
launched so that MPI and Slurm leave the others alive, see :mod:`.copies_launch`.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.runtime.copies_ledger import Piece
from slurm_hadar.runtime.copies_messages import (
    FIRST_PATIENCE_S,
    CopyReport,
    RoundOrder,
    decode_order,
    decode_report,
    empty_report,
    encode_order,
    encode_report,
)

TRACKER_LOST = 75
"""Exit code of a copy that heard nothing of the tracker for too long."""
MARK = "HADAR_COPIES_MARK"
"""Environment variable: a file that is made when the work ended without some of the copies."""
_ORDER, _PARAMETERS, _REPORT, _RESULT, _HURRY = range(1, 6)
_BEGIN_S = 120
"""How long MPI may take to begin: it waits for all processes."""
_SEND_S, _SEND_BYTES_S = 2.0, 10e6
"""How long sending may take: a dead copy takes nothing."""
_NAPS_S = (0.0002, 0.005)
_SHARED = "/dev/shm/mpich_shm_"  # noqa: S108
"""How the names of MPICH's own files begin."""
_FAULTS = 20
"""Errors of one request in a row after which its peer counts as dead."""

Vector = NDArray[Any]


def under_mpi() -> bool:
    """Whether this process was started by an MPI launcher."""
    return any(key in os.environ for key in ("PMI_RANK", "PMI_FD", "PMIX_RANK", "PMI_PORT"))


class Link:
    """This process's end. One process alone needs no MPI and has ``size`` 1."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._comm: Any = None
        if under_mpi():
            try:
                import mpi4py
            except ImportError:
                raise HadarError("copies on several nodes need mpi4py and mpich") from None
            # Finalize waits for the dead; the end of the process is enough.
            mpi4py.rc.finalize = False
            with _alarm(_BEGIN_S):
                from mpi4py import MPI
            _remove_shared_files()
            self._comm = MPI.COMM_WORLD
            # A dead peer is an exception here, not the end of this process. What MPI cannot assign
            # to one request counts as COMM_SELF's.
            for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
                comm.Set_errhandler(MPI.ERRORS_RETURN)
            self._failure: type[Exception] = MPI.Exception
            self.rank, self.size = self._comm.rank, self._comm.size

    @property
    def first(self) -> bool:
        """Whether this is the tracker."""
        return self.rank == 0


def _remove_shared_files() -> None:
    """Of the memory that the processes of this node share: MPI_Init has come to its end, so all
    have it, and without MPI_Finalize each attempt would leave a file of 1 MB there."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line[line.find("/") :]
            if path.startswith(_SHARED) and not path.endswith(" (deleted)"):
                Path(path).unlink(missing_ok=True)


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """End this process, whatever it waits for, unless the block ends before: then begin again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class TrackerLink:
    """Rank 0's side. ``groups``: parameter groups; ``width``: length of the flat vector."""

    def __init__(self, link: Link, groups: int, width: int, dtype: Any) -> None:
        self._comm = link._comm
        others = range(1, link.size)
        self._failure = link._failure if link.size > 1 else OSError
        self._groups, self._bytes = groups, width * np.dtype(dtype).itemsize
        self._results = {rank: np.empty(width, dtype) for rank in others}
        self._reports = {rank: empty_report() for rank in others}
        self._pending: dict[int, list[Any]] = {}
        self._sending: list[Any] = []
        self._kept: list[Any] = []
        self.ready: set[int] = set(others)
        """Copies that wait for an order."""
        self.lost: set[int] = set()
        """Copies whose connection failed."""

    @property
    def missing(self) -> set[int]:
        """Copies that owe a report, late or dead."""
        return set(self._pending) | self.lost

    def order(self, rank: int, order: RoundOrder, vector: Vector) -> None:
        """Send a ready copy its part and the parameters; ``vector`` must stay until it reported."""
        words = encode_order(order, self._groups)
        try:
            self._sending += [self._comm.Isend(words, rank, _ORDER)]
            self._kept.append(words)
            if order.stop:
                return
            self._sending += [self._comm.Isend(vector, rank, _PARAMETERS)]
            self._pending[rank] = [
                self._comm.Irecv(self._reports[rank], rank, _REPORT),
                self._comm.Irecv(self._results[rank], rank, _RESULT),
            ]
        except self._failure:
            self.lost.add(rank)
        self.ready.discard(rank)

    def flush(self) -> None:
        """Let what was sent go out, for a bounded time: a dead copy takes nothing."""
        end = time.monotonic() + _SEND_S + len(self._sending) * self._bytes / _SEND_BYTES_S
        nap = _Nap()
        while self._sending and time.monotonic() < end:
            self._sending = [request for request in self._sending if not self._over(request)]
            if not self._sending:
                self._kept.clear()
            else:
                nap()

    def hurry(self, number: int, ranks: Collection[int]) -> None:
        """Ask copies to end their part of round ``number`` at their next step."""
        for rank in ranks:
            words = np.array([number], np.uint64)
            self._kept.append(words)
            try:
                self._sending.append(self._comm.Isend(words, rank, _HURRY))
            except self._failure:
                self.lost.add(rank)

    def collect(
        self, number: int, ranks: Collection[int], until: Callable[[], float]
    ) -> dict[int, tuple[CopyReport, Vector]]:
        """Reports of round ``number`` from ``ranks``; ends when all are in, or at ``until()``.

        ``until`` is asked again and again (monotonic clock). A report of an earlier round makes its
        copy ready and is thrown away: its samples were given to others.
        """
        found: dict[int, tuple[CopyReport, Vector]] = {}
        nap = _Nap()
        while True:
            for rank, requests in list(self._pending.items()):
                requests[:] = [request for request in requests if not self._over(request, rank)]
                if requests or rank in self.lost:
                    continue
                del self._pending[rank]
                self.ready.add(rank)
                report = decode_report(self._reports[rank])
                if report.round == number and rank in ranks:
                    found[rank] = (report, self._results[rank])
            for rank in self.lost:
                self._pending.pop(rank, None)
            waiting = set(ranks) - set(found) - self.lost
            if not waiting or time.monotonic() >= until():
                return found
            nap()

    def end(self) -> None:
        """Send the copies away. Those that do not answer are left to the launcher, see MARK."""
        for rank in sorted(self.ready):
            self.order(rank, RoundOrder(0, stop=True), np.empty(0))
        self.flush()
        path = os.environ.get(MARK)
        if path and self.missing:
            Path(path).write_text("some copies did not come to the end\n")

    def _over(self, request: Any, rank: int | None = None) -> bool:
        for _ in range(_FAULTS):
            try:
                return bool(request.Test())
            except self._failure:
                # The first to ask hears of a broken connection, be it another's. A request
                # that failed itself is gone.
                if not request:
                    break
        if rank is not None:
            self.lost.add(rank)
        return True


class CopyLink:
    """The side of every other rank."""

    def __init__(self, link: Link, groups: int, gpus: int) -> None:
        self._comm, self._groups, self._gpus = link._comm, groups, gpus
        self._patience_s = FIRST_PATIENCE_S
        self._round = -1
        self._word = np.zeros(1, np.uint64)
        self._hurry = self._comm.Irecv(self._word, 0, _HURRY)

    def next_order(self, vector: Vector) -> RoundOrder:
        """Wait for the next order; the parameters are in ``vector`` then.

        Ends this process with TRACKER_LOST when none comes: others may hold the checkpoint then.
        """
        words = encode_order(RoundOrder(0), self._groups)
        self._wait([self._comm.Irecv(words, 0, _ORDER)])
        order = decode_order(words, self._groups)
        self._patience_s, self._round = order.patience_s, order.round
        if not order.stop:
            self._wait([self._comm.Irecv(vector, 0, _PARAMETERS)])
        return order

    def hurried(self) -> bool:
        """Whether the tracker asked to end this round now."""
        while self._hurry.Test():
            number = int(self._word[0])
            self._hurry = self._comm.Irecv(self._word, 0, _HURRY)
            if number == self._round:
                return True
        return False

    def end(self) -> None:
        """Nothing more is expected."""
        self._hurry.Cancel()

    def report(self, pieces: list[Piece], seconds: float, vector: Vector) -> None:
        """Send the tracker what was done and the parameters."""
        words = encode_report(CopyReport(self._round, pieces, seconds, self._gpus))
        self._wait([self._comm.Isend(words, 0, _REPORT), self._comm.Isend(vector, 0, _RESULT)])

    def _wait(self, requests: list[Any]) -> None:
        end = time.monotonic() + self._patience_s
        nap = _Nap()
        try:
            while not all(request.Test() for request in requests):
                if time.monotonic() >= end:
                    self._give_up(f"nothing for {self._patience_s:.0f} s")
                nap()
        except Exception as error:
            self._give_up(str(error).splitlines()[0])

    def _give_up(self, why: str) -> None:
        print(f"hadar: copy {self._comm.rank} lost the tracker ({why}); ending", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(TRACKER_LOST)


class _Nap:
    """Sleeps that begin short and grow: neither late nor a burnt core."""

    def __init__(self) -> None:
        self._next = _NAPS_S[0]

    def __call__(self) -> None:
        time.sleep(self._next)
        self._next = min(self._next * 1.2, _NAPS_S[1])
