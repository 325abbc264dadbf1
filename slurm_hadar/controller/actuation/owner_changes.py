"""What a job's owner declared while the job was being moved, and what the move may still do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_hadar.config import Config, group_types
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.entry_details import copies_of, steering_of
from slurm_hadar.controller.actuation.restored_request import within_types
from slurm_hadar.controller.journal.entry import Entry
from slurm_hadar.controller.observation.access import declared_list
from slurm_hadar.controller.snapshot.constraints import with_feature
from slurm_hadar.controller.snapshot.resource_request import (
    ResourceRequest,
    accepts,
    may_have,
    resource_request,
)
from slurm_hadar.domain.declaration import Declaration
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Node
from slurm_hadar.domain.steering import Steering


def excluded(entry: Entry, job: Job, steered: Steering, config: Config) -> str:
    """Why the owner, by the present declaration, does not accept where the move ``entry`` goes;
    empty: it is accepted, or the move goes nowhere, as a stop.

    ``steered``: what is kept of the job.
    """
    gpus, declared = steering_of(entry.details, 0.0).gpus, job.declaration or Declaration()
    want = resource_request(job, steered, config)
    if not gpus or isinstance(want, str):
        return ""
    words = declared.assignments()
    for kind in sorted(gpus):
        if want.types and kind not in want.types:
            return f"its owner declared types={words.get('types', '')} meanwhile, without {kind}"
        if not accepts(job, want, kind, config):
            least = f"gpu_mem={declared.gpu_mem / 1024:g}G"
            return f"its owner declared {least} meanwhile, more than {kind} has"
    copies, _ = copies_of(entry.details)
    if copies > 1 and not want.copies[0] <= copies <= want.copies[1]:
        return f"its owner declared fork={words.get('fork', '1')} meanwhile, not {copies} copies"
    there = len(steering_of(entry.details, 0.0).nodes)
    if copies == 1 and there > want.most_nodes:
        return f"its owner declared nodes={words.get('nodes', '1')} meanwhile, fewer than {there}"
    count, fixed = sum(gpus.values()), want.whole or want.copies[1] > 1
    if not fixed and count not in want.counts and not may_have(declared, count, True):
        return f"its owner declared gpus={words['gpus']} meanwhile, without {count}"
    return ""


def accepted_request(
    job: Job, steered: Steering, nodes: Mapping[str, Node], config: Config
) -> tuple[job_updates.Fields, Steering]:
    """What makes the request of a job that waits its owner's again, limited to the types that the
    owner accepts now, and what is kept of the job then. ``steered``: what is kept of it."""
    want = resource_request(job, steered, config)
    fields, was = job_updates.undo_fields(job, steered), dict(steered.was)
    if not isinstance(want, str) and not job.request.typed:
        names = was["Partition"].split(",") if "Partition" in was else list(job.partitions)
        wish = _limited(job, want, names, nodes, config)
        # What hbatch would have written for the owner's types counts as the owner's.
        was |= {
            key: value
            for key, value in wish.items()
            if key not in steered.foreign
            and (key == "Features" or not {*value.split(",")} <= {*names})
        }
        fields |= wish
    fields = within_types(job, steered, fields, config)
    fields = {
        key: value
        for key, value in fields.items()
        if key not in steered.foreign and value != job_updates.current(job, key)
    }
    was = job_updates.originals(job, fields, was)
    return fields, replace(steered, was=was, wrote={**steered.wrote, **fields})


def _limited(
    job: Job,
    want: ResourceRequest,
    names: Sequence[str],
    nodes: Mapping[str, Node],
    config: Config,
) -> job_updates.Fields:
    """``names``: the owner's partitions."""
    types = {
        name: {kind for node in nodes.values() if name in node.partitions for kind in node.gpus}
        for name in names
    }
    if all(len(kinds) == 1 for kinds in types.values()):
        open_ = [n for n in names if all(accepts(job, want, kind, config) for kind in types[n])]
        return {"Partition": ",".join(open_ or _anew(job, want, names, config) or names)}
    there = [kind for kind in config.gpu_types if any(kind in kinds for kinds in types.values())]
    features = [
        config.gpu_types[kind].feature for kind in there if accepts(job, want, kind, config)
    ]
    if not features or len(features) == len(there):
        return {}
    either = "|".join(features)
    return {"Features": with_feature(want.constraint, f"({either})" if want.constraint else either)}


def _anew(job: Job, want: ResourceRequest, names: Sequence[str], config: Config) -> list[str]:
    """The list that hbatch would write for the owner's types, where ``names`` is one that it wrote
    for others; else empty."""
    declared = job.declaration or Declaration()
    types = group_types(config).get(",".join(declared.partitions), {})
    if not {*names} <= {*types} or {*names} != {*(declared.listed or names)}:
        return []
    listed = declared_list(declared, config)
    return [name for name in listed if accepts(job, want, types[name], config)]
