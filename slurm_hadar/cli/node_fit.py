"""Whether a submit surely fits an empty node: a list of partitions must keep one that has such a
node, or Slurm refuses a job that it would take in the partition as typed.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slurm_hadar.domain.declaration import Declaration

Node = tuple[int, int, int]
"""GPUs, CPUs and MB of memory of a node."""

_SAYS_NOTHING = """
account acctg-freq array begin chdir comment deadline delay-boot dependency error export export-file
get-user-env hold input job-name kill-on-invalid-dep licenses mail-type mail-user nice no-requeue
nodes open-mode output parsable partition priority profile propagate qos quiet requeue signal time
time-min verbose wait wckey wrap
"""
"""Options that say nothing of what a node must have; more than one node is never asked for here."""
_COUNTS = ("gpus", "gpus-per-node", "gpus-per-task")
_NUMBERS = ("ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_KNOWN = {*_SAYS_NOTHING.split(), "gres", "constraint", *_COUNTS, *_NUMBERS, *_MEMORY}
_GPUS = r"(?:gres[:/])?gpu(?::[A-Za-z_][\w.-]*)?(?:[:=](\d{1,6}))?"
_UNITS = {"K": 1 / 1024, "M": 1, "": 1, "G": 1024, "T": 1024**2}


def fits(
    record: Declaration,
    held: Mapping[str, str | None],
    nodes: Mapping[str, Iterable[Node]],
    features: frozenset[str],
) -> frozenset[str]:
    """The partitions of ``nodes`` that have a node which holds the job; none where an option leaves
    that open. ``features``: those of the GPU types, of which a constraint may speak.
    """
    need = _need(record, held)
    words = re.split(r"[&|]", held.get("constraint") or "")
    if need is None or not {word for word in words if word} <= features:
        return frozenset()
    gpus, cpus, memory = need
    if memory is None:
        # By the site's default, which gives a CPU no more than the largest share on a node.
        shares = [mb / of for some in nodes.values() for _, of, mb in some if of]
        memory = cpus * max(shares, default=0.0)
    return frozenset(
        name
        for name, some in nodes.items()
        if any(gpus <= has and cpus <= of and memory <= mb for has, of, mb in some)
    )


def gpus_asked(record: Declaration, held: Mapping[str, str | None]) -> int | None:
    """How many GPUs a job on one node asks for; None where that is not clear."""
    need = _need(record, held)
    return None if need is None else need[0]


def _need(
    record: Declaration, held: Mapping[str, str | None]
) -> tuple[int, int, float | None] | None:
    """GPUs, CPUs and MB (None: the site's default) on one node; None where that is not clear."""
    if not held.keys() <= _KNOWN:
        return None
    try:
        number = {name: int(held.get(name) or "1") for name in _NUMBERS}
        tasks = number["ntasks"] if "ntasks" in held else number["ntasks-per-node"]
        gpus = _gpus(record, held, tasks)
        cpus = tasks * number["cpus-per-task"]
        if "cpus-per-gpu" in held:
            cpus = max(cpus, gpus * number["cpus-per-gpu"])
        times = {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": gpus}
        memory = [_megabytes(held[name] or "") * times[name] for name in _MEMORY if name in held]
    except ValueError:
        return None
    return gpus, cpus, max(memory) if memory else None


def _gpus(record: Declaration, held: Mapping[str, str | None], tasks: int) -> int:
    """Raises ValueError where something else than GPUs is asked for, or ``--gpus`` names a type."""
    found = [int(held[name] or "") * (tasks if "task" in name else 1) for name in _COUNTS
             if name in held]  # fmt: skip
    for part in (held.get("gres") or "").split(","):
        match = re.fullmatch(_GPUS, part)
        if match is None and part:
            raise ValueError(part)
        found += [int(match[1] or "1")] if match else []
    return max(found, default=record.gpus[0] if record.gpus else 1)


def _megabytes(text: str) -> float:
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", text.upper())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _UNITS[match[2]]
