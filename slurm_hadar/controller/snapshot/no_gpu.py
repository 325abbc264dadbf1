"""Why no job of a view may have a GPU now, which a policy does not know."""

from collections.abc import Collection
from dataclasses import replace

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.domain.placement import Plan
from slurm_hadar.policies.allocation import NO_GPU


def why_no_gpu(observation: Observation, kinds: Collection[str]) -> str:
    """``kinds``: the GPU types of the view, which has no GPU for its jobs. Empty where no node has
    one of them."""
    there = [node for node in observation.nodes.values() if any(map(node.gpus.get, kinds))]
    names = [node.name for node in there if node.usable]
    reserved = observation.reserved_nodes().intersection(names)
    open_ = [observation.free_gpus[name] for name in names if name not in reserved]
    found = []
    if any(any(map(free.get, kinds)) for free in open_):
        found.append("the GPUs that are free are kept for jobs ahead in the queue")
    elif open_:
        found.append("all GPUs are busy with jobs that slurm-hadar cannot move")
    for number, what in (
        (len(there) - len(names), "down, drained or otherwise closed to new jobs (sinfo -R)"),
        (len(reserved), "reserved (scontrol show reservation)"),
    ):
        if number:
            which = "all" if number == len(there) else f"{number} of {len(there)}"
            verb = "is" if which.startswith("1 ") else "are"
            found.append(f"{which} nodes with GPUs {verb} {what}")
    return "; ".join(found)


def explained(plan: Plan, why: str) -> Plan:
    """The plan with ``why`` no job may have a GPU, where the policy says that."""
    if not why or NO_GPU not in plan.notes:
        return plan
    waiting = {id_: why if said == NO_GPU else said for id_, said in plan.waiting.items()}
    notes = tuple(why if said == NO_GPU else said for said in plan.notes)
    return replace(plan, waiting=waiting, notes=notes)
