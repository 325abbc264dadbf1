"""Moves that would take each other's place: what one job leaves, while another is on its way to
that node, may be the rest of what a job that waits needs to start there."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slurm_hadar.controller.picture import claims
from slurm_hadar.controller.picture.targets import Place, Target, placed
from slurm_hadar.controller.seen.observed import Observed
from slurm_hadar.domain.job import Job, JobState


class CrossingMoves:
    """The moves that are under way or chosen already, and the GPUs that they leave.

    Slurm's requeues of one tick end at different times, so all that they leave may be free at once.
    """

    def __init__(
        self,
        waiting: Sequence[Job],
        free: claims.Free,
        seen: Observed,
        under_way: Iterable[Target] = (),
    ) -> None:
        """``waiting``: those who can use nothing of what is free, in Slurm's order; ``free``:
        node -> type -> GPUs that are left to nobody; ``under_way``: moves of earlier ticks."""
        self._waiting, self._seen = waiting, seen
        self._free = {name: dict(gpus) for name, gpus in free.items()}
        self._leaving: dict[str, list[Job]] = {}
        self._coming: set[str] = set()
        for target in under_way:
            leaves = target.job.state in (JobState.RUNNING, JobState.COMPLETING)
            self._add(target.job if leaves else None, target.held)

    def add(self, job: Job, place: Place) -> None:
        """This job, which runs, is moved to ``place``."""
        self._add(job, place)

    def _add(self, leaves: Job | None, place: Place) -> None:
        self._coming |= {*place}
        for name in leaves.gpus if leaves is not None else ():
            if leaves is not None and name not in place:
                self._leaving.setdefault(name, []).append(leaves)

    def taker(self, job: Job, place: Place) -> str:
        """A job that waits and could start where this one is to go, or another one is on its way
        to, if this one were moved as well; "": there is none."""
        left = [name for name in job.gpus if name in self._coming]
        reached = [name for name in place if name in self._leaving and name not in left]
        return next((found for name in (*left, *reached) if (found := self._on(name, job))), "")

    def _on(self, name: str, job: Job) -> str:
        """A job that waits and could start on the node without this one and those that leave."""
        gone = [*self._leaving.get(name, ()), *([job] if name in job.gpus else [])]
        node = self._seen.nodes[name]
        room = dict(self._free.get(name, {}))
        cpus, memory = node.cpus_used, node.memory_used_mb
        for one in gone:
            for kind, count in placed(one, self._seen.nodes).get(name, {}).items():
                room[kind] = room.get(kind, 0) + count
            nodes = max(1, len(one.gpus))
            cpus -= claims.cpus(one) // nodes
            memory -= claims.memory_mb(one) // nodes
        emptier = replace(node, cpus_used=max(0, cpus), memory_used_mb=max(0, memory))
        shown = replace(self._seen, nodes={name: emptier})
        for other in self._waiting:
            # One of several nodes that it needs is enough.
            if claims.claim(other, shown, {name: dict(room)}, partly=True) is not None:
                return other.id
        return ""
