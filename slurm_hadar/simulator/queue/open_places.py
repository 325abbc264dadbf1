"""Where running jobs may move to, as the controller has it
(:mod:`slurm_hadar.controller.actuation.destinations.open_places`)."""

from collections.abc import Sequence

import numpy as np

from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import IntArray
from slurm_hadar.scheduling import slurm_schedulers
from slurm_hadar.scheduling.slurm_schedulers import Waiting
from slurm_hadar.simulator.queue.cluster_state import ClusterState


class OpenPlaces:
    """The GPUs that no waiting job has reserved or can use, alone or with what the moves of this
    tick leave."""

    def __init__(
        self, state: ClusterState, queue: Sequence[Waiting], leaving: Sequence[int], now: float
    ) -> None:
        """``queue``: who waits, in Slurm's order; ``leaving``: who moves in this tick."""
        self._state, self._now = state, now
        self._types = {name: at for at, name in enumerate(state.cluster.types)}
        self._reserved = state.free_over_time(now)
        slurm_schedulers.backfill_scheduler(queue, self._reserved, lambda job, kind: True)
        self._left: IntArray = state.free()
        # One that a reservation keeps from what is free starts on it in the next pass of backfill,
        # where that is free for longer by then.
        self._waiting = [one for one in queue if not self._serve(one)]
        all_left = self._left + state.on[list(leaving)].sum(axis=0)
        self._joint = {
            kind for one in self._waiting for kind in one.kinds if one.count <= all_left[kind]
        }

    def is_open(self, job: int, placement: Placement) -> bool:
        """Whether a running job may move there."""
        if self._is_closed(job, placement):
            return False
        limit = float(self._state.asked.limit_s[job])
        return all(
            kind not in self._joint
            and count <= self._left[kind]
            and self._reserved[kind].earliest(count, limit) <= self._now
            for kind, count in self._more(job, placement).items()
        )

    def take(self, job: int, placement: Placement) -> None:
        """The job, which is where it was, moves there."""
        end = self._now + float(self._state.asked.limit_s[job])
        for kind, count in self._more(job, placement).items():
            self._left[kind] -= count
            self._reserved[kind].take(self._now, end, count)

    def _serve(self, one: Waiting) -> bool:
        kind = next((kind for kind in one.kinds if one.count <= self._left[kind]), None)
        if kind is not None:
            self._left[kind] -= one.count
        return kind is not None

    def _more(self, job: int, placement: Placement) -> dict[int, int]:
        """Type -> GPUs beyond what the job has of it."""
        on = self._state.on[job]
        more = {self._types[name]: count for name, count in placement.gpus.items()}
        return {k: count - int(on[k]) for k, count in more.items() if count > on[k]}

    def _is_closed(self, job: int, placement: Placement) -> bool:
        """Whether a job ahead waits for the new type but not for the old one: Slurm's main
        scheduler would start the requeued job on the old one again."""
        new = {self._types[name] for name in placement.gpus}
        old = set(np.flatnonzero(self._state.on[job]).tolist())
        is_ahead = self._state.order.is_ahead
        closed = {
            kind for one in self._waiting if is_ahead(one.job, job, self._now) for kind in one.kinds
        }
        return bool(new & closed - old) and not old <= closed
