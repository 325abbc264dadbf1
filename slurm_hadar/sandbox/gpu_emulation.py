"""Pretend GPUs: a CPU trains as fast as the sandbox says that the job's GPUs would.

The runtime finds it by ``HADAR_EMULATION`` (:mod:`slurm_hadar.runtime.emulation`). No effect unless
``HADAR_TRUE_RATES`` names the file of their rates, and none on a machine with real GPUs.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.domain.errors import HadarError
from slurm_hadar.exchange.job_side import node_gpus

ENV = "HADAR_TRUE_RATES"
_SLICE_S = 0.1
"""Longest uninterrupted sleep: a signal or a plan must be noticed meanwhile."""
_DEBT_S = 5.0
"""How far a pretend GPU may lag behind on a busy machine and still catch up."""

Seen = tuple[str, list[str]]
Table = Mapping[str, Mapping[str, Mapping[str, float]]]


def true_rate(rates: Table, model: str, gpus: Mapping[str, int]) -> float:
    """Samples/s of ``model`` on ``gpus`` (type -> count), before time scaling.

    Case and punctuation of the model's name do not matter. A count that the file lacks is scaled
    from the nearest. Mixed types run at (GPUs) x (the slowest type's rate per GPU). 0 where the
    file has no such model, or not on one of the types. Raises HadarError without a GPU.
    """
    total = sum(gpus.values())
    if total < 1:
        raise HadarError(f"{ENV}: the job has no emulated GPU")
    per_gpu = []
    by_type = next((rates[name] for name in rates if _key(name) == _key(model)), {})
    for gpu_type in gpus:
        if gpu_type not in by_type:
            return 0.0
        table = {int(count): float(rate) for count, rate in by_type[gpu_type].items()}
        nearest = min(table, key=lambda count: (abs(count - total), count))
        per_gpu.append(table[nearest] / nearest)
    return total * min(per_gpu)


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def job_nodes(environment: Mapping[str, str]) -> list[str]:
    """The node names of the allocation, as Slurm set them; empty outside of one."""
    text = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
    if "[" not in text:
        return text.split(",") if text else []
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return list(NodeSet(text, resolver=RESOLVER_NOGROUP))


def job_gpus(
    seen: Sequence[tuple[str, Sequence[str]]],
    allocation: Sequence[str],
    types: Mapping[str, Sequence[str]],
    planned: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """GPUs of the whole job by type.

    ``seen``: node and GPU ids, from each process of the training. Slurm tells a process only of its
    own node. For nodes of the allocation without a process the plan's counts are taken where they
    agree with what is seen, else as many GPUs as on the first process's node.
    Raises HadarError for a node or a GPU that the pacing file lacks.
    """
    held: dict[str, set[str]] = {}
    for node, ids in seen:
        if not types.get(node):
            raise HadarError(f"{ENV}: node {node or '(SLURMD_NODENAME is not set)'} is not in it")
        held.setdefault(node, set()).update(ids)
    blind = [node for node in allocation if types.get(node) and node not in held]
    gpus: dict[str, int] = {}
    for node, found in held.items():
        for gpu in found:
            kind = _type_of(types[node], gpu)
            gpus[kind] = gpus.get(kind, 0) + 1
    if blind and planned:
        kinds = {*gpus, *(types[node][0] for node in blind)}
        if set(planned) == kinds and all(planned[kind] >= gpus[kind] for kind in gpus):
            return dict(planned)
    first = len(next(iter(held.values()), ()))
    for node in blind:
        kind = types[node][0]
        gpus[kind] = gpus.get(kind, 0) + min(first, len(types[node]))
    return gpus


def _type_of(types: Sequence[str], gpu: str) -> str:
    """The type of a node's GPU by its id; ids are positions in the node's list."""
    return types[int(gpu)] if gpu.isdecimal() and int(gpu) < len(types) else types[0]


@dataclass
class GpuEmulation:
    """Holds a training loop back to ``rate`` samples/s (0: not at all), ``gpus`` by type.

    Time is accounted over the whole attempt: what Python needs within a step does not slow the
    pretend GPU, and one late step is caught up by the next.
    """

    rate: float
    gpus: Mapping[str, int]
    note: str = ""
    """For the job's output: why it is not held back."""
    _due: float = 0.0

    def start(self, owed: float = 0.0) -> None:
        """Begin to count now; ``owed`` samples were trained faster than the GPU would have."""
        self._due = time.monotonic() + (owed / self.rate if self.rate else 0.0)

    def hold(self, samples: int, stop: Callable[[], bool]) -> None:
        """Sleep until ``samples`` more would be done; ``stop`` is asked between short sleeps."""
        if not self.rate:
            return
        now = time.monotonic()
        self._due = max(self._due, now - _DEBT_S) + samples / self.rate
        while now < self._due and not stop():
            time.sleep(min(self._due - now, _SLICE_S))
            now = time.monotonic()

    def shift(self, seconds: float) -> None:
        """Leave out a time in which the GPU stood still (a save, a pause)."""
        self._due += seconds

    @property
    def owed(self) -> float:
        """Samples that went in ahead of the pretend GPU, when a sleep was cut short."""
        return max(0.0, self._due - time.monotonic()) * self.rate


def from_env(
    model: str,
    planned: Mapping[str, int] | None = None,
    gather: Callable[[Seen], list[Seen]] = lambda seen: [seen],
    nodes: Sequence[str] | None = None,
) -> GpuEmulation | None:
    """The rate that ``HADAR_TRUE_RATES`` sets for this job; None without it or on real GPUs.

    ``gather`` collects a value from all processes of the training. ``nodes``: the nodes that
    train together, those of the allocation by default; none: this process's own. A model that the
    file lacks is not held back. Raises HadarError when the file cannot be used: a job that is not
    held back would spoil a comparison.
    """
    path = os.environ.get(ENV)
    if not path or _real_gpus():
        return None
    try:
        content = json.loads(Path(path).read_bytes())
        types, rates, scale = content["nodes"], content["rates"], float(content["time_scale"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HadarError(f"{ENV}: {path} cannot be used: {error!r}") from None
    here = os.environ.get("SLURMD_NODENAME", ""), node_gpus(os.environ)
    allocation = job_nodes(os.environ) if nodes is None else nodes
    gpus = job_gpus(gather(here), allocation, types, planned)
    rate = true_rate(rates, model, gpus) * scale
    return GpuEmulation(rate, gpus, "" if rate else _not_emulated(rates, model, gpus))


def _not_emulated(rates: Table, model: str, gpus: Mapping[str, int]) -> str:
    if not model:
        why = 'the training names no model (name="resnet50" and the like)'
    elif any(_key(name) == _key(model) for name in rates):
        why = f"it has no rate for model {model!r} on {' or '.join(sorted(gpus))}"
    else:
        why = f"it has no rate for model {model!r}"
    return (
        f"not held back to the speed of the sandbox's GPUs ({ENV}): {why}; it runs as fast as this "
        "machine can, on each GPU type alike"
    )


def _real_gpus() -> bool:
    import torch

    return bool(torch.cuda.is_available())
