"""Several processes of one training agree on when to save, when to leave, and on the batch.

One small all-reduce on the CPU, at most twice a second or so: the step at which it happens is
counted, so that every process takes part in the same step.
"""

import atexit
import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any, TypeVar

from slurm_hadar.domain.errors import UsageError

_EVERY_S = 0.5
_MOST_STEPS = 1000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all processes agreed on: the same in each."""

    asked: bool = False
    leave: bool = False
    due: bool = False
    """Whether it is time to save unasked."""
    batch: int = 0
    """Global batch from now on, 0: as it is."""
    digest: int = 0
    """Sum of the digests since the last agreement, modulo 2**64."""
    steps: int = 1
    """Steps until the next agreement."""
    superseded: bool = False
    """Whether another attempt has taken over."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What one process wants now; see :class:`Agreement`. ``step_s``: seconds of a step, 0: not
    known. ``due``, ``batch`` and ``step_s`` count from the first process."""

    asked: bool = False
    leave: bool = False
    due: bool = False
    batch: int = 0
    digest: int = 0
    step_s: float = 0.0
    superseded: bool = False


class Ranks:
    """The processes of this training. One process alone needs no torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._group: Any = None
        import torch

        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            if self.size > 1:
                # A group on the CPU: asking the GPU's would wait for the GPU in every step.
                self._group = self.another_group()

    @property
    def group(self) -> Any:
        """The group on the CPU; None for one process alone."""
        return self._group

    def another_group(self) -> Any:
        """A further group on the CPU, for another thread; None for one process alone. In every
        process alike."""
        if self.size == 1:
            return None
        import torch

        group = torch.distributed.new_group(backend="gloo")
        _part_at_exit(group)
        return group

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def agree(self, own: Wishes) -> Agreement:
        """Put the wishes of all processes together."""
        steps = max(1, min(_MOST_STEPS, int(_EVERY_S / own.step_s))) if own.step_s > 0 else 1
        if self._group is None:
            return Agreement(
                own.asked, own.leave, own.due, own.batch, own.digest, superseded=own.superseded
            )
        import torch

        digest = own.digest - 2**64 if own.digest >= 2**63 else own.digest
        of_first = [own.due, own.batch, steps] if self.first else [0, 0, 0]
        values = [own.asked, own.leave, *of_first, digest, own.superseded]
        total = torch.tensor(values, dtype=torch.int64)
        torch.distributed.all_reduce(total, group=self._group)
        ask, go, late, batch, steps, digest, gone = (int(value) for value in total)
        return Agreement(ask > 0, go > 0, late > 0, batch, digest % 2**64, steps, gone > 0)

    def gather(self, value: _T) -> list[_T]:
        """``value`` of every process, in the order of ranks."""
        if self._group is None:
            return [value]
        import torch

        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value, group=self._group)
        return found

    def must_agree(self, value: object, what: str) -> None:
        """Raises UsageError, in every process, where they have different values."""
        found = self.gather(value)
        if any(one != found[0] for one in found):
            raise UsageError(
                f"{what} differs between the processes ({', '.join(map(str, found))}); all of them "
                "must read the same file, on a file system that their nodes share"
            )

    def wait(self) -> None:
        """Go on when all processes are here."""
        if self._group is not None:
            import torch

            torch.distributed.barrier(group=self._group)


def is_sharded(value: object) -> bool:
    """Whether it is a tensor of which each process has a part (a DTensor, as of FSDP2)."""
    # Without this module there is none, and to import it takes time.
    found = sys.modules.get("torch.distributed.tensor")
    return found is not None and isinstance(value, found.DTensor)


def _part_at_exit(group: Any) -> None:
    """Destroy a gloo group (None: all) when the process ends.

    Left to the interpreter's end, gloo's threads abort some processes, and a finished
    training looks failed.
    """

    def part() -> None:
        import torch

        with contextlib.suppress(Exception):
            torch.distributed.destroy_process_group(group)

    atexit.register(part)


def _restarted_on_one_node() -> bool:
    """Whether torchrun restarted these processes, all of them on this node.

    Agents of several nodes count their restarts apart.
    """
    get = os.environ.get
    return (
        get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        and get("LOCAL_WORLD_SIZE") == get("WORLD_SIZE")
    )


def _store_of_restart(size: int) -> Any:
    """Where the processes of this restart find each other.

    torchrun keeps its store over restarts, with the addresses of processes that have ended: one
    that reads before its peer has written connects to them, and fails
    (https://github.com/pytorch/pytorch/issues/135712).
    """
    import torch

    distributed: Any = torch.distributed
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    kept = distributed.TCPStore(host, port, size, is_master=False)
    return distributed.PrefixStore(f"restart {os.environ['TORCHELASTIC_RESTART_COUNT']}", kept)


def join(backend: str = "", **options: Any) -> tuple[int, int, int]:
    """Join the other processes; returns (rank, number of ranks, rank on this node).

    Works under ``srun`` with one task per process, under ``torchrun``, and alone (then there is
    nothing to join). ``MASTER_ADDR`` and ``MASTER_PORT`` must be set for several processes, as the
    job templates do. Raises UsageError when they are not.
    """
    import torch

    tasks = os.environ.get("SLURM_STEP_NUM_TASKS") if "RANK" not in os.environ else None
    if tasks is not None and "SLURM_PROCID" in os.environ:
        os.environ["WORLD_SIZE"] = tasks
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
        os.environ["LOCAL_RANK"] = os.environ.get("SLURM_LOCALID", "0")
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if size > 1 and not torch.distributed.is_initialized():
        missing = [key for key in ("MASTER_ADDR", "MASTER_PORT") if key not in os.environ]
        if missing and "init_method" not in options:
            raise UsageError(f"{' and '.join(missing)} must be set for {size} processes")
        if "init_method" not in options and "store" not in options and _restarted_on_one_node():
            options["store"] = _store_of_restart(size)
        chosen = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        torch.distributed.init_process_group(chosen, rank=rank, world_size=size, **options)
        if chosen == "gloo":
            _part_at_exit(None)
    return rank, size, local
