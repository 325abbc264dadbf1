"""The idle nodes and the trainings that may have them, as the policy looks at them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller.idle_training.curves import Curves
from slurm_hadar.controller.observation.observed import Observation
from slurm_hadar.controller.snapshot.eligibility import (
    SchedulableJob,
    profile_key,
)
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement, by_type
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray, View
from slurm_hadar.policies.bftrainer.records import NO_TRAINER, IdleMap, IdleView, Trainer

_NEVER_S = 1e5
"""Cost of a change that must not be."""


@dataclass(frozen=True)
class IdleNodeView:
    """``names``: nodes (I,) that are free or held, in the site's order; ``since``: when each became
    idle, s; ``targets``: the trainings (J,) that may have them now; ``shown``: the view that has
    these jobs and all nodes."""

    observation: Observation
    config: Config
    shown: View
    names: Sequence[str]
    since: Mapping[str, float]
    schedulable: Sequence[SchedulableJob]
    curves: Curves

    def view(self) -> IdleView:
        """What the policy sees.

        Nodes that are open to the same trainings are of one kind, whatever their GPUs, since copies
        of different speeds add up: each counts with the mean speed.
        """
        settings = self.config.backfill
        at = {name: i for i, name in enumerate(self.names)}
        number = {name: n for n, name in enumerate(self.observation.nodes)}
        ok, speed = self.accepted()
        holder: IntArray = np.full(len(self.names), NO_TRAINER, dtype=np.int64)
        for j, target in enumerate(self.schedulable):
            holder[[at[name] for name in target.held if name in at]] = j
        _, kinds = np.unique(ok, axis=1, return_inverse=True)
        kind = kinds.ravel().astype(np.int64)
        trainers = tuple(
            self._trainer(target, ok[j], kind, float(speed[j]))
            for j, target in enumerate(self.schedulable)
        )
        cap = settings.max_nodes_per_user
        # Slurm starts trainings beyond the cap: none is stopped for it, which Slurm would start
        # again.
        running = Counter(target.job.user for target in self.schedulable if target.held)
        return IdleView(
            now=self.observation.now,
            nodes=np.array([number[name] for name in self.names], np.int64),
            since_s=np.array([self.since[name] for name in self.names], np.float64),
            holder=holder,
            trainers=trainers,
            gpu_type=kind,
            forward_s=settings.tfwd_s,
            most_nodes=settings.max_nodes or None,
            user_caps={one.user: max(cap, running[one.user]) for one in trainers} if cap else {},
        )

    def accepted(self) -> tuple[BoolArray, FloatArray]:
        """(J, I) whether a copy of the training may run on the node, and (J,) samples/s of one
        copy, the mean over those nodes."""
        ok: BoolArray = np.zeros((len(self.schedulable), len(self.names)), dtype=bool)
        rate: FloatArray = np.zeros(ok.shape)
        at = {name: i for i, name in enumerate(self.shown.nodes.names)}
        jobs, group = self.shown.jobs, self.shown.nodes.group
        for j, target in enumerate(self.schedulable):
            row, count = self._row(target.job), per_node(target)
            for i, name in enumerate(self.names):
                node, kind = self.observation.nodes[name], self._kind(name)
                if kind is None or name not in at:
                    continue
                rate[j, i] = self._speed(target, kind)
                fits = (
                    node.gpus[kind] >= count
                    and node.cpus >= count * jobs.cpus_per_gpu[row]
                    and node.memory_mb >= count * jobs.mem_per_gpu_mb[row]
                )
                free = rate[j, i] > 0 and fits and jobs.groups[row, group[at[name]]]
                ok[j, i] = free or name in target.held
        mean: FloatArray = np.where(ok, rate, 0.0).sum(axis=1) / np.maximum(ok.sum(axis=1), 1)
        return ok, mean

    def placements(self, chosen: IdleMap) -> dict[str, Placement]:
        """The policy's answer, by job.

        It counts nodes of all types alike. So of those that would stay free beside it, a training
        takes the ones that are faster for it instead of the ones that it joins.
        """
        ok, _ = self.accepted()
        found, spare = {}, set(np.flatnonzero(chosen.holder == NO_TRAINER).tolist())
        for j, target in enumerate(self.schedulable):
            mine = np.flatnonzero(chosen.holder == j).tolist()
            stays = [i for i in mine if self.names[i] in target.held]
            joins = [i for i in mine if i not in stays]
            # Sorting keeps the policy's own choice among nodes that are alike.
            choice = joins + [i for i in sorted(spare) if ok[j, i]]
            choice.sort(key=partial(self._slowness, target))
            best = choice[: len(joins)]
            spare = (spare | set(joins)) - set(best)
            names = [self.names[i] for i in sorted([*stays, *best])]
            if names:
                found[target.job.id] = self._placement(target, names)
        return found

    def _slowness(self, target: SchedulableJob, i: int) -> float:
        return -self._speed(target, self._kind(self.names[i]) or "")

    def _placement(self, target: SchedulableJob, names: Sequence[str]) -> Placement:
        nodes, speeds = {}, []
        for name in names:
            kind = self._kind(name) or ""
            nodes[name] = {kind: per_node(target)}
            speeds.append(max(self._speed(target, kind), 1e-9))
        several = len(names) > 1
        return Placement(
            gpus=by_type(nodes),
            nodes=nodes,
            copies=len(names),
            shares=tuple(speed / sum(speeds) for speed in speeds) if several else (),
            tier="network" if several else "node",
            reason=f"trains on {len(names)} idle {'nodes' if several else 'node'} until another "
            f"job needs {'them' if several else 'it'}",
        )

    def _trainer(
        self, target: SchedulableJob, ok: BoolArray, kind: IntArray, speed: float
    ) -> Trainer:
        least, most = target.request.copies
        most = max(1, min(most, self.config.backfill.max_nodes_per_job or most, int(ok.sum())))
        grow = shrink = float(self.shown.jobs.restart_s[self._row(target.job)])
        if target.held and not self.shown.jobs.movable[self._row(target.job)]:
            # It may not be moved now: nothing to be had for it, nothing to be taken from it.
            least, most, grow, shrink = 1, len(target.held), 0.0, _NEVER_S
        most = max(most, len(target.held))
        curve = self.curves.curve(key_of(target.job), speed, least, most)
        rate: FloatArray = np.zeros((int(kind.max(initial=0)) + 1, most + 1))
        for number in np.unique(kind[ok]).tolist():
            rate[number] = curve
        return Trainer(target.job.id, rate, grow, shrink, target.job.user)

    def _row(self, job: Job) -> int:
        return self.shown.jobs.rows[job.id]

    def _kind(self, node: str) -> str | None:
        """The GPU type that the node gives."""
        return next(
            (kind for kind in self.observation.nodes[node].gpus if kind in self.shown.types), None
        )

    def _speed(self, target: SchedulableJob, kind: str) -> float:
        """Samples/s of one copy on a type; 0 where it cannot run or the type is unknown."""
        if kind not in self.shown.types:
            return 0.0
        place = self.shown.types.index(kind), self.shown.counts.index(per_node(target))
        return float(self.shown.jobs.rate[(self._row(target.job), *place)])


def key_of(job: Job) -> str:
    """Under which a training's curve is kept: by user and model."""
    return f"{job.uid}/{profile_key(job)}"


def per_node(target: SchedulableJob) -> int:
    """GPUs of one copy."""
    want = target.request
    return want.count if want.count in want.counts else want.counts[0]


def update_curves(
    curves: Curves,
    observation: Observation,
    shown: View,
    targets: Mapping[str, SchedulableJob],
) -> Curves:
    """The curves with what the running trainings report of this attempt."""
    for id_, target in targets.items():
        job, progress = target.job, observation.progress.get(id_)
        if job.state is not JobState.RUNNING or progress is None or target.starting:
            continue
        if progress.restarts != job.restarts:
            continue
        row, column = shown.jobs.rows[id_], shown.counts.index(per_node(target))
        expected = sum(
            float(shown.jobs.rate[row, shown.types.index(kind), column])
            for gpus in target.held.values()
            for kind in gpus
            if kind in shown.types
        )
        if progress.gpus == job.gpu_count:
            curves = curves.measured(key_of(job), len(target.held), progress.rate, expected)
    return curves
