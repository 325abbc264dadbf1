"""Numbers of GPUs that are declared (``gpus``) and that the job cannot get: what hbatch and
``hadar set`` say of them.

Imported where more than a range from 1 on is declared or asked for, or ``gpus`` is changed.
"""

from __future__ import annotations

import re

from slurm_hadar.domain.declaration_values import CountList

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from slurm_hadar.controller.observation.observed import Observation
    from slurm_hadar.controller.snapshot.resource_request import ResourceRequest
    from slurm_hadar.domain.declaration import Declaration
    from slurm_hadar.domain.job import Job


def of_submit(
    declaration: Declaration,
    held: Mapping[str, str | None],
    nodes: Callable[[], Collection[Mapping[str, int]]],
) -> str:
    """A sentence where a submit can get none of the numbers of ``gpus``, or of the GPUs of its
    request where it has its nodes alone; empty where it may.

    ``held``: sbatch's options; ``nodes``: asks for the GPUs, type -> number, of each node of the
    cluster.
    """
    match = re.fullmatch(r"(\d{1,6})(?:-\1)?", held.get("nodes") or "1")
    others = declaration.nodes or declaration.fork[1] > 1 or declaration.backfill
    if match is None or others:
        return ""
    from slurm_hadar.cli.request_warnings import gpus_asked

    number, span = int(match[1]), declaration.gpus
    each = 0 if "gpus" in held else gpus_asked({**held, "nodes": "1"})
    if "exclusive" in held and not held["exclusive"]:
        return _of_whole_nodes(declaration, number, each, nodes()) if span or each else ""
    if span is None:
        return ""
    if number > 1:
        other = span[0] != span[-1] or (each > 0 and span[0] != number * each)
        return _no_effect(declaration, _fixed(number)) if other else ""
    if "gpus" in held and "nodes" not in held and not isinstance(span, CountList):
        # Slurm may spread these over nodes.
        return of_one_count(declaration, held)
    sizes = [sum(node.values()) for node in _open_to(declaration, nodes())]
    why = _of_sizes(span, 1, False, {*sizes})
    if why and not each and "gpus" not in held:
        return f"gpus={span[0]} is asked of Slurm, and {why}"
    found = _no_effect(declaration, why) or of_one_count(declaration, held)
    return found or _out_of_reach(declaration, 1, sizes)


def of_one_count(declaration: Declaration, held: Mapping[str, str | None]) -> str:
    """A sentence where several numbers are declared and the job keeps that of its submit, as
    nothing but a move changes it; else empty. ``held``: sbatch's options."""
    from slurm_hadar.cli.additions import gpu_request
    from slurm_hadar.cli.request_warnings import allows, gpus_asked

    span = declaration.gpus
    others = declaration.fork[1] > 1 or declaration.backfill or "exclusive" in held
    on_one_node = (held.get("nodes") or "1").partition("-")[0] == "1"
    if span is None or span[0] == span[-1] or others or not on_one_node:
        return ""
    request = gpu_request(held)
    none_asked = (held.get("gres") or "").lower() == "none"
    count = gpus_asked(held) if request is not None else 0 if none_asked else span[0]
    if not allows(span, count):
        return ""
    moves = "only a move changes the number, and it"
    if request is not None and request.types:
        named = ",".join(request.types)
        why = f"{request.text} names a GPU type, and Slurm changes no such request"
        what = f"write types={named} in its place"
    elif not declaration.checkpoint:
        why = f"{moves} declares no checkpoint"
        what = "add checkpoint=yes, or the way in which it saves by itself"
    elif declaration.pin:
        why, what = f"{moves} is pinned", "remove pin=yes"
    else:
        return ""
    return f"of gpus={declaration.assignments()['gpus']} the job keeps {count}: {why}; {what}"


def _open_to(
    declaration: Declaration, nodes: Collection[Mapping[str, int]]
) -> list[Mapping[str, int]]:
    """The nodes with GPUs of one type, which the job accepts as far as Slurm knows the name."""
    kinds = {kind for kind in declaration.types if any(kind in node for node in nodes)}
    return [node for node in nodes if len(node) == 1 and (not kinds or kinds & {*node})]


def _of_whole_nodes(
    declaration: Declaration, number: int, each: int, nodes: Collection[Mapping[str, int]]
) -> str:
    """``number``: nodes of the job; ``each``: GPUs that it asks for on each, 0: not known."""
    found = [(min(node), sum(node.values())) for node in _open_to(declaration, nodes)]
    # All of its nodes are alike, and Slurm starts it on none with fewer GPUs.
    sizes = {size for kind, size in found if size >= each and found.count((kind, size)) >= number}
    span = declaration.gpus
    if span is not None:
        return _no_effect(declaration, _of_sizes(span, number, True, sizes))
    if not sizes or each in sizes:
        return ""
    may = " or ".join(str(size * number) for size in sorted(sizes))
    return (
        f"the job has its nodes alone (--exclusive) and asks for {each * number} of their {may} "
        f"GPUs, so it is not steered; declare gpus={min(sizes) * number}"
    )


def of_job(job: Job, want: ResourceRequest | str, seen: Observation) -> str:
    """The same of a job as it declares now. ``want``: its request, or why it is not steered."""
    from slurm_hadar.controller.snapshot.resource_request import may_have
    from slurm_hadar.controller.snapshot.whole_nodes import WholeNodes, gpus_of

    declared = job.declaration
    if declared is None or declared.off or declared.gpus is None:
        return ""
    span = declared.gpus
    if isinstance(want, str):
        return _no_effect(declared, want)
    several = span[0] != span[-1]
    other = several or span[0] != want.count
    if want.whole:
        fitted = WholeNodes(seen).fitted(job, want)
        return _no_effect(declared, fitted) if isinstance(fitted, str) else ""
    if other and want.copies[1] > 1:
        why = "copies have the GPUs of the request on each node"
    elif other and want.nodes > 1:
        why = _fixed(want.nodes)
    elif other and job.request.typed:
        why = "the request names a GPU type, and Slurm changes no such request"
    elif other and want.form == "task":
        why = "the request counts GPUs by task"
    elif other and not declared.checkpoint:
        why = f"only a move changes the {want.count} of the request, and it declares no checkpoint"
    elif declared.pin and not may_have(declared, want.count, asked=True):
        why = f"only a move changes the {want.count} of the request, and it is pinned"
    else:
        there = (seen.partitions[name].nodes for name in want.partitions if name in seen.partitions)
        members = [seen.nodes[name] for names in there for name in names if name in seen.nodes]
        fit = [node for node in members if not want.types or {*want.types} & {*node.gpus}]
        # On several nodes it may have the GPUs of all of them.
        sizes = sorted((gpus_of(node) for node in fit), reverse=True)[: want.most_nodes]
        most = (sum(sizes),)
        why = _of_sizes(span, want.most_nodes, False, most)
        found = _no_effect(declared, why) or _out_of_reach(declared, want.most_nodes, most)
        return found or _until_a_move(job, want)
    return _no_effect(declared, why)


def _until_a_move(job: Job, want: ResourceRequest) -> str:
    from slurm_hadar.controller.snapshot.resource_request import may_have

    count = job.gpu_count or want.count
    if job.declaration is None or may_have(job.declaration, count, asked=True):
        return ""
    declared = job.declaration.assignments()["gpus"]
    if job.gpu_count:
        return f"it runs with {count} until a move gives it gpus={declared}"
    return f"its request is for {count} and stays so until a move gives it gpus={declared}"


def _no_effect(declaration: Declaration, why: str) -> str:
    return f"gpus={declaration.assignments()['gpus']} has no effect: {why}" if why else ""


def _out_of_reach(declaration: Declaration, nodes: int, sizes: Collection[int]) -> str:
    """Where a range goes beyond the GPUs of so many nodes. A list may name numbers of several
    clusters. ``sizes``: as :func:`_of_sizes` takes them."""
    span, largest = declaration.gpus or (0,), max(sizes, default=0)
    if isinstance(span, CountList) or not span[0] <= largest < span[-1]:
        return ""
    return (
        f"of gpus={declaration.assignments()['gpus']} the job gets at most {largest}: "
        f"{_none_of(nodes)} it may have {'has' if nodes == 1 else 'have'} more GPUs"
    )


def _none_of(nodes: int) -> str:
    return "no node that" if nodes == 1 else f"no {nodes} nodes that"


def _of_sizes(span: tuple[int, ...], nodes: int, whole: bool, sizes: Collection[int]) -> str:
    """``sizes``: the GPUs of each node that the job may have, or of as many ``nodes``."""
    if not any(sizes):
        return ""
    if not whole:
        has = f"{_none_of(nodes)} the job may have {'has' if nodes == 1 else 'have'}"
        return f"{has} more than {max(sizes)} GPUs" if span[0] > max(sizes) else ""
    may = sorted({size * nodes for size in sizes if size})
    least, most = (1, 0) if isinstance(span, CountList) else (span[0], span[-1])
    if {*span} & {*may} or any(least <= count <= most for count in may):
        return ""
    what = "whole nodes have" if nodes == 1 else f"{nodes} whole nodes have"
    return f"{what} {' or '.join(map(str, may))} GPUs"


def _fixed(nodes: int) -> str:
    return (
        f"on {nodes} nodes the job keeps the GPUs of its request on each; with --exclusive it may "
        "have whole nodes of other sizes"
    )
