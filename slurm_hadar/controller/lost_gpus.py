"""GPUs that Slurm counts as taken although no job has them."""

from collections.abc import Iterable

from slurm_hadar.domain.node import Node
from slurm_hadar.reports import formats

CURE = "scontrol reconfigure"


def words(node: Node) -> str:
    """What is wrong with a node whose GPUs are lost."""
    return (
        f"node {node.name}: Slurm counts {formats.gpus(node.lost_gpus)} as taken though no job is "
        "there, and gives them to nobody (22.05 does so after a node went DOWN in a requeue)"
    )


class LostGpus:
    """Tells of each such node once, as long as it lasts."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def news(self, nodes: Iterable[Node]) -> list[str]:
        """One sentence for each node that was not so at the last look."""
        lost = {node.name: node for node in nodes if node.lost_gpus}
        new = [node for name, node in lost.items() if name not in self._told]
        self._told = frozenset(lost)
        return [f"{words(node)}; an admin frees them: {CURE}" for node in new]
