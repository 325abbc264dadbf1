"""Idle nodes train: who gets them, and what is sent for it.

The policy is :mod:`slurm_hadar.policies.bftrainer`; here the cluster becomes what it looks at, and
its answer becomes starts, moves and leases like those of any managed job. Slurm takes the nodes
back by itself: it preempts whoever runs in a partition of a lower tier.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_hadar.config import Config
from slurm_hadar.controller import actions, idle_nodes
from slurm_hadar.controller.actions import Action
from slurm_hadar.controller.curves import Curves
from slurm_hadar.controller.observed import Observed
from slurm_hadar.controller.targets import Past, Target, profile_key, targets_of
from slurm_hadar.controller.viewing import Picture, picture_of
from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.job import Job, JobState
from slurm_hadar.domain.placement import Placement
from slurm_hadar.domain.view import BoolArray, FloatArray, State
from slurm_hadar.policies import bftrainer
from slurm_hadar.policies.bftrainer_records import NOBODY, IdleView, Trainer
from slurm_hadar.policies.bftrainer_stays import Stays
from slurm_hadar.profiles.rates import Rates

_NEVER_S = 1e5
"""Cost of a change that must not be."""


@dataclass(frozen=True)
class Backfill:
    """What one tick means to do with the idle nodes.

    ``idle``: nodes that nobody uses or is about to take; ``taken``: idle nodes left to others, with
    the reason; ``placements`` and ``waiting`` as in a plan; ``left_out``: trainings left to Slurm.
    """

    targets: Mapping[str, Target] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)
    placements: Mapping[str, Placement] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    deferred: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    notes: tuple[str, ...] = ()
    state: State = field(default_factory=dict)


def key_of(job: Job) -> str:
    """Under which a training's curve is kept: by user and model."""
    return f"{job.uid}/{profile_key(job)}"


def decide(
    seen: Observed,
    trainers: list[Job],
    config: Config,
    rates: Rates,
    past: Past,
    placed: Sequence[Placement],
    managed: Collection[str],
    state: State,
    moves_left: int,
) -> Backfill:
    """One round. ``managed``: the other jobs that are steered, ``placed``: where they are about to
    go; ``moves_left``: what they left of the moves that the guards allow."""
    if not config.backfill.partitions:
        return Backfill(state=state)
    targets, left_out = _targets(seen, trainers, config, past)
    if not config.backfill.enabled:
        why = "training on idle nodes is switched off (backfill.enabled)"
        left_out |= dict.fromkeys(targets, why)
        let_go = actions.let_go(left_out, seen, config)
        return Backfill(left_out=left_out, actions=tuple(let_go), state=state)
    round_ = _Round(seen, trainers, targets, left_out, config, rates, past, state)
    return round_.result(placed, managed, moves_left)


def _targets(
    seen: Observed, trainers: list[Job], config: Config, past: Past
) -> tuple[dict[str, Target], dict[str, str]]:
    ids = {job.id for job in trainers}
    if not ids:
        return {}, {}
    targets, left_out = targets_of(seen, config, past.moving)
    targets = {id_: target for id_, target in targets.items() if id_ in ids}
    left_out = {id_: why for id_, why in left_out.items() if id_ in ids}
    for id_, target in list(targets.items()):
        job, why = target.job, ""
        if not (job.declaration and job.declaration.checkpoint and job.requeue):
            why = "training on idle nodes needs checkpoint=yes and --requeue: it is stopped often"
        elif target.wanted.form != "node" or target.wanted.nodes != 1:
            why = "training on idle nodes needs its GPUs per node (--gres), and -N1 or nodes=1-K"
        if why:
            left_out[id_] = why
            del targets[id_]
    return targets, left_out


def _per_node(target: Target) -> int:
    """GPUs of one copy."""
    want = target.wanted
    return want.count if want.count in want.counts else want.counts[0]


class _Round:
    """Numbers of one round: nodes I that are idle or held by trainers, trainers J."""

    def __init__(
        self,
        seen: Observed,
        trainers: list[Job],
        targets: Mapping[str, Target],
        left_out: Mapping[str, str],
        config: Config,
        rates: Rates,
        past: Past,
        state: State,
    ) -> None:
        self.seen, self.config, self.left_out = seen, config, left_out
        self.trainers = trainers
        self.all_targets = targets
        self.shown: Picture = picture_of(
            seen, config, rates, past, targets, left_out, in_limit=False
        )
        self.curves = self._measured(Curves.read(state.get("curves")))
        try:
            stored = state.get("stays")
            self.stays = Stays.from_dict(stored) if isinstance(stored, dict) else Stays.unknown()
        except UsageError:
            # Only what was learned is lost.
            self.stays = Stays.unknown()
        since = state.get("since")
        self.since: dict[str, float] = since if isinstance(since, dict) else {}

    def result(
        self, placed: Sequence[Placement], managed: Collection[str], moves_left: int
    ) -> Backfill:
        """The decision and what is sent for it."""
        others = idle_nodes.without(self.seen, self.trainers)
        unused = set(idle_nodes.idle(self.seen, self.config))
        taken = idle_nodes.about_to_be_taken(others, unused, self.config, placed, managed)
        order = {name: number for number, name in enumerate(self.seen.nodes)}
        held = {n for target in self.all_targets.values() for n in target.held if n in order}
        free = [n for n in order if n in unused and n not in taken and n not in held]
        names = sorted({*free, *held}, key=lambda name: order[name])
        since = {name: self.since.get(name, self.seen.now) for name in names}
        jobs = self._at_once()
        view = self._view(names, order, since, jobs)
        chosen, stays = bftrainer.decide(view, self.stays)
        placements = {
            jobs[j].job.id: self._placement(
                jobs[j], [names[i] for i in np.flatnonzero(chosen.holder == j)]
            )
            for j in range(len(jobs))
            if (chosen.holder == j).any()
        }
        waiting = {
            id_: self._why_waiting(target, names, free)
            for id_, target in self.all_targets.items()
            if id_ not in placements
        }
        sent, deferred = self._actions(placements, waiting, set(free), moves_left)
        sent += actions.let_go(self.left_out, self.seen, self.config)
        return Backfill(
            targets=self.all_targets,
            idle=tuple(free),
            taken={name: why for name, why in taken.items() if name in unused},
            placements=placements,
            waiting=waiting,
            deferred=deferred,
            left_out=self.left_out,
            actions=tuple(sent),
            notes=chosen.notes,
            state={
                "stays": stays.to_dict(),
                "since": since,
                "curves": self.curves.plain(),
            },
        )

    def _at_once(self) -> list[Target]:
        """Those that have nodes, then the first of those that wait."""
        waiting = [target for target in self.all_targets.values() if not target.held]
        waiting.sort(key=lambda target: (-target.job.priority, target.job.submit_s, target.job.id))
        running = [target for target in self.all_targets.values() if target.held]
        return running + waiting[: max(0, self.config.backfill.at_once - len(running))]

    def _view(
        self,
        names: list[str],
        order: Mapping[str, int],
        since: Mapping[str, float],
        jobs: list[Target],
    ) -> IdleView:
        settings = self.config.backfill
        accepted, node_rate = self._accepted(names, jobs)
        holder = np.full(len(names), NOBODY)
        for j, target in enumerate(jobs):
            holder[[names.index(name) for name in target.held if name in order]] = j
        # Nodes open to the same trainers are of one kind: copies of different speeds add up.
        _, kind = np.unique(accepted, axis=1, return_inverse=True)
        kind = kind.ravel().astype(np.int64)
        kinds = int(kind.max()) + 1 if len(names) else 1
        trainers = [
            self._trainer(j, target, accepted, kind, kinds, node_rate[j])
            for j, target in enumerate(jobs)
        ]
        users = {one.user for one in trainers}
        cap = settings.max_nodes_per_user
        return IdleView(
            now=self.seen.now,
            nodes=np.array([order[name] for name in names], np.int64),
            since_s=np.array([since[name] for name in names], np.float64),
            holder=holder.astype(np.int64),
            trainers=tuple(trainers),
            gpu_type=kind,
            forward_s=settings.tfwd_s,
            most_nodes=settings.max_nodes or None,
            user_caps=dict.fromkeys(users, cap) if cap else {},
        )

    def _accepted(self, names: list[str], jobs: list[Target]) -> tuple[BoolArray, FloatArray]:
        """(J, I) whether a copy of the job may run on the node, and (J,) samples/s of one copy,
        the mean over these nodes."""
        view = self.shown.view
        at = {name: i for i, name in enumerate(view.nodes.names)}
        ok: BoolArray = np.zeros((len(jobs), len(names)), dtype=bool)
        rate: FloatArray = np.zeros((len(jobs), len(names)))
        for j, target in enumerate(jobs):
            row = view.jobs.ids.index(target.job.id)
            count = _per_node(target)
            column = view.counts.index(count)
            for i, name in enumerate(names):
                node = self.seen.nodes[name]
                kind = next((kind for kind in node.gpus if kind in view.types), None)
                if kind is None or name not in at:
                    continue
                rate[j, i] = view.jobs.rate[row, view.types.index(kind), column]
                ok[j, i] = (
                    rate[j, i] > 0
                    and node.gpus[kind] >= count
                    and view.jobs.groups[row, view.nodes.group[at[name]]]
                    and node.cpus >= count * view.jobs.cpus_per_gpu[row]
                    and node.memory_mb >= count * view.jobs.mem_per_gpu_mb[row]
                ) or name in target.held
        number = ok.sum(axis=1)
        mean: FloatArray = np.where(ok, rate, 0.0).sum(axis=1) / np.maximum(number, 1)
        return ok, mean

    def _trainer(
        self,
        j: int,
        target: Target,
        accepted: BoolArray,
        kind: np.ndarray,
        kinds: int,
        node_rate: float,
    ) -> Trainer:
        job, view = target.job, self.shown.view
        row = view.jobs.ids.index(job.id)
        least, most = target.wanted.copies
        cap = self.config.backfill.max_nodes_per_job
        most = max(1, min(most, cap or most, int(accepted[j].sum())))
        cost = float(view.jobs.restart_s[row])
        grow, shrink = cost, cost
        if target.held and not view.jobs.movable[row]:
            # It may not be moved now: nothing to win by it, and nothing to take from it.
            most, least, grow, shrink = len(target.held), 1, 0.0, _NEVER_S
        most = max(most, len(target.held))
        curve = self.curves.curve(key_of(job), node_rate, least, most)
        rate = np.zeros((kinds, most + 1))
        for number in range(kinds):
            if accepted[j, kind == number].any():
                rate[number] = curve
        return Trainer(job.id, rate, grow, shrink, job.user)

    def _placement(self, target: Target, names: list[str]) -> Placement:
        view = self.shown.view
        row, count = view.jobs.ids.index(target.job.id), _per_node(target)
        column = view.counts.index(count)
        nodes, speeds = {}, []
        for name in names:
            kind = next(kind for kind in self.seen.nodes[name].gpus if kind in view.types)
            nodes[name] = {kind: count}
            speeds.append(float(view.jobs.rate[row, view.types.index(kind), column]) or 1e-9)
        gpus: dict[str, int] = {}
        for place in nodes.values():
            for kind, number in place.items():
                gpus[kind] = gpus.get(kind, 0) + number
        shares = tuple(speed / sum(speeds) for speed in speeds)
        return Placement(
            gpus=gpus,
            nodes=nodes,
            copies=len(names),
            shares=shares if len(names) > 1 else (),
            tier="network" if len(names) > 1 else "node",
            reason=f"trains on {len(names)} idle {'node' if len(names) == 1 else 'nodes'}, "
            "until somebody wants them",
        )

    def _why_waiting(self, target: Target, names: list[str], free: list[str]) -> str:
        if not free:
            return "no node is idle"
        accepted, _ = self._accepted(free, [target])
        if not accepted.any():
            return "of the idle nodes none is open to it"
        return "the idle nodes are worth more to others, or not worth a start"

    def _actions(
        self,
        placements: Mapping[str, Placement],
        waiting: Mapping[str, str],
        free: set[str],
        moves_left: int,
    ) -> tuple[list[Action], dict[str, str]]:
        view, sent, deferred = self.shown.view, list[Action](), dict[str, str]()
        for id_, target in self.all_targets.items():
            placement = placements.get(id_)
            if target.starting:
                continue
            if target.job.state is JobState.RUNNING:
                movable = bool(view.jobs.movable[view.jobs.ids.index(id_)])
                action = self._change(target, placement, waiting.get(id_, ""))
                why = ""
                if action is None:
                    continue
                if not movable:
                    why = "it may not be moved now"
                elif placement and not set(placement.nodes) <= free | set(target.held):
                    why = "nodes that it shall get are not free yet"
                elif moves_left <= 0:
                    why = "moves of this tick or hour are used up"
                if why:
                    deferred[id_] = why
                else:
                    moves_left -= 1
                    sent.append(action)
            elif target.job.state is JobState.PENDING:
                why = waiting.get(id_, "")
                if placement and not set(placement.nodes) <= free:
                    placement, why = None, "the nodes that it shall get are not free yet"
                    deferred[id_] = why
                action = (
                    actions.start(target, placement, self.seen, self.config, pin=True)
                    if placement
                    else actions.wait(target, why, self.seen, self.config)
                )
                sent += [action] if action else []
        return sent, deferred

    def _change(self, target: Target, placement: Placement | None, why: str) -> Action | None:
        if placement is not None:
            return actions.move(target, placement, self.seen, self.config, pin=True)
        return actions.stop(target, why, self.seen, self.config)

    def _measured(self, curves: Curves) -> Curves:
        """The curves with what the running trainers report of this attempt."""
        view = self.shown.view
        for id_, target in self.all_targets.items():
            job, progress = target.job, self.seen.progress.get(id_)
            if job.state is not JobState.RUNNING or progress is None or target.starting:
                continue
            if progress.restarts != job.restarts or progress.gpus != job.gpu_count:
                continue
            row, column = view.jobs.ids.index(id_), view.counts.index(_per_node(target))
            expected = sum(
                float(view.jobs.rate[row, view.types.index(kind), column])
                for gpus in target.held.values()
                for kind in gpus
                if kind in view.types
            )
            curves = curves.measured(key_of(job), len(target.held), progress.rate, expected)
        return curves
