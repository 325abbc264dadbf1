"""Partitions: the one for idle nodes, their order; and the policy."""

from collections.abc import Iterator

import numpy as np

from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.slurm import hosts
from slurm_hadar.tuning.advice import WORTH, Advice, Study, gained
from slurm_hadar.tuning.draft import Ref
from slurm_hadar.tuning.replay import ANY, OWN

_HIGH, _LOW = 10, 1
_IDLE_NAMES = ("idle", "backfill", "scavenge", "hadar_idle")
_PREEMPT = "preempt/partition_prio"
_REPLAYED = "in the replay of {n} jobs, all of them free to run on any type"


def policy(study: Study) -> Iterator[Advice]:
    """The policy with the least mean job time, where it beats what a free type alone gives."""
    base_s, base_p99_s, base = _base(study)
    ran = [run for run in study.runs if run.policy not in (OWN, ANY) and run.share == 1.0]
    ran = [run for run in ran if study.run(run.policy)]
    timed = [(run.outcome.avg_jct_s, run.policy, run.outcome) for run in ran if run.outcome]
    if not base or not timed:
        study.fine.append("controller.policy: there is no replay to judge it by")
        return
    # A mean that the longest jobs pay for is no gain.
    kind = [one for one in timed if _p99_s(one[2].jct_s) <= (1 + WORTH) * base_p99_s]
    best_s, name, outcome = min(kind or timed, key=lambda one: (one[0], one[1]))
    now = study.config.controller.policy if study.config else ""
    if name == now:
        study.fine.append(f"controller.policy: {now} is the best of the replay")
        return
    if not kind or best_s > (1 - WORTH) * base_s:
        study.fine.append(
            f"controller.policy: no policy of the replay has a mean job time {WORTH:.0%} less than "
            f"{base} without making the longest jobs longer"
        )
        return
    moves = int(outcome.moves.sum())
    toml = ["[controller]", f'policy = "{name}"']
    yield Advice(
        topic="policy",
        why=(
            f"of the policies that were tried, {name} has the least mean job time; it moved "
            f"running jobs {moves} times, at {study.restart_s:g} s each, which only jobs that "
            "save checkpoints allow"
        ),
        gain=f"{gained(base_s, best_s, 'mean job time')} beside {base} "
        + _REPLAYED.format(n=len(outcome.finish_s)),
        basis="simulated",
        toml=tuple(toml),
    )


def _base(study: Study) -> tuple[float, float, str]:
    """Mean job time and that within which 99 of 100 end, s, which a policy has to beat, and whose
    they are; "" where there are none."""
    any_ = study.run(ANY)
    if study.history is None and study.recorded is not None:
        jct, name = study.recorded.jct_s, study.recorded.name
    elif any_ is not None and any_.outcome is not None:
        jct, name = any_.outcome.jct_s, "a free choice of type"
    else:
        return 0.0, 0.0, ""
    # A run that left jobs unfinished is no measure.
    return (float(jct.mean()), _p99_s(jct), name) if np.isfinite(jct).all() else (0.0, 0.0, "")


def _p99_s(jct_s: FloatArray) -> float:
    return float(np.percentile(jct_s, 99))


def idle_nodes(study: Study) -> Iterator[Advice]:
    """A partition of a lower tier whose jobs give way, over all GPU nodes."""
    site = study.site
    if not site.gpu_nodes:
        return
    there = [p for p in site.partitions if gives_way(p, study) and _on_gpus(p, study)]
    offered = sum(one.offered_gpu_h for one in study.usage.types) if study.usage else 0.0
    gaps = sum(one.gaps_gpu_h for one in study.usage.types) if study.usage else 0.0
    if not there:
        if not offered or gaps < WORTH * offered:
            study.fine.append(
                "idle nodes: no advice; "
                + (
                    f"{gaps / offered:.1%} of the GPU-hours idled in stretches of ten minutes or "
                    "more"
                    if offered
                    else "without a history the idle time is unknown"
                )
            )
            return
        name = free_name(_IDLE_NAMES, site.partitions)
        nodes = hosts.fold(tuple(node.name for node in site.gpu_nodes))
        refs = [*_preempting(study), *_above(study, set())]
        keys = {"Nodes": nodes, "PriorityTier": str(_LOW), "PreemptMode": "REQUEUE",
                "GraceTime": "0", "State": "UP"}  # fmt: skip
        refs.append(study.draft.add(name, keys))
        yield Advice(
            topic="idle nodes",
            why=(
                f"{gaps:.0f} of {offered:.0f} GPU-hours ({gaps / offered:.0%}) idled in stretches "
                "of ten minutes or more. Trainings in a partition of the lowest PriorityTier use "
                "them and are requeued as soon as a job of a higher tier needs the node; the other "
                f"partitions get PriorityTier {_HIGH} or more and PreemptMode=OFF, so that none of "
                "their jobs is ever sent away"
            ),
            gain=f"up to {gaps:.0f} GPU-hours, as measured in the history; what trainings would "
            "make of them: not simulated",
            basis="measured",
            refs=tuple(refs),
            toml=("[backfill]", "enabled = true", f'partitions = ["{name}"]'),
        )
        return
    yield from _mended(study, there)


def _mended(study: Study, there: list[Partition]) -> Iterator[Advice]:
    names = {p.name for p in there}
    refs = _preempting(study)
    if not _lower_than_all(study, there):
        refs += _above(study, names)
        refs += [study.draft.partition(p.name, {"PriorityTier": str(_LOW)}) for p in there]
    if refs:
        yield Advice(
            topic="order of partitions",
            why=(
                f"{', '.join(sorted(names))} is to give way, which needs {_PREEMPT} and a "
                "PriorityTier below that of every other partition on its nodes"
            ),
            refs=tuple(refs),
        )
    slow = [p for p in there if p.grace_s > 0]
    if slow:
        yield Advice(
            topic="GraceTime",
            why=(
                "Slurm looks at GraceTime on a timer of about 30 s (a GraceTime of 6 s was seen to "
                "take 6 to 25 s), and the job that needs the node waits for it; without it a "
                "training has KillWait to save and leave"
            ),
            refs=tuple(study.draft.partition(p.name, {"GraceTime": "0"}) for p in slow),
        )
    elif not refs:
        study.fine.append(
            f"idle nodes: partition {', '.join(sorted(names))} gives way as it should"
        )


def gives_way(partition: Partition, study: Study) -> bool:
    """Whether this is a partition for idle nodes: meant to be requeued, of the lowest tier."""
    mode = (partition.preempt_mode or study.setting("PreemptMode")).upper()
    tiers = [p.priority_tier for p in study.site.partitions if set(p.nodes) & set(partition.nodes)]
    named = study.config is not None and partition.name in study.config.backfill.partitions
    lowest = partition.priority_tier == min(tiers, default=0) < max(tiers, default=0)
    return named or ("REQUEUE" in mode and lowest)


def _on_gpus(partition: Partition, study: Study) -> bool:
    return bool({node.name for node in study.site.gpu_nodes} & set(partition.nodes))


def _lower_than_all(study: Study, there: list[Partition]) -> bool:
    names = {p.name for p in there}
    return all(
        other.priority_tier > p.priority_tier
        for p in there
        for other in study.site.partitions
        if other.name not in names and set(other.nodes) & set(p.nodes)
    )


def _preempting(study: Study) -> list[Ref]:
    refs = []
    if study.setting("PreemptType") != _PREEMPT:
        refs.append(study.draft.set("PreemptType", _PREEMPT))
    # CANCEL and SUSPEND stay as they are: a partition's own mode goes over them.
    if study.setting("PreemptMode").upper() in ("", "OFF"):
        refs.append(study.draft.set("PreemptMode", "REQUEUE"))
    return refs


def _above(study: Study, low: set[str]) -> list[Ref]:
    """The other partitions: above the low ones, their order among each other as it was, and never
    preempted, unless they say themselves that they are."""
    others = [p for p in study.site.partitions if p.name not in low]
    lift = max(0, _HIGH - min((p.priority_tier for p in others), default=_HIGH))
    had = study.setting("PreemptType") == _PREEMPT
    refs = []
    for p in others:
        keys = {"PriorityTier": str(p.priority_tier + lift)} if lift else {}
        if not p.preempt_mode or not had:
            keys["PreemptMode"] = "OFF"
        if keys:
            refs.append(study.draft.partition(p.name, keys))
    # A partition that this advice draws up is one of the others, and follows the one it is like.
    modes = {p.name: p.preempt_mode for p in others}
    for name, like in study.draft.drawn_up().items():
        keys = {"PriorityTier": str(study.draft.tier(name) + lift)}
        if not modes.get(like) or not had:
            keys["PreemptMode"] = "OFF"
        refs.append(study.draft.partition(name, keys))
    return refs


def free_name(names: tuple[str, ...], partitions: tuple[Partition, ...]) -> str:
    """The first of the names that no partition has, or the first one with a number."""
    taken = {p.name for p in partitions}
    numbered = (f"{names[0]}{number}" for number in range(2, len(taken) + 3))
    return next(name for name in (*names, *numbered) if name not in taken)
