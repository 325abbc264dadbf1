"""GPUs that Slurm counts as taken although no job has them."""

from collections.abc import Iterable, Iterator

from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.node import Node
from slurm_hadar.reports import formats

CURE = "scontrol reconfigure"
_THERE = (JobState.RUNNING, JobState.SUSPENDED, JobState.COMPLETING)


def lost(nodes: Iterable[Node], jobs: Iterable[Job]) -> Iterator[Node]:
    """Nodes with such GPUs."""
    # A job that is suspended keeps its GPUs and no CPU.
    busy = {name for job in jobs if job.state in _THERE for name in job.nodes}
    for node in nodes:
        if node.used_without_cpus and node.name not in busy:
            yield node


def lost_gpus_message(node: Node) -> str:
    """Problems with a node whose GPUs are lost."""
    return (
        f"node {node.name}: Slurm counts {formats.gpus(node.used_without_cpus)} as allocated "
        "although no job is there, so no job gets them (seen on 22.05 after a node went DOWN in a "
        "requeue)"
    )


class LostGpus:
    """Reports each such node once, as long as it lasts."""

    def __init__(self) -> None:
        self._reported: frozenset[str] = frozenset()

    def news(self, nodes: Iterable[Node], jobs: Iterable[Job]) -> list[str]:
        """One sentence for each node that was not so at the last look."""
        found = {node.name: node for node in lost(nodes, jobs)}
        new = [node for name, node in found.items() if name not in self._reported]
        self._reported = frozenset(found)
        return [f"{lost_gpus_message(node)}; an admin frees them: {CURE}" for node in new]
