"""Replay of idle fragments: trainers on idle nodes under one of the policies that run live.

The policy is asked whenever nodes become idle or are taken back, a trainer arrives or ends. What
it does is charged by :class:`Charge`; the yardstick is the cost-free optimum: at each moment the
best counts for the trainers that are active then on as many nodes as are idle (and allowed by the
cap), rescaled for free.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module

import numpy as np

from slurm_hadar.domain.errors import UsageError
from slurm_hadar.domain.view import BoolArray, FloatArray, IntArray
from slurm_hadar.policies.bftrainer.idle_survival import IdleSurvival
from slurm_hadar.policies.bftrainer.records import NO_TRAINER, IdleMap, IdleView, Trainer
from slurm_hadar.simulator.idle.fragments import Fragments
from slurm_hadar.simulator.idle.trainers import TrainerWork, TrainerWorkload
from slurm_hadar.solvers.node_counts import best_values

DecideIdle = Callable[[IdleView, IdleSurvival], tuple[IdleMap, IdleSurvival]]

_POLICIES = {
    "bftrainer": ("policy", "decide"),
    "bftrainer_plain": ("policy", "decide_plain"),
    "equal_share": ("equal", "decide"),
}
_DONE = 1e-9
_SLICE_S = 3600.0


def policy_names() -> tuple[str, ...]:
    """The policies for idle nodes."""
    return tuple(_POLICIES)


def policy_of(name: str) -> DecideIdle:
    """A policy by its name. Raises UsageError."""
    if name not in _POLICIES:
        raise UsageError(
            f"there is no policy {name!r} for idle nodes; known: {', '.join(_POLICIES)}"
        )
    module, function = _POLICIES[name]
    found = import_module(f"slurm_hadar.policies.bftrainer.{module}")
    decide: DecideIdle = getattr(found, function)
    return decide


@dataclass(frozen=True)
class Charge:
    """What a rescale and a forced leave cost, in samples.

    ``after``: growing costs its seconds at the rate after it (no node trains meanwhile, so a
    start costs too); else, as in BFTrainer's own replay, at the rate before it, and a start is
    free. Shrinking and a forced leave cost their seconds at the rate before, a leave once however
    many nodes go (arXiv 2106.12091, verified in its code)."""

    after: bool

    def rescale(
        self, trainer: Trainer, before: float, after: float, grown: bool, shrunk: bool
    ) -> float:
        """Samples that a change by choice costs; rates in samples/s."""
        cost = trainer.grow_s * (after if self.after else before) if grown else 0.0
        return cost + (trainer.shrink_s * before if shrunk else 0.0)

    def leave(self, trainer: Trainer, before: float) -> float:
        """Samples that nodes taken back cost their trainer, once."""
        return trainer.shrink_s * before


def charges(name: str) -> Charge:
    """``strict`` or ``paper``. Raises UsageError."""
    if name not in ("strict", "paper"):
        raise UsageError(f"there is no charge {name!r}; known: strict, paper")
    return Charge(name == "strict")


@dataclass
class IdleOutcome:
    """What a replay gave. Work and optimum in samples; ``lost``, ``rescaling``: samples charged
    for nodes taken back, and for rescales by choice. ``done_by_slice``, ``best_by_slice``: samples
    per hour of the replay, before costs and at the optimum."""

    policy: str
    trainers: int
    work: float = 0.0
    optimum: float = 0.0
    lost: float = 0.0
    rescaling: float = 0.0
    rescales: int = 0
    preemptions: int = 0
    finished: int = 0
    end_s: float = 0.0
    decide_s: list[float] = field(default_factory=list)
    done_by_slice: dict[int, float] = field(default_factory=dict)
    best_by_slice: dict[int, float] = field(default_factory=dict)

    @property
    def efficiency(self) -> float:
        """Work done over the cost-free optimum; 0 where nothing could be done."""
        return self.work / self.optimum if self.optimum else 0.0

    def summary(self) -> dict[str, object]:
        """The figures that ``hadar simulate idle --json`` prints."""
        base = self.optimum or 1.0
        decide_ms = np.array(self.decide_s or [0.0]) * 1e3
        unused = 1.0 - self.efficiency - (self.lost + self.rescaling) / base
        return {
            "policy": self.policy,
            "efficiency": self.efficiency,
            "rescales": self.rescales,
            "preemptions": self.preemptions,
            "lost_work_share": self.lost / base,
            "rescale_share": self.rescaling / base,
            "unused_share": unused if self.optimum else 0.0,
            "decide_ms_mean": float(decide_ms.mean()),
            "decide_ms_max": float(decide_ms.max()),
            "decisions": len(self.decide_s),
            "trainers": self.trainers,
            "trainers_finished": self.finished,
            "work_samples": self.work,
            "optimum_samples": self.optimum,
            "end_s": self.end_s,
        }


@dataclass(frozen=True, slots=True)
class IdleTerms:
    """``forward_s``: how far the policy looks ahead; ``charge``: see :func:`charges`;
    ``most_nodes``: the cap of the cluster."""

    forward_s: float = 120.0
    charge: str = "paper"
    most_nodes: int | None = None


def replay(
    fragments: Fragments, workload: TrainerWorkload, policy: str, terms: IdleTerms | None = None
) -> IdleOutcome:
    """Replay all fragments, or until all trainers have ended. Raises UsageError for a policy or a
    charge that there is not."""
    terms = terms or IdleTerms()
    world = _World(fragments, workload, policy_of(policy), charges(terms.charge), policy)
    world.ask = replace(world.ask, forward_s=terms.forward_s, most_nodes=terms.most_nodes)
    return world.run()


@dataclass
class _Active:
    number: int
    work: TrainerWork
    done: float = 0.0


class _World:
    def __init__(
        self,
        fragments: Fragments,
        workload: TrainerWorkload,
        decide: DecideIdle,
        charge: Charge,
        name: str,
    ) -> None:
        count = len(fragments.names)
        self.fragments, self.queue, self.at_once = fragments, workload.work, workload.at_once
        self.decide, self.charge = decide, charge
        self.idle: BoolArray = np.zeros(count, bool)
        self.since: FloatArray = np.zeros(count)
        self.holder: IntArray = np.full(count, NO_TRAINER)
        """Per node: number of the trainer in the queue."""
        self.active: list[_Active] = []
        self.next = 0
        self.now = 0.0
        self.survival = IdleSurvival.unknown()
        self.ask = IdleView(0.0, np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64), ())
        self.out = IdleOutcome(name, len(workload.work))
        self._best: dict[tuple[int, ...], FloatArray] = {}

    def run(self) -> IdleOutcome:
        part = self.fragments
        begin, end = np.argsort(part.start_s, kind="stable"), np.argsort(part.end_s, kind="stable")
        arrivals = [work.arrival_s for work in self.queue]
        times = np.unique(np.concatenate([part.start_s, part.end_s, arrivals]))
        last = float(part.end_s.max())
        starts = np.searchsorted(part.start_s[begin], times, side="right").tolist()
        ends = np.searchsorted(part.end_s[end], times, side="right").tolist()
        started = ended = 0
        for at, s, e in zip(times.tolist(), starts, ends, strict=True):
            if at > last:
                break
            self._train_until(at)
            if not self.active and self.next >= len(self.queue):
                break
            self._admit()
            self._take_back(part.node[end[ended:e]])
            fresh = part.node[begin[started:s]]
            self.idle[fresh], self.since[fresh] = True, at
            started, ended = s, e
            self._decide()
        self.out.end_s = self.now
        return self.out

    def _admit(self) -> None:
        while (
            len(self.active) < self.at_once
            and self.next < len(self.queue)
            and self.queue[self.next].arrival_s <= self.now
        ):
            self.active.append(_Active(self.next, self.queue[self.next]))
            self.next += 1

    def _rates(self) -> list[float]:
        held = self._held()
        return [_rate(one, count) for one, count in zip(self.active, held, strict=True)]

    def _held(self) -> list[int]:
        used = self.holder[self.holder >= 0]
        found = np.bincount(used, minlength=self.next + 1)
        return [int(found[one.number]) for one in self.active]

    def _train_until(self, until: float) -> None:
        while self.now < until:
            rates = self._rates()
            stop = until
            for one, rate in zip(self.active, rates, strict=True):
                if rate > 0:
                    left = max(0.0, one.work.samples - one.done)
                    stop = min(stop, self.now + left / rate)
            self._advance(stop, rates)
            ended = [one for one in self.active if one.done >= one.work.samples * (1 - _DONE)]
            for one in ended:
                self.out.work -= one.done - one.work.samples
                self.out.finished += 1
                self.active.remove(one)
                self.holder[self.holder == one.number] = NO_TRAINER
            if ended:
                self._admit()
                if not self.active and self.next >= len(self.queue):
                    return
                if self.now < until:
                    self._decide()

    def _advance(self, stop: float, rates: list[float]) -> None:
        span = stop - self.now
        best = self._optimum()
        total = 0.0
        for one, rate in zip(self.active, rates, strict=True):
            one.done += rate * span
            total += rate * span
        self.out.work += total
        self.out.optimum += best * span
        self._note(self.out.best_by_slice, stop, best)
        self._note(self.out.done_by_slice, stop, sum(rates))
        self.now = stop

    def _note(self, by_slice: dict[int, float], stop: float, rate: float) -> None:
        at = self.now
        while at < stop:
            slot = int(at // _SLICE_S)
            end = min(stop, (slot + 1) * _SLICE_S)
            by_slice[slot] = by_slice.get(slot, 0.0) + rate * (end - at)
            at = end

    def _optimum(self) -> float:
        key = tuple(sorted(id(one.work.trainer) for one in self.active))
        if key not in self._best:
            curves = [one.work.trainer.rate[0] for one in self.active]
            most = sum(len(curve) - 1 for curve in curves)
            # Below its least count a trainer does nothing, so more nodes are never worse.
            table = best_values(curves, min(most, len(self.fragments.names)))
            self._best[key] = np.maximum.accumulate(table)
        table = self._best[key]
        idle = int(self.idle.sum())
        allowed = idle if self.ask.most_nodes is None else min(idle, self.ask.most_nodes)
        return float(table[min(allowed, len(table) - 1)])

    def _take_back(self, nodes: IntArray) -> None:
        self.idle[nodes] = False
        if not len(nodes):
            return
        hit = set(self.holder[nodes].tolist()) - {NO_TRAINER}
        before = dict(zip((one.number for one in self.active), self._held(), strict=True))
        self.holder[nodes] = NO_TRAINER
        for one in self.active:
            if one.number in hit:
                self.out.preemptions += 1
                rate = _rate(one, before[one.number])
                lost = self.charge.leave(one.work.trainer, rate)
                one.done -= lost
                self.out.work -= lost
                self.out.lost += lost

    def _decide(self) -> None:
        nodes = np.flatnonzero(self.idle)
        slot = np.full(self.next + 1, NO_TRAINER)
        slot[[one.number for one in self.active]] = np.arange(len(self.active))
        view = replace(
            self.ask,
            now=self.now,
            nodes=nodes,
            since_s=self.since[nodes],
            holder=slot[self.holder[nodes]],
            trainers=tuple(one.work.trainer for one in self.active),
        )
        began = time.perf_counter()
        plan, self.survival = self.decide(view, self.survival)
        self.out.decide_s.append(time.perf_counter() - began)
        if not self.active:
            return
        old, new = view.holder, plan.holder
        if new.shape != old.shape or (new >= len(self.active)).any():
            raise ValueError(f"policy {self.out.policy} gave a map of another shape")
        changed = np.flatnonzero(new != old)
        if not len(changed):
            return
        grown, shrunk = set(new[changed].tolist()), set(old[changed].tolist())
        sizes = np.bincount(new[new >= 0], minlength=len(self.active))
        for j in sorted((grown | shrunk) - {NO_TRAINER}):
            one = self.active[j]
            cost = self.charge.rescale(
                one.work.trainer,
                _rate(one, int((old == j).sum())),
                _rate(one, int(sizes[j])),
                j in grown,
                j in shrunk,
            )
            one.done -= cost
            self.out.work -= cost
            self.out.rescaling += cost
            self.out.rescales += 1
        numbers = np.array([one.number for one in self.active] + [NO_TRAINER])
        self.holder[nodes] = numbers[new]


def _rate(one: _Active, nodes: int) -> float:
    rate = one.work.trainer.rate[0]
    return float(rate[min(nodes, len(rate) - 1)])
