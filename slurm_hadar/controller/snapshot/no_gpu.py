"""Why no job may have a GPU, or one of some types, now: a policy does not know it."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.placement import Plan
from slurm_hadar.policies.unavailable import NO_GPU, NO_GPU_OF

_OF = re.compile(re.escape(NO_GPU_OF).replace(re.escape("{}"), "(.+?)"))


def why_no_gpu(observation: Observation, kinds: Collection[str]) -> str:
    """``kinds``: GPU types of which the view has none for its jobs. Empty where no node has one of
    them."""
    gpus = "GPUs"
    if not {kind for one in observation.nodes.values() for kind in one.gpus} <= {*kinds}:
        gpus += f" of {', '.join(kinds)}"
    there = [node for node in observation.nodes.values() if any(map(node.gpus.get, kinds))]
    usable = [node for node in there if node.usable]
    names = [node.name for node in usable if not node.asleep]
    reserved = observation.reserved_nodes().intersection(names)
    open_ = [observation.free_gpus[name] for name in names if name not in reserved]
    found = []
    if any(any(map(free.get, kinds)) for free in open_):
        found.append(f"the {gpus} that are free are kept for jobs ahead in the queue")
    elif open_:
        found.append(f"all {gpus} are busy with jobs that slurm-hadar cannot move")
    for number, what in (
        (len(there) - len(usable), "down, drained or otherwise closed to new jobs (sinfo -R)"),
        (len(usable) - len(names), "powered down or booting (Slurm wakes nodes)"),
        (len(reserved), "reserved (scontrol show reservation)"),
    ):
        if number:
            which = "all" if number == len(there) else f"{number} of {len(there)}"
            verb = "is" if which.startswith("1 ") else "are"
            found.append(f"{which} nodes with {gpus} {verb} {what}")
    return "; ".join(found)


def explained(plan: Plan, types: Sequence[str], why: Callable[[Collection[str]], str]) -> Plan:
    """The plan with ``why`` no job may have a GPU, where the policy says that. ``types``: all of
    the view."""

    def said(text: str) -> str:
        if text == NO_GPU:
            return why(types) or text
        return _OF.sub(lambda found: why(found[1].split(", ")) or found[0], text)

    waiting = {id_: said(text) for id_, text in plan.waiting.items()}
    return replace(plan, waiting=waiting, notes=tuple(map(said, plan.notes)))
