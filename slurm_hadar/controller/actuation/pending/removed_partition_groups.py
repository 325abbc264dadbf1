"""Waiting jobs with a list for a group that the site has taken out of ``[partitions.groups]``: they
get the partition back that their owner typed. Nothing else would, as the list then looks like their
owner's own."""

from collections.abc import Iterable, Mapping

from slurm_hadar.config import Config
from slurm_hadar.controller.actuation import job_updates
from slurm_hadar.controller.actuation.pending import list_updates
from slurm_hadar.controller.actuation.pending.queue_head import MOST_TAKEN_BACK
from slurm_hadar.controller.actuation.restored_request import limited_to_types
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.resource_request import declares, excludes
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.steering import Steering
from slurm_hadar.slurm.partition_lines import difference

WHY = "its list stands for a group that the site has no more: it has its owner's partition again"


def typed_again(jobs: Iterable[Job], observation: Observation, config: Config) -> dict[str, str]:
    """Job -> the partition that it gets back; of as many records as one tick may take back."""
    found, records = dict[str, str](), set[int]()
    for job in jobs:
        name = "" if job.held else _typed(job, observation, config)
        if not name or (len(records) >= MOST_TAKEN_BACK and job.raw_id not in records):
            continue
        closed = any(not observation.partitions[one].up for one in job.partitions)
        steered = observation.steered(job.id)
        if not closed and list_updates.would_change_places(job, steered, observation):
            continue
        if fields(job, steered, name, observation, config):
            records.add(job.raw_id)
            found[job.id] = name
    return found


def fields(
    job: Job, steered: Steering, name: str, observation: Observation, config: Config
) -> Mapping[str, str]:
    """The owner's request with the partition ``name``, and with features of the GPU types that the
    list alone said; empty where these cannot be written, so that the job would start on others."""
    kinds = observation.gpu_types[name]
    again = {**job_updates.undo_fields(job, steered), "Partition": name}
    again = limited_to_types(job, again, kinds, config)
    declared = job.declaration
    if declared is None or job.request.typed:
        return again
    wrong = {kind for kind in kinds & {*config.gpu_types} if not declares(declared, kind, config)}
    is_limited = not wrong or excludes(again.get("Features", job.features), wrong, config)
    return again if is_limited else {}


def _typed(job: Job, observation: Observation, config: Config) -> str:
    """The partition that the owner of a waiting job typed, where its list is the controller's or
    hbatch's and no group of the site stands for it; else empty.

    A Comment is its owner's to write, and an operator's update bypasses what Slurm checks at
    submission. So what it says counts where the typed partition has the access and limits of those
    in the list.
    """
    steered, there = observation.steered(job.id), observation.partitions
    waits = job.state is JobState.PENDING and job.declaration is not None
    if not waits or job.declaration is None or "Partition" in steered.foreign:
        return ""
    kept, listed = steered.was.get("Partition", ""), {*job.declaration.listed}
    declared = ",".join(job.declaration.partitions)
    known = kept in there and {*job.partitions} == {*steered.wrote.get("Partition", "").split(",")}
    recorded = bool(listed) and {*(kept.split(",") if kept else job.partitions)} == listed
    name = kept if known else declared if recorded else ""
    if name not in there or name in config.partitions.groups or not there[name].up:
        return ""
    if name in job.partitions or not {*job.partitions} <= there.keys():
        return ""
    return name if known or _is_alike(job, name, observation) else ""


def _is_alike(job: Job, name: str, observation: Observation) -> bool:
    typed, members = observation.partitions[name], list(job.partitions)
    each = [observation.partitions[one] for one in members]
    shared = {*typed.nodes} & {node for one in each for node in one.nodes}
    return (
        bool(shared)
        and job.own_partitions.isdisjoint((name, *members))
        and not any(difference(one, typed) for one in each)
    )
