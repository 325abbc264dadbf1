"""Which GPU type a job asked for, and which it had, where the accounting only hints at it."""

import re
from collections.abc import Mapping

from slurm_hadar import reading
from slurm_hadar.domain.errors import SlurmError
from slurm_hadar.domain.job import UNTYPED
from slurm_hadar.slurm import hosts
from slurm_hadar.tuning.site import SlurmSite

OPEN = -1
"""In place of a type: the job asked for none, any would have done for Slurm."""


class RequestedTypes:
    """What the site says about types."""

    def __init__(self, site: SlurmSite) -> None:
        self.types = site.types
        self.index = {kind: at for at, kind in enumerate(site.types)}
        self._spelled = {kind.lower(): kind for kind in site.types}
        self.of_node = {node.name: tuple(node.gpus) for node in site.nodes}
        of_partition: dict[str, set[str]] = {}
        by_feature: dict[str, set[str]] = {}
        for node in site.gpu_nodes:
            for feature in node.features:
                by_feature.setdefault(feature, set()).update(node.gpus)
            for partition in node.partitions:
                of_partition.setdefault(partition, set()).update(node.gpus)
        self.of_partition = of_partition
        self.by_feature = by_feature
        self._nodes = reading.remembered(200_000)(self._of_nodes)

    def spelled(self, gpus: Mapping[str, int]) -> dict[str, int]:
        """The same with types as the site spells them: accounting may have other capitals."""
        return {self._spelled.get(kind.lower(), kind): number for kind, number in gpus.items()}

    def of_nodes(self, text: str) -> str | None:
        """The only GPU type of these nodes; None where there is none or several."""
        return self._nodes(text)

    def _of_nodes(self, text: str) -> str | None:
        try:
            names = hosts.expand(text)
        except SlurmError:
            return None
        kinds = {kind for name in names for kind in self.of_node.get(name, (None,))}
        return kinds.pop() if len(kinds) == 1 else None

    def asked(self, request: Mapping[str, int], constraint: str, partitions: str) -> int:
        """Index of the only type that was asked for, :data:`OPEN` for none."""
        typed = [kind for kind in request if kind != UNTYPED]
        if typed:
            return self.index.get(typed[0], OPEN) if len(typed) == 1 else OPEN
        words = set(re.findall(r"[A-Za-z0-9_.-]+", constraint))
        for kinds in (
            # A | between features leaves a choice.
            [] if "|" in constraint else [self.by_feature[w] for w in words & set(self.by_feature)],
            [set().union(*(self.of_partition.get(p, set()) for p in partitions.split(",")))],
        ):
            if kinds and len(only := set.intersection(*kinds)) == 1:
                return self.index[only.pop()]
        return OPEN
