"""GPUs in Slurm's GRES and TRES strings: the only place that reads or writes them.

Seen forms: ``gpu:2``, ``gpu:v100``, ``gpu:v100:2(S:0-1)``, ``gpu:v100:2(IDX:0-1)``,
``gres:gpu:v100:2`` (22.05), ``gres/gpu:v100:2`` (24.11), ``gres/gpu=2,gres/gpu:v100=2`` (TRES).
"""

import re

from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.slurm import lists

_SUFFIX = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_COUNT = re.compile(r"(\d{1,12})([KMG]?)", re.IGNORECASE)
_GPU = re.compile(r"(?:gres[:/])?gpu(?=[:=]|$)")
_COUNTED = re.compile(r"(?:cpu|mem|node|billing|energy)(?=[:=]|$)")
_NOTHING = ("", "(null)", "N/A", "none")
_SHARED = re.compile(r"(?:shard|mps)(?::([^:()]+))?:\d+\((.*)\)")
_SPAN = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_PART = re.compile(r"\d+/\d+")
_FIRST_SLASH = (23, 11)
LONGEST = 64_000
"""Characters of a request or of a node's GRES; a node with a dozen kinds of GPUs has 500."""


def parse_gpus(text: str) -> dict[str, int]:
    """GPUs by type (:data:`~slurm_hadar.domain.job.UNTYPED` where none is named); zeros left out.

    Other resources in the string are skipped. Where an untyped count stands beside typed ones it
    is their total, as Slurm's accounting writes it: only what exceeds their sum is kept as
    untyped. Raises :class:`SlurmError` on a GPU entry that cannot be read.
    """
    counts: dict[str, int] = {}
    for entry in _entries(text):
        if entry in _NOTHING:
            continue
        bare = entry.partition("(")[0] if entry.endswith(")") else entry
        match = _GPU.match(bare)
        if match is None:
            continue
        gpu_type, count = _type_and_count(bare[match.end() :], entry)
        counts[gpu_type] = counts.get(gpu_type, 0) + count
    typed = sum(count for gpu_type, count in counts.items() if gpu_type != UNTYPED)
    if typed and UNTYPED in counts:
        counts[UNTYPED] = max(0, counts[UNTYPED] - typed)
    return {gpu_type: count for gpu_type, count in counts.items() if count}


def others(text: str) -> bool:
    """Whether a request names other GRES than GPUs, such as ``gres/nvme:1`` or ``shard:2``.

    The CPUs of ``--cpus-per-task`` stand in a request of each task too (24.11).
    """
    return any(
        entry not in _NOTHING and not _GPU.match(entry) and not _COUNTED.match(entry)
        for entry in _entries(text)
    )


def gpus_used(text: str) -> dict[str, int]:
    """GPUs of a node's GresUsed by type, with those of which parts are given out as ``shard`` or
    ``mps``: Slurm starts no job on them that asks for a whole one.

    Seen are ``shard:v100:1(IDX:0)`` (22.05, the devices) and ``shard:v100:2(2/4,0/4)`` (24.11,
    parts in use of each device). Raises :class:`SlurmError` as :func:`parse_gpus` does.
    """
    counts = parse_gpus(text)
    for entry in _entries(text):
        match = _SHARED.fullmatch(entry)
        if match is not None:
            devices = _devices(match[2])
            if devices:
                counts[match[1] or UNTYPED] = counts.get(match[1] or UNTYPED, 0) + devices
    return counts


def _devices(text: str) -> int:
    """How many devices ``IDX:0-1,3`` names, or have a part in use in ``2/4,0/4``."""
    if text.startswith("IDX:"):
        spans = [_SPAN.fullmatch(part) for part in text.removeprefix("IDX:").split(",")]
        return sum(max(0, int(s[2] or s[1]) - int(s[1])) + 1 for s in spans if s is not None)
    return sum(part[0] != "0" for part in text.split(",") if _PART.fullmatch(part))


def bare(text: str) -> str:
    """A request without ``gres:`` or ``gres/`` before its entries: ``gpu:v100:2``."""
    return ",".join(re.sub(r"^gres[:/]", "", entry) for entry in _entries(text))


def prefixed(text: str, version: tuple[int, int, int]) -> str:
    """A request as ``TresPerJob`` takes it: ``gres:gpu:2`` on 22.05, ``gres/gpu:2`` on 24.11.

    Seen on these two; the change is taken to be 23.11's (recalled).
    """
    prefix = "gres/" if version[:2] >= _FIRST_SLASH else "gres:"
    return ",".join(prefix + entry for entry in _entries(bare(text)))


def _entries(text: str) -> list[str]:
    """Split at the commas outside parentheses."""
    if not text:
        return []
    if len(text) > LONGEST:
        raise SlurmError(
            f"Slurm shows GPUs as {text[:40]!r} and so on, longer than {LONGEST} characters, the "
            "limit"
        )
    return [part.strip() for part in lists.outside(text, "()")]


def _type_and_count(rest: str, entry: str) -> tuple[str, int]:
    head, equals, tail = rest.removeprefix(":").partition("=") if rest else ("", "", "")
    words = [word for word in head.split(":") if word and word != "no_consume"]
    if equals:
        words.append(tail)
    if not words:
        return UNTYPED, 1
    if len(words) == 1:
        match = _COUNT.fullmatch(words[0])
        if match:
            return UNTYPED, _number(match)
        if not equals:
            return words[0], 1
    elif len(words) == 2:
        match = _COUNT.fullmatch(words[1])
        if match:
            return words[0], _number(match)
    raise SlurmError(f"Slurm shows GPUs as {entry[:80]!r}, which is not understood")


def _number(match: re.Match[str]) -> int:
    return int(match[1]) * _SUFFIX[match[2].upper()]
