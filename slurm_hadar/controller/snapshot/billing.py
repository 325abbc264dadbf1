"""What a placement would be billed, where the site prices what jobs use.

Slurm bills a job what it has by ``TRESBillingWeights`` of its partition, for as long as it runs
(slurm.conf): the sum, or with MAX_TRES in PriorityFlags the dearest of it. The factor of its QOS is
the same wherever it runs.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot import pending_demand
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob
from slurm_hadar.domain.declaration import ANY
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.steering import Steering
from slurm_hadar.domain.view import BoolArray, FloatArray

_NUMBER = re.compile(r"([0-9.]+)([KMGTP]?)", re.IGNORECASE)
_MB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_ROUNDING = 1 + 1e-9


@lru_cache(maxsize=256)
def weights(text: str) -> dict[str, float]:
    """``CPU=1.0,Mem=0.25G,GRES/gpu=2`` by name in small letters; memory per MB. What cannot be read
    is left out."""
    found = {}
    for part in text.lower().split(","):
        name, _, value = part.partition("=")
        match = _NUMBER.fullmatch(value)
        if match is None:
            continue
        try:
            number = float(match[1])
        except ValueError:
            continue
        found[name] = number / _MB[match[2].upper()] if name == "mem" else number
    return {name: number for name, number in found.items() if number > 0}


def affordable(
    rate: FloatArray,
    targets: Sequence[SchedulableJob],
    observation: Observation,
    kinds: tuple[str, ...],
    counts: tuple[int, ...],
) -> BoolArray:
    """(J, R, C) placements whose expected bill is no higher than the dearest that the owner's own
    number of GPUs could come to; all of a job with ``cost=any``, or without a price.

    ``rate``: (J, R, C) samples/s, 0 where the job cannot run. Copies need no look: what they are
    billed for a sample lies between what each of them is alone.
    """
    found = np.ones(rate.shape, dtype=bool)
    types = {
        name: observation.gpu_types[name]
        for name, one in observation.partitions.items()
        if one.billing
    }
    for row, target in enumerate(targets):
        want = target.request
        if len(want.counts) < 2 or not _priced(target.job, want.partitions, observation.partitions):
            continue
        own = want.count if want.count in want.counts else want.counts[0]
        prices = np.array([_per_gpu(target, kind, observation, types) for kind in kinds])
        bills = np.full(rate.shape[1:], np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            np.divide(prices[:, None] * np.array(counts), rate[row], out=bills, where=rate[row] > 0)
        could = bills[:, counts.index(own)]
        if np.isfinite(could).any():
            found[row] = bills <= could[np.isfinite(could)].max() * _ROUNDING
    return found


def as_billed(
    jobs: Mapping[str, Job], partitions: Mapping[str, Partition], steering: Mapping[str, Steering]
) -> dict[str, Job]:
    """The jobs; those that are billed for CPUs or memory keep what they asked of these.

    ``steering``: tells in which partitions a job was submitted.
    """
    return {
        id_: _own_cpus(job, partitions, steering.get(id_, Steering())) for id_, job in jobs.items()
    }


def note(job: Job, partitions: Mapping[str, Partition]) -> str:
    """Why a job may get less than its ranges allow; empty where prices keep nothing from it."""
    declared = job.declaration
    if declared is None or not (declared.gpus or declared.cpus or declared.mem):
        return ""
    if not _priced(job, (*job.partitions, *declared.partitions), partitions):
        return ""
    return (
        "it gets more GPUs, CPUs or memory only where that is billed no more than its request "
        f"could be (TRESBillingWeights); to lift that: hadar set {job.id} cost=any"
    )


def _own_cpus(job: Job, partitions: Mapping[str, Partition], steered: Steering) -> Job:
    declared = job.declaration
    if declared is None or not (declared.cpus or declared.mem):
        return job
    own = steered.was.get("Partition", "").split(",")
    if not {"cpu", "mem"} & _priced(job, (*job.partitions, *own), partitions).keys():
        return job
    return replace(job, declaration=replace(declared, cpus=None, mem=None))


def _priced(
    job: Job, names: Sequence[str], partitions: Mapping[str, Partition]
) -> dict[str, float]:
    """The weights of a job's partitions, the highest of each kind; empty where its owner does not
    mind."""
    found: dict[str, float] = {}
    if job.declaration is None or job.declaration.cost == ANY:
        return found
    for name in names:
        if name in partitions and partitions[name].billing:
            for kind, number in weights(partitions[name].billing).items():
                found[kind] = max(found.get(kind, 0.0), number)
    return found


def _per_gpu(
    target: SchedulableJob,
    kind: str,
    observation: Observation,
    types: Mapping[str, Collection[str]],
) -> float:
    """What a second on a GPU of a type is billed, with its part of the job's CPUs and memory."""
    with_it = [name for name in target.request.partitions if kind in types.get(name, ())]
    price = _priced(target.job, with_it, observation.partitions)
    job, gpus = target.job, max(1, target.request.count)
    has = {
        "gres/gpu": 1.0,
        f"gres/gpu:{kind.lower()}": 1.0,
        "cpu": pending_demand.cpus(job) / gpus,
        "mem": pending_demand.memory_mb(job) / gpus,
    }
    parts = {name: price.get(name, 0.0) * amount for name, amount in has.items()}
    return observation.billing_rule.bill(parts)
