"""DefCpuPerGPU and DefMemPerGPU from tables of the speed by CPUs and memory (Synergy's shipped)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from slurm_hadar.domain.node import Partition
from slurm_hadar.domain.view import FloatArray
from slurm_hadar.profiles.cpu_table import CpuTable
from slurm_hadar.profiles.table import model_key
from slurm_hadar.tuning.advice import WORTH, Advice, Study, gained
from slurm_hadar.tuning.advice_partitions import gives_way
from slurm_hadar.tuning.draft import Ref
from slurm_hadar.tuning.replay import OWN, ReplayWorkload, rerun
from slurm_hadar.tuning.sacct_history import History

_ENOUGH = 0.95
"""Part of the speed with a GPU's whole share of the node that the advice keeps."""
_KEYS = ("DefCpuPerGPU", "DefMemPerGPU")
_NO_MEMORY = ("DefMemPerCPU", "DefMemPerNode")


@dataclass(frozen=True, slots=True)
class _Recommendation:
    cpus: int
    mem_mb: int
    kept: float


def defaults(study: Study) -> Iterator[Advice]:
    """Defaults for the jobs of each open partition that ask for neither."""
    if study.cpus is None:
        return
    weights, known = _weights(study)
    refs: list[Ref] = []
    partitions: dict[str, list[str]] = {}
    cpus = 0
    memory = _counts_memory(study)
    drawn_up = [Partition(name, study.draft.nodes(name)) for name in study.draft.drawn_up()]
    for partition in [*study.open_partitions, *drawn_up]:
        share = _share(partition, study)
        if share is None or _has(partition, study) or gives_way(partition, study):
            continue
        recommended = _recommendation(study.cpus, weights, share)
        keys = {"DefCpuPerGPU": str(recommended.cpus)}
        if memory:
            keys["DefMemPerGPU"] = str(recommended.mem_mb)
        if not _starved(study, recommended.cpus):
            continue
        refs.append(study.draft.partition(partition.name, keys))
        what = (
            f"{recommended.kept:.0%} of the speed with a GPU's whole share of the node"
            f" ({share[0]} CPUs, {share[1] // 1024} GB)"
        )
        partitions.setdefault(what, []).append(partition.name)
        cpus = min(cpus or recommended.cpus, recommended.cpus)
    if not refs:
        study.fine.append(
            "DefCpuPerGPU, DefMemPerGPU: no advice; the open partitions with GPUs have them, or "
            "the CPUs of their nodes are unknown, or jobs ask for as many as help"
        )
        return
    what = (
        f"the models of {known} jobs of the history, by their GPU-hours"
        if known
        else "all models of the table alike, since the configuration names no job's model "
        "([simulation] job_names, accounts)"
    )
    gain = _gain(study, cpus) if known else ""
    yield Advice(
        topic="DefCpuPerGPU, DefMemPerGPU",
        why=(
            f"a job that asks for neither gets one CPU a task, which starves input pipelines"
            f"{_starved_words(study, cpus)}. By the table, for {what}: "
            + "; ".join(f"{words} in {', '.join(names)}" for words, names in partitions.items())
            + ". Slurm then counts such a job as one that asked per GPU: the controller leaves "
            "its CPUs alone, also where it changes the number of GPUs"
        ),
        gain=gain or "not simulated",
        basis="simulated" if gain else "not simulated",
        refs=tuple(refs),
    )


def _weights(study: Study) -> tuple[dict[str, float], int]:
    """Model -> GPU-hours of the history, and how many jobs these are; all alike without any."""
    assert study.cpus is not None
    weights: dict[str, float] = {}
    jobs = 0
    if study.work and study.history:
        for row, model in zip(study.work.rows, study.work.own.models, strict=True):
            if model and study.cpus.grid(model, 1) is not None:
                hours = float(study.history.gpus[row] * study.history.run_s[row]) / 3600.0
                key = model_key(model)
                weights[key] = weights.get(key, 0.0) + hours
                jobs += 1
    if weights:
        return weights, jobs
    return {model_key(str(row[0])): 1.0 for row in study.cpus.rows}, 0


def _share(partition: Partition, study: Study) -> tuple[int, int] | None:
    """CPUs and MB beside each GPU on the least of the partition's GPU nodes."""
    names = set(partition.nodes)
    found = [
        (node.cpus // sum(node.gpus.values()), node.memory_mb // sum(node.gpus.values()))
        for node in study.site.gpu_nodes
        if node.name in names
    ]
    cpus, mem = min(c for c, _ in found), min(m for _, m in found)
    return (cpus, mem) if cpus > 1 and mem > 1024 else None


def _few(study: Study, cpus: int) -> tuple[int, int]:
    """Jobs of the history with fewer CPUs per GPU, and jobs that tell theirs."""
    if study.history is None:
        return 0, 0
    known = study.history.cpus > 0
    each = study.history.cpus[known] / study.history.gpus[known]
    return int((each < cpus).sum()), int(known.sum())


def _starved(study: Study, cpus: int) -> bool:
    few, known = _few(study, cpus)
    return not known or few > WORTH * known


def _starved_words(study: Study, cpus: int) -> str:
    few, known = _few(study, cpus)
    return f" ({few} of {known} jobs had fewer than {cpus} CPUs a GPU)" if known else ""


def _has(partition: Partition, study: Study) -> bool:
    # One that advice draws up has all keys of the one that it is like.
    like = study.draft.drawn_up().get(partition.name, "") or partition.name
    entry = study.site.entry_of(like)
    keys: Mapping[str, str] = entry.keys if entry else {}
    whole = study.setting("JobDefaults") + study.setting("DefCpuPerGPU")
    return "defcpupergpu" in keys or bool(whole)


def _counts_memory(study: Study) -> bool:
    """Whether memory is given out at all. Slurm takes only one of its kinds of defaults."""
    counted = "MEMORY" in study.setting("SelectTypeParameters").upper()
    other = next((name for name in _NO_MEMORY if study.setting(name)), "")
    if not counted:
        study.fine.append("DefMemPerGPU: no advice; SelectTypeParameters gives out no memory")
    elif other:
        study.fine.append(
            f"DefMemPerGPU: no advice; {other} is set, and Slurm takes only one of the two"
        )
    return counted and not other


def _recommendation(
    table: CpuTable, weights: Mapping[str, float], share: tuple[int, int]
) -> _Recommendation:
    """The fewest CPUs, then the least memory (in steps of 1 GB), that keep enough of the speed."""
    most_cpus, most_gb = share[0], share[1] // 1024
    cpus, mem = np.arange(1.0, most_cpus + 1), np.arange(1.0, most_gb + 1) * 1024.0
    speed = np.zeros((len(cpus), len(mem)))
    for model, weight in weights.items():
        grid = table.grid(model, 1)
        assert grid is not None
        rate = grid.on(cpus, mem)
        speed += weight * rate / rate[-1, -1]
    speed /= sum(weights.values())
    c = int(np.argmax(speed[:, -1] >= _ENOUGH))
    m = int(np.argmax(speed[c] >= _ENOUGH))
    return _Recommendation(int(cpus[c]), int(mem[m]), float(speed[c, m]))


def _gain(study: Study, cpus: int) -> str:
    """The replay of the jobs as they were, those with fewer CPUs at the speed with so many."""
    work, own = study.work, study.run(OWN)
    if work is None or own is None or own.outcome is None or study.history is None:
        return ""
    factor = _factor(study, work, study.history, cpus)
    again = rerun(work, factor, study.restart_s)
    if again is None or again.unfinished:
        return ""
    before, after = own.outcome.avg_jct_s, again.avg_jct_s
    if after > (1 - WORTH / 5) * before:
        return ""
    return (
        f"{gained(before, after, 'mean job time')} in the replay of {len(factor)} jobs as they "
        f"were, {int((factor > 1).sum())} of them with more CPUs than they had"
    )


def _factor(study: Study, work: ReplayWorkload, history: History, cpus: int) -> FloatArray:
    assert study.cpus is not None
    factor = np.ones(len(work.rows))
    for at, (row, model) in enumerate(zip(work.rows, work.own.models, strict=True)):
        gpus = int(history.gpus[row])
        had = float(history.cpus[row]) / max(1, gpus)
        grid = study.cpus.grid(model, gpus) if model and 0 < had < cpus else None
        if grid is not None:
            mem = np.array([max(1024.0, float(history.mem_mb[row]) / gpus)])
            rate = grid.on(np.array([had, float(cpus)]), mem)[:, 0]
            factor[at] = rate[1] / rate[0]
    return factor
