"""Requests to sbatch beside which a declaration has no effect: nodes that no controller chooses,
and GPUs that it does not allow.
"""

from __future__ import annotations

import re

from slurm_hadar.cli.additions import GPU_OPTIONS, gpu_request, pinned_for_switches
from slurm_hadar.domain.declaration import ANY, Declaration
from slurm_hadar.domain.declaration_values import CountList
from slurm_hadar.domain.errors import SlurmError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from slurm_hadar.cli.additions import Settings
    from slurm_hadar.cli.wrapper_site import WrapperSite

_NOT_BY_NODE = ("--gpus=", "--gpus-per-task=", "--tres-per-task=")
"""How requests begin that leave to Slurm how many GPUs are on a node."""


def of_the_nodes(
    declaration: Declaration, held: Settings, site: WrapperSite | None
) -> Iterator[str]:
    """Requests with which no controller steers the job."""
    for name in ("nodelist", "nodefile"):
        if held.get(name):
            yield (
                f"--{name}={held[name]} names the job's nodes, so the job is not steered; remove "
                "it, and declare types= where it stands for a GPU type"
            )
    if held.get("reservation"):
        yield f"--reservation={held['reservation']}: the job is not steered in a reservation"
    if pinned_for_switches(declaration, held):
        yield (
            f"--switches={held['switches']} could keep the job waiting after a move, so it is not "
            "moved (pin=yes); on one node (-N1) it may be"
        )
    request = gpu_request(held)
    if request is not None and len(request.types) > 1:
        yield (
            f"{request.text} names several GPU types, so the job is not steered; ask for GPUs "
            f"without a type, and declare types={','.join(request.types)}"
        )
    several = _several(held, "nodes") or _several(held, "ntasks")
    spread = declaration.nodes or declaration.fork[1] > 1
    if request is not None and several and not spread and request.text.startswith(_NOT_BY_NODE):
        yield (
            f"{request.text} leaves to Slurm how many GPUs each node gives, so the job is not "
            "steered; ask for --gpus-per-node"
        )
    if held.get("exclusive"):
        yield (
            f"--exclusive={held['exclusive']} keeps others off its nodes, so the job is not "
            "steered; --exclusive alone gives it whole nodes"
        )
    yield from _of_the_list(held, site)
    words = {word for word in (held.get("constraint") or "").split("|") if word}
    if site is None or not words or not words <= {*site.features.values()}:
        return
    meant = [name for name, feature in site.features.items() if feature in words]
    kinds = declaration.types
    if kinds and ANY not in kinds and not set(kinds) & set(meant):
        yield (
            f"types={','.join(kinds)} is declared and the constraint {held['constraint']} allows "
            f"{', '.join(meant)} only, so the job is not steered; make them agree"
        )


def _of_the_list(held: Settings, site: WrapperSite | None) -> Iterator[str]:
    """A partition of the user's own list that the constraint excludes: Slurm starts no job with
    such a list anywhere."""
    names, own = (held.get("partition") or "").split(","), held.get("constraint") or ""
    if site is None or len(names) < 2 or not own:
        return
    from slurm_hadar.cli.partition_list import may_meet

    types = {name: kind for group in site.groups.values() for name, kind in group.items()}
    features = frozenset(site.features.values())
    wrong = [
        name
        for name in names
        if name in types and not may_meet(own, site.features[types[name]], features)
    ]
    kept = ",".join(name for name in names if name not in wrong)
    if wrong and kept:
        yield (
            f"partition {' and '.join(wrong)} of the list has no node with --constraint={own}, so "
            f"Slurm starts the job nowhere; ask for -p {kept}"
        )


def _several(held: Settings, name: str) -> bool:
    """Whether an option asks for more than one of something, at least."""
    least = (held.get(name) or "").partition("-")[0]
    return least.isdecimal() and int(least) > 1


def of_the_request(declaration: Declaration, held: Settings) -> Iterator[str]:
    """GPUs asked of sbatch that the declared range does not allow."""
    request = gpu_request(held)
    if declaration.gpus is None or request is None:
        return
    if "exclusive" in held and not held["exclusive"]:
        # It declares the GPUs of whole nodes, whatever it asks for.
        return
    count = gpus_asked(held)
    if count and not allows(declaration.gpus, count):
        span = declaration.assignments()["gpus"]
        yield (
            f"{request.text} asks for {count} of the GPUs and gpus={span} is declared; "
            f"write gpus={count}, or ask for as many as you declare"
        )


def allows(span: tuple[int, ...], count: int) -> bool:
    """Whether a declared ``span`` has a number of GPUs."""
    return count in span if isinstance(span, CountList) else span[0] <= count <= span[-1]


def gpus_asked(held: Settings) -> int:
    """GPUs of the whole job by sbatch's options, 0 where that is not plain."""
    texts = [(name, text) for name in (*GPU_OPTIONS, "gres") if (text := held.get(name))]
    one_node = (held.get("nodes") or "1") in ("1", "1-1")
    if len(texts) != 1 or not (texts[0][0] == "gpus" or one_node):
        return 0
    name, text = texts[0]
    if name not in ("gpus", "gpus-per-node", "gres"):
        return 0
    if name != "gres":
        text = ",".join("gpu:" + part for part in text.split(","))
    if plain := re.fullmatch(r"gpu(?::(\d{1,6}))?", text):
        return int(plain[1] or "1")
    # Only a job that needs the parser pays for its import.
    from slurm_hadar.slurm.tres import parse_gpus

    try:
        return sum(parse_gpus(text).values())
    except SlurmError:
        return 0
