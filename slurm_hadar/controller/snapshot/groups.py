"""Nodes in groups: those of one group are open to the same jobs."""

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np

from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.constraints import met
from slurm_hadar.controller.snapshot.whole_nodes import HostShape, WholeNodeNeed, host_shapes
from slurm_hadar.domain.job import Job
from slurm_hadar.domain.view import BoolArray

_Key = tuple[frozenset[str], frozenset[str], frozenset[int], float, HostShape | None]
_Mask = tuple[tuple[str, ...], str, int | None, float | None, WholeNodeNeed | None]


class Groups:
    """Nodes that differ in nothing that decides which jobs may use them."""

    def __init__(self, observation: Observation, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        keys: dict[_Key, int] = {}
        lists = dict.fromkeys(job.excluded_nodes for job in jobs if job.excluded_nodes)
        # Without whole nodes many nodes are alike.
        whole = any(job.whole_nodes for job in jobs)
        hosts = host_shapes(observation, jobs) if whole else {}
        self._lists = {names: index for index, names in enumerate(lists)}
        excluded: dict[str, set[int]] = {}
        for names, index in self._lists.items():
            for name in names:
                excluded.setdefault(name, set()).add(index)
        closes = next_reservation(observation)
        self.of_node: dict[str, int] = {}
        for node in observation.nodes.values():
            key = (
                frozenset(node.partitions),
                frozenset(node.features),
                frozenset(excluded.get(node.name, ())),
                closes.get(node.name, inf),
                hosts.get(node.name),
            )
            self.of_node[node.name] = keys.setdefault(key, len(keys))
        self._keys = list(keys)
        self._now = observation.now
        self._masks: dict[_Mask, BoolArray] = {}

    @property
    def count(self) -> int:
        """How many groups there are."""
        return len(self._keys)

    def mask(
        self,
        job: Job,
        partitions: Sequence[str],
        constraint: str,
        whole: WholeNodeNeed | None = None,
        *,
        at_any_time: bool = False,
    ) -> BoolArray:
        """(G,) groups open to a job in these partitions under this constraint.

        Closed are nodes that the job excludes, and those that a reservation takes before the
        job's time limit is over: Slurm would not start it there. ``whole``: what its nodes must
        have, of a job that has them alone; ``at_any_time``: whatever is reserved.
        """
        excluded = self._lists.get(job.excluded_nodes)
        limit_s = None if at_any_time else job.time_limit_s
        key = (tuple(partitions), constraint, excluded, limit_s, whole)
        if key not in self._masks:
            wanted_names = set(partitions)
            end = self._now + job.time_limit_s
            self._masks[key] = np.array(
                [
                    bool(wanted_names & names)
                    and met(constraint, features)
                    and excluded not in lists
                    and (at_any_time or closes == inf or end <= closes)
                    and (whole is None or (host is not None and whole.met_by(host)))
                    for names, features, lists, closes, host in self._keys
                ],
                dtype=bool,
            )
        return self._masks[key]


def next_reservation(observation: Observation) -> dict[str, float]:
    """Node -> start of its next reservation, or of the one that it is under, s."""
    found: dict[str, float] = {}
    for reservation in observation.reservations:
        if reservation.end_s > observation.now:
            for node in reservation.nodes:
                found[node] = min(found.get(node, inf), reservation.start_s)
    return found
