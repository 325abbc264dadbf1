"""``hadar check`` on the nodes: GPU types, their features, GPUs that Slurm has lost."""

from collections.abc import Iterator

from slurm_hadar.config import Config
from slurm_hadar.controller.checks.finding import Finding
from slurm_hadar.controller.observation.lost_gpus import CURE, lost, lost_gpus_message
from slurm_hadar.domain.job import UNTYPED, Job
from slurm_hadar.domain.node import Node
from slurm_hadar.reports import formats


def lost_findings(nodes: list[Node], jobs: list[Job]) -> Iterator[Finding]:
    """GPUs that no job has and Slurm gives to none."""
    for node in lost(nodes, jobs):
        yield Finding("problem", lost_gpus_message(node), CURE)


def type_findings(config: Config, nodes: list[Node]) -> Iterator[Finding]:
    """Whether the types of [gpu_types] are those that Slurm has, and can be selected."""
    found: dict[str, int] = {}
    for node in nodes:
        for kind, count in node.gpus.items():
            found[kind] = found.get(kind, 0) + count
    for kind, count in sorted(found.items()):
        if kind == UNTYPED:
            yield Finding(
                "warning",
                f"{count} GPUs have no type in gres.conf",
                "give each type a node feature and name it in [gpu_types.NAME] feature",
            )
        elif kind not in config.gpu_types:
            yield Finding(
                "warning",
                f"{count} x {kind}: not in the configuration",
                f"add [gpu_types.{kind}] with memory_gb (and feature)",
            )
        else:
            feature = config.gpu_types[kind].feature
            without = [n.name for n in nodes if kind in n.gpus and feature not in n.features]
            if without:
                yield Finding(
                    "problem",
                    f"{kind}: {formats.counted(len(without), 'node')} without the feature "
                    f"{feature}, first {without[0]}",
                    f"add Features={feature} in slurm.conf",
                )
            else:
                yield Finding("ok", f"{count} x {kind}, selected by feature {feature}")
    for kind in config.gpu_types:
        if kind not in found:
            yield Finding(
                "warning",
                f"[gpu_types.{kind}]: no such GPU in this Slurm",
                "remove the section, or correct the name",
            )
