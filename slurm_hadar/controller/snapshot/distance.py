"""What managed jobs lose to the network, from their own reports of progress."""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.controller.observation import racks
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import SchedulableJob, batch_of, profile_key
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.traits import NetworkTrait
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.measured import RateSample
from slurm_hadar.profiles.network_tiers import Group, nearest
from slurm_hadar.profiles.rates import Rates


def trait(
    observation: Observation, rates: Rates, targets: Sequence[SchedulableJob], kinds: Sequence[str]
) -> NetworkTrait | None:
    """One row per target; None where the site has no racks, or the policy does not use them."""
    if not observation.racks:
        return None
    factor, slowed = np.ones((len(targets), 3)), np.ones(len(targets))
    known: dict[tuple[str, Group], FloatArray] = {}
    for row, target in enumerate(targets):
        job = target.job
        held = {kind for gpus in target.held.values() for kind in gpus}
        kind = min(held) if held else (target.request.types or tuple(kinds) or ("",))[0]
        group = (job.uid, kind, target.request.count, batch_of(job) or 0)
        key = (profile_key(job), group)
        if key not in known:
            known[key] = rates.tiers.factor(*key, _of_table(rates, *key))
        factor[row] = known[key]
        if job.state is JobState.RUNNING and len(held) == 1:
            slowed[row] = _slowed(observation, rates, target, group, factor[row])
    each = [_per_node(target) for target in targets]
    return NetworkTrait(factor, slowed, np.array(each, dtype=np.int64))


def learn(observation: Observation, rates: Rates, job: Job, sample: RateSample) -> bool:
    """Keep a measured rate by its tier. True where it also tells how fast the model is as such:
    no nearer tier was measured."""
    if not observation.racks:
        return True
    tier = racks.tier_of(job.gpus, observation.racks)
    rates.tiers.record(sample, tier)
    group = (sample.uid, sample.gpu_type, sample.gpus, sample.batch or 0)
    best = nearest(rates.tiers.rates(sample.model, group))
    return best is None or tier <= best


def _slowed(
    observation: Observation, rates: Rates, target: SchedulableJob, group: Group, factor: FloatArray
) -> float:
    job = target.job
    tier = racks.tier_of(target.held, observation.racks)
    progress = observation.progress.get(job.id)
    if tier == 0:
        return 1.0
    if progress is None or progress.restarts != job.restarts or progress.rate <= 0:
        return float(factor[tier])
    batch = progress.batch or group[3]
    measured = rates.tiers.rates(profile_key(job), (*group[:2], job.gpu_count, batch))
    best = nearest(measured)
    if best is None or best >= tier:
        return float(factor[tier])
    return float(np.clip(progress.rate / measured[best] * factor[best], 1e-3, 1.0))


def _of_table(rates: Rates, model: str, group: Group) -> float:
    """Factor of GPUs on several nodes according to a table; 0 where none says."""
    uid, kind, gpus, batch = group
    if gpus < 2:
        return 0.0
    near, _ = rates.rates((uid, model, batch or None), (kind,), (gpus,))
    far, known = rates.rates((uid, model, batch or None), (kind,), (gpus,), spread=True)
    return float(far[0, 0] / near[0, 0]) if known[0, 0] and near[0, 0] > 0 else 0.0


def _per_node(target: SchedulableJob) -> int:
    """GPUs that a request per node fixes on each of several nodes."""
    want = target.request
    return want.count // want.nodes if want.form == "node" and want.nodes > 1 else 0
