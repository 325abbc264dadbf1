"""GPUs that Slurm counts as taken although no job has them."""

from collections.abc import Iterable, Iterator, Mapping

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


def lost_gpus(nodes: Iterable[Node], jobs: Iterable[Job]) -> dict[str, str]:
    """Such a node -> a sentence on it, with the cure."""
    return {
        node.name: f"{lost_gpus_message(node)}; an admin frees them: {CURE}"
        for node in lost(nodes, jobs)
    }


def lost_news(known: Mapping[str, object], found: Mapping[str, str]) -> list[str]:
    """The sentence on each node that was not so at an earlier look, which found ``known``."""
    return [words for name, words in found.items() if name not in known]
