"""What may be chosen of a sandbox beside its folder, its layout and its Slurm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from slurm_hadar.sandbox.pacing import BaseRates

Value = str | int | float | bool | tuple[str, ...] | Mapping[str, object]
Settings = Mapping[str, Mapping[str, Value]]
"""Section -> key -> value, as in hadar.toml."""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """``mode`` of its controller, and ``settings`` over the sandbox's hadar.toml.

    ``base_rates`` (None: the shipped profile's) and ``seed`` give the speeds of its GPUs (see
    :mod:`.pacing`). ``with_accounting``: with a slurmdbd, so that there are users, accounts, QOS
    and operators. ``outlives``: it stays up when the process that started it ends; else it goes
    down then, however the process ends. ``wait_s``: longest wait for each part.
    """

    mode: Literal["observe", "act"] = "observe"
    settings: Settings | None = None
    base_rates: BaseRates | None = None
    seed: int = 0
    with_accounting: bool = False
    outlives: bool = False
    wait_s: float = 60.0


DEFAULT_OPTIONS = SandboxOptions()


@dataclass(frozen=True, slots=True)
class SlurmTimes:
    """Times of its slurm.conf, in whole seconds.

    ``cred_expire_s``: Slurm starts a requeued job after this time + 1 s unless it starts earlier.
    ``slurmd_timeout_s``: a silent node is DOWN after it; 0: never.
    """

    cred_expire_s: int = 20
    kill_wait_s: int = 10
    slurmd_timeout_s: int = 30
